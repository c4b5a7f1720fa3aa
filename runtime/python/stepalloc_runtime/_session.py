"""Sessions and bindings, as ONNX Runtime's."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Iterable, Mapping, NamedTuple, Sequence, Union

import numpy as np

from . import _library, _value
from ._library import Handle, InvalidArgument, Port, encode
from ._options import RunOptions, SessionOptions
from ._value import OrtValue

#: What an input may be to :meth:`InferenceSession.plan` and its like: its elements, or its shape alone.
Input = Union[np.ndarray, OrtValue, Sequence[int]]

_PROVIDER = "CPUExecutionProvider"
#: What a report shows of the largest moment.
_SHOWN = 12


class NodeArg(NamedTuple):
    """An input or output as the model declares it; a dimension is a number, a name, or None."""

    name: str
    type: str
    shape: list[int | str | None]


class ModelMetadata(NamedTuple):
    """What the model's file says of it."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: dict[str, str]
    graph_description: str = ""


class Batch(NamedTuple):
    """The largest batch that fits, told by :meth:`InferenceSession.find_batch`."""

    #: How large it is.
    batch: int
    #: Bytes that a run of it takes.
    bytes: int
    #: What one more would take; None where there is none.
    next_bytes: int | None
    #: Why there is none.
    next_error: str | None
    #: Shapes of the inputs for it, but for those whose elements were given.
    shapes: dict[str, tuple[int, ...]]


def _node_args(ports: Iterable[Port]) -> list[NodeArg]:
    made = []
    for port in ports:
        shape: list[int | str | None] = []
        for at in range(max(port.rank, 0)):
            name = port.dim_names[at]
            shape.append(port.dims[at] if port.dims[at] >= 0 else name.decode() if name is not None else None)
        made.append(NodeArg(port.name.decode(), _value.type_name(port.element_type), shape))
    return made


def _check_providers(providers: Any, provider_options: Any) -> None:
    for provider in providers or ():
        name, options = provider if isinstance(provider, (tuple, list)) else (provider, {})
        if name != _PROVIDER:
            raise InvalidArgument(f"provider {name!r}: there is {_PROVIDER} only")
        _check_provider_options(options)
    for options in provider_options or ():
        _check_provider_options(options)


def _check_provider_options(options: Mapping[str, Any]) -> None:
    for name in options:
        raise InvalidArgument(f"{_PROVIDER} has no option {name} here: SessionOptions has what there is")


