"""The importer as one of the engines that onnx-verify runs models in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.importing.convert import to_torch
from onnxops_decomp.importing.tensors import FileMaps, to_value

__all__ = ["load"]


def load(model: onnx.ModelProto) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Return what runs a model in eager PyTorch: it takes arrays by name and returns the outputs in order.

    Raises:
        ModelImportError: If the model cannot be imported.
    """
    module = to_torch(model)
    names = module.meta["onnx"]["inputs"]
    dtypes = [_element_type(value.type) for value in model.graph.output]

    def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
        with torch.no_grad():
            made = module(*(_tensor(feeds.get(name)) for name in names))
        values = made if len(dtypes) != 1 else (made,)
        return [_array(value, dtype) for value, dtype in zip(values, dtypes, strict=True)]

    return run


def _element_type(type_: onnx.TypeProto) -> int:
    """Return the element type of a tensor, or of what a sequence or an optional holds."""
    match type_.WhichOneof("value"):
        case "sequence_type":
            return _element_type(type_.sequence_type.elem_type)
        case "optional_type":
            return _element_type(type_.optional_type.elem_type)
    return type_.tensor_type.elem_type


def _tensor(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_tensor(each) for each in value]
    array = np.asarray(value)
    if array.dtype.kind in "OSUT":
        return array
    return to_value(ir.tensor(np.ascontiguousarray(array).reshape(array.shape)), FileMaps())


def _array(value: Any, declared: int) -> Any:
    if isinstance(value, list | tuple):
        return [_array(each, declared) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().resolve_conj().resolve_neg().contiguous()
    dtype = to_ir(value.dtype)
    plain = dtype.numpy()
    if plain.type.__module__ == "numpy":
        array = value.numpy()
    else:
        bits = {1: torch.uint8, 2: torch.uint16}[value.element_size()]
        array = value.view(bits).numpy().view(plain)
    # Elements of less than a byte are held in wider ones.
    return array if declared in (0, int(dtype)) else array.astype(ir.DataType(declared).numpy())
