"""Flattening nested inputs and outputs.

Once torch is loaded its pytree is used, so that the containers that users registered there (caches, model
outputs)
flatten as they do in torch.export. This is the one place that touches it, for torch has no public module of
that
name; a test compares it with the plain flattening below, which serves without torch.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from onnx_verify.values.torch_tensors import loaded_torch


def flatten(tree: Any) -> list[Any]:
    """Return the leaves of a nested structure in order; None is not a leaf."""
    if loaded_torch() is not None:
        pytree = importlib.import_module("torch.utils._pytree")
        leaves = [leaf for leaf in pytree.tree_leaves(tree) if leaf is not None]
        return [part for leaf in leaves for part in _open_dataclass(leaf)]
    return _flatten_plain(tree)


def _open_dataclass(leaf: Any) -> list[Any]:
    """Open a dataclass instance that nobody registered; a leaf of any other kind stays."""
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        return flatten([getattr(leaf, item.name) for item in dataclasses.fields(leaf)])
    return [leaf]


def _flatten_plain(tree: Any) -> list[Any]:
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in _flatten_plain(value)]
    if isinstance(tree, (tuple, list)):
        return [leaf for value in tree for leaf in _flatten_plain(value)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return _flatten_plain([getattr(tree, item.name) for item in dataclasses.fields(tree)])
    return [tree]
