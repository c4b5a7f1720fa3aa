#!/usr/bin/env python3
"""In how many words of cells the slots of a plan lie: the arena is cut at the edges of all slots, and the states of up to 32
cells lie in one word. Prints CSV.

    benches/words.py [TRACE...] (default: all traces in ../shared/traces)
"""
import collections, csv, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
PAGE, CELLS_A_WORD, CELLS_A_WORD_MIN = 4096, 32, 16


def words(slots):
    """For each slot, given by its first granule and the one after its last, the words its cells lie in. As `Cut` in
    allocators/stepalloc/src/cells.rs."""
    edges = sorted({0, *(edge for slot in slots for edge in slot)})
    number = {edge: index for index, edge in enumerate(edges)}
    runs = [(number[start], number[end]) for start, end in slots]
    crossed = [0] * len(edges)
    for start, end in runs:
        for edge in range(start + 1, end):
            crossed[edge] += 1
    begins = [0]
    while len(edges) - begins[-1] > CELLS_A_WORD + 1:
        nearest = range(begins[-1] + CELLS_A_WORD, begins[-1] + CELLS_A_WORD_MIN - 1, -1)
        begins.append(min(nearest, key=lambda edge: crossed[edge]))
    word = [sum(begin <= cell for begin in begins) for cell in range(len(edges))]
    return len(edges) - 1, [word[end - 1] - word[start] + 1 for start, end in runs]


def main():
    traces = sys.argv[1:] or sorted((ROOT.parent / "shared/traces").glob("*.csv.gz"))
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    print("trace,slots,cells,one word,two words,more")
    for trace in traces:
        with tempfile.NamedTemporaryFile("r", suffix=".csv") as plan:
            subprocess.run([TARGET / "stepalloc", "plan", trace, "--output", plan.name], check=True, capture_output=True)
            rows = [(int(row["offset"]) // PAGE, -(-int(row["size"]) // PAGE)) for row in csv.DictReader(plan)]
        slots = [(start, start + length) for start, length in rows]
        cells, spans = words(slots)
        count = collections.Counter(min(span, 3) for span in spans)
        shares = ",".join(f"{count[span] / len(slots):.3f}" for span in (1, 2, 3))
        print(f"{pathlib.Path(trace).name},{len(slots)},{cells},{shares}", flush=True)


if __name__ == "__main__":
    main()
