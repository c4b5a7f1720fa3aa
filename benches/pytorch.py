#!/usr/bin/env python3
"""PyTorch training under stepalloc and its rivals, in one sitting: memory, page faults, CPU time per step, loss.

    benches/pytorch.py [--runs 7] [--steps 40] [--workloads mlp,transformer,convnet] [--allocators NAME,...] [--spin] > results.csv
    benches/pytorch.py --unmarked > results.csv

Runs ../shared/workloads/torch_train.py, unmodified, with --mark; with --unmarked without it, so that its steps must be
found: all five workloads, no settings, and jemalloc that returns every free page at once as a floor of memory. Each round runs every allocator once, each time beginning
with another one. The rivals are Debian's libraries (libjemalloc2, libmimalloc2.0, libtcmalloc-minimal4) and must be
installed. CPU time per step is the process's, all threads, between the script's own two clock readings: the median over the
newest half of a run's steps, and over the runs. OpenBLAS's threads are told to sleep while they wait, as the script tells
OpenMP's: where they spin (--spin leaves them to it), the CPU time of every allocator falls into two clusters, by which of
the script's threads share a core with a spinning one. What the table must show is checked at the end, on standard error.
"""
import argparse, csv, json, os, pathlib, statistics, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT.parent / "shared/workloads/torch_train.py"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
LIBRARIES = "/usr/lib/x86_64-linux-gnu/"
PLANNED = {"START_STATISTIC_STEP": "4", "STABLE_STATISTIC_STEP": "3"}
LARGE = str(1 << 30)
RIVALS = {
    "glibc": {},
    "glibc tuned": {"MALLOC_MMAP_THRESHOLD_": LARGE, "MALLOC_TRIM_THRESHOLD_": LARGE, "MALLOC_TOP_PAD_": str(64 << 20)},
    "jemalloc": {"LD_PRELOAD": LIBRARIES + "libjemalloc.so.2"},
    "jemalloc decay -1": {
        "LD_PRELOAD": LIBRARIES + "libjemalloc.so.2",
        "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",
    },
    "mimalloc": {"LD_PRELOAD": LIBRARIES + "libmimalloc.so.2"},
    "tcmalloc": {"LD_PRELOAD": LIBRARIES + "libtcmalloc_minimal.so.4"},
}
# Returns every free page at once: at its pace nobody would train, but less memory cannot be had without planning.
FLOOR = "jemalloc decay 0"
FLOOR_SETTINGS = {
    "LD_PRELOAD": LIBRARIES + "libjemalloc.so.2",
    "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0,narenas:1",
}
# Workloads in which what a step asks for is not always the same.
VARYING = ("varlen", "recommender")
OURS = {f"stepalloc/{b}": {**PLANNED, "STEPALLOC_BACKEND": b} for b in ("glibc", "jemalloc", "mimalloc")}

# Run in the measured process: the workload as __main__, with the CPU time noted whenever it reads its clock.
DRIVER = """
import json, runpy, statistics, sys, time
clock, notes, out = time.perf_counter, [], sys.argv.pop(1)
def noted():
    notes.append(time.process_time())
    return clock()
time.perf_counter = noted
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
steps = [after - before for before, after in zip(notes[::2], notes[1::2])]
newest = steps[len(steps) // 2:]
json.dump(1e3 * statistics.median(newest), open(out, "w"))
"""


