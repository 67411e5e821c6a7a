"""Operators of the domain ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import of_strings

_DOMAIN = "ai.onnx.ml"


@onnx_op("ArrayFeatureExtractor", domain=_DOMAIN)
@of_strings
def array_feature_extractor(X: Tensor, Y: Tensor) -> Tensor:
    rows = X.unsqueeze(0) if X.dim() == 1 else X
    return rows[..., Y.reshape(-1).to(torch.int64)]


@onnx_op("Binarizer", domain=_DOMAIN)
def binarizer(X: Tensor, threshold: float = 0.0) -> Tensor:
    return (threshold < X).to(X.dtype)


@onnx_op("LabelEncoder", domain=_DOMAIN)
def label_encoder(
    X: Any,
    keys_tensor: Any = None,
    values_tensor: Any = None,
    default_tensor: Any = None,
    keys_strings: Any = None,
    keys_int64s: Any = None,
    keys_floats: Any = None,
    values_strings: Any = None,
    values_int64s: Any = None,
    values_floats: Any = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
    default_float: float = -0.0,
) -> Any:
    keys = _given(keys_tensor, keys_strings, keys_int64s, keys_floats).tolist()
    values = _given(values_tensor, values_strings, values_int64s, values_floats)
    defaults = {"O": default_string, "i": default_int64, "f": default_float}
    default = defaults[values.dtype.kind] if default_tensor is None else np.asarray(default_tensor).reshape(-1)[0]
    table = {_key(key): value for key, value in zip(keys, values.tolist(), strict=True)}
    found = [table.get(_key(each), default) for each in np.asarray(X).reshape(-1).tolist()]
    made = np.array(found, values.dtype).reshape(X.shape)
    return made if made.dtype == np.object_ else torch.from_numpy(made)


def _given(*candidates: Any) -> Any:
    """Return the one of several attributes that a node has, as an array."""
    tensor, strings, _, floats = candidates
    (value,) = [each for each in candidates if each is not None]
    if tensor is not None:
        return np.asarray(tensor)
    return np.array(value, np.object_ if strings is not None else np.float32 if floats is not None else np.int64)


def _key(value: Any) -> Any:
    return "nan" if isinstance(value, float) and value != value else value
