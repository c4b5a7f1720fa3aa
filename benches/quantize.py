#!/usr/bin/env python3
"""`stepalloc model quantize` beside onnxruntime.quantization's quantize_dynamic: nodes, bytes, and errors against f32.

    benches/quantize.py [--models NAME,...] [--debug] > benches/results/quantize.csv

Run it with a Python that has the packages (PyPI): numpy pillow onnx onnxruntime magika silero-vad rapidocr-onnxruntime==1.4.4 (the last
three with --no-deps: only their models are read). Inputs are those of models.py; models that are mostly products are made here.

Weights that Constant nodes make are turned into initializers first, as ONNX Runtime's quantizer fails on such models or makes them
larger; `direct` says whether ours gives the same nodes and weights without that (with default options: of nodes that are not to be quantized,
Constants stay).

`nodes` says whether both write the same nodes (operators, names, inputs, outputs, in order), `weights` whether all initializers are
the same. Where ONNX Runtime's order takes values that If's graphs need before they are made, they are compared without order:
`unordered`. Errors are the largest difference to the f32 model in ONNX Runtime, relative to the largest element of an output: of our
model in our runtime, of our model in ONNX Runtime, of ONNX Runtime's model there; `rms` is the first as root mean squares, `between` the
difference of the first two to each other. That is rounding where a model has few nodes: a difference in the last bit, of a normalization
say, can move an element of an activation by one of its 255 steps.

Times are medians of ten runs on one thread: `ms_f32` and `ms` of the f32 model and of ours in our runtime, `ort_ms_f32` and `ort_ms` of
the f32 model and of ONNX Runtime's there.
"""
import argparse, csv, json, logging, os, pathlib, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import models as real

# Where nodes have their weights.
WEIGHTS = {"Conv": [1], "MatMul": [1], "Gemm": [1], "Gather": [0], "LSTM": [1, 2]}


def rng():
    import numpy

    return numpy.random.default_rng(7)


class Net:
    """A model that is being made."""

    def __init__(self):
        self.nodes, self.weights, self.random = [], [], rng()

    def weight(self, name, *shape, scale=None):
        import onnx

        scale = shape[-2] ** -0.5 if scale is None else scale
        data = self.random.normal(0, scale, shape).astype("float32")
        self.weights.append(onnx.numpy_helper.from_array(data, name))
        return name

    def constant(self, name, data, kind=None):
        import numpy, onnx

        self.weights.append(onnx.numpy_helper.from_array(numpy.array(data, kind), name))
        return name

    def node(self, op, inputs, name, **attributes):
        import onnx

        self.nodes.append(onnx.helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def save(self, path, inputs, output, shape):
        import onnx

        kinds = {"int64": onnx.TensorProto.INT64, "float32": onnx.TensorProto.FLOAT}
        given = [onnx.helper.make_tensor_value_info(name, kinds[str(x.dtype)], x.shape) for name, x in inputs.items()]
        out = [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape)]
        graph = onnx.helper.make_graph(self.nodes, "net", given, out, self.weights)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, path)


