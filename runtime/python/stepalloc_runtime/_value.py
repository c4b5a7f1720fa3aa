"""Tensors: numpy arrays as the library sees them, and :class:`OrtValue`."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

import numpy as np

from . import _library
from ._library import Handle, InvalidArgument, Tensor

#: Element types by ONNX's number: ONNX Runtime's name, numpy's, and what numpy sees where it has none of its own (ml_dtypes).
_TYPES: dict[int, tuple[str, str, str]] = {
    1: ("float", "float32", ""),
    2: ("uint8", "uint8", ""),
    3: ("int8", "int8", ""),
    4: ("uint16", "uint16", ""),
    5: ("int16", "int16", ""),
    6: ("int32", "int32", ""),
    7: ("int64", "int64", ""),
    9: ("bool", "bool", ""),
    10: ("float16", "float16", ""),
    11: ("double", "float64", ""),
    12: ("uint32", "uint32", ""),
    13: ("uint64", "uint64", ""),
    16: ("bfloat16", "bfloat16", "uint16"),
    17: ("float8e4m3fn", "float8_e4m3fn", "uint8"),
    18: ("float8e4m3fnuz", "float8_e4m3fnuz", "uint8"),
    19: ("float8e5m2", "float8_e5m2", "uint8"),
    20: ("float8e5m2fnuz", "float8_e5m2fnuz", "uint8"),
    21: ("uint4", "uint4", "uint8"),
    22: ("int4", "int4", "uint8"),
    23: ("float4e2m1", "float4_e2m1fn", "uint8"),
    24: ("float8e8m0", "float8_e8m0fnu", "uint8"),
    25: ("uint2", "uint2", "uint8"),
    26: ("int2", "int2", "uint8"),
}
_NUMBERS = {numpy: number for number, (_, numpy, _) in _TYPES.items()}


def type_name(number: int) -> str:
    """As ONNX Runtime writes it: ``tensor(float)``."""
    return f"tensor({_TYPES[number][0]})" if number in _TYPES else "tensor(undefined)"


def storage(number: int) -> np.dtype:
    """The dtype that numpy moves such elements as."""
    _, name, bits = _TYPES[number]
    return np.dtype(bits or name)


def dtype(number: int) -> np.dtype:
    """The dtype that such elements have in arrays; those of the package ml_dtypes where numpy has none."""
    _, name, bits = _TYPES[number]
    if not bits:
        return np.dtype(name)
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise TypeError(
            f"numpy has no {name}: install ml_dtypes (pip install ml_dtypes), or read the bits by OrtValue.bits()"
        ) from None


def element_type(of: Any, name: str = "") -> int:
    """ONNX's number of a dtype, or of a number that is one."""
    where = f"input {name}: " if name else ""
    if isinstance(of, (int, np.integer)) and not isinstance(of, bool):
        if int(of) not in _TYPES:
            raise InvalidArgument(f"{where}there is no element type {of} here")
        return int(of)
    kind = np.dtype(of)
    number = _NUMBERS.get(kind.name)
    if number is None:
        hint = "; strings are not known here" if kind.kind in "OSUT" else ""
        raise InvalidArgument(f"{where}elements of dtype {kind} are not known here{hint}")
    return number


def usable(array: np.ndarray) -> np.ndarray:
    """The array itself where the library can read it, else a copy: row by row, aligned, in the machine's order."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, order="C")


def as_array(value: Any, name: str, wanted: int = 0) -> np.ndarray:
    """An input as an array that the library can read. What is no array becomes one of the type that the model wants."""
    if isinstance(value, np.ndarray) or hasattr(value, "dtype"):
        return usable(np.asarray(value))
    if not (hasattr(value, "__array__") or isinstance(value, (list, tuple, int, float, bool, complex, str, bytes))):
        raise InvalidArgument(f"input {name} is a {type(value).__name__}: give a numpy array or an OrtValue")
    try:
        array = np.asarray(value)
        if wanted and array.dtype.kind in "biuf":
            array = array.astype(storage(wanted) if not _TYPES[wanted][2] else dtype(wanted))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"input {name} cannot be an array: {error}") from None
    return usable(array)


def sizes(shape: Sequence[int], name: str = "shape") -> tuple[int, ...]:
    """A shape of integers that C can have."""
    try:
        made = tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} {shape!r} is no sequence of numbers") from None
    if any(not 0 <= size < 1 << 63 for size in made):
        raise InvalidArgument(f"{name} {shape!r} has a size that cannot be")
    return made


def described(number: int, shape: tuple[int, ...], data: int | None, size: int) -> Tensor:
    """A struct for C. It keeps its dims; who makes it keeps the data."""
    return Tensor(number, len(shape), (ctypes.c_int64 * len(shape))(*shape), data, size)


def of_array(array: np.ndarray, name: str = "", number: int = 0) -> Tensor:
    """A struct for C of a usable array."""
    number = number or element_type(array.dtype, name)
    return described(number, array.shape, array.ctypes.data, array.nbytes)


class _Memory:
    """What an array that lies in a value's memory has as its base."""

    __slots__ = ("__array_interface__", "_keeps")

    def __init__(self, tensor: Tensor, shape: tuple[int, ...], keeps: Any) -> None:
        kind = storage(tensor.element_type)
        self._keeps = keeps
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": kind.str,
            "data": (tensor.data, False),
        }


