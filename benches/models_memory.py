#!/usr/bin/env python3
"""What models cost in memory beside one run: loading, more sessions, other shapes, loading again; under ONNX Runtime as well.

    benches/models_memory.py [--models NAME,...] [--reloads N] > benches/results/models_memory.csv

Python and packages as for benches/models.py, whose models and inputs these are. One process for each figure, one thread each.

- `loaded`: weights in memory right after the model was read, before the first run, per cent of all. ONNX Runtime's are what VmRSS
  grows by meanwhile.
- `sessions`: VmRSS that eight sessions of one model, opened for each, have added once each has run, as a multiple of one session's.
- `shapes`: VmHWM that 58 runs on inputs of other sizes have added, as a multiple of the largest live set. The model is made here:
  convolutions over images of any size, whose live set in the largest one, among sizes at random, is 70 MiB.
- `reload BACKEND`: opened, planned, run and dropped --reloads times: the highest VmRSS of five turns from the 31st on, as a multiple
  of the first such five, under each backend of the command's own allocator. Images are cut to 64 x 64: it is not about runs.

ONNX Runtime's figures are its least over arena and memory pattern on and off; for `shapes` each of the four is a row, and one more
has the arena shrunk after each run.
"""
import argparse, csv, json, os, pathlib, random, subprocess, sys, tempfile

import models
from models import resident

SESSIONS = 8
SHAPES = 58
# Largest image: 70 MiB are alive in it.
LARGEST = (512, 560)


