#!/usr/bin/env python3
"""All that is done so that the allocator can be trusted, and one table of it.

    python3 tests/suite.py                 the quick setting, some ten minutes on two processors
    python3 tests/suite.py --long          hours: 10^9 operations, 10,000 forks, every program, sanitizers, mutants
    python3 tests/suite.py --only fuzz,leaks
    python3 tests/suite.py --long --only miri --record
                                           keep what it ran in benches/results/suite.csv
    python3 tests/suite.py --table         what is kept there, as a table in Markdown; runs nothing
    python3 tests/suite.py --list

Each part is a command of its own, which the table names; docs/testing.md says what it looks for. The last column is what the
part has ever found (tests/found.csv), with the commits that mended it. Ends with 0 where every part passes.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# All of the workspace, as the tests of the README are built, so that nothing is built a second time with fewer features.
CARGO = ["cargo", "test", "--release", "--workspace", "--quiet"]
UNIT = ["cargo", "test", "--release", "--quiet", "-p", "stepalloc", "--lib"]
PROGRAMS = CARGO + ["--test", "programs", "--"]

# Name, the command, and whether the quick setting has it.
PARTS = [
    ("models", "loom's schedules of the concurrent structures", UNIT + ["models"], True),
    ("in process", "operations against a shadow heap, in one process", CARGO + ["--test", "heap"], True),
    ("operations", "the same through the preloaded library; refused system calls", PROGRAMS + ["operations::"], True),
    ("contract", "what glibc's malloc promises, in every phase", PROGRAMS + ["contract::", "exports::", "process::", "unchanged::"], True),
    ("process life", "forks, threads, handlers, libraries, limits", PROGRAMS + ["life::", "restricted::"], True),
    ("leaks", "memory that grows from round to round", PROGRAMS + ["leaks::"], True),
    ("fuzz", "damaged files and arbitrary steps", CARGO + ["--test", "bounded"], True),
    ("coverage", "the same targets, led by what they cover", ["tests/coverage.sh"], False),
    ("unmodified", "programs from Debian and PyPI", ["python3", "tests/unmodified.py"], True),
    ("sanitizers", "address and thread sanitizer, valgrind", ["tests/sanitizers.sh"], False),
    ("miri", "planner, tables and readers, access by access", ["tests/miri.sh"], False),
    ("aarch64", "the library and its core tests under qemu", ["tests/aarch64.sh"], False),
    ("mutants", "whether the quick setting notices mistakes", ["python3", "tests/mutants.py"], False),
]


RESULTS = ROOT / "benches/results/suite.csv"
COLUMNS = ["part", "setting", "result", "seconds", "ran", "commit"]


def kept():
    """The rows of earlier runs."""
    return list(csv.DictReader(RESULTS.open())) if RESULTS.exists() else []


def record(rows):
    """Keeps rows in the place of earlier ones of the same part and setting."""
    new = {(row["part"], row["setting"]): row for row in rows}
    rows = list({**{(row["part"], row["setting"]): row for row in kept()}, **new}.values())
    order = [part[0] for part in PARTS]
    rows.sort(key=lambda row: (row["setting"] != "quick", order.index(row["part"])))
    with RESULTS.open("w", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def markdown(rows):
    """A table in Markdown: what each part ran in each setting, and what it has ever found."""
    lines = ["| part | setting | result | time | what ran | commit |", "|---|---|---|---|---|---|"]
    lines += [f"| {row['part']} | {row['setting']} | {row['result']} | {row['seconds']} s | {row['ran']} | {row['commit']} |" for row in rows]
    lines += ["", "| part | what it found | mended by |", "|---|---|---|"]
    lines += [f"| {part[0]} | {row['fault']} | {row['commit']} |" for part in PARTS for row in found_by(part[0])]
    return "\n".join(lines)


def commit():
    """The commit that is run; with a + where the tree is not its own."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "--", ":!benches/results") else "")


