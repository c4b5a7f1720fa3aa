#!/usr/bin/env python3
"""Programs other than PyTorch under stepalloc and its rivals: ONNX Runtime from PyPI, numpy loops, a candle training.

    python3 -m venv --system-site-packages VENV && VENV/bin/pip install onnxruntime     (PyTorch makes the models)
    benches/others.py --python VENV/bin/python [--runs 5] [--programs NAME,...] [--allocators NAME,...] > benches/results/others.csv

Nothing is marked and nothing set: each program runs as it is under `stepalloc run`, and its steps must be found. They
have one thread each; each round runs every allocator once, each time beginning with another one. What is measured says
benches/loops.py; the results of all allocators must be the same. Rivals and floor are those of benches/pytorch.py.
"""
import argparse, csv, json, os, pathlib, statistics, subprocess, sys, tempfile
from pytorch import OURS, RIVALS, ROOT, TARGET

LOOPS = ROOT / "benches/loops.py"
# Program and its steps; {models} is the folder of the models.
PROGRAMS = {
    f"onnx {model}, {memory}": (["python", LOOPS, "onnx", f"{{models}}/{model}.onnx", memory, "--steps"], 300)
    for model in ("convnet", "transformer") for memory in ("default", "arena off", "arena and pattern off")
} | {
    "numpy mlp": (["python", LOOPS, "mlp", "--steps"], 100),
    "numpy stencil": (["python", LOOPS, "stencil", "--steps"], 300),
    "candle": ([TARGET / "examples/candle"], 100),
}


def run(program, name, python, models):
    command, steps = PROGRAMS[program]
    command = [python if part == "python" else str(part).replace("{models}", models) for part in command] + [str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "ours")
        if name in OURS:
            command = [TARGET / "stepalloc", "run", "--quiet", "--json", file, "--", *command]
        environment = {**os.environ, "RAYON_NUM_THREADS": "1", **(RIVALS.get(name) or OURS.get(name) or {})}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        result = json.loads(done.stdout.splitlines()[-1])
        lines = file.read_text().splitlines() if file.exists() else []
        result["ours"] = json.loads(lines[0]) if lines else None
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--programs", default=";".join(PROGRAMS), help="separated by semicolons")
    parser.add_argument("--allocators", default=",".join([*RIVALS, *OURS]))
    arguments = parser.parse_args()
    programs, names = arguments.programs.split(";"), arguments.allocators.split(",")
    if unknown := (set(names) - {*RIVALS, *OURS}) | (set(programs) - set(PROGRAMS)):
        sys.exit(f"unknown {sorted(unknown)}; known are {[*RIVALS, *OURS]} and {list(PROGRAMS)}")
    missing = [v["LD_PRELOAD"] for n in names if (v := RIVALS.get(n)) and not os.path.exists(v.get("LD_PRELOAD", "/"))]
    if missing:
        sys.exit(f"not installed: {missing} (Debian: libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4)")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    if "candle" in programs:
        build = ["cargo", "build", "--quiet", "--release", "-p", "stepalloc-benches", "--features", "candle", "--example", "candle"]
        subprocess.run(build, cwd=ROOT, check=True)
    out = csv.writer(sys.stdout)
    out.writerow(["program", "allocator", "runs", "cpu_ms_per_step", "cpu_ms_min", "cpu_ms_max", "minor_faults_median",
                  "minor_faults_max", "vm_rss_mib", "vm_hwm_mib", "planned_after_steps", "arena_mib", "arena_to_bound",
                  "fallback_percent", "gap_percent", "checksum"])
    differ = []
    with tempfile.TemporaryDirectory() as models:
        if any(program.startswith("onnx ") for program in programs):
            subprocess.run([arguments.python, "-W", "ignore", LOOPS, "models", models], check=True, stdout=sys.stderr)
        for program in programs:
            results = {name: [] for name in names}
            for turn in range(arguments.runs):
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    results[name].append(run(program, name, arguments.python, models))
            for name, runs in results.items():
                median = lambda key: statistics.median(r[key] for r in runs)
                cpu, ours = [r["cpu_ms"] for r in runs], runs[-1]["ours"]
                planned = [""] * 5
                if name in OURS:
                    planned[0] = runs[-1]["planned_after"] or "never"
                if ours and ours["phase"] == "planned":
                    last = ours["last_steps"]
                    all_bytes = (last["planned_bytes"] + last["fallback_bytes"]) / 100
                    planned[1:] = (f"{ours['arena_bytes'] / 2**20:.1f}", f"{ours['arena_bytes'] / ours['lower_bound_bytes']:.4f}",
                                   *(f"{last[key] / all_bytes:.3f}" for key in ("fallback_bytes", "gap_bytes")))
                out.writerow([program, name, len(runs), *(f"{x:.2f}" for x in (statistics.median(cpu), min(cpu), max(cpu))),
                              median("minor_faults_median"), max(r["minor_faults_max"] for r in runs),
                              *(f"{median(key):.1f}" for key in ("vm_rss_mib", "vm_hwm_mib")), *planned,
                              " ".join(sorted({r["checksum"] for r in runs}))])
                sys.stdout.flush()
            if len({r["checksum"] for runs in results.values() for r in runs}) != 1:
                differ.append(program)
    sys.exit(f"results differ: {differ}" if differ else 0)


if __name__ == "__main__":
    main()