def sizes():
    """Heights and widths at random, the largest among them somewhere."""
    numbers = random.Random(58)
    some = [(numbers.randrange(32, LARGEST[0], 8), numbers.randrange(32, LARGEST[1], 8)) for _ in range(SHAPES - 1)]
    some.insert(SHAPES * 2 // 3, LARGEST)
    return some


def any_size(path):
    """A network of convolutions, as the stem and the head of one that looks for things in images of any size."""
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    numbers, weights, nodes = numpy.random.default_rng(58), [], []

    def conv(name, source, into, out, size, **more):
        weights.append(numpy_helper.from_array((numbers.normal(0, 0.1, (out, into, size, size))).astype("f"), name + "_w"))
        nodes.append(helper.make_node("Conv", [source, name + "_w"], [name], pads=[size // 2] * 4, **more))
        nodes.append(helper.make_node("Relu", [name], [name + "_r"]))
        return name + "_r"

    first = conv("first", "x", 3, 32, 3)
    second = conv("second", first, 32, 32, 1)
    small = conv("small", second, 32, 32, 3, strides=[2, 2])
    deep = conv("deep", small, 32, 32, 3)
    nodes.append(helper.make_node("Add", [small, deep], ["sum"]))
    weights.append(numpy_helper.from_array(numpy.array([1, 1, 2, 2], dtype="f"), "scales"))
    nodes.append(helper.make_node("Resize", ["sum", "", "scales"], ["up"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"))
    last = conv("last", "up", 32, 8, 1)
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "height", "width"])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 1, 1])
    graph = helper.make_graph(nodes, "any size", [image], [answer], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def rival(what, model, folder, arena, pattern):
    """In a process of its own: a figure of ONNX Runtime."""
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena, options.enable_mem_pattern = arena != "off", pattern == "on"
    open_one = lambda: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {path.stem: numpy.load(path) for path in sorted(pathlib.Path(folder).glob("*.npy"))}
    before = resident()
    if what == "shapes":
        session, shrink = open_one(), onnxruntime.RunOptions()
        if arena == "shrunk":
            shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        image = lambda height, width: numpy.random.default_rng(1).random((1, 3, height, width), dtype="f")
        session.run(None, {"x": image(64, 64)}, shrink)
        before = resident()
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        for height, width in sizes():
            session.run(None, {"x": image(height, width)}, shrink)
        return print(resident("VmHWM") - before)
    sessions = [open_one()]
    if what == "loaded":
        return print(resident() - before)
    sessions[0].run(None, inputs)
    one = resident() - before
    for _ in range(1, SESSIONS):
        sessions.append(open_one())
        sessions[-1].run(None, inputs)
    print((resident() - before) / one)


def ask(*arguments):
    command = [sys.executable, __file__, "--rival", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout)


def ours(model, *arguments, backend="glibc"):
    command = [models.TARGET / "stepalloc", "model", "infer", model, "--threads", "1", "--runs", "2", "--json", "-", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "STEPALLOC_BACKEND": backend})
    # 1: memory grows.
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(done.stdout), done.returncode


SETTINGS = [(arena, pattern) for arena in ("on", "off") for pattern in ("on", "off")]


def rows(name, model, inputs, reloads):
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        for key, value in inputs.items():
            numpy.save(pathlib.Path(folder, f"{key}.npy"), value)
        given = [word for key in inputs for word in ("--input", f"{key}={folder}/{key}.npy")]
        told, _ = ours(model, *given, "--sessions", SESSIONS)
        least = lambda what: min(ask(what, model, folder, *setting) for setting in SETTINGS)
        weights = told["weight_bytes"]
        yield "loaded", name, f"{100 * told['loaded_weight_bytes'] / weights:.1f}", f"{100 * least('loaded') / weights:.0f}", "10"
        # The process had its libraries and this model's inputs before it read the model.
        one = told["vm_rss_bytes"] - told["vm_hwm_before_bytes"]
        yield "sessions", name, f"{1 + told['session_bytes'] / one:.2f}", f"{least('sessions'):.2f}", "1.2"
        if "x" in inputs:
            numpy.save(pathlib.Path(folder, "x.npy"), numpy.ascontiguousarray(inputs["x"][..., :64, :64]))
        for backend in ("glibc", "jemalloc", "mimalloc"):
            if reloads == 0:
                break
            told, status = ours(model, *given, "--reload", reloads, backend=backend)
            turns = told["reload_bytes"]
            blocks = [sum(turns[at : at + 5]) / 5 for at in range(30, len(turns) - 4, 5)]
            yield f"reload {backend}", name, f"{max(blocks) / blocks[0]:.3f}" + " grows" * status, "", "1.05"


def shapes():
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder, "any_size.onnx")
        any_size(model)
        also = [word for height, width in sizes() for word in ("--also", f"x=1x3x{height}x{width}")]
        told, _ = ours(model, "--shape", "x=1x3x64x64", *also)
        alive = told["also_alive_bytes"]
        print(f"shapes: {alive / 2**20:.1f} MiB are alive in the largest, {told['also_bytes'] / 2**20:.1f} MiB more at most", file=sys.stderr)
        for arena, pattern in [*SETTINGS, ("shrunk", "off")]:
            grown = ask("shapes", model, folder, arena, pattern)
            told_of = f"58 sizes, arena {arena}, pattern {pattern}"
            yield "shapes", told_of, f"{told['also_bytes'] / alive:.2f}", f"{grown / alive:.2f}", "1.3"


def main():
    if sys.argv[1:2] == ["--rival"]:
        return rival(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--reloads", type=int, default=1000, help="0: leave them out")
    arguments = parser.parse_args()
    names = [name for name in arguments.models.split(",") if name]
    if unknown := set(names) - set(models.MODELS):
        sys.exit(f"unknown models {sorted(unknown)}; known are {list(models.MODELS)}")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=models.ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["what", "model", "stepalloc", "onnxruntime", "bound"])
    for row in shapes():
        out.writerow(row)
    sys.stdout.flush()
    for name in names:
        (module, *path), file, inputs = models.MODELS[name]
        model = models.package(module, *path, file)
        if model is None or not os.path.exists(model):
            print(f"{name}: {module} is not installed, left out", file=sys.stderr)
            continue
        for row in rows(name, model, inputs(), arguments.reloads):
            out.writerow(row)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
