"""Attention by ONNX Runtime's own operators: where they are used, and where they would not be the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decomp_harness import check
from opset_sweep import swept
from torch.nn.functional import scaled_dot_product_attention as attention

# Sizes that differ from all others in the cases: sizes that are equal in an example become one symbol.
HEADS, GROUPS, WIDTH = 6, 3, 8
OPSETS = swept(9, 13, 17, 20, 22)


def heads(x: torch.Tensor, count: int, width: int = WIDTH) -> torch.Tensor:
    """Bring (B, S, count * width) to (B, count, S, width)."""
    return x.view(x.shape[0], x.shape[1], count, width).transpose(1, 2)


def qkv(batch: int, length: int, total: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    shapes = [(batch, length, HEADS * WIDTH), (batch, total, GROUPS * WIDTH), (batch, total, GROUPS * WIDTH)]
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def caches(batch: int, length: int) -> list[torch.Tensor]:
    return [torch.randn(batch, GROUPS, length, WIDTH) for _ in range(2)]


def mask(batch: int, total: int) -> torch.Tensor:
    """A mask in which a query sees nothing, if there are two of them."""
    shown = torch.rand(batch, 1, 1, total) > 0.4
    shown[0], shown[1:2] = True, False
    return shown


def repeated(x: torch.Tensor) -> torch.Tensor:
    batch, groups, length, width = x.shape
    copies = x[:, :, None].expand(batch, groups, HEADS // groups, length, width)
    return copies.reshape(batch, HEADS, length, width)


def grouped(q, k, v, *masks, **options):
    result = attention(heads(q, HEADS), heads(k, GROUPS), heads(v, GROUPS), *masks, enable_gqa=True, **options)
    return result.transpose(1, 2).flatten(2)


def spread(q, k, v, *masks, **options):
    keys, values = repeated(heads(k, GROUPS)), repeated(heads(v, GROUPS))
    return attention(heads(q, HEADS), keys, values, *masks, **options).transpose(1, 2).flatten(2)


def step(q, k, v, past_key, past_value, *masks, **options):
    """Attention of one step of decoding, with the caches for the next one."""
    past_key = past_key.view(past_key.shape[0], GROUPS, past_key.shape[2], WIDTH)
    past_value = past_value.view(past_value.shape[0], GROUPS, past_value.shape[2], WIDTH)
    key = torch.cat([past_key, heads(k, GROUPS)], 2)
    value = torch.cat([past_value, heads(v, GROUPS)], -2)
    return attention(heads(q, HEADS), repeated(key), repeated(value), *masks, **options).flatten(1), key, value


def counts(operators: list[str]) -> dict[str, int]:
    names = ("GroupQueryAttention", "MultiHeadAttention", "Attention", "Softmax")
    return {name: operators.count(name) for name in names if name in operators}


GROUPED = {"GroupQueryAttention": 1}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("function", [grouped, spread])
@pytest.mark.parametrize("options", [{}, {"scale": 0.2}])
def test_causal_queries_that_share_keys(function: Callable[..., Any], options: dict[str, float], opset: int) -> None:
    others = [qkv(1, 1, 1), qkv(3, 9, 9), qkv(2, 70, 70)]
    lowered = check(
        lambda q, k, v: function(q, k, v, is_causal=True, **options),
        *qkv(2, 5, 5), others=others, opset=opset, target="onnxruntime",
    )  # fmt: skip
    assert counts(lowered.op_types()) == GROUPED
    # Keys stay as few as they are.
    assert len([name for name in lowered.op_types() if name == "Expand"]) == 1


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("options", [{}, {"scale": 0.2}])
def test_a_step_with_a_cache(options: dict[str, float], opset: int) -> None:
    others = [(*qkv(1, 1, 1), *caches(1, 1)), (*qkv(3, 1, 1), *caches(3, 40)), (*qkv(2, 1, 1), *caches(2, 0))]
    lowered = check(
        lambda *args: step(*args, **options),
        *qkv(2, 1, 1), *caches(2, 11), others=others, opset=opset, target="onnxruntime",
    )  # fmt: skip
    assert counts(lowered.op_types()) == GROUPED
    # The operator gives the caches.
    (node,) = [node for node in lowered.proto.graph.node if node.op_type == "GroupQueryAttention"]
    assert [output.name for output in lowered.proto.graph.output][1:] == list(node.output)[1:]


@pytest.mark.parametrize("opset", OPSETS)
def test_a_step_with_a_cache_and_a_mask(opset: int) -> None:
    def case(batch: int, past: int) -> tuple[torch.Tensor, ...]:
        return (*qkv(batch, 1, 1), *caches(batch, past), mask(batch, past + 1))

    others = [case(1, 1), case(3, 40), case(2, 3)]
    lowered = check(step, *case(2, 11), others=others, opset=opset, target="onnxruntime")
    assert counts(lowered.op_types()) == GROUPED


@pytest.mark.parametrize("opset", [17, 20])
def test_half_floats(opset: int) -> None:
    args = qkv(2, 5, 5, torch.float16)
    lowered = check(lambda *x: grouped(*x, is_causal=True), *args, opset=opset, target="onnxruntime")
    assert counts(lowered.op_types()) == GROUPED


def joined_in_front(q, k, v, past_key, past_value):
    key, value = (torch.cat([heads(x, GROUPS), p], 2) for x, p in ((k, past_key), (v, past_value)))
    return attention(heads(q, HEADS), repeated(key), repeated(value)).flatten(1)


def joined_of_three(q, k, v, past_key, past_value):
    key, value = (torch.cat([p, p, heads(x, GROUPS)], 2) for x, p in ((k, past_key), (v, past_value)))
    return attention(heads(q, HEADS), repeated(key), repeated(value)).flatten(1)


def a_value_without_a_cache(q, k, v, past_key, past_value):
    key = torch.cat([past_key, heads(k, GROUPS)], 2)
    return attention(heads(q, HEADS), repeated(key), repeated(2 * key)).flatten(1)


def tiled(q, k, v):
    keys, values = (heads(x, GROUPS).repeat(1, HEADS // GROUPS, 1, 1) for x in (k, v))
    return attention(heads(q, HEADS), keys, values, is_causal=True).flatten(1)


def keys_alone_repeated(q, k, v):
    return attention(heads(q, HEADS), repeated(heads(k, GROUPS)), heads(torch.cat([v, -v], 2), HEADS), is_causal=True)


def narrow(q, k, v):
    return attention(heads(q, 12, 4), heads(k, 6, 4), heads(v, 6, 4), is_causal=True, enable_gqa=True)


def values_of_another_width(q, k, v):
    return attention(heads(q, HEADS), heads(k, GROUPS), heads(v, GROUPS)[..., :4], is_causal=True, enable_gqa=True)


STEP = (*qkv(2, 1, 1), *caches(2, 11))
OTHER_STEP = (*qkv(4, 1, 1), *caches(4, 9))
ELSEWHERE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], str]] = {
    "not causal": (grouped, (*qkv(2, 5, 5),), (*qkv(3, 8, 8),), "Softmax"),
    "more keys than queries": (
        lambda *x: grouped(*x, is_causal=True), (*qkv(2, 5, 7),), (*qkv(3, 4, 9),), "Softmax"),
    "a mask of its own": (
        grouped, (*qkv(2, 5, 5), torch.rand(2, 1, 5, 5) > 0.3), (*qkv(3, 7, 7), torch.rand(3, 1, 7, 7) > 0.3),
        "Softmax"),
    "heads of four": (narrow, (*qkv(2, 5, 5),), (*qkv(3, 8, 8),), "Softmax"),
    "values of another width": (values_of_another_width, (*qkv(2, 5, 5),), (*qkv(3, 8, 8),), "Softmax"),
    "heads in turns": (tiled, (*qkv(2, 5, 5),), (*qkv(3, 8, 8),), "MultiHeadAttention"),
    "keys alone repeated": (keys_alone_repeated, (*qkv(2, 5, 5),), (*qkv(3, 8, 8),), "MultiHeadAttention"),
    "doubles": (
        lambda *x: grouped(*x, is_causal=True), (*qkv(2, 5, 5, torch.float64),), (*qkv(3, 8, 8, torch.float64),),
        "Softmax"),
    "a step that sees the first key alone": (lambda *x: step(*x, is_causal=True), STEP, OTHER_STEP, "Softmax"),
    "a step in front of the cache": (joined_in_front, STEP, OTHER_STEP, "MultiHeadAttention"),
    "a cache of three parts": (joined_of_three, STEP, OTHER_STEP, "MultiHeadAttention"),
    "values that are not a cache": (a_value_without_a_cache, STEP, OTHER_STEP, "MultiHeadAttention"),
    "two queries and a cache": (
        step, (*qkv(2, 4, 4), *caches(2, 11)), (*qkv(3, 5, 5), *caches(3, 9)), "MultiHeadAttention"),
    "a mask of numbers": (
        step, (*STEP, torch.randn(2, 1, 1, 12)), (*OTHER_STEP, torch.full((4, 1, 1, 10), -torch.inf)), "Softmax"),
    "a mask for each head": (
        step, (*STEP, torch.rand(2, HEADS, 1, 12) > 0.3), (*OTHER_STEP, torch.rand(4, HEADS, 1, 10) > 0.3), "Softmax"),
}  # fmt: skip


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("case", ELSEWHERE)
def test_groups_are_left_alone_where_the_operator_is_not_the_same(case: str, opset: int) -> None:
    function, args, other, operator = ELSEWHERE[case]
    lowered = check(function, *args, others=[other], opset=opset, target="onnxruntime")
    assert counts(lowered.op_types()) == {operator: 1}


@pytest.mark.parametrize("function", [grouped, step])
def test_newer_opsets_have_an_operator_of_their_own(function: Callable[..., Any]) -> None:
    args, other = (STEP, OTHER_STEP) if function is step else (qkv(2, 5, 5), qkv(3, 8, 8))
    lowered = check(function, *args, others=[other], opset=23, target="onnxruntime")
    assert counts(lowered.op_types()) == {"Attention": 1}


@pytest.mark.parametrize("function", [grouped, step])
def test_nothing_of_it_without_the_target(function: Callable[..., Any]) -> None:
    args = STEP if function is step else qkv(2, 5, 5)
    assert counts(check(function, *args, opset=20).op_types()) == {"Softmax": 1}
