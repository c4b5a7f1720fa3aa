#!/usr/bin/env python3
"""PyTorch training under stepalloc and its rivals, in one sitting: memory, page faults, CPU time per step, loss.

    benches/pytorch.py [--runs 3] [--steps 40] [--workloads mlp,transformer,...] [--allocators NAME,...] > results.csv
    benches/pytorch.py --mark > results.csv

Runs ../shared/workloads/torch_train.py, unmodified, so that its steps must be found; with --mark it marks them, and plans
are made earlier. Beside six rivals there is jemalloc that returns every free page at once, as a floor of memory. The rivals
are Debian's libraries (libjemalloc2, libmimalloc2.0, libtcmalloc-minimal4) and must be installed.

In a run the processes of all allocators are there at once and take turns, a step each, beginning with another one each
time: what a machine is slower at one time than at another all of them feel alike. CPU time is the process's, all threads.
In each turn it is divided by the median of the turn; the ratio of two allocators is that of their medians over the newest
half of the turns of all runs, and its standard error that of a median of such a spread. The best rival is chosen by one half
of these turns and compared in the other, and the other way round: the least of six that differ by chance is less than any is.
An allocator that gives memory back after some time
(jemalloc, mimalloc) does so after fewer of its steps than it would alone: their variants that do not are there as well.

OpenBLAS's threads are told to sleep while they wait (OPENBLAS_THREAD_TIMEOUT=4), as the script tells OpenMP's: where they
spin, the CPU time of every allocator falls into two clusters, by which of the script's threads share a core with a spinning
one. What the table must show is checked at the end, on standard error.
"""
import argparse, csv, json, math, os, pathlib, statistics, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT.parent / "shared/workloads/torch_train.py"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
LIBRARIES = "/usr/lib/x86_64-linux-gnu/"
PLANNED = {"START_STATISTIC_STEP": "4", "STABLE_STATISTIC_STEP": "3"}
LARGE = str(1 << 30)
# Returns every free page at once: at its pace nobody would train, but less memory cannot be had without planning.
FLOOR = "jemalloc decay 0"
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
    FLOOR: {
        "LD_PRELOAD": LIBRARIES + "libjemalloc.so.2",
        "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0,narenas:1",
    },
}
OURS = {f"stepalloc/{backend}": {"STEPALLOC_BACKEND": backend} for backend in ("glibc", "jemalloc", "mimalloc")}
HUGE = {f"stepalloc/glibc {name}": {"STEPALLOC_BACKEND": "glibc", "STEPALLOC_HUGEPAGES": setting}
        for name, setting in (("no huge pages", "0"), ("huge pages", "1"))}
PYTHON = "/usr/bin/python3"
WORKLOADS = "recommender,mlp,transformer,convnet,varlen"
# Those in which what a step asks for is not always the same.
VARYING = ("varlen", "recommender")

# Steps whose page faults are the warm-up's: three, and of the workload of several lengths all of its first round.
WARM_UP = {"varlen": 4}
WARM_UP_ELSE = 3
# Steps after which a plan serves; of the workload of several lengths these are two rounds.
PLANNED_AFTER = 8

# Run in the measured process: the workload as __main__, which waits for its turn when it reads its clock before a step, and
# tells the CPU time of the step when it reads it after that. The workload has VmHWM begin anew at half time; what it was
# before is noted, and a line of JSON more says what it was over the whole run, the page faults of each step, and after how many steps a plan
# served.
DRIVER = """
import builtins, ctypes, json, os, resource, runpy, sys, time
clock, go, done, before, opened = time.perf_counter, int(sys.argv.pop(1)), int(sys.argv.pop(1)), None, builtins.open
most, faults, planned, phase = 0, [], None, getattr(ctypes.CDLL(None), "stepalloc_phase", int)
def noted():
    global before, faults_before, planned
    count = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    if before is None:
        os.read(go, 1)
        before, faults_before = time.process_time_ns(), count
    else:
        os.write(done, b"%d\\n" % (time.process_time_ns() - before))
        before = None
        faults.append(count - faults_before)
        if planned is None and phase() == 2:
            planned = len(faults)
    return clock()
def peak():
    with opened("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
def watched(name, *rest, **named):
    global most
    if name == "/proc/self/clear_refs":
        most = peak()
    return opened(name, *rest, **named)
time.perf_counter, builtins.open = noted, watched
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps({"vm_hwm_whole_mib": round(max(most, peak()) / 1024, 1), "faults": faults, "planned_after": planned}))
"""


