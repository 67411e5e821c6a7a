"""What the ONNX specification says of an operator at an opset, in the form that the builder needs."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, cast

import onnx
import onnx_ir as ir

from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError

__all__ = [
    "NEWER_OPERATORS",
    "NEWEST_OPSET",
    "OLDEST_ONNX_OPSET",
    "OLDEST_OPSET",
    "Formal",
    "OpSpec",
    "check_opset",
    "first_opset",
    "op_spec",
]

OLDEST_OPSET = 7
NEWEST_OPSET = 28
OLDEST_ONNX_OPSET = 23
"""What the oldest supported release of onnx knows."""
NEWER_OPERATORS = Path(__file__).with_name("newer_operators.json")
"""Specifications that came after it: lowerings speak of the newest operators, whatever these are composed of below."""


def check_opset(opset: int) -> None:
    """Refuse a number that is not an opset of a model.

    Raises:
        UnsupportedOpsetError: If it is none.
        LoweringError: If the installed onnx does not know it.
    """
    if type(opset) is not int or not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        reason = f"supported are opsets {OLDEST_OPSET} to {NEWEST_OPSET}"
        raise UnsupportedOpsetError("models", opset, lowest=OLDEST_OPSET, reason=reason)
    if opset > onnx.defs.onnx_opset_version():
        # Each release of onnx since 1.18 has brought one opset.
        raise LoweringError(
            f"Opset {opset} is newer than the installed onnx {onnx.__version__}, which knows opset "
            f"{onnx.defs.onnx_opset_version()}: ask for that, or install onnx 1.{opset - 5} or newer."
        )


_OPTION = onnx.defs.OpSchema.FormalParameterOption


@dataclasses.dataclass(frozen=True, slots=True)
class Formal:
    """One formal input or output of an operator.

    Attributes:
        name: Name in the specification.
        type_key: Name of the type variable, or the type text itself where it is fixed, such as ``tensor(int64)``.
        dtypes: Element types that the specification allows for a tensor here.
        optional: Whether it may be left out.
        variadic: Whether it stands for any number of values.
        homogeneous: Whether all values of a variadic formal share one type.
    """

    name: str
    type_key: str
    dtypes: frozenset[ir.DataType]
    optional: bool
    variadic: bool
    homogeneous: bool


@dataclasses.dataclass(frozen=True, slots=True)
class OpSpec:
    """An operator of one domain as of one opset."""

    domain: str
    op_type: str
    since_version: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: dict[str, ir.AttributeType]
    defaults: dict[str, object]
    required: frozenset[str]
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int

    def formal_input(self, index: int) -> Formal:
        """Return the formal that describes input ``index``; the last one is reused when it is variadic."""
        return self.inputs[index] if index < len(self.inputs) else self.inputs[-1]

    def formal_output(self, index: int) -> Formal:
        """Return the formal that describes output ``index``; the last one is reused when it is variadic."""
        return self.outputs[index] if index < len(self.outputs) else self.outputs[-1]


@functools.cache
def _dtype_of(type_text: str) -> ir.DataType | None:
    if not type_text.startswith("tensor("):
        return None
    name = type_text[7:-1].upper()
    return ir.DataType.__members__.get(name)


def _formal(parameter: onnx.defs.OpSchema.FormalParameter) -> Formal:
    dtypes = (_dtype_of(text) for text in parameter.types)
    return Formal(
        name=parameter.name,
        type_key=parameter.type_str,
        dtypes=frozenset(dtype for dtype in dtypes if dtype is not None),
        optional=parameter.option == _OPTION.Optional,
        variadic=parameter.option == _OPTION.Variadic,
        homogeneous=parameter.is_homogeneous,
    )


def _default(attribute: onnx.defs.OpSchema.Attribute) -> object:
    return onnx.helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None


@functools.cache
def op_spec(op_type: str, opset: int, domain: str = "") -> OpSpec | None:
    """Return the specification of ``op_type`` in force at ``opset``, or None if the opset does not have it."""
    if not domain and opset > onnx.defs.onnx_opset_version():
        newer = [spec for spec in _newer_specs().get(op_type, []) if spec.since_version <= opset]
        return newer[-1] if newer else op_spec(op_type, onnx.defs.onnx_opset_version())
    if not onnx.defs.has(op_type, opset, domain):
        return None
    schema = onnx.defs.get_schema(op_type, opset, domain)
    if schema.deprecated:
        return None
    return OpSpec(
        domain=domain,
        op_type=op_type,
        since_version=schema.since_version,
        inputs=tuple(_formal(parameter) for parameter in schema.inputs),
        outputs=tuple(_formal(parameter) for parameter in schema.outputs),
        attributes={name: ir.AttributeType[str(cast(Any, a.type).name)] for name, a in schema.attributes.items()},
        defaults={name: _default(a) for name, a in schema.attributes.items()},
        required=frozenset(name for name, a in schema.attributes.items() if a.required),
        min_inputs=schema.min_input,
        max_inputs=schema.max_input,
        min_outputs=schema.min_output,
        max_outputs=schema.max_output,
    )


@functools.cache
def _newer_specs() -> dict[str, list[OpSpec]]:
    """Return the specifications that the installed onnx lacks, by operator, oldest first."""
    known = onnx.defs.onnx_opset_version()
    table = json.loads(NEWER_OPERATORS.read_text(encoding="utf-8"))
    return {name: [_read_spec(row) for row in rows if row["since_version"] > known] for name, rows in table.items()}


def _read_spec(row: dict[str, Any]) -> OpSpec:
    known = ir.DataType.__members__  # An older onnx-ir has no names for the newest.
    formals = {
        side: tuple(
            Formal(**{**each, "dtypes": frozenset(known[name] for name in each["dtypes"] if name in known)})
            for each in row[side]
        )
        for side in ("inputs", "outputs")
    }
    types = {name: ir.AttributeType[kind] for name, kind in row["attributes"].items()}
    defaults = {name: value.encode() if isinstance(value, str) else value for name, value in row["defaults"].items()}
    return OpSpec(
        **{**row, **formals, "attributes": types, "defaults": defaults, "required": frozenset(row["required"])}
    )


@functools.cache
def first_opset(op_type: str, domain: str = "") -> int | None:
    """Return the lowest opset that has ``op_type`` at all, or None if no opset has."""
    return next((n for n in range(1, NEWEST_OPSET + 1) if op_spec(op_type, n, domain) is not None), None)
