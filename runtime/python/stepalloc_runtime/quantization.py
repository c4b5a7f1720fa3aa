"""Weights of 8 bits, as ``onnxruntime.quantization`` makes them."""

from __future__ import annotations

import enum
import os
import tempfile
from typing import Any, Iterable

from . import _library
from ._library import InvalidArgument, Quantize, encode

__all__ = ["QuantType", "quantize_dynamic"]


class QuantType(enum.Enum):
    """Types of weights."""

    QInt8 = 0
    QUInt8 = 1


#: Of ``extra_options``: what is known, and the value that is the default here.
_EXTRA: dict[str, bool | None] = {"WeightSymmetric": None, "EnableSubgraph": False, "MatMulConstBOnly": True}


def quantize_dynamic(
    model_input: Any,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Iterable[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Iterable[str] | None = None,
    nodes_to_exclude: Iterable[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes a model whose constant weights have 8 bits; activations are quantized as it runs. The model is a path, or an
    ``onnx.ModelProto``. What is told: ``quantized`` and ``left`` (nodes), ``bytes_before``, ``bytes_after``. Where nothing can be quantized,
    nothing is written, and the error says why.

    ``extra_options``: WeightSymmetric, EnableSubgraph. Tensors go to a file beside the model where they have more than 2 GiB, whether
    ``use_external_data_format`` asks for it or not; below that it cannot be asked for.
    """
    if hasattr(model_input, "SerializeToString"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            with open(path, "wb") as file:
                file.write(model_input.SerializeToString())
            return quantize_dynamic(
                path,
                model_output,
                op_types_to_quantize,
                per_channel,
                reduce_range,
                weight_type,
                nodes_to_quantize,
                nodes_to_exclude,
                use_external_data_format,
                extra_options,
            )
    name = getattr(weight_type, "name", weight_type)
    if name not in QuantType.__members__:
        raise InvalidArgument(f"weight_type {name}: give {' or '.join(QuantType.__members__)}")
    if use_external_data_format:
        raise InvalidArgument("use_external_data_format: tensors of models below 2 GiB stay in the file; leave it out")
    extra = {**_EXTRA, **(extra_options or {})}
    for key in extra:
        if key not in _EXTRA:
            raise InvalidArgument(f"there is no extra option {key} here; there are {', '.join(_EXTRA)}")
    if not extra["MatMulConstBOnly"]:
        raise InvalidArgument("MatMulConstBOnly: products of two activations are not quantized here; leave it out")
    symmetric = extra["WeightSymmetric"]
    lists = [list(names or ()) for names in (op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)]
    ops, nodes, exclude = (_library.names(names) for names in lists)
    options = Quantize(
        QuantType[name] is QuantType.QUInt8,
        bool(per_channel),
        bool(reduce_range),
        bool(extra["EnableSubgraph"]),
        0 if symmetric is None else 1 if symmetric else -1,
        ops,
        len(lists[0]),
        nodes,
        len(lists[1]),
        exclude,
        len(lists[2]),
    )
    paths = [encode(os.fspath(path)) for path in (model_input, model_output)]
    return _library.document("quantize_dynamic", *paths, options)
