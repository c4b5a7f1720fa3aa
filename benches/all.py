#!/usr/bin/env python3
"""Measures all that BENCHMARKS.md shows: makes benches/results, and the tables and the plot from it.

    benches/all.py [--only NAME,...] [--quick]

Each bench writes a CSV of its own into benches/results, which takes the old one's place when it has run to its end;
machine.csv says of each on which machine, with what software, when and on which commit that was. Then benches/tables.py writes
BENCHMARKS.md anew. Without --only that takes some hours; with nothing else running, and better on a machine of its own.
--quick makes fewer runs of each, to see that all of them work, and writes nothing into the repository.

Needs Debian's libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4 valgrind python3-torch python3-numpy python3-matplotlib
python3-venv, and what benches/everyday.py names; ONNX Runtime, scikit-learn, LightGBM and XGBoost are installed from PyPI into target/benches-python,
and with OpenVINO and packages that have models into target/benches-models; JAX into target/benches-jax, TensorFlow into
target/benches-tensorflow.
"""
import argparse, csv, datetime, os, pathlib, platform, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches/results"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PYTHON = TARGET / "benches-python"
# With real models and the engines that they are compared with.
MODELS = TARGET / "benches-models"
ENGINES = ["numpy", "pillow", "onnx", "onnxruntime", "openvino"]
PACKAGES = ["magika", "silero-vad", "rapidocr-onnxruntime==1.4.4"]
# Those whose training is measured, each in a virtual environment of its own.
JAX = TARGET / "benches-jax"
TENSORFLOW = TARGET / "benches-tensorflow"
# Each bench's arguments, and those of --quick.
BENCHES = {
    "pytorch": (["pytorch.py", "--runs", "3"], ["--runs", "1", "--workloads", "convnet"]),
    "others": (["others.py", "--python", PYTHON / "bin/python", "--runs", "3"], ["--runs", "1", "--programs", "numpy stencil"]),
    "workloads": (["workloads.py"], ["--runs", "2", "--workloads", "larson"]),
    "large": (["large.py"], ["--runs", "1", "--workloads", "sparse,push"]),
    "engines": (["engines.py", "--jax", JAX / "bin/python", "--tensorflow", TENSORFLOW / "bin/python"],
                ["--runs", "1", "--steps", "8", "--engines", "jax"]),
    "programs": (["programs.py", "--python", PYTHON / "bin/python"], ["--runs", "2", "--programs", "sqlite3"]),
    "compare": (["compare.py"], ["--sittings", "1", "--minutes", "0.1"]),
    "recording": (["recording.py"], ["--programs", "numpy stencil"]),
    "everyday": (["everyday.py"], ["--programs", "sort,openssl"]),
    "start": (["start.py"], ["--runs", "10"]),
    "instructions": (["instructions.py"], None),
    "planner": (["planner.py", "--long"], None),
    "models": (["models.py"], ["--models", "magika", "--runs", "3"]),
    "models_memory": (["models_memory.py"], None),
    "exported": (["exported.py", "--threads", "1,2"], ["--models", "resnet18", "--rounds", "1", "--threads", "1"]),
    "exported_ir": (["exported.py", "--ir"], ["--models", "resnet18", "--rounds", "1"]),
    "decode": (["decode.py"], ["--past", "16", "--tokens", "32", "--rounds", "1"]),
    "optimize": (["optimize.py"], None),
    "quantize": (["quantize.py"], None),
}

OF_MODELS = {"models", "models_memory", "exported", "exported_ir", "decode", "optimize", "quantize"}
# What models are exported with.
EXPORTERS = ["torch==2.9.1", "torchvision==0.24.1", "onnxscript"]


def said(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def machine():
    """What a figure depends on."""
    processor = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        processor.setdefault(name.strip(), value.strip())
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    # What was measured before is no change of what is.
    changed = said("git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!benches/results", ":!README.md", ":!BENCHMARKS.md")
    version = lambda package: said("/usr/bin/python3", "-c", f"import {package}; print({package}.__version__)")
    return {
        "measured": datetime.date.today().isoformat(),
        "commit": said("git", "-C", str(ROOT), "describe", "--always") + "-dirty" * bool(changed),
        "processor": processor.get("model name") or processor.get("CPU part", ""),
        "cores": os.cpu_count(),
        "memory_mib": memory // 1024,
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "rustc": said("rustc", "--version"),
        "python": said("/usr/bin/python3", "--version").removeprefix("Python "),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "valgrind": said("valgrind", "--version"),
    }


def prepare(name):
    """What a bench wants that no package of Debian has, and that cargo build does not make by itself."""
    if name in ("others", "programs") and not (PYTHON / "bin/python").exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--system-site-packages", PYTHON], check=True)
        subprocess.run([PYTHON / "bin/pip", "install", "-q", "onnxruntime", "scikit-learn", "lightgbm", "xgboost"], check=True)
    if name in OF_MODELS and not (MODELS / "bin/python").exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", MODELS], check=True)
        install = [MODELS / "bin/pip", "install", "-q"]
        subprocess.run([*install, *ENGINES], check=True)
        # Only their models are read.
        subprocess.run([*install, "--no-deps", *PACKAGES], check=True)
    if name in ("exported", "exported_ir", "decode"):
        subprocess.run([MODELS / "bin/pip", "install", "-q", "--extra-index-url", "https://download.pytorch.org/whl/cpu", *EXPORTERS], check=True)
        subprocess.run([MODELS / "bin/python", ROOT / "benches/export_models.py"], check=True)
    for venv, package in ((JAX, "jax[cpu]"), (TENSORFLOW, "tensorflow-cpu")):
        if name == "engines" and not (venv / "bin/python").exists():
            subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin/pip", "install", "-q", package], check=True)
    if name == "planner":
        subprocess.run(["cargo", "build", "--quiet", "--release", "--workspace", "--examples", "--bins"], cwd=ROOT, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BENCHES), help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(BENCHES):
        sys.exit(f"unknown {sorted(unknown)}; known are {list(BENCHES)}")
    failed = []
    for number, name in enumerate(names):
        whole, quick = BENCHES[name]
        if arguments.quick and quick is None:
            print(f"{name}: has no quick form, left out", file=sys.stderr)
            continue
        python = [MODELS / "bin/python"] if name in OF_MODELS else []
        command = [*python, ROOT / "benches" / whole[0], *whole[1:], *(quick if arguments.quick else [])]
        print(f"{number + 1} of {len(names)}: {name}", file=sys.stderr, flush=True)
        prepare(name)
        here = machine()
        with tempfile.TemporaryFile() as new:
            done = subprocess.run(command, stdout=new, cwd=ROOT)
            new.seek(0)
            measured = new.read()
        # A bench that checks what it must show has measured all the same where that does not hold.
        if done.returncode:
            failed.append(name)
        if arguments.quick or measured.count(b"\n") < 2 or done.returncode < 0:
            continue
        (RESULTS / f"{name}.csv").write_bytes(measured)
        machines = RESULTS / "machine.csv"
        rows = {row["results"]: row for row in csv.DictReader(machines.read_text().splitlines())} if machines.exists() else {}
        rows[f"{name}.csv"] = {"results": f"{name}.csv", **here}
        with open(machines, "w", newline="") as file:
            out = csv.DictWriter(file, ["results", *here], lineterminator="\n")
            out.writeheader()
            out.writerows(rows[results] for results in sorted(rows))
    if not arguments.quick:
        subprocess.run(["/usr/bin/python3", ROOT / "benches/tables.py"], check=True)
    if failed:
        sys.exit(f"does not show what it must: {', '.join(failed)}")


if __name__ == "__main__":
    main()