def encoder(path, layers=2, width=256, heads=4, words=64, vocabulary=2000):
    """A transformer encoder of two layers with an embedding and a head."""
    net = Net()
    inputs = {"tokens": net.random.integers(0, vocabulary, (1, words))}
    x = net.node("Gather", [net.weight("table", vocabulary, width, scale=0.02), "tokens"], "embed")
    x = net.node("Add", [x, net.weight("positions", words, width, scale=0.02)], "place")
    net.constant("split", [1, words, heads, width // heads])
    net.constant("join", [1, words, width])
    net.constant("root", (width // heads) ** -0.5, "float32")
    for layer in range(layers):
        linear = lambda x, name, a, b: net.node(
            "Add",
            [net.node("MatMul", [x, net.weight(f"{name}.weight", a, b)], name), net.weight(f"{name}.bias", b, scale=0.01)],
            f"{name}/bias",
        )
        norm = lambda x, name: net.node(
            "LayerNormalization",
            [x, net.constant(f"{name}.weight", net.random.normal(1, 0.1, width).astype("float32")), net.weight(f"{name}.bias", width, scale=0.01)],
            name,
        )
        part = lambda what, perm: net.node(
            "Transpose", [net.node("Reshape", [linear(y, f"{layer}/{what}", width, width), "split"], f"{layer}/{what}/split")], f"{layer}/{what}/turn", perm=perm
        )
        y = norm(x, f"{layer}/norm")
        q, k, v = part("q", [0, 2, 1, 3]), part("k", [0, 2, 3, 1]), part("v", [0, 2, 1, 3])
        scores = net.node("Mul", [net.node("MatMul", [q, k], f"{layer}/scores"), "root"], f"{layer}/scaled")
        y = net.node("MatMul", [net.node("Softmax", [scores], f"{layer}/softmax", axis=-1), v], f"{layer}/mix")
        y = net.node("Reshape", [net.node("Transpose", [y], f"{layer}/back", perm=[0, 2, 1, 3]), "join"], f"{layer}/join")
        x = net.node("Add", [x, linear(y, f"{layer}/out", width, width)], f"{layer}/residual")
        y = linear(norm(x, f"{layer}/norm2"), f"{layer}/up", width, 4 * width)
        y = linear(net.node("Relu", [y], f"{layer}/relu"), f"{layer}/down", 4 * width, width)
        x = net.node("Add", [x, y], f"{layer}/residual2")
    x = net.node("MatMul", [x, net.weight("head.weight", width, 128)], "head")
    net.save(path, inputs, x, (1, words, 128))
    return inputs


def mlp(path):
    """Gemms, transposed and not, with a bias and without."""
    net = Net()
    inputs = {"x": net.random.normal(0, 1, (8, 512)).astype("float32")}
    x = net.node("Gemm", ["x", net.weight("w1", 1024, 512, scale=0.04), net.weight("b1", 1024, scale=0.1)], "fc1", transB=1)
    x = net.node("Gemm", [net.node("Relu", [x], "relu1"), net.weight("w2", 1024, 1024), net.weight("b2", 1024, scale=0.1)], "fc2")
    x = net.node("Gemm", [net.node("Relu", [x], "relu2"), net.weight("w3", 1024, 1024)], "fc3", transB=1)
    x = net.node("Gemm", [net.node("Relu", [x], "relu3"), net.weight("w4", 10, 1024, scale=0.03), net.weight("b4", 10, scale=0.1)], "fc4", transB=1, alpha=0.5)
    net.save(path, inputs, x, (8, 10))
    return inputs


def embedding(path):
    """A table whose rows are multiplied as they are, transposed, and added; and once more as a factor."""
    net = Net()
    inputs = {"tokens": net.random.integers(0, 4000, (4, 16))}
    rows = net.node("Gather", [net.weight("table", 4000, 256, scale=0.05), "tokens"], "embed")
    x = net.node("MatMul", [rows, net.weight("mix", 256, 256)], "mix")
    turned = net.node("Transpose", [rows], "turn", perm=[0, 2, 1])
    y = net.node("MatMul", [turned, net.weight("words", 16, 16)], "words")
    x = net.node("Add", [x, net.node("Transpose", [y], "back", perm=[0, 2, 1])], "both")
    x = net.node("Add", [x, rows], "residual")
    x = net.node("MatMul", [x, net.node("Transpose", ["table"], "tied", perm=[1, 0])], "head")
    net.save(path, inputs, x, (4, 16, 4000))
    return inputs


MADE = {"encoder": encoder, "mlp": mlp, "embedding": embedding}
# Our words, and ONNX Runtime's.
OPTIONS = {
    "default": ([], {}),
    "uint8": (["--weight-type", "uint8"], {"weight_type": 1}),
    "per channel": (["--per-channel"], {"per_channel": True}),
    "reduced": (["--reduce-range"], {"reduce_range": True}),
    "uint8 reduced per channel": (
        ["--weight-type", "uint8", "--reduce-range", "--per-channel"],
        {"weight_type": 1, "reduce_range": True, "per_channel": True},
    ),
    "MatMul": (["--op-types", "MatMul"], {"op_types_to_quantize": ["MatMul"]}),
    "Conv Gather": (["--op-types", "Conv,Gather"], {"op_types_to_quantize": ["Conv", "Gather"]}),
    "exclude": None,
    "only": None,
    "subgraphs": (["--subgraphs"], {"extra_options": {"EnableSubgraph": True}}),
}


def prepared(source, path):
    """Weights that Constant nodes make become initializers. Returns whether there are any."""
    import onnx

    model = onnx.load(source)
    graph, count = model.graph, 0
    wanted = {node.input[at] for node in graph.node for at in WEIGHTS.get(node.op_type, []) if at < len(node.input)}
    stay = []
    for node in graph.node:
        value = [a.t for a in node.attribute if a.name == "value"] if node.op_type == "Constant" else []
        if value and node.output[0] in wanted and value[0].data_type == onnx.TensorProto.FLOAT:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value[0])
            tensor.name, count = node.output[0], count + 1
        else:
            stay.append(node)
    del graph.node[:]
    graph.node.extend(stay)
    onnx.save(model, path)
    return count > 0


def nodes(graph):
    """All nodes, those of graphs within them as well."""
    for node in graph.node:
        yield (node.op_type, node.name, tuple(node.input), tuple(node.output), node.domain)
        for attribute in node.attribute:
            for inner in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
                yield from nodes(inner)


def initializers(path):
    import onnx

    model = onnx.load(path)
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def same_nodes(ours, theirs):
    import onnx

    ours, theirs = (list(nodes(onnx.load(path).graph)) for path in (ours, theirs))
    return "equal" if ours == theirs else "unordered" if sorted(ours) == sorted(theirs) else "different"


def same_weights(ours, theirs):
    import numpy

    ours, theirs = initializers(ours), initializers(theirs)
    equal = ours.keys() == theirs.keys() and all(numpy.array_equal(ours[name], theirs[name]) for name in ours)
    return "equal" if equal else "different"


RUNS = 10


def in_ort(path, inputs):
    """Outputs, and the median time of a run in milliseconds."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        outputs = session.run(None, inputs)
        times.append(1e3 * (time.perf_counter() - begin))
    return dict(zip([real.plain(output.name) for output in session.get_outputs()], outputs)), statistics.median(times)


def in_ours(path, inputs, folder):
    """The same."""
    import numpy

    given = []
    for name, value in inputs.items():
        numpy.save(folder / "input.npy", value)
        file = folder / f"{len(given)}.npy"
        os.replace(folder / "input.npy", file)
        given += ["--input", f"{name}={file}"]
    done = stepalloc("infer", path, *given, "--runs", RUNS, "--threads", "1", "--json", "-", "--save-outputs", folder / "outputs")
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    outputs = {path.stem: numpy.load(path) for path in (folder / "outputs").glob("*.npy")}
    return outputs, json.loads(done.stdout)["run_ms_median"]


def rms(told, wanted):
    pairs = [(told[name].astype("float64"), of.astype("float64")) for name, of in wanted.items()]
    return max(((mine - of) ** 2).mean() ** 0.5 / max((of**2).mean() ** 0.5, 1e-12) for mine, of in pairs if of.size)


def stepalloc(*words):
    return subprocess.run([BINARY, "model", *map(str, words)], capture_output=True, text=True)


def measure(name, option, source, inputs, folder, wanted, times):
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain, ours, theirs, direct = (folder / f"{what}.onnx" for what in ("plain", "ours", "theirs", "direct"))
    had_constants = prepared(source, plain)
    if OPTIONS[option] is None:
        # The second node that has weights, by name.
        graph = onnx.load(plain).graph
        weights = {tensor.name for tensor in graph.initializer}
        names = [n.name for n in graph.node if n.op_type in ("MatMul", "Conv") and n.name and n.input[1] in weights]
        if len(names) < 2 or "," in names[1]:
            return None
        argument = {"exclude": "nodes_to_exclude", "only": "nodes_to_quantize"}[option]
        words, arguments = [f"--{option}", names[1]], {argument: [names[1]]}
    else:
        words, arguments = OPTIONS[option]
    arguments = {**arguments, "weight_type": QuantType(arguments.get("weight_type", 0))}
    done = stepalloc("quantize", plain, "-o", ours, *words, "--json", "-")
    if done.returncode != 0:
        print(f"{name}, {option}: {done.stderr.strip()}", file=sys.stderr)
        return None
    told = json.loads(done.stdout)
    onnx.checker.check_model(str(ours))
    row = {"model": name, "options": option, "quantized": len(told["quantized"]), "bytes_f32": os.path.getsize(plain)}
    row |= {"bytes": told["bytes_after"], "ratio": f"{row['bytes_f32'] / told['bytes_after']:.2f}"}
    try:
        quantize_dynamic(str(plain), str(theirs), **arguments)
        row |= {"ort_bytes": os.path.getsize(theirs), "nodes": same_nodes(ours, theirs), "weights": same_weights(ours, theirs)}
    except Exception as failed:
        print(f"{name}, {option}: onnxruntime.quantization: {failed}", file=sys.stderr)
        theirs, row = None, row | {"ort_bytes": "", "nodes": "", "weights": ""}
    row["direct"] = ""
    if had_constants and option == "default":
        done = stepalloc("quantize", source, "-o", direct, *words)
        assert done.returncode == 0, done.stderr
        row["direct"] = "equal" if (same_nodes(direct, ours), same_weights(direct, ours)) == ("equal", "equal") else "different"
    (mine, milliseconds), (there, _) = in_ours(ours, inputs, folder), in_ort(ours, inputs)
    outputs = mine, there
    row |= {"error": f"{real.difference(outputs[0], wanted):.1e}", "rms": f"{rms(outputs[0], wanted):.1e}"}
    row["error_in_ort"] = f"{real.difference(outputs[1], wanted):.1e}"
    row |= {"ort_error": "", "between": f"{real.difference(outputs[0], outputs[1]):.1e}"}
    row |= times | {"ms": f"{milliseconds:.3f}", "ort_ms": ""}
    try:
        if theirs:
            told, milliseconds = in_ort(theirs, inputs)
            row |= {"ort_error": f"{real.difference(told, wanted):.1e}", "ort_ms": f"{milliseconds:.3f}"}
    except Exception as failed:
        print(f"{name}, {option}: onnxruntime: {failed}", file=sys.stderr)
    return row


def main():
    global BINARY
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*MADE, *real.MODELS]
    parser.add_argument("--models", default=",".join(known))
    parser.add_argument("--options", default=",".join(OPTIONS))
    parser.add_argument("--debug", action="store_true", help="the command as cargo's dev profile builds it")
    arguments = parser.parse_args()
    if unknown := set(arguments.models.split(",")) - set(known):
        sys.exit(f"unknown models {sorted(unknown)}; known are {known}")
    build = ["cargo", "build", "--quiet", "-p", "stepalloc-cli", *([] if arguments.debug else ["--release"])]
    subprocess.run(build, cwd=real.ROOT, check=True)
    BINARY = real.TARGET.parent / ("debug" if arguments.debug else "release") / "stepalloc"
    logging.disable(logging.CRITICAL)
    out = None
    for name in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if name in MADE:
                source = folder / "made.onnx"
                inputs = MADE[name](source)
            else:
                (module, *path), file, make = real.MODELS[name]
                source = real.package(module, *path, file)
                if source is None or not os.path.exists(source):
                    print(f"{name}: {module} is not installed, left out", file=sys.stderr)
                    continue
                inputs = make()
            wanted, there = in_ort(source, inputs)
            times = {"ms_f32": f"{in_ours(source, inputs, folder)[1]:.3f}", "ort_ms_f32": f"{there:.3f}"}
            for option in arguments.options.split(","):
                row = measure(name, option, source, inputs, folder, wanted, times)
                if row is None:
                    continue
                if out is None:
                    out = csv.DictWriter(sys.stdout, row, lineterminator="\n")
                    out.writeheader()
                out.writerow(row)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
