"""What the table of traits says of an ATen operator is what torch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onnxops_decomp.spec.aten_traits import AtenTrait, aten_operators_with, has_aten_trait
from onnxops_decomp.torch_private import is_composite

aten = torch.ops.aten
# Arguments behind a tensor of shape (2, 3, 1).
FURTHER: dict[str, tuple[Any, ...]] = {
    "_reshape_alias": ([3, 2], [2, 1]),
    "_unsafe_view": ([3, 2],),
    "flatten": (),
    "moveaxis": ([0], [1]),
    "movedim": ([0], [1]),
    "permute": ([2, 0, 1],),
    "reshape": ([6],),
    "reshape_as": (torch.zeros(6),),
    "swapaxes": (0, 1),
    "swapdims": (0, 1),
    "transpose": (0, 1),
    "unflatten": (1, [3, 1]),
    "unsqueeze": (0,),
    "view": ([3, 2],),
    "view_as": (torch.zeros(6),),
}
OVERLOADS = {
    "flatten": "using_ints",
    "moveaxis": "intlist",
    "movedim": "intlist",
    "transpose": "int",
    "unflatten": "int",
}
MATRICES = ("adjoint", "t")


def called(operator: str, x: torch.Tensor) -> torch.Tensor:
    name = operator.removeprefix("aten::")
    result: torch.Tensor = getattr(getattr(aten, name), OVERLOADS.get(name, "default"))(x, *FURTHER.get(name, ()))
    return result


@pytest.mark.parametrize("operator", sorted({name for trait in AtenTrait for name in aten_operators_with(trait)}))
def test_a_row_is_that_of_an_operator(operator: str) -> None:
    assert hasattr(aten, operator.removeprefix("aten::"))


@pytest.mark.parametrize("operator", aten_operators_with(AtenTrait.RESHAPES))
def test_reshapes_keep_the_order_of_elements(operator: str) -> None:
    x = torch.arange(6.0).reshape(2, 3, 1)
    assert called(operator, x).reshape(-1).tolist() == x.reshape(-1).tolist()


@pytest.mark.parametrize("operator", aten_operators_with(AtenTrait.PERMUTES))
def test_permutations_move_dimensions(operator: str) -> None:
    x = torch.arange(6.0).reshape(2, 3, 1)
    x = x[..., 0] if operator.removeprefix("aten::") in (*MATRICES, "mH") else x
    y = called(operator, x)
    strides = sorted(zip(x.stride(), x.shape, strict=True))
    assert sorted(zip(y.stride(), y.shape, strict=True)) == strides
    assert y.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("operator", aten_operators_with(AtenTrait.CONJUGATES))
def test_conjugations_conjugate(operator: str) -> None:
    x = torch.tensor([[1 + 2j]])
    assert called(operator, x).item() == 1 - 2j


@pytest.mark.parametrize("operator", aten_operators_with(AtenTrait.MAY_COPY))
def test_what_may_copy_does_so_for_some_layouts_alone(operator: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert called(operator, x).data_ptr() == x.data_ptr()
    assert called(operator, x.t()).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("operator", aten_operators_with(AtenTrait.FRESH))
def test_what_is_always_new_is_composite_and_shares_no_memory_by_its_schema(operator: str) -> None:
    packet = getattr(aten, operator.removeprefix("aten::"))
    overloads = [getattr(packet, name) for name in packet.overloads()]
    plain = [one for one in overloads if not one._schema.is_mutable]
    assert any(map(is_composite, plain))
    assert all(result.alias_info is None for one in plain for result in one._schema.returns)


@pytest.mark.parametrize("operator", aten_operators_with(AtenTrait.DROPOUT))
def test_dropout_hands_its_operand_through_in_evaluation(operator: str) -> None:
    x, call = torch.randn(2, 3), getattr(aten, operator.removeprefix("aten::")).default
    assert torch.equal(call(x, 0.5, False), x)
    assert not torch.equal(call(torch.ones(64, 64), 0.5, True), torch.ones(64, 64))


@pytest.mark.parametrize("operator", aten_operators_with(AtenTrait.STATISTICS))
def test_arguments_of_normalizations_stand_where_the_table_says(operator: str) -> None:
    arguments = [each.name for each in getattr(aten, operator.removeprefix("aten::")).default._schema.arguments]
    assert arguments[3:5] == ["running_mean", "running_var"]
    assert arguments[5] in ("training", "use_input_stats")


def test_overloads_have_the_traits_of_their_operator() -> None:
    assert has_aten_trait(aten.view.dtype, AtenTrait.RESHAPES)
    assert not has_aten_trait(torch.ops.prims.view_of.default, AtenTrait.RESHAPES)
    assert not has_aten_trait("prim::view", AtenTrait.RESHAPES)
