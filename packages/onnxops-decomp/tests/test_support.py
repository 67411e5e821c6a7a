"""What the table says of itself: what it supports at an opset, and why it does not support something."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import onnxops_decomp
from onnxops_decomp import UnsupportedOpsetError, builtin_table, lowerings, why_not

aten = torch.ops.aten


def test_what_is_right_at_an_opset_is_listed_at_newer_ones() -> None:
    before: set[str] = set()
    for opset in (7, 9, 13, 18, 23, 28):
        found = set(lowerings(opset))
        assert before <= found
        before = found


def test_an_operator_is_listed_from_the_lowest_opset_that_has_what_it_needs() -> None:
    assert "aten::nonzero" not in lowerings(8)
    support = lowerings(9)["aten::nonzero"]
    assert support.lowest == 9
    assert support.lowering == "onnxops_decomp.lowerings.indexing.picking.nonzero"


def test_what_the_table_holds_was_tested_at_some_opset() -> None:
    untested = set(builtin_table()) - set(lowerings(28))
    assert len(untested) <= UNTESTED, sorted(untested)


# Entries that no test reaches by name, and those that came since the tables were last written.
UNTESTED = 24


def test_own_lowerings_are_listed_at_every_opset() -> None:
    def relu(op, self):
        return op.Max(self, 0.0)

    table = builtin_table().extended({aten.relu.default: relu, "ours::op": relu})
    found = lowerings(7, table=table)
    assert found["ours::op"].lowest is None
    assert found["aten::relu"].lowering.endswith("relu")
    assert "ours::op" not in lowerings(7)
    assert why_not("ours::op", 7, table=table) is None


@pytest.mark.parametrize("operator", [aten.relu.default, aten.relu_.default, aten.relu, "aten::relu"])
def test_nothing_speaks_against_an_operator_that_every_opset_has(operator) -> None:
    assert why_not(operator, 7) is None


def test_the_reason_names_the_opset_that_is_needed() -> None:
    assert "opset 9" in (why_not(aten.nonzero.default, 8) or "")
    answer = why_not(aten.nonzero.default, 8, (torch.ones(3),))
    assert answer == "aten::nonzero needs ONNX NonZero, which opset 8 cannot express; the lowest opset that works is 9."
    assert why_not(aten.nonzero.default, 9, (torch.ones(3),)) is None


def test_the_reason_for_a_call_is_that_of_the_exporters() -> None:
    assert "eigh" in (why_not(aten.linalg_eig.default, 20, (torch.ones(3, 3),)) or "")
    assert why_not(aten.addr.default, 20, (torch.ones(3, 2), torch.ones(3), torch.ones(2))) is None


def test_an_operator_without_a_lowering_is_called_so() -> None:
    assert "has no lowering, and torch does not define it" in (why_not(aten.linear_backward.default, 20) or "")
    assert "extended" in (why_not(aten.linear_backward.default, 20) or "")


def test_a_decomposed_operator_asks_for_example_arguments() -> None:
    with torch.library._scoped_library("decomp_support", "FRAGMENT") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        overload = torch.ops.decomp_support.twice.default
        assert "ask again with example arguments" in (why_not(overload, 20) or "")
        assert why_not(overload, 20, (torch.ones(3),)) is None


def test_a_misspelt_name_gets_suggestions() -> None:
    assert "did you mean aten::relu" in (why_not("aten::relux", 20) or "")


def test_an_opset_that_does_not_exist_is_refused() -> None:
    for opset in (6, 99, True, "17"):
        with pytest.raises(UnsupportedOpsetError, match="7 to 28"):
            lowerings(opset)
    for call in ((), ((torch.ones(2),),)):
        assert "7 to 28" in (why_not(aten.relu.default, 99, *call) or "")


def test_importing_the_package_loads_neither_onnx_nor_sympy() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import onnxops_decomp; "
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.strip().strip("[]").replace("'", "").split(", "))
    assert "onnxops_decomp" in loaded
    assert not loaded & {"onnx", "onnx_ir", "onnxops_core", "sympy", "google"}


def test_every_public_name_can_be_had() -> None:
    assert set(onnxops_decomp.__all__) <= set(dir(onnxops_decomp))
    assert all(getattr(onnxops_decomp, name) is not None for name in onnxops_decomp.__all__)
    with pytest.raises(AttributeError, match="absent"):
        _ = onnxops_decomp.absent
