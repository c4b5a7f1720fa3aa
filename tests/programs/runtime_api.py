"""The package stepalloc_runtime as its users have it, judged by numpy and ONNX's reference: runtime_api.py CASE FOLDER [DOCUMENT]

Snippets are ONNX Runtime's documentation's, after one changed import. FOLDER is an empty one for models; the case `documentation` runs
the blocks of Python in DOCUMENT.
"""
import gc
import os
import re
import sys
import threading
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import stepalloc_runtime as ort


def save(path, nodes, inputs, outputs, weights=(), opset=21):
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="tests")
    helper.set_model_props(model, {"licence": "none"})
    onnx.save(model, path)
    return path


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def net(path="model.onnx"):
    """Two products: input [batch, 8], output [batch, 4]."""
    random = np.random.default_rng(1)
    weight = lambda name, *shape: numpy_helper.from_array(random.normal(0, 0.3, shape).astype("float32"), name)
    nodes = [
        helper.make_node("MatMul", ["input", "w1"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "w2"], ["output"], "second"),
    ]
    weights = [weight("w1", 8, 64), weight("w2", 64, 4)]
    return save(path, nodes, [value("input", ["batch", 8])], [value("output", ["batch", 4])], weights)


def numbers(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def reference(path, feed):
    return ReferenceEvaluator(onnx.load(path)).run(None, feed)


def near(ours, theirs):
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (ours.dtype, ours.shape, theirs.shape)
    np.testing.assert_allclose(ours.astype("float64"), theirs.astype("float64"), rtol=1e-4, atol=1e-5)


def fails(kind, said, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert said in str(error), f"{error!r} does not say {said!r}"
    else:
        raise AssertionError(f"no {kind.__name__}, which would say {said!r}")


def sessions():
    net()
    X = numbers(3, 8)
    expected = reference("model.onnx", {"input": X})[0]
    session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    near(session.run(["output"], {"input": X})[0], expected)
    near(session.run(None, {"input": X})[0], expected)
    # X is numpy array on cpu
    ortvalue = ort.OrtValue.ortvalue_from_numpy(X)
    assert ortvalue.device_name() == "cpu"
    assert ortvalue.shape() == [3, 8]
    assert ortvalue.data_type() == "tensor(float)"
    assert ortvalue.is_tensor()
    assert np.array_equal(ortvalue.numpy(), X)
    # ortvalue can be provided as part of the input feed to a model
    near(session.run(["output"], {"input": ortvalue})[0], expected)
    near(session.run_with_ort_values(["output"], {"input": ortvalue})[0].numpy(), expected)
    [name] = [i.name for i in session.get_inputs()]
    assert (name, session.get_inputs()[0].shape, session.get_inputs()[0].type) == ("input", ["batch", 8], "tensor(float)")
    assert session.get_outputs()[0].shape == ["batch", 4]
    assert session.get_providers() == ort.get_available_providers() == ["CPUExecutionProvider"]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.custom_metadata_map) == ("tests", "net", {"licence": "none"})
    # From bytes, from a path object; inputs that are lists, that do not lie row by row, of the other order of bytes.
    with open("model.onnx", "rb") as file:
        near(ort.InferenceSession(file.read()).run(None, {"input": X.tolist()})[0], expected)
    import pathlib

    session = ort.InferenceSession(pathlib.Path("model.onnx"))
    for other in (np.asfortranarray(X), np.repeat(X, 2, 1)[:, ::2], X.astype(">f4"), X[:, ::-1][:, ::-1]):
        near(session.run(None, {"input": other})[0], expected)
    raw = np.zeros(X.nbytes + 1, np.uint8)[1:]
    raw[:] = X.view(np.uint8).reshape(-1)
    near(session.run(None, {"input": raw.view(np.float32).reshape(X.shape)})[0], expected)
    frozen = X.copy()
    frozen.flags.writeable = False
    near(session.run(None, {"input": frozen})[0], expected)
    near(session.run(None, {"input": X[:0]})[0], expected[:0])
    # Outputs outlive all else, and are not written again.
    kept = session.run(None, {"input": X})[0]
    session.run(None, {"input": numbers(4, 8)})
    del session
    gc.collect()
    near(kept, expected)
    assert kept.flags.writeable and not kept.flags.owndata


def options():
    net()
    X = numbers(2, 8)
    expected = reference("model.onnx", {"input": X})[0]
    sess_options = ort.SessionOptions()
    # Set graph optimization level
    sess_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    # To enable model serialization after graph optimization set this
    sess_options.optimized_model_filepath = "optimized_model.onnx"
    sess_options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    sess_options.intra_op_num_threads = 2
    session = ort.InferenceSession("model.onnx", sess_options)
    near(session.run(None, {"input": X})[0], expected)
    near(ort.InferenceSession("optimized_model.onnx").run(None, {"input": X})[0], expected)
    # Memory: no arena between runs, no pattern, or both.
    held = {}
    for arena in (True, False):
        for pattern in (True, False):
            options = ort.SessionOptions()
            options.enable_cpu_mem_arena = arena
            options.enable_mem_pattern = pattern
            session = ort.InferenceSession("model.onnx", options)
            near(session.run(None, {"input": numbers(64, 8)})[0], reference("model.onnx", {"input": numbers(64, 8)})[0])
            held[arena, pattern] = session.statistics()["total_allocated"], session.plan({"input": (64, 8)})["arena_bytes"]
            del session
            gc.collect()
    assert held[True, True][0] >= held[True, True][1] > 0 and held[False, True][0] == held[False, False][0] == 0, held
    assert held[True, False][1] >= held[True, True][1], held
    # Arenas go back after a run.
    session = ort.InferenceSession("model.onnx")
    run_options = ort.RunOptions()
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, {"input": numbers(64, 8)})
    assert session.statistics()["total_allocated"] > 0
    session.run(None, {"input": X}, run_options)
    assert session.statistics()["total_allocated"] == 0
    # Sessions that share an allocator, which has a limit.
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    config = ort.OrtArenaCfg({"max_mem": 1 << 20, "arena_extend_strategy": 0})
    ort.create_and_register_allocator(info, config)
    shared = ort.SessionOptions()
    shared.add_session_config_entry("session.use_env_allocators", "1")
    net("second.onnx")
    one, two = (ort.InferenceSession(path, shared) for path in ("model.onnx", "second.onnx"))
    one.run(None, {"input": numbers(65, 8)})
    assert two.statistics() == {**one.statistics(), "plans_made": 0}
    statistics = two.statistics()
    assert (statistics["limit"], statistics["num_arena_extensions"]) == (1 << 20, 1)
    arena = one.plan({"input": (65, 8)})["arena_bytes"]
    assert statistics["total_allocated"] >= 1 << arena.bit_length() > arena, (statistics, arena)
    fails(ort.OutOfMemory, "max_mem allows 1048576 bytes", two.run, None, {"input": numbers(100_000, 8)})
    near(two.run(None, {"input": X})[0], expected)
    # What cannot be had is refused by name.
    options = ort.SessionOptions()
    fails(AttributeError, "no option enable_mem_patern here; there are enable_cpu_mem_arena", setattr, options, "enable_mem_patern", 1)
    fails(ort.InvalidArgument, "intra_op_num_threads", setattr, options, "execution_mode", ort.ExecutionMode.ORT_PARALLEL)
    fails(ort.InvalidArgument, "InferenceSession.profile", setattr, options, "enable_profiling", True)
    fails(ort.InvalidArgument, "there is no session configuration session.x here", options.add_session_config_entry, "session.x", "1")
    fails(ValueError, "7", setattr, options, "graph_optimization_level", 7)
    fails(ort.InvalidArgument, "max_mem is -1", setattr, options, "max_mem", -1)
    cuda = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    fails(ort.InvalidArgument, "'CUDAExecutionProvider': there is CPUExecutionProvider only", ort.InferenceSession, "model.onnx", providers=cuda)
    fails(ort.InvalidArgument, "no-such", ort.InferenceSession, "model.onnx", disabled_optimizers=["no-such"])