class InferenceSession:
    """A model that is ready to run. ``disabled_optimizers``: names of passes to leave out. Runs may come from several threads at once;
    they leave the interpreter's lock to others."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        disabled_optimizers: Iterable[str] | None = None,
    ) -> None:
        _check_providers(providers, provider_options)
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options is {sess_options!r}: give a SessionOptions")
        self._options = sess_options if sess_options is not None else SessionOptions()
        disabled = (disabled_optimizers,) if isinstance(disabled_optimizers, str) else disabled_optimizers or ()
        options = self._options._handle(disabled)
        if isinstance(path_or_bytes, (str, os.PathLike)):
            made = _library.handle("session_open", encode(os.fspath(path_or_bytes)), options.value)
        elif isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            model = bytes(path_or_bytes)
            made = _library.handle("session_open_bytes", model, len(model), options.value)
        else:
            raise TypeError(f"a model is a path or bytes, not {type(path_or_bytes).__name__}")
        self._handle = Handle("session", made)
        inputs = self._ports("session_inputs")
        self._inputs = _node_args(port for port in inputs if not port.has_default)
        self._overridable = _node_args(port for port in inputs if port.has_default)
        self._element_types = {port.name.decode(): port.element_type for port in inputs}
        self._outputs = _node_args(self._ports("session_outputs"))

    def _ports(self, function: str) -> list[Port]:
        count = ctypes.c_size_t()
        ports = _library.plain(function)(self._handle.value, ctypes.byref(count))
        return [ports[at] for at in range(count.value)]

    def get_inputs(self) -> list[NodeArg]:
        """Inputs that must be given."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Outputs, in the model's order."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that have a value, and may be given."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file says of it."""
        told = _library.document("session_metadata", self._handle.value)
        return ModelMetadata(
            told["producer"] or "",
            told["graph_name"] or "",
            told["domain"] or "",
            told["description"] or "",
            told["version"] or 0,
            told["metadata"],
        )

    def get_providers(self) -> list[str]:
        """The CPU alone."""
        return [_PROVIDER]

    def get_session_options(self) -> SessionOptions:
        """The options it was made by."""
        return self._options

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Refuses all but the CPU."""
        _check_providers(providers, provider_options)

    # Runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[np.ndarray]:
        """Outputs as arrays: those named, or all. Inputs are arrays or values, which are read where they are (arrays that do not lie row by
        row are copied); outputs lie where the run has made them."""
        return [value.numpy() for value in self._run(output_names, input_feed, run_options)]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """The same from values to values."""
        return self._run(output_names, input_dict_ort_values, run_options)

    def _run(self, output_names: Any, feed: Mapping[str, Any], run_options: RunOptions | None) -> list[OrtValue]:
        if isinstance(output_names, str):
            raise InvalidArgument(f"output_names is {output_names!r}: give a list of names, or None for all")
        asked = [output.name for output in self._outputs] if not output_names else list(output_names)
        inputs = _Inputs(self, feed, elements=True)
        outputs = (ctypes.c_void_p * len(asked))()
        _library.call(
            "session_run",
            self._handle.value,
            _run_handle(run_options),
            *inputs.arguments,
            _library.names(asked),
            len(asked),
            outputs,
        )
        return [OrtValue(handle) for handle in outputs]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs that stay bound."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Runs the model on what is bound."""
        if iobinding._session is not self:
            raise InvalidArgument("the binding is another session's")
        iobinding._check()
        _library.call("binding_run", iobinding._handle.value, _run_handle(run_options))

    # What is ours

    def release_memory(self) -> None:
        """Gives arenas that no run has now back to the system. The next run takes one anew."""
        _library.call("session_release_memory", self._handle.value)

    def statistics(self) -> dict[str, Any]:
        """What the session's arenas have and had, in bytes, in the words of ONNX Runtime's statistics; ``plans_made`` so far."""
        return _library.document("session_statistics", self._handle.value)

    def appended(self) -> list[tuple[str, str]]:
        """Pairs of an output and an input, where the output is the input with rows appended (a decoder's cache): what
        :meth:`IOBinding.feed_back` takes."""
        return [(output, input) for output, input in _library.document("session_appended", self._handle.value)]

    def plan(self, inputs: Mapping[str, Input] | None = None) -> dict[str, Any]:
        """What a run on these inputs will do with memory, without running it. An input is an array, or its shape; those that are left out
        are as the model declares them, with 1 for open dimensions. See ``stepalloc_session_plan`` of the header for what is in it:
        ``arena_bytes``, ``lower_bound_bytes``, ``wanted_bytes``, ``steps``, ``blocks`` and counts."""
        return _library.document("session_plan", self._handle.value, *self._told(inputs).arguments)

    def predict(self, inputs: Mapping[str, Input] | None = None) -> int:
        """Bytes that a run on these inputs counts towards ``max_mem``: its arena, outputs and copied weights. Nothing is run."""
        made = ctypes.c_uint64()
        _library.call("session_predict", self._handle.value, *self._told(inputs).arguments, ctypes.byref(made))
        return made.value

    def warm_up(self, inputs: Mapping[str, Input] | None = None) -> None:
        """Gets the session ready for such inputs, so that a first run on them neither plans nor takes an arena, nor faults its pages in;
        constant inputs are packed. To be called for each set of shapes that is expected, the largest first. Inputs as for :meth:`plan`."""
        _library.call("session_warm_up", self._handle.value, *self._told(inputs).arguments)

    def find_batch(self, max_mem: int, inputs: Mapping[str, Input] | None = None) -> Batch:
        """The largest batch whose run takes at most ``max_mem`` bytes, told by plans. The batch is the first dimension of the first input
        that is open, and dimensions of that name. ``inputs``: shapes of others, or arrays, which stay as they are."""
        if isinstance(max_mem, bool) or not isinstance(max_mem, int) or not 0 <= max_mem < 1 << 64:
            raise InvalidArgument(f"max_mem is {max_mem!r}: give a number of bytes")
        told = _library.document("session_find_batch", self._handle.value, *self._told(inputs).arguments, max_mem)
        told["shapes"] = {name: tuple(shape) for name, shape in told["shapes"].items()}
        return Batch(**told)

    def profile(self, input_feed: Mapping[str, Any], runs: int = 1) -> list[dict[str, Any]]:
        """Runs the model, and tells of each node, in the order in which they ran: ``name``, ``op``, ``ms`` of a run, ``output_bytes``,
        ``scratch_bytes``, ``in_place``."""
        inputs = _Inputs(self, input_feed, elements=True)
        return _library.document("session_profile", self._handle.value, *inputs.arguments, max(int(runs), 1))

    def report(self, inputs: Mapping[str, Input] | None = None) -> str:
        """The memory of a run on these inputs as text: the arena, and what is alive in its largest moment."""
        plan = self.plan(inputs)
        steps, blocks = plan["steps"], plan["blocks"]
        alive = [0] * (len(steps) + 1)
        for block in blocks:
            alive[block["first"]] += block["bytes"]
            alive[block["end"]] -= block["bytes"]
        for at in range(1, len(alive)):
            alive[at] += alive[at - 1]
        lines = [
            f"arena          {plan['arena_bytes']:>14,} bytes",
            f"lower bound    {plan['lower_bound_bytes']:>14,}",
            f"a run counts   {plan['wanted_bytes']:>14,}, with outputs and copied weights",
            f"tensors        {plan['planned_tensors']:>14,}, {plan['inplace_tensors']:,} in the place of another",
        ]
        if plan["unplanned_nodes"]:
            lines.append(f"not planned    {plan['unplanned_nodes']:>14,} nodes: the sizes of their outputs depend on elements")
        if blocks:
            peak = max(range(len(steps)), key=alive.__getitem__)
            lines.append(f"the most alive is {alive[peak]:,} bytes, in step {peak}, {steps[peak]['name']} ({steps[peak]['op']}):")
            there = [block for block in blocks if block["first"] <= peak < block["end"]]
            there.sort(key=lambda block: -block["bytes"])
            for block in there[:_SHOWN]:
                held = " -> ".join(f"{value['name']} {value['type']}" for value in block["values"])
                lines.append(f"  {block['bytes']:>14,}  {held or 'scratch memory'}")
            if len(there) > _SHOWN:
                lines.append(f"  and {len(there) - _SHOWN} more")
        return "\n".join(lines)

    def _told(self, inputs: Mapping[str, Input] | None) -> _Inputs:
        return _Inputs(self, inputs or {}, elements=False)


