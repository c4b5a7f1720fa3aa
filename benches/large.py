#!/usr/bin/env python3
"""Large blocks without a plan, under stepalloc and its rivals: CPU time and memory of replacing them, and after a peak.

    benches/large.py [--runs 6] [--workloads NAME,...] [--allocators NAME,...] > benches/results/large.csv
    benches/large.py --runs 3 --workloads "replace 1 written same,push" --allocators glibc,tcmalloc,stepalloc/glibc
    benches/large.py --workloads sparse,leaves

The workloads are those of benches/large.rs:
- replace THREADS written|touched same|next: threads replace blocks of 32 KiB to 4 MiB at random. A new block is written
  whole, or one byte of each page; it is freed by the thread that allocated it, or mostly by another;
- sparse, sparse unmarked: steps with 256 MiB from calloc, of which 256 bytes are written, with step marks and without;
- leaves: marked steps of 180 MiB, then single blocks of 300 to 354 MiB;
- peak: 1 GiB, of which a sixteenth is kept for ten seconds of sleep;
- push: a vector that grows to 1 GiB.
`--workloads replace` runs all of replace.

In each round every allocator runs once, each time beginning with another one; figures are medians over the rounds, and ratios
medians of the rounds' ratios. Rivals are those of benches/pytorch.py; its floor of memory runs in `peak` alone. stepalloc
is preloaded over each backend; marked steps are planned from the fourth on (START_STATISTIC_STEP=4,
STABLE_STATISTIC_STEP=3). Time and faults are those of the measured part of the program, without its start: of replace, of
the replacing. cpu_to_best is the ratio to the best of the six rivals, of CPU time per block for replace, of all CPU time else.
What must hold is checked at the end, on standard error; where it does not, the exit status is 1.
"""
import argparse, csv, json, math, os, statistics, subprocess, sys
from pytorch import FLOOR, OURS, PLANNED, RIVALS, ROOT, TARGET