class OrtValue:
    """A tensor that stays where it is: an output, or what :meth:`ortvalue_from_numpy` and its like make. Arrays that it gives lie in its
    memory, and keep it. ``numpy.asarray`` of it, and DLPack (``torch.from_dlpack``), copy nothing."""

    def __init__(self, handle: int, keeps: Any = None) -> None:
        self._handle = Handle("value", handle)
        #: What has the memory, where that is not the library.
        self._keeps = keeps
        self._tensor: Tensor = _library.plain("value_tensor")(handle).contents
        self._shape = tuple(self._tensor.dims[: self._tensor.rank])

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A value in the array's memory, which it keeps; in a copy where the array does not lie row by row."""
        return OrtValue.ortvalue_from_numpy_with_onnx_type(numpy_obj, element_type(np.asarray(numpy_obj).dtype), device_type)

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(
        data: np.ndarray, onnx_element_type: int, device_type: str = "cpu"
    ) -> OrtValue:
        """The same of an array of bits, whose elements have ONNX's type of that number: of uint16 for bfloat16."""
        check_device(device_type)
        array, number = usable(np.asarray(data)), element_type(onnx_element_type)
        if array.dtype.itemsize != storage(number).itemsize:
            raise InvalidArgument(f"elements of dtype {array.dtype} are no bits of {type_name(number)}")
        return OrtValue(_library.handle("value_borrow", of_array(array, number=number)), array)

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A value in new memory, which is zero. ``element_type``: a dtype, or ONNX's number."""
        check_device(device_type)
        dims = sizes(shape)
        array = (ctypes.c_int64 * len(dims))(*dims)
        return OrtValue(_library.handle("value_new", _number(element_type), array, len(dims)))

    def numpy(self) -> np.ndarray:
        """An array in the value's memory, which it keeps. A run that has the value as its output writes there."""
        bits = self.bits()
        kind = dtype(self._tensor.element_type)
        return bits if bits.dtype == kind else bits.view(kind)

    def bits(self) -> np.ndarray:
        """The same; elements that numpy does not know are unsigned integers with their bits."""
        if self._tensor.bytes == 0:
            return np.empty(self._shape, storage(self._tensor.element_type))
        return np.asarray(_Memory(self._tensor, self._shape, self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"elements of dtype {array.dtype} cannot be {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Writes other elements, of the same shape and type, into the value's memory."""
        array = np.asarray(np_arr)
        if array.shape != self._shape or element_type(array.dtype) != self.element_type():
            raise InvalidArgument(
                f"an array of {array.dtype}{list(array.shape)} cannot be written into {self.data_type()}{self.shape()}"
            )
        self.bits()[...] = array.view(self.bits().dtype) if array.dtype != self.bits().dtype else array

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._tensor.data or 0

    def data_type(self) -> str:
        """As ``tensor(float)``."""
        return type_name(self._tensor.element_type)

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return self._tensor.element_type

    def shape(self) -> list[int]:
        """Elements along each dimension."""
        return list(self._shape)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements."""
        return self._tensor.bytes

    def device_name(self) -> str:
        """Always ``cpu``."""
        return "cpu"

    def has_value(self) -> bool:
        """Always true."""
        return True

    def is_tensor(self) -> bool:
        """Always true: there are no sequences, maps or sparse tensors."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Never."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Never."""
        return False


#: The function, where an argument has its name.
_number = element_type


def check_device(device_type: str) -> None:
    """Refuses what is not the CPU."""
    if str(device_type).lower() != "cpu":
        raise InvalidArgument(f"device {device_type!r}: there is the CPU only; give 'cpu'")