class Training:
    """A process of an allocator that makes a step when it is its turn."""

    def __init__(self, workload, steps, name, marked, folder):
        self.name, self.cpu_ms = name, []
        waits, self.go = os.pipe()
        tells, told = os.pipe()
        self.told, self.json = os.fdopen(tells), pathlib.Path(folder, name.replace("/", " "))
        command = self.command(workload, steps, marked, waits, told)
        settings = RIVALS.get(name)
        if settings is None:
            command = [TARGET / "stepalloc", "run", "--quiet", "--json", self.json, "--"] + command
            settings = {**(OURS | HUGE)[name], **(PLANNED if marked else {})}
        self.process = subprocess.Popen(
            command, env={**os.environ, **settings}, pass_fds=(waits, told), stdout=subprocess.PIPE, text=True
        )
        os.close(waits)
        os.close(told)

    def command(self, workload, steps, marked, waits, told):
        """What is run; it reads a byte from one pipe before each step, and writes the step's CPU time to the other."""
        command = [PYTHON, "-c", DRIVER, str(waits), str(told), SCRIPT, workload, "--steps", str(steps)]
        return command + (["--mark"] if marked else [])

    def turn(self):
        os.write(self.go, b".")
        told = self.told.readline()
        if not told:
            sys.exit(f"{self.name}: ended before its time, with status {self.process.wait()}")
        self.cpu_ms.append(int(told) / 1e6)

    def end(self):
        lines = self.process.communicate()[0].splitlines()
        self.result = {key: value for line in lines for key, value in json.loads(line).items()}
        os.close(self.go)
        self.told.close()
        self.ours = json.loads(self.json.read_text()) if self.name not in RIVALS else None