class _Inputs:
    """Inputs as arguments for C, with what keeps them."""

    def __init__(self, session: InferenceSession, feed: Mapping[str, Any], elements: bool) -> None:
        if not isinstance(feed, Mapping):
            raise InvalidArgument(f"inputs are a dict of names, not {type(feed).__name__}")
        missing = [arg.name for arg in session._inputs if arg.name not in feed]
        if elements and missing:
            raise InvalidArgument(f"input {missing[0]} is missing; given are {', '.join(map(str, feed)) or 'none'}")
        self._keeps: list[Any] = []
        tensors = [self._tensor(session, name, value, elements) for name, value in feed.items()]
        self.arguments = (
            _library.names(feed),
            (_library.Tensor * len(tensors))(*tensors) if tensors else None,
            len(tensors),
        )

    def _tensor(self, session: InferenceSession, name: str, value: Any, elements: bool) -> _library.Tensor:
        wanted = session._element_types.get(name, 0)
        if isinstance(value, OrtValue):
            self._keeps.append(value)
            return value._tensor
        if not elements and isinstance(value, (tuple, list)):
            if name not in session._element_types:
                raise InvalidArgument(f"there is no input {name}; inputs are {', '.join(session._element_types)}")
            return _value.described(wanted, _value.sizes(value, f"the shape of input {name}"), None, 0)
        array = _value.as_array(value, name, wanted)
        self._keeps.append(array)
        return _value.of_array(array, name)


