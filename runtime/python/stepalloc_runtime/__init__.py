"""Runs models of ONNX and OpenVINO in planned memory, by the names of ONNX Runtime::

    import stepalloc_runtime as ort

    session = ort.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": x})

What has a name of ONNX Runtime's does what it does there, on the CPU; options that are not known, or cannot be had, are refused by
name. Arrays of numpy go in and out without copies. What is ours beside it: ``SessionOptions.max_mem`` and :class:`Arenas`, and of a
session ``plan``, ``predict``, ``report``, ``profile``, ``find_batch``, ``warm_up``, ``statistics``, ``release_memory``, ``appended``; of a
binding ``feed_back``.

Errors are subclasses of :class:`Error`; they say what is wrong, where, and what to do.
"""

from __future__ import annotations

from ._library import (
    VERSION as __version__,
    Cancelled,
    Error,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
    OutOfMemory,
)
from ._options import (
    Arenas,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtArenaCfg,
    OrtMemoryInfo,
    OrtMemType,
    RunOptions,
    SessionOptions,
    create_and_register_allocator,
)
from ._session import Batch, InferenceSession, IOBinding, ModelMetadata, NodeArg, SessionIOBinding
from ._value import OrtValue

__all__ = [
    "Arenas",
    "Batch",
    "Cancelled",
    "Error",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelMetadata",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtValue",
    "OutOfMemory",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "__version__",
    "create_and_register_allocator",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "set_default_logger_severity",
]


def get_available_providers() -> list[str]:
    """The CPU alone."""
    return ["CPUExecutionProvider"]


def get_all_providers() -> list[str]:
    """The CPU alone."""
    return get_available_providers()


def get_device() -> str:
    """The CPU."""
    return "CPU"


def get_version_string() -> str:
    """The version of this package."""
    return __version__


def set_default_logger_severity(severity: int) -> None:
    """Nothing: there is no log."""
