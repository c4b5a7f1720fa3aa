#!/usr/bin/env python3
"""What it costs to look: instructions of a training under the preloaded library, alone and recorded.

    benches/recording.py [--programs NAME,...] > benches/results/recording.csv

Counts the instructions of a program (valgrind --tool=callgrind) with the library in front of its malloc and nothing recorded,
with --json, --report, --trace and --trace --call-sites, each as `stepalloc run` asks for them; what the command itself does
afterwards is not counted. --json may cost 0.5 % and --trace 3 %; else the exit status is 1. Call sites are for who asks for
them, and cost what they do; Python's lines come on top where the wheel is installed. Needs valgrind, Debian's python3-numpy
and python3-torch; what is missing is named and left out.
"""
import argparse, csv, os, pathlib, re, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
PROGRAMS = {
    "numpy stencil": ["/usr/bin/python3", str(ROOT / "benches/loops.py"), "stencil", "--steps", "200"],
    "candle": [str(TARGET / "examples/candle"), "8"],
    "torch recommender": ["/usr/bin/python3", str(SHARED / "workloads/torch_train.py"), "recommender", "--steps", "12", "--threads", "1"],
}
WAYS = {
    "json": ["--json", "{folder}figures"],
    "report": ["--report", "{folder}report.html"],
    "trace": ["--trace", "{folder}trace.csv.gz"],
    "call_sites": ["--trace", "{folder}trace.csv.gz", "--call-sites"],
}
MOST = {"json": 1.005, "trace": 1.03}


def counted(command, environment):
    """Instructions of the one process."""
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = re.findall(r"Collected *: *(\d+)", done.stderr)
    if done.returncode != 0 or len(found) != 1:
        sys.exit(f"{command}: status {done.returncode}\n{done.stderr}")
    return int(found[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    names = parser.parse_args().programs.split(",")
    if unknown := set(names) - set(PROGRAMS):
        sys.exit(f"unknown programs {sorted(unknown)}; known are {list(PROGRAMS)}")
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed (Debian: valgrind)")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "stepalloc-benches", "--features", "candle", "--example", "candle"], cwd=ROOT, check=True)
    # One thread: those that wait for work would spin, and count.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "LC_ALL": "C", "RAYON_NUM_THREADS": "1"}
    preloaded = {**environment, "LD_PRELOAD": str(TARGET / "libstepalloc.so")}
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["program", "instructions_preloaded", *(f"{way}_ratio" for way in WAYS)])
    failed = False
    for name in names:
        program = PROGRAMS[name]
        if not all(pathlib.Path(word).exists() for word in program if word.startswith("/")):
            print(f"{name}: not there, left out", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *program]
            # Side by side: instructions are as many however long they take.
            with ThreadPoolExecutor(os.cpu_count()) as workers:
                alone = workers.submit(counted, command, preloaded)
                counts = {}
                for way, options in WAYS.items():
                    options = [option.format(folder=f"{folder}/{way} ") for option in options]
                    run = [str(TARGET / "stepalloc"), "run", "--quiet", *options, "--", *command]
                    counts[way] = workers.submit(counted, run, environment)
                alone = alone.result()
                ratios = {way: count.result() / alone for way, count in counts.items()}
        out.writerow([name, alone, *(f"{ratio:.4f}" for ratio in ratios.values())])
        sys.stdout.flush()
        for way, most in MOST.items():
            if ratios[way] > most:
                print(f"{name}: {way} costs {ratios[way]:.4f} x", file=sys.stderr)
                failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
