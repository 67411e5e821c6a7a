"""Scaled dot product attention equals eager PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

from onnxops_decomp.builder.scope import NanHandling

OPSETS = swept(9, 13, 18, 23, 24, 26)


def _qkv(length: int = 3, total: int = 5, heads: int = 4, groups: int = 4) -> list[torch.Tensor]:
    shapes = [(2, heads, length, 8), (2, groups, total, 8), (2, groups, total, 6)]
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_attention(options: dict[str, Any], opset: int) -> None:
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *_qkv(), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_attention_with_fewer_key_heads(groups: int, causal: bool, opset: int) -> None:
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        *_qkv(groups=groups),
        opset=opset,
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("groups", [(2, 4), (4, 2), (1, 2), (4, 1)])
def test_keys_and_values_have_different_numbers_of_heads(groups: tuple[int, int], opset: int) -> None:
    key, value = (torch.randn(2, count, 5, 8) for count in groups)
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        *(torch.randn(2, 4, 3, 8), key, value, torch.rand(2, 1, 3, 5) > 0.3),
        opset=opset,
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 1), (2, 1, 1, 5), (2, 1, 3, 5), (4, 3, 5), (1, 4, 3, 5)])
def test_attention_with_an_additive_mask(shape: tuple[int, ...], opset: int) -> None:
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *_qkv(), torch.randn(shape), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("additive", [False, True])
def test_a_query_that_may_see_no_key_gives_zero(additive: bool, opset: int) -> None:
    mask = torch.rand(2, 1, 3, 5) > 0.5
    mask[0, 0, 1] = False
    mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if additive else mask
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *_qkv(), mask, opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 1, 5), (2, 4, 3, 5)])
def test_a_mask_joins_fewer_key_heads(shape: tuple[int, ...], opset: int) -> None:
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        *_qkv(groups=2),
        torch.rand(shape) > 0.3,
        opset=opset,
    )


@pytest.mark.parametrize("opset", [18, 23])
def test_attention_of_rank_two_and_three(opset: int) -> None:
    check(F.scaled_dot_product_attention, *(torch.randn(3, 8) for _ in range(3)), opset=opset)
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        *(torch.randn(2, 3, 8) for _ in range(3)),
        torch.randn(2, 3, 3),
        opset=opset,
    )


@pytest.mark.parametrize("opset", [18, 23])
def test_attention_over_batches_that_broadcast(opset: int) -> None:
    check(
        F.scaled_dot_product_attention,
        torch.randn(2, 4, 3, 8),
        torch.randn(1, 4, 5, 8),
        torch.randn(4, 5, 8),
        opset=opset,
    )


@pytest.mark.parametrize("opset", swept(13, 18, 23))
@pytest.mark.parametrize("causal", [False, True])
def test_attention_runs_at_other_sizes(causal: bool, opset: int) -> None:
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        *_qkv(),
        opset=opset,
        others=[_qkv(7, 2, 3, 3)],
    )


@pytest.mark.parametrize("opset", [18, 23])
def test_a_padding_mask_runs_at_other_sizes(opset: int) -> None:
    def mask(total: int) -> torch.Tensor:
        return torch.rand(2, 1, 1, total) > 0.3

    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        *_qkv(),
        mask(5),
        opset=opset,
        others=[(*_qkv(4, 9), mask(9))],
    )


def test_attention_is_one_node_where_there_is_one() -> None:
    lowered = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        *_qkv(groups=2),
        opset=23,
    )
    assert lowered.op_types() == ["Attention"]


def test_composed_attention_is_five_nodes() -> None:
    lowered = check(F.scaled_dot_product_attention, *_qkv(), opset=18)
    assert sorted(lowered.op_types()) == ["MatMul", "MatMul", "Mul", "Softmax", "Transpose"]


@pytest.mark.parametrize("opset", [18, 23])
def test_attention_of_half_floats(opset: int) -> None:
    check(F.scaled_dot_product_attention, *(x.half() for x in _qkv()), opset=opset)


@pytest.mark.parametrize("opset", [18, 23])
def test_dropout_of_everything_gives_zero(opset: int) -> None:
    # The only probability under which the result is not random is one that leaves nothing.
    q, k, v = _qkv()
    lowered = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), q, k, torch.zeros_like(v), opset=opset
    )
    assert "Dropout" in lowered.op_types()


@pytest.mark.parametrize("opset", [18, 23])
def test_flash_attention_returns_the_log_of_its_denominator(opset: int) -> None:
    function: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    q = torch.randn(2, 4, 3, 8)
    check(lambda q, k: function(q, k, k, 0.0, True), q, torch.randn(2, 4, 3, 8), opset=opset)


@pytest.mark.parametrize("opset", [9, 13, 18])
def test_heads_without_channels_average_the_values(opset: int) -> None:
    sizes = [(5, 5), (0, 0)]
    first, second = ((torch.randn(2, 3, 4, q), torch.randn(2, 3, 6, k), torch.randn(2, 3, 6, 7)) for q, k in sizes)
    # What the runtime leaves unwritten may be zero by chance.
    others = [second] * 5
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0), *first, others=others, opset=opset)


@pytest.mark.parametrize("opset", swept(9, 13, 18))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_causal_mask_is_added(dtype: torch.dtype, opset: int) -> None:
    lowered = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *(x.to(dtype) for x in _qkv()),
        opset=opset,
        others=[[x.to(dtype) for x in _qkv(7, 2, 3, 3)]],
        nan="finite",
    )
    assert ("Min" if dtype == torch.float16 else "Add") in lowered.op_types()


def _as_wide(length: int) -> list[torch.Tensor]:
    """Operands of one width, of which fused kernels of torch take care."""
    return [torch.randn(2, 4, length, 8) for _ in range(3)]


@pytest.mark.parametrize("nan", ["exact", "finite"])
@pytest.mark.parametrize("opset", [13, 18])
def test_a_hidden_score_of_half_precision_may_overflow(opset: int, nan: NanHandling) -> None:
    q, k, v = (x.half() for x in _as_wide(4))
    q[:, :, :3], q[:, :, 3], k[:, :, 3] = 3.0, 0.0, 1.5e4
    assert (q @ k.mT).isinf().any()
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0),
        q,
        k,
        v,
        opset=opset,
        nan=nan,
    )


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_hidden_scores_have_no_say_where_nan_is_exact(number: float, opset: int) -> None:
    q, k, v = _as_wide(4)
    k[:, :, 3] = number
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q.abs(), k, v, opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
def test_a_mask_is_added_to_scores_that_are_not_finite(opset: int) -> None:
    q, k, v = _qkv()
    k[0, :, 3], k[1, :, 2] = torch.inf, torch.nan
    mask = torch.ones(3, 5, dtype=torch.bool).tril(1)
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q.abs(), k, v, mask, opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("boolean", [False, True])
def test_masked_attention_to_no_keys_is_zero(boolean: bool, opset: int) -> None:
    def mask(length: int, total: int) -> torch.Tensor:
        allowed = torch.rand(length, total) > 0.3
        return allowed if boolean else allowed.float().log()

    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        *_qkv(),
        mask(3, 5),
        opset=opset,
        others=[[*_qkv(4, 0), mask(4, 0)]] * 3,
    )


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_constant_mask_is_written_if_it_hides_something(hidden: bool, additive: bool, opset: int) -> None:
    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(3, 5, dtype=torch.bool).tril(1 if hidden else 5)
        mask = mask.float().log() if additive else mask
        return F.scaled_dot_product_attention(q, k, v, mask.expand(q.shape[0], 1, 3, 5))

    without = check(F.scaled_dot_product_attention, *_qkv(), opset=opset)
    lowered = check(masked, *_qkv(), opset=opset)
    operands = [sum(len(node.input) for node in each.proto.graph.node) for each in (without, lowered)]
    assert (operands[0] < operands[1]) == hidden