def train(workload, steps, names, marked, training=Training):
    with tempfile.TemporaryDirectory() as folder:
        trainings = [training(workload, steps, name, marked, folder) for name in names]
        try:
            for step in range(steps):
                if sys.stderr.isatty():
                    print(f"{workload}: turn {step + 1} of {steps}", end="\r", file=sys.stderr, flush=True)
                first = step % len(names)
                for training in trainings[first:] + trainings[:first]:
                    training.turn()
            for training in trainings:
                training.end()
        finally:
            for training in trainings:
                training.process.kill()
    newest = [training.cpu_ms[steps // 2:] for training in trainings]
    usual = [statistics.median(turn) for turn in zip(*newest)]
    for training, training.cpu_ms in zip(trainings, newest):
        training.ratios = [own / all_of_them for own, all_of_them in zip(training.cpu_ms, usual)]
    return trainings


class Runs:
    """The runs of an allocator, taken together."""

    def __init__(self, runs, warm_up=WARM_UP_ELSE):
        self.name, self.ours = runs[0].name, [run.ours for run in runs if run.ours]
        self.losses = {run.result["loss"] for run in runs}
        self.faults, self.rss, self.hwm = (statistics.median(run.result[key] for run in runs)
                                           for key in ("minor_faults_median", "vm_rss_mib", "vm_hwm_mib"))
        self.faults_max = max(run.result["minor_faults_max"] for run in runs)
        # Of the whole run, where it says so.
        self.hwm_whole = statistics.median(run.result.get("vm_hwm_whole_mib", 0) for run in runs)
        self.faults_warm = max(max(run.result.get("faults", [])[warm_up:], default=0) for run in runs)
        planned = [run.result.get("planned_after") for run in runs]
        self.planned_after = None if None in planned else max(planned)
        self.cpu_ms = statistics.median(ms for run in runs for ms in run.cpu_ms)
        self.ratios = [ratio for run in runs for ratio in run.ratios]
        quartiles = statistics.quantiles(self.ratios, n=4)
        self.ratio = quartiles[1]
        # Of a median, from the distance of the quartiles, as for a normal distribution.
        self.error = 1.2533 * (quartiles[2] - quartiles[0]) / 1.349 / len(self.ratios) ** 0.5

    def to_best(self, rivals):
        """CPU time in multiples of the best rival's, and the standard error."""
        halves = slice(0, None, 2), slice(1, None, 2)
        median = lambda one, half: statistics.median(one.ratios[half])
        ratio, error = 1, 0
        for chosen, compared in (halves, halves[::-1]):
            best = min(rivals, key=lambda rival: median(rival, chosen))
            ratio *= median(self, compared) / median(best, compared)
            error += math.hypot(self.error, best.error) / 2
        return ratio**0.5, error

    def of_ours(self, figure):
        """The largest."""
        return max(figure(ours) for ours in self.ours)


def main():
    global PYTHON
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workloads", default=WORKLOADS)
    parser.add_argument("--allocators", help=f"of {', '.join([*RIVALS, *OURS, *HUGE])}; all but the last two by default")
    parser.add_argument("--mark", action="store_true")
    parser.add_argument("--python", default=PYTHON, help="one that has torch; Debian's by default")
    arguments = parser.parse_args()
    if arguments.runs < 1 or arguments.steps < 4:
        sys.exit("--runs: 1 at least; --steps: 4 at least")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    PYTHON = arguments.python
    names = arguments.allocators.split(",") if arguments.allocators else [*RIVALS, *OURS]
    for given, known in (names, [*RIVALS, *OURS, *HUGE]), (arguments.workloads.split(","), WORKLOADS.split(",")):
        if unknown := set(given) - set(known):
            sys.exit(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    missing = [v["LD_PRELOAD"] for n in names if (v := RIVALS.get(n)) and not os.path.exists(v.get("LD_PRELOAD", "/"))]
    if missing:
        sys.exit(f"not installed: {missing} (Debian: libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4)")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["workload", "allocator", "runs", "cpu_ms_per_step", "cpu_ratio", "cpu_ratio_error", "cpu_to_best",
                  "cpu_to_best_error", "minor_faults_median",
                  "minor_faults_max", "vm_rss_mib", "vm_hwm_mib", "vm_hwm_whole_mib", "minor_faults_warm_max", "planned_after", "arena_mib", "arena_to_bound", "fallback_percent",
                  "loss"])
    failed, wholes = False, {}
    # Without a plan there is neither.
    arena_to_bound = lambda ours: ours["arena_bytes"] / max(ours["lower_bound_bytes"], 1)
    fallback_percent = lambda ours: 100 * ours["last_steps"]["fallback_bytes"] / max(ours["last_steps"]["planned_bytes"], 1)
    for workload in arguments.workloads.split(","):
        runs = [train(workload, arguments.steps, names, arguments.mark) for _ in range(arguments.runs)]
        results = [Runs(of_one, WARM_UP.get(workload, WARM_UP_ELSE)) for of_one in zip(*runs)]
        rivals = [t for t in results if t.name in RIVALS and t.name != FLOOR]
        for t in results:
            ours = ["", "", ""]
            best = [f"{figure:.4f}" for figure in t.to_best(rivals)] if t.ours and rivals else ["", ""]
            if t.ours:
                ours = [f"{t.of_ours(lambda ours: ours['arena_bytes']) / 2**20:.1f}", f"{t.of_ours(arena_to_bound):.4f}",
                        f"{t.of_ours(fallback_percent):.3f}"]
            out.writerow([workload, t.name, arguments.runs, f"{t.cpu_ms:.1f}", f"{t.ratio:.4f}", f"{t.error:.4f}", *best, t.faults,
                          t.faults_max, t.rss, t.hwm, t.hwm_whole, t.faults_warm,
                          t.planned_after or "", *ours, " ".join(sorted(t.losses))])
        sys.stdout.flush()
        floor = [t.hwm for t in results if t.name == FLOOR]
        varying = workload in VARYING and not arguments.mark
        most_faults, most_fallback = (8, 5) if varying else (0, 0.1 if arguments.mark else 1)
        equal = len(set().union(*(t.losses for t in results if t.name == "glibc" or t.ours))) == 1
        for t in (t for t in results if t.ours and rivals):
            (cpu, error), hwm = t.to_best(rivals), t.hwm / min(rival.hwm for rival in rivals)
            arena, fallback = t.of_ours(arena_to_bound), t.of_ours(fallback_percent)
            figures = {
                f"CPU time {cpu:.3f} x the best rival's (standard error {error:.3f})": cpu <= 1.02,
                f"VmHWM of the newer half {hwm:.3f} x the best rival's": hwm <= (1.01 if arguments.mark else 1),
                f"arena {arena:.4f} x its bound": arena <= 1.02,
                f"fall-back {fallback:.2f} % (at most {most_fallback})": fallback <= most_fallback,
                f"faults median {t.faults:.1f} (at most {t.faults_max}; faults.sh tells whose)": t.faults <= most_faults,
                "losses equal": equal,
                "planned": all(ours["phase"] == "planned" for ours in t.ours),
            }
            if not arguments.mark:
                soon = t.planned_after is not None and t.planned_after <= PLANNED_AFTER
                figures[f"planned after {t.planned_after} steps"] = soon
            whole = t.hwm_whole / min(rival.hwm_whole for rival in rivals)
            figures[f"VmHWM of the whole run {whole:.3f} x the lowest rival's"] = whole <= 1.02
            wholes.setdefault(t.name, []).append(whole)
            figures[f"faults of a step after the warm-up at most {t.faults_warm}"] = t.faults_warm <= 100
            if floor:
                whole = t.hwm_whole / next(one.hwm_whole for one in results if one.name == FLOOR)
                figures[f"VmHWM of the whole run {whole:.3f} x that of {FLOOR}"] = whole <= 1.03
            if floor:
                figures[f"VmHWM {t.hwm / floor[0]:.3f} x that of {FLOOR}"] = t.hwm <= 1.005 * floor[0]
            failed |= not all(figures.values())
            said = ", ".join(figure if holds else f"{figure} (DOES NOT HOLD)" for figure, holds in figures.items())
            print(f"{workload}, {t.name}: {said}", file=sys.stderr, flush=True)
    for name, ratios in wholes.items():
        median = statistics.median(ratios)
        failed |= median > 1
        said = "" if median <= 1 else " (DOES NOT HOLD)"
        print(f"{name}: VmHWM of the whole run {median:.3f} x the lowest rival's, in the median of the workloads{said}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
