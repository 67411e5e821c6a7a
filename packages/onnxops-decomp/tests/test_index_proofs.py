"""What positions are, however the larger of two numbers is written."""

import onnx
import onnx_ir as ir
import pytest

from onnxops_decomp.passes.index_proofs import Affine, Position, Unreadable, read

TOKENS = Affine.of("T")


def positions(last: str):
    """Read positions that are counted from a padding mask."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 18]>
        positions (int64[B, T] mask) => (int64[B, T] result)
        <int64 zero = {{0}}, int64 one = {{1}}>
        {{
            sums = CumSum (mask, one)
            place = Sub (sums, one)
            {last}
        }}
    """
    graph = ir.from_proto(onnx.parser.parse_model(text)).graph
    sizes = {"B": Affine.of("B"), "T": TOKENS}
    return read(graph.outputs[0], sizes, graph.inputs[0])


@pytest.mark.parametrize(
    "last",
    [
        "result = Max (place, zero)",
        "result = Clip (place, zero)",
        "more = Greater (place, zero) result = Where (more, place, zero)",
        "more = GreaterOrEqual (place, zero) result = Where (more, place, zero)",
        "less = Less (place, zero) result = Where (less, zero, place)",
    ],
)
def test_positions_that_are_not_negative(last):
    row, place = Affine.of("b"), Affine.of("t")

    found = positions(last)

    assert found.sizes == (Affine.of("B"), TOKENS)
    assert found.at((row, place)) == Position(row, place, -1, 0)


@pytest.mark.parametrize(
    "last",
    [
        "more = Greater (place, one) result = Where (more, place, zero)",
        "more = Greater (place, zero) result = Where (more, zero, place)",
        "less = Less (place, zero) result = Where (less, place, zero)",
        "same = Equal (place, zero) result = Where (same, place, zero)",
        "result = Min (place, zero)",
    ],
)
def test_other_choices_are_not_read(last):
    with pytest.raises(Unreadable):
        positions(last).at((Affine.of("b"), Affine.of("t")))
