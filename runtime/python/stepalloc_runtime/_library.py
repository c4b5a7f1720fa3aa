"""The library for C, bound by ctypes: its functions, structs and errors. Calls leave the interpreter's lock to other threads."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint64, c_void_p
from typing import Any

#: Beside this file; where the wheel's build puts it.
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")


class Error(Exception):
    """An error of the runtime; its subclasses have the names of ONNX Runtime's."""


class Fail(Error):
    """A node cannot be run on its inputs: their shapes do not fit. Or there is no memory for it."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong: a name, a shape, an element type, an option, or elements that are out of range for a node."""


class NoSuchFile(Error):
    """A file cannot be read or written."""


class InvalidProtobuf(Error):
    """What was read is no model, or a damaged one."""


class InvalidGraph(Error):
    """A node is wrong whatever its inputs are: an attribute, or the number of its inputs or outputs."""


class NotImplemented(Error):  # noqa: A001 (the name is ONNX Runtime's)
    """The model asks for what there is not here: an operator, or one of its attributes' values or element types."""


class OutOfMemory(Fail, MemoryError):
    """Memory is not to be had, or more than the options allow."""


class Cancelled(Fail):
    """The run was ended by ``RunOptions.terminate``."""


#: By the numbers of ``StepallocCode``.
_ERRORS = (
    Error,
    InvalidArgument,
    NoSuchFile,
    InvalidProtobuf,
    NotImplemented,
    Fail,
    OutOfMemory,
    Cancelled,
    InvalidGraph,
)


class Tensor(ctypes.Structure):
    """``StepallocTensor``."""

    _fields_ = [
        ("element_type", c_int32),
        ("rank", c_size_t),
        ("dims", POINTER(c_int64)),
        ("data", c_void_p),
        ("bytes", c_size_t),
    ]


class Port(ctypes.Structure):
    """``StepallocPort``."""

    _fields_ = [
        ("name", c_char_p),
        ("element_type", c_int32),
        ("rank", c_ssize_t),
        ("dims", POINTER(c_int64)),
        ("dim_names", POINTER(c_char_p)),
        ("has_default", c_bool),
    ]


class Quantize(ctypes.Structure):
    """``StepallocQuantize``."""

    _fields_ = [
        ("unsigned_weights", c_bool),
        ("per_channel", c_bool),
        ("reduce_range", c_bool),
        ("subgraphs", c_bool),
        ("weight_symmetric", c_int32),
        ("op_types", POINTER(c_char_p)),
        ("op_type_count", c_size_t),
        ("nodes", POINTER(c_char_p)),
        ("node_count", c_size_t),
        ("exclude", POINTER(c_char_p)),
        ("exclude_count", c_size_t),
    ]


_library = ctypes.CDLL(os.path.join(_FOLDER, "libnative.so"))
_HANDLE_OUT = POINTER(c_void_p)
_NAMES = POINTER(c_char_p)
_INPUTS = (c_void_p, _NAMES, POINTER(Tensor), c_size_t)

