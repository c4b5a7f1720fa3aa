#!/usr/bin/env python3
"""Instructions per allocate/free pair, and of plans, counted by callgrind: what the statistic allocator adds to its backend for
small blocks, and what a planned pair costs in all (the loop itself is subtracted).

    benches/instructions.py > benches/results/instructions.csv

Runs the benches `instructions` and `plans` (gungraun) and makes one CSV of what they count. A plan's row has the instructions of
the whole plan. Needs valgrind; gungraun's runner is installed from crates.io into the target directory if it is not there.
"""
import csv, json, os, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
TOOLS = TARGET / "benches-tools"


def counted(bench):
    """Instructions by the benchmark's function and case."""
    lock = (ROOT / "Cargo.lock").read_text()
    version = re.search(r'name = "gungraun"\nversion = "([^"]+)"', lock)[1]
    runner = TOOLS / "bin/gungraun-runner"
    if not runner.exists() or version not in subprocess.run([runner, "--version"], capture_output=True, text=True).stdout:
        install = ["cargo", "install", "--quiet", "--locked", "--root", TOOLS, "gungraun-runner", "--version", version]
        subprocess.run(install, check=True, stdout=sys.stderr)
    environment = {**os.environ, "PATH": f"{TOOLS / 'bin'}:{os.environ['PATH']}", "GUNGRAUN_RUNNER": str(runner)}
    command = ["cargo", "bench", "--quiet", "-p", "stepalloc-benches", "--bench", bench, "--", "--output-format=json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}")
    counts = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            summary = json.loads(line)
            counts[summary["function_name"], summary["id"]] = instructions(summary)
    return counts


def instructions(summary):
    """Callgrind's of the newest run."""
    (metrics,) = summary["profiles"][0]["summaries"]["total"]["summary"]["Callgrind"]["Ir"]["metrics"].values()
    newest = metrics[0] if isinstance(metrics, list) else metrics
    return newest["Int"]


def pairs(out):
    """A row for each case under the statistic allocator, beside the backend alone."""
    counts = {}
    for (_, case), count in counted("instructions").items():
        way, backend, size, phase, cells, number = case.split("__")
        counts[way, backend, size, phase, cells] = count / int(number)
    for (way, backend, size, phase, cells), count in counts.items():
        if way in ("rust", "c"):
            loop = counts["nothing", way, "64", "waiting", "0"]
            alone = counts[{"rust": "bare", "c": "bare_c"}[way], backend, size, "waiting", "0"] - loop
            cells = "" if cells == "0" else cells
            out.writerow([way, backend, size, phase, cells, f"{alone:.1f}", f"{count - loop:.1f}", f"{count - loop - alone:.1f}"])


def main():
    # The library that is preloaded.
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "stepalloc-preload"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["interface", "backend", "bytes", "phase", "cells", "backend alone", "stepalloc", "more"])
    pairs(out)
    sys.stdout.flush()
    for (work, problem), count in counted("plans").items():
        out.writerow(["planner", work, problem, "", "", "", count, ""])


if __name__ == "__main__":
    main()