def run_part(command, environment, log):
    """The command's exit status. Its output goes to a file, and to the terminal where it fails."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise


def found_by(name):
    with (ROOT / "tests/found.csv").open() as rows:
        return [row for row in csv.DictReader(rows) if row["part"] == name]


def tail(path, lines=40):
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="the long setting")
    parser.add_argument("--only", help="names of parts, with commas")
    parser.add_argument("--record", action="store_true", help="keep what ran in benches/results/suite.csv")
    parser.add_argument("--table", action="store_true", help="print what is kept there")
    parser.add_argument("--list", action="store_true", help="show the parts and their commands")
    parser.add_argument("--seed", type=int, help="draw from this seed (SUITE_SEED); a failure says which it was")
    options = parser.parse_args()
    parts = PARTS
    if options.only:
        wanted = options.only.split(",")
        unknown = set(wanted) - {part[0] for part in PARTS}
        if unknown:
            sys.exit(f"suite.py: no such part: {', '.join(sorted(unknown))}; --list shows them")
        parts = [part for part in PARTS if part[0] in wanted]
    elif not options.long:
        parts = [part for part in PARTS if part[3]]
    if options.list:
        for name, what, command, quick in PARTS:
            print(f"{name:13} {'quick, long' if quick else 'long':12} {what}\n{'':13} {' '.join(command)}")
        return
    if options.table:
        if not RESULTS.exists():
            sys.exit(f"suite.py: nothing is kept yet in {RESULTS.relative_to(ROOT)}; --record keeps what runs")
        print(markdown(kept()))
        return
    setting = "long" if options.long else "quick"
    environment = dict(os.environ, SUITE_SETTING=setting)
    if options.seed is not None:
        environment["SUITE_SEED"] = str(options.seed)
    logs = ROOT / "target/suite"
    logs.mkdir(parents=True, exist_ok=True)
    print("building", flush=True)
    with (logs / "build.log").open("w") as log:
        builds = [CARGO + ["--no-run"], UNIT + ["--no-run"], ["cargo", "build", "--release"]]
        if any(run_part(build, environment, log) for build in builds):
            sys.exit(tail(logs / "build.log") + "\nsuite.py: the tests do not compile")
    rows, failed = [], False
    begun_all = time.monotonic()
    for name, _, command, _ in parts:
        if name == "unmodified" and not options.long:
            command = command + ["--quick"]
        print(f"{name} ...", flush=True)
        with tempfile.NamedTemporaryFile("r", suffix=".csv") as counts:
            path = logs / f"{name.replace(' ', '-')}.log"
            begun = time.monotonic()
            with path.open("w") as log:
                status = run_part(command, dict(environment, SUITE_COUNTS=counts.name), log)
            seconds = time.monotonic() - begun
            sums = {}
            for _, unit, number in (line.rstrip("\n").rsplit(",", 2) for line in counts.read().splitlines()):
                sums[unit] = sums.get(unit, 0) + int(number)
        if status:
            failed = True
            print(tail(path) + f"\n{name}: ended with {status}; all of it in {path.relative_to(ROOT)}", flush=True)
        ran = "; ".join(f"{number:,} {unit}" for unit, number in sums.items())
        row = {"part": name, "setting": setting, "result": "fails" if status else "passes", "seconds": f"{seconds:.0f}",
               "ran": ran or "tests", "commit": commit()}
        rows.append(row)
        if options.record:
            record([row])
    print(f"\n{'part':13} {'':7} {'time':>7}  what ran\n")
    for row in rows:
        print(f"{row['part']:13} {row['result']:7} {row['seconds'] + ' s':>7}  {row['ran']}")
        for found in found_by(row["part"]):
            print(f"{'':31} found: {found['fault']} (mended by {found['commit']})")
    print(f"\n{setting} setting, {time.monotonic() - begun_all:.0f} s: {'FAILED' if failed else 'all parts pass'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