def _run_handle(options: RunOptions | None) -> int | None:
    if options is None:
        return None
    if not isinstance(options, RunOptions):
        raise TypeError(f"run_options is {options!r}: give a RunOptions")
    return options.__dict__["_handle"].value


class IOBinding:
    """Inputs and outputs that stay where they are from run to run; from the second run on no tensor is allocated, as long as shapes stay.
    Arrays are used where they lie, so that their elements may be changed between runs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._handle = Handle("binding", _library.handle("binding_new", session._handle.value))
        #: Values that are bound, which keep their arrays.
        self._inputs: dict[str, OrtValue] = {}
        #: Outputs in the order in which they were bound; None where the library makes them.
        self._outputs: dict[str, OrtValue | None] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an array; a copy where it does not lie row by row."""
        if isinstance(arr_on_cpu, OrtValue):
            return self.bind_ortvalue_input(name, arr_on_cpu)
        array = _value.as_array(arr_on_cpu, name, self._session._element_types.get(name, 0))
        value = OrtValue(_library.handle("value_borrow", _value.of_array(array, name)), array)
        self.bind_ortvalue_input(name, value)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds memory at an address, which must be there as long as it is bound."""
        self.bind_ortvalue_input(name, _at(device_type, element_type, shape, buffer_ptr, f"input {name}"))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds a value."""
        _library.call("binding_bind_input", self._handle.value, encode(name), ortvalue._handle.value)
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds memory at an address to an output, or, without one, has the next run make it. Then later runs write there again."""
        _value.check_device(device_type)
        if buffer_ptr is None:
            _library.call("binding_bind_output", self._handle.value, encode(name), None)
            self._outputs[name] = None
            return
        if element_type is None or shape is None:
            raise InvalidArgument(f"output {name}: memory at an address needs element_type and shape")
        self.bind_ortvalue_output(name, _at(device_type, element_type, shape, buffer_ptr, f"output {name}"))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds a value to an output: runs write there. Those whose output is of another type are errors."""
        kept = ortvalue._keeps
        if isinstance(kept, np.ndarray) and not kept.flags.writeable:
            raise InvalidArgument(f"output {name}: the array must not be written")
        _library.call("binding_bind_output", self._handle.value, encode(name), ortvalue._handle.value)
        self._outputs[name] = ortvalue

    def feed_back(self, output: str, input: str) -> None:
        """What comes out of ``output`` is what ``input`` is in the next run. Where it is that input with rows appended, rows are appended where
        it lies (``InferenceSession.appended`` names such pairs). The first run takes what is bound to the input."""
        _library.call("binding_feed_back", self._handle.value, encode(output), encode(input))

    def get_outputs(self) -> list[OrtValue]:
        """Bound outputs of the newest run, in the order in which they were bound. The next run writes there again."""
        return [value if value is not None else self._output(name) for name, value in self._outputs.items()]

    def _output(self, name: str) -> OrtValue:
        return OrtValue(_library.handle("binding_output", self._handle.value, encode(name)))

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies of them, which stay what they are."""
        return [value.numpy().copy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        _library.call("binding_clear_inputs", self._handle.value)
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs."""
        _library.call("binding_clear_outputs", self._handle.value)
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Nothing: the CPU's memory is there."""

    def synchronize_outputs(self) -> None:
        """Nothing: the CPU's memory is there."""

    def _check(self) -> None:
        if not self._outputs:
            raise InvalidArgument("no output is bound: call bind_output for those that are wanted")


SessionIOBinding = IOBinding


def _at(device_type: str, element_type: Any, shape: Sequence[int], address: int, name: str) -> OrtValue:
    _value.check_device(device_type)
    number, dims = _value.element_type(element_type), _value.sizes(shape, f"the shape of {name}")
    size = _value.storage(number).itemsize
    for dim in dims:
        size *= dim
    if size >= 1 << 63:
        raise InvalidArgument(f"the shape of {name}, {list(dims)}, has more bytes than there are addresses")
    return OrtValue(_library.handle("value_borrow", _value.described(number, dims, int(address), size)))
