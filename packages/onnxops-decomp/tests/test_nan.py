"""Models that are right for NaN, and those that leave it to the runtime and are written with plain operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decomp_harness import check

NUMBERS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
WITH_NAN = NUMBERS.clone().index_put_((torch.tensor([0, 2, 2]), torch.tensor([1, 0, 5])), torch.tensor(math.nan))
LARGER = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))

ORDERED: dict[str, Callable[[torch.Tensor], Any]] = {
    "amax": lambda x: x.amax(1),
    "amin of all": lambda x: x.amin(),
    "max": lambda x: x.max(),
    "max along a dimension": lambda x: x.max(1),
    "min along a dimension": lambda x: x.min(0, keepdim=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: x.argmax(1),
    "argmin of all": lambda x: x.argmin(),
    "topk": lambda x: x.topk(3, dim=1),
    "topk of the smallest": lambda x: x.topk(2, dim=0, largest=False),
    "sort": lambda x: x.sort(1, descending=True),
    "argsort": lambda x: x.argsort(1),
    "median": lambda x: x.median(1),
    "kthvalue": lambda x: x.kthvalue(2, 1),
    "mode": lambda x: x.round().mode(1).values,
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
    "maximum norm": lambda x: torch.linalg.vector_norm(x, math.inf, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "sign": lambda x: x.sign(),
    "angle": lambda x: x.angle(),
    "xlogy": lambda x: torch.xlogy(x.abs().floor(), x.abs()),
    "quantile": lambda x: torch.quantile(x.float(), 0.3, dim=1),
}
ABOUT_NAN: dict[str, Callable[[torch.Tensor], Any]] = {
    "isnan": lambda x: x.isnan(),
    "nan_to_num": lambda x: x.nan_to_num(2.0),
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(1),
    "nanmedian": lambda x: x.nanmedian(1),
    "nanquantile": lambda x: torch.nanquantile(x, 0.3, dim=1),
    "fmax": lambda x: torch.fmax(x, x.flip(0)),
    "fmin": lambda x: torch.fmin(x, x.flip(0)),
    "isclose": lambda x: torch.isclose(x, x.clone(), equal_nan=True),
    "isfinite": lambda x: x.isfinite(),
}


@pytest.mark.parametrize("name", ORDERED)
def test_functions_are_exact_for_nan_where_that_is_asked_for(name: str) -> None:
    # Where torch finds one of several NaN, which it takes for distinct, is not the same in every call.
    check(torch.unique if name == "unique" else ORDERED[name], WITH_NAN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", ORDERED)
def test_functions_of_numbers_are_right_without_a_look_for_nan(name: str, dtype: torch.dtype) -> None:
    others = () if name == "unique" else ((LARGER.to(dtype),),)
    lowered = check(ORDERED[name], NUMBERS.to(dtype), others=others, nan="finite")

    # The quantile is NaN where an element is: torch's own definition asks.
    assert name == "quantile" or "IsNaN" not in lowered.op_types()


@pytest.mark.parametrize("opset", [7, 13, 18, 23])
@pytest.mark.parametrize("name", ["amax", "argmax", "topk", "max along a dimension", "median", "sort"])
def test_plain_operators_are_written_at_every_opset(name: str, opset: int) -> None:
    if opset >= 9:
        check(ORDERED[name], NUMBERS, others=((LARGER,),), nan="finite", opset=opset)
    else:
        check(ORDERED[name], NUMBERS, nan="finite", opset=opset)


def test_topk_of_numbers_is_one_operator() -> None:
    assert check(ORDERED["topk"], NUMBERS, nan="finite").op_types() == ["TopK"]
    assert check(ORDERED["argmax"], NUMBERS, nan="finite").op_types() == ["ArgMax"]
    assert check(ORDERED["amax"], NUMBERS, nan="finite").op_types() == ["ReduceMax"]


@pytest.mark.parametrize("name", ABOUT_NAN)
def test_functions_about_nan_are_exact_always(name: str) -> None:
    check(ABOUT_NAN[name], WITH_NAN, nan="finite")
