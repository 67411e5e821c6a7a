"""Whether what torch notes about sizes of one matters to the model.

Capture notes that a size is not one whenever something asks, such as a comparison of strides inside torch. If the
model captured at size one consists of the same operations, the condition means nothing and is dropped.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.torch_private import guard_texts

__all__ = ["computed_one", "excludes_one", "is_about_one", "same_operations"]

# How torch says that a size is not 1.
_NOT_ONE = ((sympy.Ne, 1), (sympy.Ge, 2), (sympy.Gt, 1))
_ABOUT_ONE = re.compile(r"[^<>=!]*\)?\s*(>= 2|> 1|!= 1)$")


def computed_one(guard: sympy.Basic) -> sympy.Expr | None:
    """Return the size that a condition of torch's own says is not 1, if that is computed from others."""
    if not isinstance(guard, sympy.Rel) or not any(side in (1, 2) for side in guard.args):
        return None
    relation = guard.canonical
    excludes = (type(relation), int(relation.rhs)) in _NOT_ONE if relation.rhs.is_Integer else False
    return relation.lhs if excludes and not relation.lhs.is_Symbol else None


def is_about_one(condition: str) -> bool:
    """Tell whether a condition says that one size is not 1, or at least 2, and nothing more."""
    single = not re.search(r"[-+*/%]|\bsize\(\).*\bsize\(\)|\band\b|\bor\b", condition)
    return single and _ABOUT_ONE.fullmatch(condition.strip()) is not None


def excludes_one(program: torch.export.ExportedProgram) -> bool:
    """Tell whether a program was captured under such a condition."""
    return any(is_about_one(text) for text in guard_texts(program))


def same_operations(first: torch.export.ExportedProgram, second: torch.export.ExportedProgram) -> bool:
    """Tell whether two captured programs consist of the same calls with the same literal arguments."""
    return _operations(first) == _operations(second)


def _operations(program: torch.export.ExportedProgram) -> list[Any]:
    return [
        (node.op, str(node.target), [_literal(leaf) for leaf in pytree.tree_leaves((node.args, node.kwargs))])
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ]


def _literal(leaf: Any) -> str:
    """Return an argument as text; the name of a node says which node it is."""
    return f"{type(leaf).__name__}:{leaf}"
