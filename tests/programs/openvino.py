"""Writes ONNX's tests of operators, and a small network, in OpenVINO's format.

    openvino.py TESTS OUT NAME...

OUT/NAME/model.xml with the data of TESTS/NAME; OUT/network with weights of 16 bits and what OpenVINO itself makes of its input.
"""

import pathlib
import shutil
import sys

# This folder is in front of the path, and this file has the package's name.
sys.path = [place for place in sys.path if pathlib.Path(place) != pathlib.Path(__file__).parent]

import numpy
import onnx
import onnx.parser
import openvino
from onnx import numpy_helper

NETWORK = """
<ir_version: 10, opset_import: ["" : 17]>
network (float[N, 3, 16, 16] image) => (float[N, 10] scores)
{
    wide = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (image, w0, b0)
    plain = Relu (wide)
    each = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (plain, w1)
    gate = HardSigmoid <alpha = 0.2, beta = 0.5> (each)
    gated = Mul (each, gate)
    pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (gated)
    order = Transpose <perm = [0, 2, 3, 1]> (pooled)
    flat = Reshape (order, shape)
    normal = LayerNormalization (flat, scale, shift)
    logits = MatMul (normal, w2)
    scores = Softmax (logits)
}
"""


def network():
    random = numpy.random.default_rng(1)

    def tensor(name, *shape):
        return numpy_helper.from_array(random.standard_normal(shape).astype("f4") / 4, name)

    model = onnx.parser.parse_model(NETWORK)
    model.graph.initializer.extend([
        tensor("w0", 8, 3, 3, 3), tensor("b0", 8), tensor("w1", 8, 1, 3, 3), tensor("w2", 128, 10),
        tensor("scale", 128), tensor("shift", 128),
        numpy_helper.from_array(numpy.array([0, 128]), "shape"),
    ])
    return model, random.standard_normal((3, 3, 16, 16)).astype("f4")


def main():
    tests, out = map(pathlib.Path, sys.argv[1:3])
    for name in sys.argv[3:]:
        shutil.copytree(tests / name, out / name, ignore=shutil.ignore_patterns("model.onnx"))
        model = openvino.convert_model(str(tests / name / "model.onnx"))
        openvino.save_model(model, out / name / "model.xml", compress_to_fp16=False)
    model, image = network()
    folder = out / "network"
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(model, out / "network.onnx")
    openvino.save_model(openvino.convert_model(str(out / "network.onnx")), folder / "model.xml")
    compiled = openvino.Core().compile_model(folder / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for kind, values in (("input", image), ("output", compiled([image])[0])):
        (data / f"{kind}_0.pb").write_bytes(numpy_helper.from_array(values).SerializeToString())


main()
