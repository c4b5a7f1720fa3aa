#!/usr/bin/env python3
"""How many of a plan's slots have their bits in one word, of the arena's bitmaps as they are (granules of a page), and of a
bitmap cut at the edges of the slots ("cells"). Prints CSV.

    benches/words.py [TRACE...] (default: the recorded PyTorch trainings in ../shared/traces)
"""
import csv, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
PAGE, GROUP, GROUPS_A_WORD = 4096, 64, 32


def is_one_word(start, length):
    """As `Place::of` in allocators/stepalloc/src/arena.rs; in granules."""
    inside = length < GROUP and start % GROUP + length <= GROUP
    word = GROUP * GROUPS_A_WORD
    return inside or (start % GROUP == length % GROUP == 0 and start % word + length <= word)


def main():
    traces = sys.argv[1:] or sorted((ROOT.parent / "shared/traces").glob("torch_*_train.csv.gz"))
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    print("trace,slots,one word of granules or groups,cells,one word of cells")
    for trace in traces:
        with tempfile.NamedTemporaryFile("r", suffix=".csv") as plan:
            subprocess.run([TARGET / "stepalloc", "plan", trace, "--output", plan.name], check=True, capture_output=True)
            slots = [(int(row["offset"]), int(row["size"])) for row in csv.DictReader(plan)]
        granules = sum(is_one_word(offset // PAGE, -(-size // PAGE)) for offset, size in slots)
        edges = sorted({offset for offset, _ in slots} | {offset + size for offset, size in slots})
        cell = {edge: index for index, edge in enumerate(edges)}
        cells = sum(cell[offset] // 64 == (cell[offset + size] - 1) // 64 for offset, size in slots)
        print(f"{pathlib.Path(trace).name},{len(slots)},{granules / len(slots):.2f},{len(edges) - 1},{cells / len(slots):.2f}")


if __name__ == "__main__":
    main()
