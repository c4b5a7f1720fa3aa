#!/usr/bin/env python3
"""Models nobody tuned for, as export_models.py writes them: time, memory and agreement beside ONNX Runtime.

    benches/exported.py FOLDER [--models NAME,...] [--threads 1,2] [--rounds N] [--seconds S] > benches/results/exported.csv

Run it with a Python that has numpy and onnxruntime (PyPI). Each round runs every engine once, in a process of its own, one after the
other, for S seconds of runs after three that do not count; times are medians of the rounds' medians. Memory is what VmHWM rises above its value right before
the model is loaded; ONNX Runtime's is the least over arena and memory pattern on and off. `error` is the largest difference to ONNX
Runtime's outputs, relative to the largest element of each.
"""
import argparse, csv, json, os, pathlib, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from models import SETTINGS, TARGET, ask, difference, plain, resident

ROOT = pathlib.Path(__file__).resolve().parent.parent


def rival(model, inputs, outputs, seconds, threads, arena, pattern):
    """In a process of its own: a model under ONNX Runtime."""
    import numpy, onnxruntime

    given = {path.stem: numpy.load(path) for path in sorted(pathlib.Path(inputs).glob("*.npy"))}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.enable_cpu_mem_arena, options.enable_mem_pattern = arena == "True", pattern == "True"
    options.log_severity_level = 3
    before = resident("VmHWM")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    times = []
    for _ in range(3):
        found = session.run(None, given)
    end = time.perf_counter() + float(seconds)
    while not times or time.perf_counter() < end and len(times) < 1000:
        began = time.perf_counter()
        session.run(None, given)
        times.append((time.perf_counter() - began) * 1e3)
    grown = resident("VmHWM") - before
    for name, output in zip(names, found):
        numpy.save(pathlib.Path(outputs, plain(name) + ".npy"), output)
    print(json.dumps({"ms": statistics.median(times), "bytes": grown}))


def measure(model, inputs, arguments, threads):
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "ort").mkdir()
        given = [word for path in sorted(inputs.glob("*.npy")) for word in ("--input", f"{path.stem}={path}")]
        rows = []
        for number in range(arguments.rounds):
            # Once, to know how many runs fill the time.
            command = [TARGET / "stepalloc", "model", "infer", model, *given, "--threads", str(threads), "--json", "-"]
            if number == 0:
                once = ask([*command, "--runs", "4"])["run_ms_median"]
                runs = max(4, min(1000, int(arguments.seconds * 1e3 / max(once, 1e-3))))
            ours = ask([*command, "--runs", str(runs), "--save-outputs", folder / "ours"])
            setting = SETTINGS[number % len(SETTINGS)]
            words = [model, inputs, folder / "ort", arguments.seconds, threads, *setting]
            rows.append((ours, ask([sys.executable, __file__, "--rival", *map(str, words)])))
        told = {path.name: numpy.load(path) for path in (folder / "ours").glob("*.npy")}
        wanted = {name: numpy.load(folder / "ort" / name) for name in told}
        ours = rows[-1][0]
        ms, ort = (statistics.median(times) for times in zip(*((row[0]["run_ms_median"], row[1]["ms"]) for row in rows)))
        return {
            "threads": threads,
            "ms": round(ms, 3),
            "ort_ms": round(ort, 3),
            "ms_ratio": round(ms / ort, 2),
            "grown_bytes": min(row[0]["vm_hwm_bytes"] - row[0]["vm_hwm_before_bytes"] for row in rows),
            "ort_grown_bytes": min(row[1]["bytes"] for row in rows),
            "arena_bytes": ours["arena_bytes"],
            "lower_bound_bytes": ours["lower_bound_bytes"],
            "unplanned_nodes": ours["unplanned_nodes"],
            "allocations_per_run": ours["allocations_per_run"],
            "minor_faults_per_run": ours["minor_faults_per_run"],
            "error": f"{difference(told, wanted):.1e}",
        }


def main():
    if sys.argv[1:2] == ["--rival"]:
        return rival(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", help="names, with commas between them; all in the folder without it")
    parser.add_argument("--threads", default="1", help="with commas between them (1)")
    parser.add_argument("--rounds", type=int, default=4, help="each has another setting of ONNX Runtime (4)")
    parser.add_argument("--seconds", type=float, default=1, help="of runs of an engine in a round (1)")
    arguments = parser.parse_args()
    there = sorted(path.stem for path in arguments.folder.glob("*.onnx"))
    names = arguments.models.split(",") if arguments.models else there
    if unknown := set(names) - set(there):
        sys.exit(f"{arguments.folder} has no {', '.join(sorted(unknown))}: benches/export_models.py writes them")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    out = None
    for name in names:
        for threads in map(int, arguments.threads.split(",")):
            try:
                found = measure(arguments.folder / f"{name}.onnx", arguments.folder / name, arguments, threads)
            except (RuntimeError, AssertionError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            if out is None:
                out = csv.DictWriter(sys.stdout, ["model", *found], lineterminator="\n")
                out.writeheader()
            out.writerow({"model": name, **found})
            sys.stdout.flush()


if __name__ == "__main__":
    main()