# Rounds of all threads together, of 240 blocks each: a run of a second or two.
ROUNDS = {"written": 192, "touched": 1920}
REPLACE = {
    f"replace {threads} {fill} {freed_by}": ["replace", str(ROUNDS[fill] // threads), str(threads), fill, freed_by]
    for threads in (1, 2, 8) for fill in ROUNDS for freed_by in ("same", "next")
    if threads > 1 or freed_by == "same"
}
WORKLOADS = REPLACE | {
    "sparse": ["sparse", "60", "marked"],
    "sparse unmarked": ["sparse", "60", "unmarked"],
    "leaves": ["leaves", "60"],
    "peak": ["peak", "10"],
    "push": ["push"],
}
MARKED = ("sparse", "leaves")
SIX = [name for name in RIVALS if name != FLOOR]
# Limits of what is checked, as ratios.
MOST_CPU, MOST_HWM_TO_ALIVE, MOST_TO_BACKEND, MOST_RSS_TO_FLOOR, MOST_PUSH = 1.05, 1.20, 1.02, 1.02, 1


def run(workload, name):
    environment = {**os.environ, **(RIVALS | OURS)[name]}
    if name in OURS:
        environment["LD_PRELOAD"] = str(TARGET / "libstepalloc.so")
        environment |= PLANNED if workload in MARKED else {}
    done = subprocess.run([TARGET / "workloads", *WORKLOADS[workload]], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{workload}, {name}: ended with status {done.returncode}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    result["cpu"] = result.get("cpu_ns_per_block", result["cpu_seconds"])
    return result


def ratio(ours, others, key):
    """The median of the rounds' ratios."""
    return statistics.median(one[key] / other[key] for one, other in zip(ours, others))


def hwm_to_alive(runs):
    return statistics.median(run["vm_hwm_bytes"] / run["alive_peak_bytes"] for run in runs)


def cpu_to_best(runs, results):
    """The best rival is chosen by every other round, and compared in those between, and the other way round: of figures that vary, the least
    of six is less than that rival's usual one."""
    rivals = [results[rival] for rival in SIX if rival in results]
    if not rivals:
        return None
    halves = (slice(0, None, 2), slice(1, None, 2)) if len(runs) > 1 else (slice(None),) * 2
    ratios = []
    for chosen, compared in (halves, halves[::-1]):
        best = min(rivals, key=lambda rival: statistics.median(run["cpu"] for run in rival[chosen]))
        ratios.append(ratio(runs[compared], best[compared], "cpu"))
    return math.sqrt(math.prod(ratios))


def row(workload, name, results):
    runs = results[name]
    median = lambda key: statistics.median(run[key] for run in runs)
    best, alive = cpu_to_best(runs, results), median("alive_peak_bytes")
    return [
        workload, name, len(runs), f"{median('cpu_ns_per_block') / 1000:.2f}" if workload in REPLACE else "",
        "" if best is None else f"{best:.4f}", f"{alive / 2**20:.1f}" if alive else "", f"{median('vm_hwm_bytes') / 2**20:.1f}",
        f"{hwm_to_alive(runs):.4f}" if alive else "", f"{median('vm_rss_bytes') / 2**20:.1f}", f"{median('wall_seconds'):.4f}",
        f"{median('minor_faults'):.0f}",
    ]


def checks(workload, name, results):
    """What must hold of an allocator of ours, and whether it does; less what was not measured."""
    runs, figures = results[name], {}

    def check(what, key, other, most):
        if other in results:
            times = ratio(runs, results[other], key)
            figures[f"{what} {times:.3f} x that of {other} (at most {most})"] = times <= most

    if workload in REPLACE:
        best, alive = cpu_to_best(runs, results), hwm_to_alive(runs)
        if best is not None:
            figures[f"CPU time {best:.3f} x the best rival's (at most {MOST_CPU})"] = best <= MOST_CPU
        figures[f"VmHWM {alive:.3f} x the largest sum alive (at most {MOST_HWM_TO_ALIVE})"] = alive <= MOST_HWM_TO_ALIVE
    elif workload == "peak":
        check("VmRSS", "vm_rss_bytes", FLOOR, MOST_RSS_TO_FLOOR)
    else:
        # Of the vector alone glibc is the measure, as its realloc moves pages instead of bytes.
        other, most = ("glibc", MOST_PUSH) if workload == "push" else (name.removeprefix("stepalloc/"), MOST_TO_BACKEND)
        check("VmHWM", "vm_hwm_bytes", other, most)
        check("time", "wall_seconds", other, most)
    return figures


def named(given, known, what):
    """The known names that are given; by their first word too, where that is no name itself."""
    names, chosen = given.split(","), []
    for name in names:
        of_name = [name] if name in known else [one for one in known if one.split()[0] == name]
        if not of_name:
            sys.exit(f"unknown {what}: {name}; known are {', '.join(known)}")
        chosen += of_name
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="separated by commas")
    parser.add_argument("--allocators", default=",".join([*RIVALS, *OURS]), help="separated by commas")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        sys.exit("--runs: 1 at least")
    workloads = named(arguments.workloads, WORKLOADS, "workloads")
    names = named(arguments.allocators, RIVALS | OURS, "allocators")
    missing = [v["LD_PRELOAD"] for n in names if (v := RIVALS.get(n)) and not os.path.exists(v.get("LD_PRELOAD", "/"))]
    if missing:
        sys.exit(f"not installed: {missing} (Debian: libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4)")
    build = ["cargo", "build", "--quiet", "--release"]
    subprocess.run([*build, "-p", "stepalloc-benches", "--bin", "workloads"], cwd=ROOT, check=True)
    if any(name in OURS for name in names):
        subprocess.run([*build, "-p", "stepalloc-preload"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["workload", "allocator", "runs", "cpu_us_per_block", "cpu_to_best", "alive_peak_mib", "vm_hwm_mib",
                  "hwm_to_alive", "vm_rss_mib", "wall_s", "faults"])
    held = True
    for workload in workloads:
        here = [name for name in names if name != FLOOR or workload == "peak"]
        results = {name: [] for name in here}
        for turn in range(arguments.runs):
            first = turn % len(here) if here else 0
            for name in here[first:] + here[:first]:
                results[name].append(run(workload, name))
        out.writerows(row(workload, name, results) for name in here)
        sys.stdout.flush()
        for name in (name for name in here if name in OURS):
            figures = checks(workload, name, results)
            held &= all(figures.values())
            said = ", ".join(figure if holds else f"{figure} (DOES NOT HOLD)" for figure, holds in figures.items())
            if said:
                print(f"{workload}, {name}: {said}", file=sys.stderr, flush=True)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