def run(workload, steps, name, marked):
    with tempfile.TemporaryDirectory() as folder:
        cpu, ours = pathlib.Path(folder, "cpu"), pathlib.Path(folder, "ours")
        command = ["/usr/bin/python3", "-c", DRIVER, cpu, SCRIPT, workload, "--steps", str(steps)]
        command += ["--mark"] if marked else []
        if name in OURS:
            command = [TARGET / "stepalloc", "run", "--quiet", "--json", ours, "--"] + command
        environment = {**os.environ, **(RIVALS.get(name) or OURS.get(name) or {})}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        result = json.loads(done.stdout)
        result["cpu_ms"] = json.loads(cpu.read_text())
        result["ours"] = json.loads(ours.read_text()) if name in OURS else None
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workloads")
    parser.add_argument("--allocators")
    parser.add_argument("--spin", action="store_true")
    parser.add_argument("--unmarked", action="store_true")
    arguments = parser.parse_args()
    marked = not arguments.unmarked
    if not marked:
        RIVALS[FLOOR] = FLOOR_SETTINGS
        for settings in OURS.values():
            for name in PLANNED:
                del settings[name]
    workloads = arguments.workloads or "mlp,transformer,convnet" + ("" if marked else ",varlen,recommender")
    if not arguments.spin:
        os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"
    names = arguments.allocators.split(",") if arguments.allocators else [*RIVALS, *OURS]
    if unknown := set(names) - {*RIVALS, *OURS}:
        sys.exit(f"unknown allocators {sorted(unknown)}; known are {[*RIVALS, *OURS]}")
    missing = [v["LD_PRELOAD"] for n in names if (v := RIVALS.get(n)) and not os.path.exists(v.get("LD_PRELOAD", "/"))]
    if missing:
        sys.exit(f"not installed: {missing} (Debian: libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4)")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout)
    out.writerow(["workload", "allocator", "runs", "cpu_ms_per_step", "cpu_ms_min", "cpu_ms_max", "minor_faults_median",
                  "minor_faults_max", "vm_rss_mib", "vm_hwm_mib", "arena_mib", "arena_to_bound", "fallback_percent", "loss"])
    failed = []
    for workload in workloads.split(","):
        results = {name: [] for name in names}
        for turn in range(arguments.runs):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                results[name].append(run(workload, arguments.steps, name, marked))
        row = {}
        for name, runs in results.items():
            median = lambda key: statistics.median(r[key] for r in runs)
            cpu = [r["cpu_ms"] for r in runs]
            row[name] = (statistics.median(cpu), median("vm_hwm_mib"))
            ours = runs[-1]["ours"]
            arena = ratio = fallback = ""
            if ours:
                last = ours["last_steps"]
                arena, ratio = ours["arena_bytes"] / 2**20, ours["arena_bytes"] / ours["lower_bound_bytes"]
                fallback = 100 * last["fallback_bytes"] / last["planned_bytes"]
            out.writerow([workload, name, len(runs), *(f"{x:.1f}" for x in (row[name][0], min(cpu), max(cpu))),
                          median("minor_faults_median"), max(r["minor_faults_max"] for r in runs), median("vm_rss_mib"),
                          median("vm_hwm_mib"), arena and f"{arena:.1f}", ratio and f"{ratio:.4f}",
                          fallback != "" and f"{fallback:.3f}" or "", " ".join(sorted({r["loss"] for r in runs}))])
            sys.stdout.flush()
        rivals = [row[n] for n in names if n in RIVALS and n != FLOOR]
        varying = workload in VARYING
        most_faults, most_fallback = (8, 5) if varying and not marked else (0, 0.1 if marked else 1)
        losses = {r["loss"] for n in names if n in ("glibc", *OURS) for r in results[n]}
        for name in (n for n in names if n in OURS and rivals):
            cpu, hwm = row[name][0] / min(r[0] for r in rivals), row[name][1] / min(r[1] for r in rivals)
            figures = {
                f"CPU time {cpu:.3f} x the best rival's": cpu <= 1.02,
                f"VmHWM {hwm:.3f} x the best rival's": hwm <= (1.01 if marked else 1),
                f"arena {max(r['ours']['arena_bytes'] / r['ours']['lower_bound_bytes'] for r in results[name]):.4f} x its bound":
                    all(r["ours"]["arena_bytes"] <= 1.02 * r["ours"]["lower_bound_bytes"] for r in results[name]),
                f"fall-back at most {most_fallback} %": all(
                    r["ours"]["last_steps"]["fallback_bytes"] <= most_fallback / 100 * r["ours"]["last_steps"]["planned_bytes"]
                    for r in results[name]),
                f"faults median {statistics.median(r['minor_faults_median'] for r in results[name]):.0f} (at most "
                f"{max(r['minor_faults_max'] for r in results[name])}; faults.sh tells whose)":
                    statistics.median(r["minor_faults_median"] for r in results[name]) <= most_faults,
                "losses equal": len(losses) == 1,
            }
            if FLOOR in row:
                over = row[name][1] / row[FLOOR][1]
                figures[f"VmHWM {over:.3f} x that of {FLOOR}"] = over <= 1.01
            failed += [(workload, name)] if not all(figures.values()) else []
            said = ", ".join(figure if holds else f"{figure} (DOES NOT HOLD)" for figure, holds in figures.items())
            print(f"{workload}, {name}: {said}", file=sys.stderr, flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
