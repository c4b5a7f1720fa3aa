#!/usr/bin/env python3
"""Optimized models beside those they were made from: nodes, size, and what ONNX Runtime says of both.

    benches/optimize.py [--level LEVEL] [MODEL...] > benches/results/optimize.csv

Without models, those of benches/models.py. Each is written by `stepalloc model optimize`, passed by
onnx.checker, and run by ONNX Runtime (with its own optimizations off) before and after on the same inputs; `error` is the largest
difference relative to the largest element of an output, and `ours` the same between stepalloc with and without optimization.
Needs the packages of benches/models.py.
"""
import argparse, csv, json, os, pathlib, subprocess, sys, tempfile

import numpy, onnx, onnxruntime

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import models

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = next((path for path in (TARGET / kind / "stepalloc" for kind in ("release", "debug")) if path.exists()), None)
TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}


def session(path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def at_random(one):
    """Numbers from 0 to 1 for each input that has no value; sizes that are open are 1."""
    random = numpy.random.default_rng(1)
    shape = lambda given: [size if isinstance(size, int) else 1 for size in given.shape]
    return {given.name: random.random(shape(given)).astype(TYPES[given.type]) for given in one.get_inputs()}


def difference(wanted, got):
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(wanted, got)):
        return float("inf")
    return models.difference(dict(enumerate(got)), dict(enumerate(wanted)))


def ours(path, inputs, level, names, directory):
    """Outputs of `stepalloc model infer`."""
    arguments = []
    for name, tensor in inputs.items():
        file = directory / f"{abs(hash(name))}.npy"
        numpy.save(file, tensor)
        arguments += ["--input", f"{name}={file}"]
    out = directory / f"out-{level}"
    command = [PROGRAM, "model", "infer", path, "--runs", "1", "--level", level, "--save-outputs", out, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [numpy.load(out / f"{models.plain(name)}.npy") for name in names]


def judge(name, path, inputs, level):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        saved = directory / "saved.onnx"
        command = [PROGRAM, "model", "optimize", path, "-o", saved, "--level", level, "--json", "-"]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        onnx.checker.check_model(str(saved), full_check=True)
        before, after = session(path), session(saved)
        inputs = inputs or at_random(after)
        outputs = [given.name for given in before.get_outputs()]
        known = {given.name for given in after.get_inputs()}
        same = {key: value for key, value in inputs.items() if key in known}
        wanted, got = before.run(outputs, inputs), after.run(outputs, same)
        plain, fast = (ours(path, same, one, outputs, directory) for one in ("disable", level))
        again = ours(saved, same, "disable", outputs, directory)
        return {
            "model": name,
            "nodes_before": told["nodes_before"],
            "nodes_after": told["nodes_after"],
            "bytes_before": told["bytes_before"],
            "bytes_after": told["bytes_after"],
            "error": f"{difference(wanted, got):.1e}",
            "ours": f"{max(difference(plain, fast), difference(plain, again)):.1e}",
            "passes": " ".join(f"{key}:{count}" for key, count in told["passes"].items()),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="all")
    parser.add_argument("models", nargs="*")
    chosen = parser.parse_args()
    if PROGRAM is None:
        sys.exit(f"no stepalloc below {TARGET}: cargo build --release -p stepalloc-cli")
    cases = [(pathlib.Path(path).stem, path, None) for path in chosen.models]
    if not cases:
        cases = [(name, models.package(*folder[:1], *folder[1:], file), make()) for name, (folder, file, make) in models.MODELS.items()]
    writer = None
    for name, path, inputs in cases:
        row = judge(name, path, inputs, chosen.level)
        if writer is None:
            writer = csv.DictWriter(sys.stdout, row, lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
