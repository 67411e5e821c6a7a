"""Every change of an operator's form between opsets 7 and 28 has an adapter, or a reason why it has none."""

from __future__ import annotations

import dataclasses
import itertools

import onnx
import pytest

from onnxops_decomp.builder import forms as registry
from onnxops_decomp.builder.planning import NEGATIVE_AXES_OPSET
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OLDEST_OPSET, OpSpec, op_spec

# Only an attribute was added; without it the older form means the same, with it the builder names the opset.
ADDED_ATTRIBUTE_ONLY = {
    ("Attention", 25),
    ("BatchNormalization", 14),
    ("Cast", 19),
    ("Cast", 24),
    ("CastLike", 19),
    ("CastLike", 24),
    ("DequantizeLinear", 13),
    ("DequantizeLinear", 23),
    ("MaxPool", 8),
    ("QuantizeLinear", 13),
    ("QuantizeLinear", 19),
}
# Operators without which ATen does: strings, images, training, the sequences and options of ONNX.
NOT_FOR_ATEN = {
    ("Constant", 11),  # The builder writes initializers.
    ("Constant", 12),
    ("OptionalHasElement", 18),
    ("Scan", 9),
    ("Upsample", 9),
}
# What changed are names alone.
SAME_MEANING = {
    ("BatchNormalization", 9),  # `spatial` was never anything but its default.
    ("Loop", 11),  # A value to carry is needed up to opset 12, and the adapter of 13 sees to it.
}


def _versions(op_type: str) -> list[OpSpec]:
    specs = (op_spec(op_type, opset) for opset in range(OLDEST_OPSET, NEWEST_OPSET + 1))
    return list({spec.since_version: spec for spec in specs if spec is not None}.values())


def _changes() -> list[tuple[str, int]]:
    """Return where inputs or attributes of an operator came, went, or got another default."""
    found = []
    for op_type in sorted({schema.name for schema in onnx.defs.get_all_schemas()}):
        versions = _versions(op_type)
        for older, newer in itertools.pairwise(versions):
            inputs = (len(older.inputs), older.max_inputs, older.min_inputs) != (
                len(newer.inputs),
                newer.max_inputs,
                newer.min_inputs,
            )
            if inputs or older.attributes != newer.attributes or older.defaults != newer.defaults:
                found.append((op_type, newer.since_version))
    return found


@pytest.mark.parametrize("op_type, below", _changes())
def test_change_of_form_is_adapted(op_type: str, below: int) -> None:
    registry.find_adapter("Identity", OLDEST_OPSET, NEWEST_OPSET)
    adapted = below in registry._ADAPTERS.get(op_type, {})
    excused = (op_type, below) in ADDED_ATTRIBUTE_ONLY | NOT_FOR_ATEN | SAME_MEANING
    assert adapted != excused


@pytest.mark.parametrize(
    "op_type, below",
    [
        ("Gather", 11),  # negative indices
        ("Hardmax", 13),  # the axes that are normalised over
        ("LogSoftmax", 13),
        ("Max", 8),  # broadcasting
        ("Mean", 8),
        ("Min", 8),
        ("Mod", 28),  # floats without fmod
        ("OneHot", 11),  # negative indices
        ("Pad", 19),  # wrap
        ("ScatterElements", 18),  # max and min
        ("ScatterND", 18),
        ("Softmax", 13),
        ("Sum", 8),
    ],
)
def test_change_of_meaning_is_adapted(op_type: str, below: int) -> None:
    registry.find_adapter("Identity", OLDEST_OPSET, NEWEST_OPSET)
    assert below in registry._ADAPTERS[op_type]


# What the specification of these says anew, neither in form nor in dtypes, changes no call that a lowering makes.
# Opset 11 let axes count from the end, which the builder undoes for all operators alike.
REWORDED = {
    ("DepthToSpace", 28),
    ("NegativeLogLikelihoodLoss", 13),
}


def _dtypes(op_type: str, opset: int) -> list[set[str]]:
    """Return what ONNX itself says of an operator's dtypes, of which an old onnx-ir does not know all."""
    constraints = onnx.defs.get_schema(op_type, opset, "").type_constraints
    return [set(constraint.allowed_type_strs) for constraint in constraints]


def _reworded() -> set[tuple[str, int]]:
    """Return the changes that show in neither the form nor the dtypes of an operator."""
    found = set()
    for op_type in sorted({schema.name for schema in onnx.defs.get_all_schemas()}):
        for older, newer in itertools.pairwise(_versions(op_type)):
            same_form = dataclasses.replace(newer, since_version=older.since_version) == older
            if same_form and _dtypes(op_type, older.since_version) == _dtypes(op_type, newer.since_version):
                found.add((op_type, newer.since_version))
    return found


def test_change_of_words_alone_is_adapted_or_known() -> None:
    registry.find_adapter("Identity", OLDEST_OPSET, NEWEST_OPSET)
    adapted = {(op_type, below) for op_type, changes in registry._ADAPTERS.items() for below in changes}
    known = range(OLDEST_OPSET, onnx.defs.onnx_opset_version() + 1)
    left = {(op_type, below) for op_type, below in _reworded() - adapted if below != NEGATIVE_AXES_OPSET}
    assert {each for each in left if each[1] in known} == {each for each in REWORDED if each[1] in known}