def bindings():
    net()
    X = numbers(5, 8)
    expected = reference("model.onnx", {"input": X})[0]
    session = ort.InferenceSession("model.onnx")
    io_binding = session.io_binding()
    io_binding.bind_cpu_input("input", X)
    io_binding.bind_output("output")
    session.run_with_iobinding(io_binding)
    Y = io_binding.copy_outputs_to_cpu()[0]
    near(Y, expected)
    # The third run allocates nothing new; the elements of bound arrays may be changed.
    there = io_binding.get_outputs()[0]
    session.run_with_iobinding(io_binding)
    before = session.statistics()
    X *= 2
    session.run_with_iobinding(io_binding)
    after = session.statistics()
    for what in ("total_allocated", "num_reserves", "num_arena_extensions", "plans_made"):
        assert before[what] == after[what], (what, before, after)
    assert io_binding.get_outputs()[0].data_ptr() == there.data_ptr()
    near(there.numpy(), reference("model.onnx", {"input": X})[0])
    near(Y, expected)
    # Memory of the caller's, by address and by value.
    X_ortvalue = ort.OrtValue.ortvalue_from_numpy(X)
    Y_ortvalue = ort.OrtValue.ortvalue_from_shape_and_type([5, 4], np.float32)
    for bound in (
        lambda: io_binding.bind_output(
            name="output",
            device_type=Y_ortvalue.device_name(),
            device_id=0,
            element_type=np.float32,
            shape=Y_ortvalue.shape(),
            buffer_ptr=Y_ortvalue.data_ptr(),
        ),
        lambda: io_binding.bind_ortvalue_output("output", Y_ortvalue),
    ):
        io_binding.clear_binding_inputs()
        io_binding.clear_binding_outputs()
        io_binding.bind_input(
            name="input",
            device_type=X_ortvalue.device_name(),
            device_id=0,
            element_type=np.float32,
            shape=X_ortvalue.shape(),
            buffer_ptr=X_ortvalue.data_ptr(),
        )
        bound()
        Y_ortvalue.update_inplace(np.zeros((5, 4), np.float32))
        session.run_with_iobinding(io_binding)
        near(Y_ortvalue.numpy(), reference("model.onnx", {"input": X})[0])
        assert io_binding.get_outputs()[0].data_ptr() == Y_ortvalue.data_ptr()
    # An array, which is written where it lies.
    place = np.full((7, 4), 9, np.float32)
    io_binding.bind_ortvalue_output("output", ort.OrtValue.ortvalue_from_numpy(place[1:6]))
    io_binding.bind_cpu_input("input", X)
    session.run_with_iobinding(io_binding)
    near(place[1:6], reference("model.onnx", {"input": X})[0])
    assert (place[0] == 9).all() and (place[6] == 9).all()
    # Arrays live as long as they are bound, and outputs as long as anybody has them.
    io_binding.bind_cpu_input("input", numbers(6, 8).copy())
    io_binding.bind_output("output")
    gc.collect()
    junk = [numbers(6, 8) * 0 for _ in range(50)]
    session.run_with_iobinding(io_binding)
    output = np.asarray(io_binding.get_outputs()[0])
    del session, io_binding, junk
    gc.collect()
    near(output, reference("model.onnx", {"input": numbers(6, 8)})[0])
    # An output that goes in again.
    nodes = [helper.make_node("Mul", ["x", "two"], ["y"])]
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    save("twice.onnx", nodes, [value("x", ["n"])], [value("y", ["n"])], [two])
    session = ort.InferenceSession("twice.onnx")
    io = session.io_binding()
    io.bind_cpu_input("x", np.arange(100, dtype=np.float32))
    io.bind_output("y")
    for _ in range(5):
        session.run_with_iobinding(io)
        io.bind_ortvalue_input("x", io.get_outputs()[0])
    session.run_with_iobinding(io)
    assert (io.get_outputs()[0].numpy() == np.arange(100) * 64).all()
    grown()
    # Errors name what is wrong.
    fails(ort.InvalidArgument, "there is no input z", io.bind_cpu_input, "z", X)
    fails(ort.InvalidArgument, "there is no output z", io.bind_output, "z")
    fails(ort.InvalidArgument, "input x is float64[3]; the model takes float32[n]", io.bind_cpu_input, "x", np.zeros(3))
    fails(ort.InvalidArgument, "device 'cuda': there is the CPU only", io.bind_output, "y", "cuda")
    fails(ort.InvalidArgument, "must not be written", io.bind_ortvalue_output, "y", ort.OrtValue.ortvalue_from_numpy(np.frombuffer(b"abcd", np.float32)))
    place = np.zeros(100, np.float32)
    both = ort.OrtValue.ortvalue_from_numpy(place)
    io.bind_ortvalue_input("x", both)
    fails(ort.InvalidArgument, "output y lies in the memory that is bound to input x", io.bind_ortvalue_output, "y", both)
    io.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros(99, np.float32)))
    fails(ort.InvalidArgument, "output y is float32[100], and the memory that is bound to it float32[99]", session.run_with_iobinding, io)
    fails(ort.InvalidArgument, "another session's", session.run_with_iobinding, ort.InferenceSession("twice.onnx").io_binding())
    fails(ort.InvalidArgument, "no output is bound", session.run_with_iobinding, session.io_binding())


