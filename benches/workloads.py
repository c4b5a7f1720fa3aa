#!/usr/bin/env python3
"""Programs that only allocate, under stepalloc and its rivals, compared by `stepalloc compare`.

    benches/workloads.py [--runs 3] [--workloads NAME,...] > benches/results/workloads.csv

The workloads are those of benches/workloads.rs (tensors, shapes, threads, larson), and the traces beside the repository,
replayed. All mark their steps, and are planned from the fourth on (START_STATISTIC_STEP=4, STABLE_STATISTIC_STEP=3), where they repeat. Each page of a block is written once, so what is measured is the allocator and the
page faults it makes. Time is that of a step, in the mean of the newer half, in which plans serve. The rivals are those of `stepalloc compare`, Debian's
tcmalloc (libtcmalloc-minimal4), and Debian's jemalloc (libjemalloc2) told to return nothing.

What must hold is checked at the end, on standard error; where it does not, and that is no chance, the exit status is 1: time of a step
at most 1.10 times the shortest rival's, VmHWM at most 1.03 times the lowest rival's; of larson, most of whose blocks are small and the
backend's, at most 1.02 times those of the backend alone.
"""
import argparse, csv, json, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
TRACES = ROOT.parent / "shared/traces"
KEPT = "jemalloc-kept"
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
# Steps, for runs of a second or a few.
WORKLOADS = {"tensors": 40, "shapes": 200, "threads": 400, "larson": 400}
STEPS_OF_TRACES = 40
# Of sizes that follow the data MAX_STATISTIC_STEP steps are collected, of several kinds of steps some of each.
LONGER = {"torch_recommender_train": 240, "torch_varlen_train": 120}
# Marked steps are collected from the hundredth on by default.
SOON = {"START_STATISTIC_STEP": "4", "STABLE_STATISTIC_STEP": "3"}
# Limits of what is checked, as ratios.
MOST = {"step_milliseconds": 1.10, "vm_hwm_mib": 1.03}
MOST_OF_BACKEND = 1.02
FIGURES = ("step_milliseconds", "cpu_seconds", "system_seconds", "minor_faults", "vm_rss_mib", "vm_hwm_mib")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    traces = {f"replay {path.name.removesuffix('.csv.gz')}": path for path in sorted(TRACES.glob("*.csv.gz"))}
    known = [*WORKLOADS, *traces]
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(known), help="separated by commas")
    arguments = parser.parse_args()
    names = arguments.workloads.split(",")
    if unknown := set(names) - set(known):
        sys.exit(f"unknown {sorted(unknown)}; known are {known}")
    if not os.path.exists(JEMALLOC) or not list(pathlib.Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")):
        sys.exit("not installed: Debian's libjemalloc2 or libtcmalloc-minimal4")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "stepalloc-benches", "--bin", "workloads"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    columns = [f"{figure}{part}" for figure in FIGURES for part in ("", "_spread", "_ratio", "_verdict")]
    out.writerow(["workload", "allocator", "runs", *columns, "slots_percent", "arena_percent", "arena_mib"])
    above = []
    for name in names:
        program = [TARGET / "workloads", name, str(WORKLOADS[name])] if name in WORKLOADS else [
            TARGET / "workloads", "replay", str(LONGER.get(name.removeprefix("replay "), STEPS_OF_TRACES)), traces[name]]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "figures")
            command = [TARGET / "stepalloc", "compare", "--no-report", "--runs", str(arguments.runs), "--json", file,
                       "--allocator", f"{KEPT}={JEMALLOC},MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1"]
            subprocess.run([*command, "--", *program], check=True, stdout=sys.stderr, env={**os.environ, **SOON})
            told = json.loads(file.read_text())
        for result in told["results"]:
            if result["failure"]:
                sys.exit(f"{name}, {result['allocator']}: {result['failure']}")
            row = [name, result["allocator"], told["runs"]]
            for figure in FIGURES:
                cell = result["figures"].get(figure, {})
                number = lambda key: "" if cell.get(key) is None else f"{cell[key]:.4f}"
                row += [number("median"), number("spread"), number("ratio"), cell.get("verdict") or ""]
            ours = result["runs"][-1].get("statistics") or {}
            last = ours.get("last_steps") or {}
            # Gaps are among the planned.
            planned, gaps, missed = (last.get(f"{kind}_bytes", 0) for kind in ("planned", "gap", "fallback"))
            share = lambda part: f"{100 * part / (planned + missed):.1f}" if planned + missed else ""
            row += [share(planned - gaps), share(planned), f"{ours['arena_bytes'] / 2**20:.1f}" if ours.get("arena_bytes") else ""]
            out.writerow(row)
        sys.stdout.flush()
        above += beyond(name, told)
    for line in above:
        print(line, file=sys.stderr)
    sys.exit(1 if above else 0)


def beyond(name, told):
    """What is beyond its limit, in words."""
    figures = {result["allocator"]: result["figures"] for result in told["results"]}
    ours = [allocator for allocator in figures if allocator.startswith("stepalloc/")]
    above = []
    for allocator in ours:
        rivals = [allocator.removeprefix("stepalloc/")] if name == "larson" else [rival for rival in figures if rival not in ours]
        for figure, most in MOST.items():
            best = min((figures[rival][figure] for rival in rivals), key=lambda cell: cell["median"])
            mine, most = figures[allocator][figure], MOST_OF_BACKEND if name == "larson" else most
            times = mine["median"] / best["median"]
            # Both medians may lie off by what their runs scatter.
            chance = 2 * (mine["spread"] ** 2 + best["spread"] ** 2) ** 0.5 / best["median"] / told["runs"] ** 0.5
            if times > most + chance:
                above.append(f"{name}, {allocator}: {figure} is {times:.3f} times that of the best (at most {most})")
    return above


if __name__ == "__main__":
    main()