#: Functions that return a status, and their arguments.
_CHECKED: dict[str, tuple[Any, ...]] = {
    "options_new": (_HANDLE_OUT,),
    "options_set": (c_void_p, c_char_p, c_char_p),
    "options_set_arenas": (c_void_p, c_void_p),
    "arenas_new": (c_uint64, _HANDLE_OUT),
    "run_options_new": (_HANDLE_OUT,),
    "run_options_set_arena_shrinkage": (c_void_p, c_bool),
    "run_options_terminate": (c_void_p, c_bool),
    "value_new": (c_int32, POINTER(c_int64), c_size_t, _HANDLE_OUT),
    "value_borrow": (POINTER(Tensor), _HANDLE_OUT),
    "session_open": (c_char_p, c_void_p, _HANDLE_OUT),
    "session_open_bytes": (c_char_p, c_size_t, c_void_p, _HANDLE_OUT),
    "session_run": (c_void_p, c_void_p, _NAMES, POINTER(Tensor), c_size_t, _NAMES, c_size_t, _HANDLE_OUT),
    "session_release_memory": (c_void_p,),
    "session_metadata": (c_void_p, _HANDLE_OUT),
    "session_statistics": (c_void_p, _HANDLE_OUT),
    "session_appended": (c_void_p, _HANDLE_OUT),
    "session_plan": (*_INPUTS, _HANDLE_OUT),
    "session_predict": (*_INPUTS, POINTER(c_uint64)),
    "session_warm_up": _INPUTS,
    "session_find_batch": (*_INPUTS, c_uint64, _HANDLE_OUT),
    "session_profile": (*_INPUTS, c_size_t, _HANDLE_OUT),
    "binding_new": (c_void_p, _HANDLE_OUT),
    "binding_bind_input": (c_void_p, c_char_p, c_void_p),
    "binding_bind_output": (c_void_p, c_char_p, c_void_p),
    "binding_feed_back": (c_void_p, c_char_p, c_char_p),
    "binding_clear_inputs": (c_void_p,),
    "binding_clear_outputs": (c_void_p,),
    "binding_run": (c_void_p, c_void_p),
    "binding_output": (c_void_p, c_char_p, _HANDLE_OUT),
    "quantize_dynamic": (c_char_p, c_char_p, POINTER(Quantize), _HANDLE_OUT),
}
#: Functions that cannot fail: their arguments, and what they return.
_PLAIN: dict[str, tuple[tuple[Any, ...], Any]] = {
    "status_code": ((c_void_p,), c_int),
    "status_message": ((c_void_p,), c_char_p),
    "status_release": ((c_void_p,), None),
    "text_release": ((c_void_p,), None),
    "runtime_version": ((), c_char_p),
    "options_release": ((c_void_p,), None),
    "arenas_release": ((c_void_p,), None),
    "run_options_release": ((c_void_p,), None),
    "session_release": ((c_void_p,), None),
    "session_inputs": ((c_void_p, POINTER(c_size_t)), POINTER(Port)),
    "session_outputs": ((c_void_p, POINTER(c_size_t)), POINTER(Port)),
    "binding_release": ((c_void_p,), None),
    "value_release": ((c_void_p,), None),
    "value_tensor": ((c_void_p,), POINTER(Tensor)),
}


def _check(status: int | None, function: Any, arguments: Any) -> None:
    if status is None:
        return
    message = plain("status_message")(status).decode(errors="replace")
    code = plain("status_code")(status)
    plain("status_release")(status)
    raise _ERRORS[code if code < len(_ERRORS) else 0](message)


def _bound(name: str, arguments: tuple[Any, ...], result: Any) -> Any:
    function = getattr(_library, f"stepalloc_{name}")
    function.argtypes, function.restype = arguments, result
    return function


_functions = {name: _bound(name, *how) for name, how in _PLAIN.items()}
for _name, _arguments in _CHECKED.items():
    _functions[_name] = _bound(_name, _arguments, c_void_p)
    _functions[_name].errcheck = _check


def plain(name: str) -> Any:
    """A function that cannot fail, by its name without ``stepalloc_``."""
    return _functions[name]


def call(name: str, *arguments: Any) -> None:
    """Calls a function that may fail."""
    _functions[name](*arguments)


def handle(name: str, *arguments: Any) -> int:
    """Calls a function that gives a handle, as its last argument."""
    out = c_void_p()
    call(name, *arguments, ctypes.byref(out))
    assert out.value is not None
    return out.value


def document(name: str, *arguments: Any) -> Any:
    """Calls a function that gives JSON, as its last argument."""
    text = handle(name, *arguments)
    try:
        return json.loads(ctypes.string_at(text).decode(errors="replace"))
    finally:
        plain("text_release")(text)


def names(texts: Any) -> Any:
    """Texts as an array of C's; None for none."""
    encoded = [encode(text) for text in texts]
    return (c_char_p * len(encoded))(*encoded) if encoded else None


def encode(text: Any) -> bytes:
    """Text as C has it. A nul byte in it would end it there."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{text!r} is no text")
    encoded = text.encode()
    if b"\0" in encoded:
        raise InvalidArgument(f"{text!r} has a nul byte in it")
    return encoded


class Handle:
    """A handle that is released with its object."""

    __slots__ = ("_release", "value")

    def __init__(self, kind: str, value: int) -> None:
        self.value = value
        self._release = plain(f"{kind}_release")

    def __del__(self) -> None:
        release = getattr(self, "_release", None)
        if release is not None:
            release(self.value)


VERSION: str = plain("runtime_version")().decode()
