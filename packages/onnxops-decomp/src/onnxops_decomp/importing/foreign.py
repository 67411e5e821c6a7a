"""Specifications of operators whose domain the installed onnx does not know, read from what computes them."""

from __future__ import annotations

import types
import typing
from typing import Any

import onnx_ir as ir
import torch

from onnxops_core.native import NativeOp, native_ops
from onnxops_decomp.importing.binding import FROM_THE_GRAPH
from onnxops_decomp.importing.registry import Implementation, implementation
from onnxops_decomp.spec.schemas import Formal, OpSpec

__all__ = ["foreign_spec"]

_ANY_NUMBER = 2**31 - 1
_LETTERS = {str: "STRING", float: "FLOAT", int: "INT"}


def foreign_spec(domain: str, op_type: str, version: int) -> OpSpec | None:
    """Return what the table's function of an operator says of it, or None if the table has none.

    Tensors are inputs, anything else is an attribute, and what has a default may be left out. The results have the
    element type of one input, or none that is known.
    """
    candidates = [each for each in native_ops().values() if (each.domain, each.op_type) == (domain, op_type)]
    native = next((each for each in candidates if each.since_version <= version), None)
    if native is not None:
        return _of_native(native)
    entry = implementation(domain, op_type, version)
    return None if entry is None or entry.parameters is None else _of_function(domain, op_type, entry)


def _of_native(native: NativeOp) -> OpSpec:
    arguments = [each for each in native.overload._schema.arguments if each.name not in native.not_attributes]
    fed = {
        each.name: each.has_default_value()
        for each in arguments
        if "Tensor" in str(each.type) or each.name in native.scalar_inputs
    }
    attributes = {each.name: _attribute_type(str(each.type)) for each in arguments if each.name not in fed}
    outputs = max(native.output_positions) + 1
    return _spec(native.domain, native.op_type, native.since_version, fed, attributes, outputs, next(iter(fed)))


def _of_function(domain: str, op_type: str, entry: Implementation) -> OpSpec:
    returned = typing.get_type_hints(entry.function)["return"]
    outputs = len(typing.get_args(returned)) if entry.several else 1
    hints = {name: hint for name, hint in entry.annotations.items() if name not in FROM_THE_GRAPH}
    optional = entry.defaults.keys() | entry.nullable
    fed = {name: name in optional for name, hint in hints.items() if _plain(hint) is torch.Tensor}
    attributes = {name: _typed(_plain(hint)) for name, hint in hints.items() if name not in fed}
    return _spec(domain, op_type, entry.since, fed, attributes, outputs, entry.like or next(iter(fed)), entry.variadic)


def _spec(
    domain: str,
    op_type: str,
    since: int,
    fed: dict[str, bool],
    attributes: dict[str, ir.AttributeType],
    outputs: int,
    like: str,
    variadic: str | None = None,
) -> OpSpec:
    """Return a specification; ``fed`` says of each input whether it may be left out."""
    last = len(fed) - 1 - [*reversed(fed.values())].index(False)
    return OpSpec(
        domain,
        op_type,
        since,
        tuple(Formal(name, name, frozenset(), optional, name == variadic, True) for name, optional in fed.items()),
        (
            Formal("output", like, frozenset(), False, False, True),
            Formal("others", "", frozenset(), True, True, False),
        ),
        attributes,
        {},
        frozenset(),
        last + 1,
        _ANY_NUMBER if variadic else len(fed),
        1,
        outputs,
    )


def _plain(hint: Any) -> Any:
    """Return an annotation without its None."""
    if isinstance(hint, types.UnionType):
        (hint,) = [each for each in typing.get_args(hint) if each is not type(None)]
    return hint


def _typed(hint: Any) -> ir.AttributeType:
    (element,) = typing.get_args(hint) or (hint,)
    return ir.AttributeType[_LETTERS[element] + ("S" if typing.get_origin(hint) is list else "")]


def _attribute_type(type_text: str) -> ir.AttributeType:
    names = {"str": "STRING", "float": "FLOAT"}
    kind = next((name for text, name in names.items() if text in type_text), "INT")
    return ir.AttributeType[f"{kind}S" if "List[" in type_text else kind]
