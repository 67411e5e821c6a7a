"""The operator that stands for layers of experts, and how ONNX Runtime has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from onnx_fx_export.generation.groups import numbers_of
from onnxops_decomp.exporting import is_never_negative

__all__ = ["TRANSLATIONS", "Gate", "experts"]

# The inputs of QMoE between its biases and how much each expert counts.
_BEFORE_WEIGHTS = 6


@dataclasses.dataclass(frozen=True)
class Gate:
    """How experts gate: ``gate * sigmoid(alpha * gate) * (up + beta)``, of numbers up to a limit."""

    alpha: float
    beta: float
    limit: float

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return what gates (T, I) make of what they let through (T, I)."""
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


@torch.library.custom_op("onnx_fx_export::experts", mutates_args=())
def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor | None,
    gate_up_bias: torch.Tensor | None,
    down: torch.Tensor,
    down_scales: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    alpha: float,
    beta: float,
    limit: float,
) -> torch.Tensor:
    """Return what experts make of tokens.

    Args:
        x: Tokens (T, H).
        weights: How much the chosen experts count (T, k).
        chosen: Which they are (T, k), int64.
        gate_up: Gates and what they let through, one after the other in turn (E, 2 I, H); with scales their integers
            (E, 2 I, H or H / 2), uint8.
        gate_up_scales: Scales of groups of columns (E, 2 I, groups), or of whole rows (E, 2 I), or None.
        gate_up_bias: What is added (E, 2 I), or None.
        down: (E, H, I), or integers likewise.
        down_scales: Scales likewise, or None.
        down_bias: What is added (E, H), or None.
        alpha: Factor of the gate in the sigmoid that it is multiplied by.
        beta: Added to what is let through.
        limit: The largest gate; infinite for none. What is let through is limited on both sides.
    """
    gate_of, result = Gate(alpha, beta, limit), torch.zeros_like(x)
    for expert in range(len(gate_up)):
        token, place = torch.where(chosen == expert)
        rows = _product(x[token], gate_up, gate_up_scales, gate_up_bias, expert)
        out = _product(gate_of(*rows.unflatten(-1, (-1, 2)).unbind(-1)), down, down_scales, down_bias, expert)
        result.index_add_(0, token, out * weights[token, place, None])
    return result


@experts.register_fake
def _(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _product(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, expert: int
) -> torch.Tensor:
    """Return the product of rows (T, K) with the weight of an expert, and its bias."""
    matrix = weight[expert]
    if scales is not None:
        scale = scales[expert].reshape(len(matrix), -1, 1)
        groups = numbers_of(matrix, x.shape[1]).unflatten(1, (scale.shape[1], -1))
        matrix = (groups * scale).flatten(1)
    return torch.nn.functional.linear(x, matrix, None if bias is None else bias[expert])


def _write(
    op: Any, x: Any, weights: Any, chosen: Any, gate_up: Any, gate_up_scales: Any, gate_up_bias: Any, down: Any,
    down_scales: Any, down_bias: Any, alpha: float, beta: float, limit: float,
) -> Any:  # fmt: skip
    """Write experts as ``MoE`` or ``QMoE``, which choose the experts of the largest numbers themselves."""
    k, count = int(chosen.shape[1]), int(gate_up.shape[0])
    attributes: dict[str, Any] = {
        "k": k, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": float(alpha),
        "activation_beta": float(beta),
    }  # fmt: skip
    if limit != float("inf"):
        attributes["swiglu_limit"] = float(limit)
    if gate_up_scales is None:
        op_type, behind = "MoE", [gate_up, gate_up_bias, down, down_bias]
    else:
        op_type, behind = "QMoE", [gate_up, gate_up_scales, gate_up_bias, down, down_scales, down_bias]
        attributes |= _rounding(int(x.shape[1]), gate_up, gate_up_scales)

    def written(router: Any, normalized: int, *more: Any) -> Any:
        operands = [x, router, *behind, *more]
        settings = {**attributes, "normalize_routing_weights": normalized}
        return op.emit_custom("com.microsoft", op_type, operands, settings, [x.dtype], shapes=[x.shape])[0]

    router = _logits(weights, chosen, count)
    if router is not None and (router[1] or op_type == "MoE"):  # QMoE knows no share of all experts
        return written(*router)
    results = []
    for shares in _shares(op, weights, chosen, count):
        if gate_up_scales is None:  # it takes the logarithms of weights, and makes their sum 1
            least = op.Max(shares, torch.finfo(torch.float32).tiny)
            results.append(op.Mul(written(op.Log(least), 1), op.ReduceSum(shares, [1], keepdims=1)))
        else:
            results.append(written(shares, 0, *[None] * _BEFORE_WEIGHTS, shares))
    return results[0] if len(results) == 1 else op.Sub(*results)


def _rounding(width: int, numbers: Any, scales: Any) -> dict[str, Any]:
    """Return what ``QMoE`` has to know of integers (E, N, bytes) that stand for rows of a width."""
    bits = 8 * int(numbers.shape[2]) // width
    blocks = {"block_size": width // int(scales.shape[2])} if len(scales.shape) > 2 else {}
    # Products are to be those of float32, and the integers in their own order.
    return {"expert_weight_bits": bits, "accuracy_level": 1, "weights_prepacked": 0, **blocks}


def _shares(op: Any, weights: Any, chosen: Any, count: int) -> list[Any]:
    """Return how much each expert counts (T, E), none negative; of two the second is to be subtracted."""
    rows = op.Shape(weights, start=0, end=1)
    none = op.Expand(0.0, op.Concat(rows, [count], axis=0))
    shares = op.ScatterElements(none, chosen, weights, axis=1, reduction="add")
    return [shares] if is_never_negative(weights, op.static) else [op.Relu(shares), op.Relu(op.Neg(shares))]


def _logits(weights: Any, chosen: Any, count: int) -> tuple[Any, int] | None:
    """Return the numbers whose Softmax the weights are, and whether it is that of the chosen ones alone, if so."""
    top, last = chosen.producer(), weights.producer()
    if not _along_rows(top, "TopK") or chosen is not top.outputs[1] or not top.attributes.get_int("largest", 1):
        return None
    values, scores = top.outputs[0], top.inputs[0]
    if scores.shape is None or scores.shape[1] != count:  # some of the chosen are not experts
        return None
    if _along_rows(last, "Softmax") and last.inputs[0] is values:
        return scores, 1
    shares = scores.producer()
    if not _along_rows(shares, "Softmax"):
        return None
    if weights is values:
        return shares.inputs[0], 0
    sums = last.inputs[1].producer() if last is not None and last.op_type == "Div" else None
    if sums is None or sums.op_type != "ReduceSum" or last.inputs[0] is not values or sums.inputs[0] is not values:
        return None
    axes = None if sums.inputs[1] is None else sums.inputs[1].const_value
    return (shares.inputs[0], 1) if axes is not None and axes.numpy().tolist() in ([-1], [1]) else None


def _along_rows(node: Any, op_type: str) -> bool:
    """Tell whether a node is such an operator along the last axis of a matrix."""
    return node is not None and node.op_type == op_type and node.attributes.get_int("axis", -1) in (-1, 1)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {experts: _write}
