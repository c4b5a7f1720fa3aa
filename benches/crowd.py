#!/usr/bin/env python3
"""Simulates steps that run at once: how large an arena must be for them, by how their blocks are placed.

    benches/crowd.py [--seeds 2] [--steps 4000] [--threads 8]

Each thread runs steps of three kinds at random: layers with scratch, whose outputs are kept for some layers on. Two ways are
compared: a stretch for each thread, as high as the largest step's load, in which its blocks have planned places; and one arena
in which each block takes the smallest gap that holds it. Printed are the bytes each needs for each byte that is ever alive at
once, and the share of the bytes that an arena of 1.00, 1.05 and 1.09 times that leaves to another allocator.
"""
import argparse, bisect, random


def kind(layers, unit):
    """A step as a list of (block, bytes) allocated and (block, None) freed."""
    events, kept, blocks = [], [], 0
    for _ in range(layers):
        scratch, output = blocks, blocks + 1
        blocks += 2
        events.append((scratch, unit * random.choice([1, 1, 2, 4, 4, 8])))
        events.append((output, unit * random.choice([1, 2, 4])))
        events.append((scratch, None))
        kept.append(output)
        if len(kept) > 4 and random.random() < 0.5:
            events.append((kept.pop(0), None))
    return events + [(block, None) for block in reversed(kept)]


def load(events):
    alive = most = 0
    sizes = {}
    for block, size in events:
        alive += size if size else -sizes[block]
        sizes[block] = size
        most = max(most, alive)
    return most


class Arena:
    """Free stretches, ascending, as (start, bytes)."""

    def __init__(self, size):
        self.free, self.top = [(0, size)], 0

    def allocate(self, size):
        fitting = [(length, index) for index, (_, length) in enumerate(self.free) if length >= size]
        if not fitting:
            return None
        length, index = min(fitting)
        start = self.free[index][0]
        self.free[index : index + 1] = [(start + size, length - size)] if length > size else []
        self.top = max(self.top, start + size)
        return start

    def release(self, start, size):
        index = bisect.bisect(self.free, (start, 0))
        if index < len(self.free) and self.free[index][0] == start + size:
            size += self.free.pop(index)[1]
        if index > 0 and sum(self.free[index - 1]) == start:
            index -= 1
            start, size = self.free[index][0], size + self.free.pop(index)[1]
        self.free.insert(index, (start, size))


def run(kinds, size, arguments):
    """Bytes alive at once at most, the highest byte used, and the share of the bytes that found no gap."""
    arena, done = Arena(size), 0
    alive = most = asked = missed = 0
    threads = [(random.choice(kinds), 0, {}) for _ in range(arguments.threads)]
    while done < arguments.steps:
        thread = random.randrange(arguments.threads)
        events, at, blocks = threads[thread]
        for block, bytes in events[at : at + random.randrange(1, 4)]:
            at += 1
            if bytes:
                blocks[block] = (arena.allocate(bytes), bytes)
                alive, asked = alive + bytes, asked + bytes
                most, missed = max(most, alive), missed + (bytes if blocks[block][0] is None else 0)
            else:
                start, bytes = blocks.pop(block)
                alive -= bytes
                if start is not None:
                    arena.release(start, bytes)
        threads[thread] = (events, at, blocks)
        if at == len(events):
            threads[thread] = (random.choice(kinds), 0, {})
            done += 1
    return most, arena.top, missed / asked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=8)
    arguments = parser.parse_args()
    for seed in range(1, arguments.seeds + 1):
        random.seed(seed)
        kinds = [kind(12, 64_000), kind(20, 160_000), kind(30, 38_400)]
        state = random.getstate()
        most, top, _ = run(kinds, 1 << 60, arguments)
        stretches = arguments.threads * max(map(load, kinds))
        print(f"seed {seed}: alive at once {most}; a stretch a thread {stretches / most:.3f} x, smallest gaps {top / most:.3f} x")
        for factor in (1.0, 1.05, 1.09):
            random.setstate(state)
            missed = run(kinds, int(most * factor) // 64 * 64, arguments)[2]
            print(f"  an arena of {factor:.2f} x leaves {100 * missed:.4f} % of the bytes")


main()
