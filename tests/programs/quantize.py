"""Makes a model for tests of `stepalloc model quantize`, or compares a quantized one with it by ONNX's reference.

    quantize.py make MODEL            a table, products, a convolution; its input is tokens
    quantize.py tokens FILE.npy       tokens for it
    quantize.py check MODEL QUANTIZED SAVED.npy
        the quantized model is valid; prints the error of SAVED (outputs of our runtime) against ONNX's reference of the
        quantized model, and that of the reference of the quantized model against the one of the model
"""
import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def make(path):
    random = numpy.random.default_rng(1)
    weight = lambda name, *shape: numpy_helper.from_array(random.normal(0, 0.1, shape).astype("float32"), name)
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["rows"], "embed"),
        helper.make_node("MatMul", ["rows", "w1"], ["a"], "product"),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["b"], "layer", transB=1),
        helper.make_node("Reshape", ["b", "image"], ["c"], "image"),
        helper.make_node("Conv", ["c", "w3", "b3"], ["d"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["d"], ["y"], "relu"),
    ]
    weights = [weight("table", 600, 256), weight("w1", 256, 256), weight("w2", 256, 256), weight("b2", 256)]
    weights += [weight("w3", 4, 4, 3, 3), weight("b3", 4), numpy_helper.from_array(numpy.array([4, 4, 8, 8]), "image")]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4, 8, 8])
    graph = helper.make_graph(nodes, "net", [tokens], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"licence": "none"})
    onnx.save(model, path)


def tokens(path):
    numpy.save(path, numpy.array([3, 599, 0, 42]))


def check(path, quantized, saved):
    onnx.checker.check_model(quantized, full_check=True)
    model = onnx.load(quantized)
    assert [(entry.key, entry.value) for entry in model.metadata_props] == [("licence", "none")]
    given = {"tokens": numpy.load(saved.replace("y.npy", "tokens.npy"))}
    was, told = (ReferenceEvaluator(onnx.load(path)).run(None, given)[0] for path in (path, quantized))
    ours = numpy.load(saved)
    print(abs(ours - told).max() / abs(told).max(), abs(told - was).max() / abs(was).max())


if __name__ == "__main__":
    {"make": make, "tokens": tokens, "check": check}[sys.argv[1]](*sys.argv[2:])