def grown():
    """A cache to which rows are appended where it lies."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["new"], ["sum"], keepdims=0),
    ]
    save("cache.onnx", nodes, [value("past", [2, "n", 4]), value("new", [2, "m", 4])], [value("present", [2, "k", 4]), value("sum", [])])
    session = ort.InferenceSession("cache.onnx")
    assert session.appended() == [("present", "past")]
    io = session.io_binding()
    for output, input in session.appended():
        io.feed_back(output, input)
    io.bind_cpu_input("past", np.zeros((2, 0, 4), np.float32))
    io.bind_output("present")
    rows = []
    for step in range(6):
        rows.append(numbers(2, 1, 4) + step)
        io.bind_cpu_input("new", rows[-1])
        session.run_with_iobinding(io)
    near(io.get_outputs()[0].numpy(), np.concatenate(rows, 1))


def quantized():
    from stepalloc_runtime.quantization import QuantType, quantize_dynamic

    import quantize

    quantize.make("model.fp32.onnx")
    tokens = {"tokens": np.array([3, 599, 0, 42])}
    expected = reference("model.fp32.onnx", tokens)[0]
    model_fp32 = "model.fp32.onnx"
    model_quant = "model.quant.onnx"
    quantize_dynamic(model_fp32, model_quant)
    onnx.checker.check_model(model_quant, full_check=True)
    assert os.path.getsize(model_quant) * 3 < os.path.getsize(model_fp32)
    ours = ort.InferenceSession(model_quant).run(None, tokens)[0]
    assert abs(ours - reference(model_quant, tokens)[0]).max() < 1e-2 * abs(ours).max()
    assert abs(ours - expected).max() < 5e-2 * abs(expected).max()
    # All that it takes.
    done = quantize_dynamic(
        model_fp32,
        "other.onnx",
        weight_type=QuantType.QUInt8,
        per_channel=True,
        reduce_range=True,
        op_types_to_quantize=["MatMul", "Gather"],
        nodes_to_exclude=["embed"],
    )
    assert [node["name"] for node in done["quantized"]] == ["product", "layer_MatMul"], done
    done = quantize_dynamic(onnx.load(model_fp32), "other.onnx", nodes_to_quantize=["product"], extra_options={"WeightSymmetric": False})
    assert [node["name"] for node in done["quantized"]] == ["product"] and done["bytes_after"] < done["bytes_before"], done
    fails(ort.InvalidArgument, "there is no node nowhere", quantize_dynamic, model_fp32, "none.onnx", nodes_to_exclude=["nowhere"])
    fails(ort.InvalidArgument, "no extra option Odd", quantize_dynamic, model_fp32, "none.onnx", extra_options={"Odd": 1})
    fails(ort.InvalidArgument, "QInt4: give QInt8 or QUInt8", quantize_dynamic, model_fp32, "none.onnx", weight_type="QInt4")
    fails(ort.NoSuchFile, "nowhere.onnx", quantize_dynamic, "nowhere.onnx", "none.onnx")
    assert not os.path.exists("none.onnx")


def reports():
    net()
    session = ort.InferenceSession("model.onnx")
    # What a run takes is known before, and counted then.
    for batch in (1, 7, 64):
        options = ort.SessionOptions()
        options.max_mem = session.predict({"input": (batch, 8)})
        limited = ort.InferenceSession("model.onnx", options)
        limited.run(None, {"input": numbers(batch, 8)})
        fails(ort.OutOfMemory, "max_mem allows", limited.run, None, {"input": numbers(batch * 2, 8)})
    found = session.find_batch(1 << 20)
    assert found.shapes == {"input": (found.batch, 8)}
    assert found.bytes == session.predict({"input": (found.batch, 8)}) <= 1 << 20 < found.next_bytes, found
    assert found.next_bytes == session.predict({"input": (found.batch + 1, 8)})
    fails(ort.OutOfMemory, "a batch of 1 takes more than the limit of 10 bytes", session.find_batch, 10)
    # The memory profile.
    plan = session.plan({"input": numbers(16, 8)})
    assert plan["arena_bytes"] >= plan["lower_bound_bytes"] >= 16 * 64 * 4
    assert [step["op"] for step in plan["steps"]][0] in ("MatMul", "Gemm", "FusedMatMul")
    assert max(block["offset"] + block["bytes"] for block in plan["blocks"]) == plan["arena_bytes"]
    report = session.report({"input": (16, 8)})
    assert f"{plan['arena_bytes']:,} bytes" in report and "float32[16,64]" in report, report
    nodes = session.profile({"input": numbers(16, 8)}, runs=3)
    assert len(nodes) == len(plan["steps"]) and all(node["ms"] >= 0 for node in nodes)
    assert nodes[-1]["output_bytes"] == 16 * 4 * 4
    session.run(None, {"input": numbers(16, 8)})
    assert session.statistics()["total_allocated"] > 0
    session.release_memory()
    assert session.statistics()["total_allocated"] == 0
    # What is expected is planned, and its arena there, before the first run.
    ready = lambda: [session.statistics()[count] for count in ("plans_made", "num_arena_extensions")]
    session.warm_up({"input": (48, 8)})
    session.warm_up({"input": (24, 8)})
    before = ready()
    assert session.statistics()["total_allocated"] == session.plan({"input": (48, 8)})["arena_bytes"]
    for batch in (24, 48):
        session.run(None, {"input": numbers(batch, 8)})
    assert ready() == before, (before, ready())
    fails(ort.InvalidArgument, "there is no input z; inputs are input", session.warm_up, {"z": (1, 8)})
    fails(ort.InvalidArgument, "there is no input z; inputs are input", session.plan, {"z": (1, 8)})
    fails(ort.InvalidArgument, "input input is float32[3, 9]; the model takes float32[batch, 8]", session.predict, {"input": (3, 9)})


def errors():
    net()
    session = ort.InferenceSession("model.onnx")
    X = numbers(2, 8)
    fails(ort.InvalidArgument, "input input is missing; given are none", session.run, None, {})
    fails(ort.InvalidArgument, "there is no input z; inputs are input", session.run, None, {"input": X, "z": X})
    fails(ort.InvalidArgument, "there is no output z; outputs are output", session.run, ["z"], {"input": X})
    fails(ort.InvalidArgument, "input input is float32[2, 7]; the model takes float32[batch, 8]", session.run, None, {"input": X[:, :7]})
    fails(ort.InvalidArgument, "input input is float64[2, 8]", session.run, None, {"input": X.astype(np.float64)})
    fails(ort.InvalidArgument, "input input is float32[8]", session.run, None, {"input": X[0]})
    fails(ort.InvalidArgument, "strings are not known here", session.run, None, {"input": np.array(["a"])})
    fails(ort.InvalidArgument, "input input: elements of dtype object", session.run, None, {"input": np.array([None])})
    fails(ort.InvalidArgument, "input input is a NoneType", session.run, None, {"input": None})
    fails(ort.InvalidArgument, "give a list of names", session.run, "output", {"input": X})
    fails(ort.NoSuchFile, "nowhere.onnx", ort.InferenceSession, "nowhere.onnx")
    fails(ort.InvalidProtobuf, "", ort.InferenceSession, b"no model at all")
    fails(TypeError, "a path or bytes", ort.InferenceSession, 7)
    nodes = [helper.make_node("Unheard", ["x"], ["y"], "odd", domain="nobody")]
    graph = helper.make_graph(nodes, "net", [value("x", [1])], [value("y", [1])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("nobody", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), "odd.onnx")
    fails(ort.NotImplemented, "nobody.Unheard (version 1) of node odd", ort.InferenceSession, "odd.onnx")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "shaped")]
    save("shape.onnx", nodes, [value("x", [6]), value("shape", [2], TensorProto.INT64)], [value("y", None)])
    session = ort.InferenceSession("shape.onnx")
    fails(ort.Fail, "node shaped (Reshape)", session.run, None, {"x": numbers(6), "shape": np.array([4, 2])})
    # An exception for each kind of error of a node.
    nodes = [helper.make_node("BitShift", ["x", "x"], ["y"], "shifted", direction="UP")]
    save("shift.onnx", nodes, [value("x", [1], TensorProto.UINT8)], [value("y", None, TensorProto.UINT8)])
    fails(ort.InvalidGraph, "node shifted (BitShift): its direction is \"UP\"", ort.InferenceSession, "shift.onnx")
    nodes = [helper.make_node("Cast", ["x"], ["y"], "said", to=TensorProto.STRING)]
    save("said.onnx", nodes, [value("x", [1])], [value("y", None, TensorProto.STRING)])
    fails(ort.NotImplemented, "", ort.InferenceSession, "said.onnx")
    nodes = [helper.make_node("Gather", ["x", "at"], ["y"], "taken")]
    save("taken.onnx", nodes, [value("x", [2]), value("at", [1], TensorProto.INT64)], [value("y", None)])
    taken = ort.InferenceSession("taken.onnx")
    fails(ort.InvalidArgument, "node taken (Gather): index 5 is beyond 2", taken.run, None, {"x": numbers(2), "at": np.array([5])})
    nodes = [helper.make_node("NonZero", ["x"], ["y"], "where")]
    save("where.onnx", nodes, [value("x", [1000])], [value("y", None, TensorProto.INT64)])
    options = ort.SessionOptions()
    options.max_mem = 1000
    where = ort.InferenceSession("where.onnx", options)
    fails(ort.OutOfMemory, "node where (NonZero)", where.run, None, {"x": np.ones(1000, np.float32)})
    # The session works on.
    assert session.run(None, {"x": numbers(6), "shape": np.array([3, 2])})[0].shape == (3, 2)


def types():
    """Elements of every type go in and come out as they were."""
    import ml_dtypes

    kinds = [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23]
    for kind in kinds:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
        nodes = [helper.make_node("Transpose", ["x"], ["y"])]
        save("type.onnx", nodes, [value("x", [2, 3], kind)], [value("y", [3, 2], kind)], opset=23)
        session = ort.InferenceSession("type.onnx")
        X = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
        (Y,) = session.run(None, {"x": X})
        assert Y.dtype == dtype and Y.shape == (3, 2), (kind, Y.dtype, dtype)
        assert (Y.astype("float32") == X.T.astype("float32")).all(), (kind, Y)
        ours = ort.OrtValue.ortvalue_from_numpy(X)
        assert ours.element_type() == kind and ours.data_type() == session.get_inputs()[0].type, (kind, ours.data_type())
    bits = np.array([[0x3F80, 0, 0x4000], [0, 0, 0]], np.uint16)
    ours = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    assert ours.numpy().dtype == ml_dtypes.bfloat16 and ours.numpy()[0].tolist() == [1, 0, 2] and (ours.bits() == bits).all()
    scalar = ort.OrtValue.ortvalue_from_shape_and_type([], np.int64)
    assert scalar.shape() == [] and scalar.numpy() == 0 and scalar.tensor_size_in_bytes() == 8


def threads():
    """Runs from several threads at once, and one that another thread ends: calls leave the interpreter's lock."""
    net()
    session = ort.InferenceSession("model.onnx")
    wrong = []

    def work(number):
        X = numbers(10 + number, 8)
        expected = reference("model.onnx", {"input": X})[0]
        io = session.io_binding()
        io.bind_cpu_input("input", X)
        io.bind_output("output")
        for _ in range(50):
            session.run_with_iobinding(io)
            for made in (io.get_outputs()[0].numpy(), session.run(None, {"input": X})[0]):
                if not np.allclose(made, expected, rtol=1e-4, atol=1e-5):
                    wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["sum", "sum"], ["next"]),
        ],
        "body",
        [value("at", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("sum", [1])],
        [value("on", [], TensorProto.BOOL), value("next", [1])],
    )
    nodes = [helper.make_node("Loop", ["times", "", "x"], ["y"], "loop", body=body)]
    times = numpy_helper.from_array(np.array(1 << 40), "times")
    save("endless.onnx", nodes, [value("x", [1])], [value("y", [1])], [times])
    session, options = ort.InferenceSession("endless.onnx"), ort.RunOptions()

    def end():
        time.sleep(0.3)
        options.terminate = True

    ender = threading.Thread(target=end)
    ender.start()
    fails(ort.Cancelled, "cancelled", session.run, None, {"x": numbers(1)}, options)
    ender.join()


def documentation():
    """The blocks of Python in a document, one after the other."""
    net("net.onnx")
    with open(sys.argv[3]) as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 4, len(blocks)
    names = {}
    for block in blocks:
        exec(compile(block, "documentation", "exec"), names)
    near(names["Y"], reference("net.onnx", {"input": names["X"]})[0])


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    globals()[sys.argv[1]]()
    print(f"{sys.argv[1]}: all holds")
