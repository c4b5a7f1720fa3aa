"""Operations of OpenVINO that its ONNX converter seldom writes, each as a model: OUT/NAME in ONNX's test layout.

    operations.py OUT

What is expected is what OpenVINO itself computes.
"""

import pathlib
import sys

# This folder is in front of the path, and a file in it has the package's name.
sys.path = [place for place in sys.path if pathlib.Path(place) != pathlib.Path(__file__).parent]

import numpy as np
import openvino as ov
from onnx import numpy_helper
from openvino import opset15 as op
from openvino import opset8 as op8

random = np.random.default_rng(3)


def f(*shape):
    return random.standard_normal(shape).astype("f4")


def i(*values, dtype="i8"):
    return np.array(values, {"i8": np.int64, "i4": np.int32}[dtype])


# By name: inputs, and what is made of them.
X = f(2, 3, 4, 5)
CASES = {
    "floor_mod": ([f(4, 3), f(3)], lambda a, b: op.floor_mod(a, b)),
    "mod": ([f(4, 3), f(3)], lambda a, b: op.mod(a, b)),
    "squared_difference": ([X, f(5)], lambda a, b: op.squared_difference(a, b)),
    "not_equal": ([i(1, 2, 3), i(1, 3, 3)], lambda a, b: op.not_equal(a, b)),
    "logical_xor": ([np.array([True, False]), np.array([True, True])], lambda a, b: op.logical_xor(a, b)),
    "is_finite": ([np.array([1, np.inf, -np.inf, np.nan], "f4")], lambda x: op.is_finite(x)),
    "clamp_i32": ([i(-5, 0, 7, dtype="i4")], lambda x: op.clamp(x, -1.5, 2.5)),
    "swish_beta": ([X], lambda x: op.swish(x, np.float32(0.7))),
    "swish_beta_input": ([X, np.array(0.7, "f4")], lambda x, b: op.swish(x, b)),
    "gelu_tanh": ([X], lambda x: op.gelu(x, "TANH")),
    "gelu_erf": ([X], lambda x: op.gelu(x, "ERF")),
    "hsigmoid": ([X * 4], lambda x: op.hsigmoid(x)),
    "mish": ([X], lambda x: op.mish(x)),
    "softplus": ([X], lambda x: op.softplus(x)),
    "selu": ([X], lambda x: op.selu(x, np.float32(1.5), np.float32(1.1))),
    "prelu_channels": ([X], lambda x: op.prelu(x, f(3))),
    "log_softmax": ([X], lambda x: op.log_softmax(x, 1)),
    "round_away": ([np.array([0.5, 1.5, -0.5, -2.5, 2.4, -2.6], "f4")], lambda x: op.round(x, "half_away_from_zero")),
    "fake_quantize": ([X], lambda x: op.fake_quantize(x, np.float32(-1), np.float32(1.5), np.float32(-2), np.float32(2), 16)),
    "gather_batch": ([X, random.integers(0, 5, (2, 6))], lambda x, at: op.gather(x, at, i(3), 1)),
    "gather_batch_front": ([X, random.integers(-3, 3, (2, 2, 2))], lambda x, at: op.gather(x, at, i(1), 1)),
    "gather_nd_batch": ([X, random.integers(0, 3, (2, 4, 1))], lambda x, at: op.gather_nd(x, at, 1)),
    "gather_elements": ([X, random.integers(0, 4, (2, 3, 2, 5))], lambda x, at: op.gather_elements(x, at, 2)),
    "scatter_update": ([X, i(2, 0), f(2, 3, 2, 5)], lambda x, at, new: op.scatter_update(x, at, new, i(2))),
    "scatter_update_front": ([X, i(1), f(1, 3, 4, 5)], lambda x, at, new: op.scatter_update(x, at, new, i(0))),
    "scatter_elements_sum": ([f(3, 4), i(*[[0, 2, 0, 1]] * 2), f(2, 4)], lambda x, at, new: op.scatter_elements_update(x, at, new, i(0), "sum")),
    "scatter_nd": ([f(4, 3), i([1], [3]), f(2, 3)], lambda x, at, new: op.scatter_nd_update(x, at, new)),
    "one_hot": ([i(0, 2, 1)], lambda x: op.one_hot(x, i(3)[0], np.float32(5), np.float32(-1), axis=0)),
    "top_k_i32": ([f(3, 6)], lambda x: op.topk(x, np.int64(2), 1, "min", "value", "i32")),
    "strided_slice": ([X], lambda x: op.strided_slice(x, i(0, 1, 0, 4), i(2, 2, 0, 0), i(1, 1, 1, -2), [1, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0])),
    "strided_slice_ellipsis": ([X], lambda x: op.strided_slice(x, i(0, 0, 1), i(0, 0, 3), i(1, 1, 1), [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0])),
    "strided_slice_last": ([X], lambda x: op.strided_slice(x, i(-1, -1), i(0, 0), i(1, 1), [0, 0], [0, 0], [0, 0], [1, 1], [0, 0])),
    "strided_slice_inputs": ([X, i(0, 1), i(1, 3)], lambda x, a, b: op.strided_slice(x, a, b, i(1, 1), [0, 0], [0, 1])),
    "slice": ([X], lambda x: op.slice(x, i(3, 0), i(0, 2), i(-1, 1), i(-1, 1))),
    "variadic_split": ([X], lambda x: op.variadic_split(x, i(-1)[0], i(1, -1, 2))),
    "split": ([X], lambda x: op.split(x, np.int64(2), 2)),
    "reverse_sequence": ([f(3, 4, 2), i(1, 4, 2)], lambda x, n: op.reverse_sequence(x, n, 0, 1)),
    "shuffle_channels": ([f(2, 6, 4)], lambda x: op.shuffle_channels(x, 1, 3)),
    "depth_to_space": ([f(1, 8, 2, 3)], lambda x: op.depth_to_space(x, "blocks_first", 2)),
    "space_to_depth": ([f(1, 2, 4, 6)], lambda x: op.space_to_depth(x, "blocks_first", 2)),
    "pad_reflect": ([X], lambda x: op.pad(x, i(0, 1, 2, 0), i(0, 1, 0, 3), "reflect")),
    "pad_constant": ([X], lambda x: op.pad(x, i(0, 1, 0, 0), i(0, 0, 0, -1), "constant", np.float32(2))),
    "tile_short": ([X], lambda x: op.tile(x, i(2, 1))),
    "tile_long": ([f(3)], lambda x: op.tile(x, i(2, 2))),
    "broadcast_explicit": ([f(3)], lambda x: op.broadcast(x, i(2, 3, 4), i(1), "explicit")),
    "broadcast_bidirectional": ([f(3, 1)], lambda x: op.broadcast(x, i(1, 4), broadcast_spec="bidirectional")),
    "reshape_zero": ([X], lambda x: op.reshape(x, i(0, -1, 5), True)),
    "range_f32": ([np.array(1, "f4"), np.array(4, "f4")], lambda a, b: op.range(a, b, np.float32(0.5), "f32")),
    "shape_i32": ([X], lambda x: op.shape_of(x, "i32")),
    "reduce_l2": ([X], lambda x: op.reduce_l2(x, i(1, 3), True)),
    "reduce_and": ([X > 0], lambda x: op.reduce_logical_and(x, i(1))),
    "reduce_or": ([X > 1], lambda x: op.reduce_logical_or(x, i(1, 2), True)),
    "cum_sum": ([X], lambda x: op.cum_sum(x, np.int64(1), True, True)),
    "mvn_trailing": ([X], lambda x: op.mvn(x, i(2, 3), True, 1e-5, "inside_sqrt")),
    "mvn_middle": ([X], lambda x: op.mvn(x, i(1), True, 1e-5, "outside_sqrt")),
    "mvn_mean": ([X], lambda x: op.mvn(x, i(3), False, 1e-5, "inside_sqrt")),
    "normalize_l2": ([X], lambda x: op.normalize_l2(x, i(1), 1e-3, "max")),
    "group_normalization": ([f(2, 4, 3)], lambda x: op.group_normalization(x, f(4), f(4), 2, 1e-4)),
    "batch_norm": ([X], lambda x: op.batch_norm_inference(x, f(3), f(3), f(3), np.abs(f(3)), 1e-3)),
    "lrn": ([f(1, 6, 2, 2)], lambda x: op.lrn(x, i(1), 0.3, 0.6, 1, 3)),
    "matmul_turned": ([f(2, 4, 3), f(5, 4)], lambda a, b: op.matmul(a, b, True, True)),
    "matmul_vector": ([f(4), f(2, 4, 3)], lambda a, b: op.matmul(a, b, True, False)),
    "convolution_same": ([f(1, 2, 6, 6)], lambda x: op.convolution(x, f(3, 2, 3, 3), [2, 2], [0, 0], [0, 0], [1, 1], "same_upper")),
    "group_convolution": ([f(1, 4, 6)], lambda x: op.group_convolution(x, f(2, 3, 2, 3), [1], [1], [1], [2])),
    "deconvolution_upper": ([f(1, 2, 4, 4)], lambda x: op.convolution_backprop_data(x, f(2, 3, 3, 3), [2, 2], i(8, 8), auto_pad="same_upper")),
    "deconvolution_lower": ([f(1, 2, 4, 4)], lambda x: op.convolution_backprop_data(x, f(2, 3, 3, 3), [2, 2], i(8, 8), auto_pad="same_lower")),
    "deconvolution_same": ([f(1, 2, 4, 4)], lambda x: op.convolution_backprop_data(x, f(2, 3, 3, 3), [2, 2], auto_pad="same_upper")),
    "deconvolution_shape": ([f(1, 2, 4, 4)], lambda x: op.convolution_backprop_data(x, f(2, 3, 3, 3), [2, 2], i(8, 8), pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1])),
    "deconvolution_valid": ([f(1, 2, 4, 4)], lambda x: op.convolution_backprop_data(x, f(2, 3, 3, 3), [2, 2], auto_pad="valid")),
    "group_deconvolution": ([f(1, 4, 5)], lambda x: op.group_convolution_backprop_data(x, f(2, 2, 3, 3), [2], pads_begin=[1], pads_end=[0], dilations=[1], output_padding=[1])),
    "deformable": ([f(1, 2, 5, 5), f(1, 18, 3, 3)], lambda x, o: op8.deformable_convolution(x, o, f(3, 2, 3, 3), [1, 1], [0, 0], [0, 0], [1, 1], bilinear_interpolation_pad=True)),
    "max_pool_ceil": ([f(1, 2, 7, 7)], lambda x: op.max_pool(x, [2, 2], [1, 1], [0, 0], [0, 0], [3, 3], "ceil", index_element_type="i32")),
    "avg_pool": ([f(1, 2, 7, 7)], lambda x: op.avg_pool(x, [2, 2], [1, 1], [1, 1], [3, 3], True, "ceil")),
    "adaptive_one": ([f(1, 2, 6, 4)], lambda x: op.adaptive_avg_pool(x, i(1, 1))),
    "adaptive_mean": ([f(1, 2, 6, 4)], lambda x: op.adaptive_avg_pool(x, i(3, 2))),
    "roll": ([X], lambda x: op.roll(x, i(1, -7), i(1, -1))),
    "interpolate_sizes": ([f(1, 2, 4, 4)], lambda x: op.interpolate(x, i(7, 3), "linear_onnx", "sizes", axes=i(2, 3), coordinate_transformation_mode="half_pixel")),
    "interpolate_linear": ([f(1, 2, 4, 4)], lambda x: op.interpolate(x, i(8, 6), "linear", "sizes", axes=i(2, 3))),
    "interpolate_cubic": ([f(1, 2, 4, 4)], lambda x: op.interpolate(x, np.array([1.5, 2], "f4"), "cubic", "scales", axes=i(2, 3), coordinate_transformation_mode="align_corners")),
    "lstm_both_ways": ([f(2, 4, 3), f(2, 2, 5), f(2, 2, 5), i(4, 2)], lambda x, h, c, n: op.lstm_sequence(x, h, c, n, f(2, 20, 3), f(2, 20, 5), f(2, 20), 5, "bidirectional")),
    "gru_apart": ([f(2, 4, 3), f(2, 1, 5), i(4, 3)], lambda x, h, n: op.gru_sequence(x, h, n, f(1, 15, 3), f(1, 15, 5), f(1, 20), 5, "reverse", linear_before_reset=True)),
    "rnn_sequence": ([f(2, 4, 3), f(2, 1, 5), i(4, 3)], lambda x, h, n: op.rnn_sequence(x, h, n, f(1, 5, 3), f(1, 5, 5), f(1, 5), 5, "forward")),
    "lstm_cell": ([f(2, 3), f(2, 5), f(2, 5)], lambda x, h, c: op.lstm_cell(x, h, c, f(20, 3), f(20, 5), f(20), 5)),
    "gru_cell": ([f(2, 3), f(2, 5)], lambda x, h: op.gru_cell(x, h, f(15, 3), f(15, 5), f(15), 5)),
    "attention_mask": ([f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), f(3, 5)], lambda q, k, v, m: op.scaled_dot_product_attention(q, k, v, m)),
    "attention_3d": ([f(2, 3, 4), f(2, 5, 4), f(2, 5, 4), random.random((3, 5)) > 0.3], lambda q, k, v, m: op.scaled_dot_product_attention(q, k, v, m)),
    "attention_causal": ([f(1, 2, 4, 4), f(1, 2, 4, 4), f(1, 2, 4, 4)], lambda q, k, v: op.scaled_dot_product_attention(q, k, v, causal=True)),
    "rdft_two": ([f(2, 6, 8)], lambda x: op.rdft(x, i(1, 2))),
    "irdft_two": ([f(2, 6, 5, 2)], lambda x: op.irdft(x, i(1, 2))),
    "dft_sizes": ([f(2, 6, 2)], lambda x: op.dft(x, i(-1), i(4))),
    "boxes": ([np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 5, 1, 6]]], "f4"), np.array([[[0.9, 0.75, 0.6]]], "f4")],
              lambda b, s: op.non_max_suppression(b, s, i(3)[0], np.float32(0.5), np.float32(0.1), output_type="i32")),
    "convert": ([X * 3], lambda x: op.convert(x, "i32")),
    "einsum": ([f(2, 3), f(3, 4)], lambda a, b: op.einsum([a, b], "ij,jk->ki")),
}


def main():
    out, core = pathlib.Path(sys.argv[1]), ov.Core()
    for name, (inputs, make) in CASES.items():
        parameters = [op.parameter(list(x.shape), x.dtype) for x in map(np.asarray, inputs)]
        made = make(*parameters)
        model = ov.Model([op.result(output) for output in made.outputs()], parameters, name)
        data = out / name / "test_data_set_0"
        data.mkdir(parents=True)
        ov.save_model(model, out / name / "model.xml", compress_to_fp16=False)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results = compiled([np.asarray(x) for x in inputs])
        values = [("input", inputs), ("output", [results[at] for at in range(len(results))])]
        for kind, tensors in values:
            for at, tensor in enumerate(tensors):
                proto = numpy_helper.from_array(np.asarray(tensor))
                (data / f"{kind}_{at}.pb").write_bytes(proto.SerializeToString())
        (out / name / "tolerance.json").write_text('{"rtol": 1e-3, "atol": 1e-5}')


main()
