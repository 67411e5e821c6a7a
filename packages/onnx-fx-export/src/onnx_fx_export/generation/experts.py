"""Layers of experts as one operator of ONNX Runtime."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnxops_decomp.exporting import RowConversion, converted_rows

__all__ = ["ExpertsTranslation", "JoinedExperts", "joined_experts"]

_PARAMETERS = ("gate_up_proj", "down_proj")
# What these make of numbers that are not negative is not negative either: of all operands, or of the first one.
_OF_NUMBERS = frozenset(("Add", "Clip", "Concat", "Div", "Max", "Mul"))
_KEEPING = frozenset(
    ("Cast", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "ReduceSum", "Reshape", "Slice", "Split",
     "Sqrt", "Squeeze", "TopK", "Transpose", "Unsqueeze")
)  # fmt: skip
_NEVER_NEGATIVE = frozenset(("Abs", "Exp", "Relu", "Sigmoid", "Softmax", "Softplus"))


@torch.library.custom_op("onnx_fx_export::experts", mutates_args=())
def _experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_bias: torch.Tensor | None,
    down: torch.Tensor,
    down_bias: torch.Tensor | None,
    alpha: float,
    beta: float,
    limit: float,
) -> torch.Tensor:
    """Return what experts make of tokens.

    Args:
        x: Tokens (T, H).
        weights: How much the chosen experts count (T, k), none of them negative.
        chosen: Which they are (T, k), int64, no expert twice.
        gate_up: Gates and what they let through, one after the other in turn (E, 2 I, H).
        gate_up_bias: What is added (E, 2 I), or None.
        down: (E, H, I).
        down_bias: What is added (E, H), or None.
        alpha: Factor of the gate in the sigmoid that it is multiplied by.
        beta: Added to what is let through.
        limit: The largest gate; infinite for none. What is let through is limited on both sides.
    """
    result = torch.zeros_like(x)
    for expert in range(len(gate_up)):
        token, place = torch.where(chosen == expert)
        bias = None if gate_up_bias is None else gate_up_bias[expert]
        gate, up = torch.nn.functional.linear(x[token], gate_up[expert], bias).unflatten(-1, (-1, 2)).unbind(-1)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        inner = gate * torch.sigmoid(alpha * gate) * (up + beta)
        out = torch.nn.functional.linear(inner, down[expert], None if down_bias is None else down_bias[expert])
        result.index_add_(0, token, out * weights[token, place, None])
    return result


@_experts.register_fake
def _(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


class ExpertsTranslation:
    """Writes :class:`JoinedExperts` as ``MoE``, which takes the logarithms of weights and makes their sum 1.

    Attributes:
        certain: Whether all weights written so far are certain not to be negative, which have no logarithm.
    """

    def __init__(self) -> None:
        self.certain = True

    def table(self) -> dict[Any, Callable[..., Any]]:
        """Return the translation by its operator."""
        return {_experts: self._write}

    def _write(
        self, op: Any, x: Any, weights: Any, chosen: Any, gate_up: Any, gate_up_bias: Any, down: Any, down_bias: Any,
        alpha: float, beta: float, limit: float,
    ) -> Any:  # fmt: skip
        router, normalized = _logits(weights, chosen) or (None, 1)
        total = None
        if router is None:
            self.certain = self.certain and _never_negative(weights)
            router, total = _logarithms(op, weights, chosen, int(gate_up.shape[0]))
        attributes: dict[str, Any] = {
            "k": int(chosen.shape[1]), "normalize_routing_weights": normalized, "activation_type": "swiglu",
            "swiglu_fusion": 1, "activation_alpha": float(alpha), "activation_beta": float(beta),
        }  # fmt: skip
        if limit != float("inf"):
            attributes["swiglu_limit"] = float(limit)
        operands = [x, router, gate_up, gate_up_bias, down, down_bias]
        (y,) = op.emit_custom("com.microsoft", "MoE", operands, attributes, [x.dtype], shapes=[x.shape])
        return y if total is None else op.Mul(y, total)


def _logarithms(op: Any, weights: Any, chosen: Any, experts: int) -> tuple[Any, Any]:
    """Return what ``MoE`` makes weights (T, k) of whose sum is 1, (T, E), and their sums (T, 1)."""
    # Were all weights zero, the sum of those that stand for them would be, too, and its share no number.
    least = op.Max(weights, torch.finfo(torch.float32).tiny)
    count = op.Shape(weights, start=0, end=1)
    none = op.Expand(-float("inf"), op.Concat(count, [experts], axis=0))
    return op.ScatterElements(none, chosen, op.Log(least), axis=1), op.ReduceSum(weights, [1], keepdims=1)


def _logits(weights: Any, chosen: Any) -> tuple[Any, int] | None:
    """Return the numbers whose Softmax the weights are, and whether it is that of the chosen ones alone, if so."""
    top, last = chosen.producer(), weights.producer()
    if not _along_rows(top, "TopK") or chosen is not top.outputs[1] or not top.attributes.get_int("largest", 1):
        return None
    values, scores = top.outputs[0], top.inputs[0]
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


@dataclasses.dataclass(frozen=True)
class _Gate:
    """How experts gate: ``gate * sigmoid(alpha * gate) * (up + beta)``, of numbers up to a limit."""

    alpha: float
    beta: float
    limit: float

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


@dataclasses.dataclass(frozen=True)
class ExpertRows:
    """Makes weights of experts what ``MoE`` reads.

    Attributes:
        transposed: Whether the products want the weights transposed.
        halves: Whether all gates stand before all that they let through.
        dtype: The dtype of the result.
    """

    transposed: bool
    halves: bool
    dtype: torch.dtype

    def __call__(self, experts: torch.Tensor) -> torch.Tensor:
        """Return weights (E, N, K) of weights (E, N, K) or (E, K, N), or biases (E, N) of biases."""
        rows = experts.mT if self.transposed else experts
        if self.halves:
            rows = rows.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return rows.to(self.dtype).contiguous()


class JoinedExperts(torch.nn.Module):
    """Experts as one operator.

    Args:
        experts: A module of transformers.
        gate: How it gates.
        on_paper: Whether its weights are only to have their shapes.
    """

    def __init__(self, experts: Any, gate: _Gate, *, on_paper: bool) -> None:
        super().__init__()
        self._gate = gate
        self._conversions = _conversions(experts, experts.gate_up_proj.dtype)
        for name, conversion in self._conversions.items():
            weight = getattr(experts, name).detach()
            self.register_buffer(name, converted_rows(weight.to("meta") if on_paper else weight, conversion))

    def conversions(self, _: torch.dtype) -> dict[str, RowConversion]:
        """Return what makes each weight of that of the model."""
        return self._conversions

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return what the experts chosen (T, k) make of tokens (T, H), by weight (T, k)."""
        gate_up, gate_up_bias, down, down_bias = (
            getattr(self, name, None) for part in _PARAMETERS for name in (part, f"{part}_bias")
        )
        gate = self._gate
        result: torch.Tensor = _experts(
            hidden_states, top_k_weights.to(hidden_states.dtype), top_k_index, gate_up, gate_up_bias, down, down_bias,
            gate.alpha, gate.beta, gate.limit,
        )  # fmt: skip
        return result


def _conversions(experts: Any, dtype: torch.dtype) -> dict[str, RowConversion]:
    """Return what makes each weight of experts what ``MoE`` reads."""
    found: dict[str, RowConversion] = {}
    for part in _PARAMETERS:
        halves = part == "gate_up_proj" and experts.is_concatenated
        found[part] = ExpertRows(experts.is_transposed, halves, dtype)
        if experts.has_bias:
            found[f"{part}_bias"] = ExpertRows(False, halves, dtype)
    return found


@contextlib.contextmanager
def joined_experts(root: torch.nn.Module, *, on_paper: bool) -> Iterator[bool]:
    """Let layers of experts in float32 be one operator each, for which ONNX Runtime has a kernel; undo it afterwards.

    Args:
        root: A module that holds them; itself it is none.
        on_paper: Whether the weights are only to have their shapes.

    Yields:
        Whether there are such layers.
    """
    own: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    try:
        for module in list(root.modules()):
            for name, child in list(module.named_children()):
                gate = _gate_of(child)
                if gate is not None:
                    own.append((module, name, child))
                    setattr(module, name, JoinedExperts(child, gate, on_paper=on_paper).train(child.training))
        yield bool(own)
    finally:
        for module, name, child in reversed(own):
            setattr(module, name, child)


def _gate_of(module: Any) -> _Gate | None:
    """Return how a module of experts gates, or None if it is none, or none that one operator stands for.

    Transformers gives experts one calling convention, and tells by attributes how their weights lie; how they gate is
    a function, which is compared with ours on numbers small and large.
    """
    dispatched = inspect.unwrap(type(module).forward) is not type(module).forward
    flags = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated")
    if not dispatched or not all(hasattr(module, name) for name in (*flags, *_PARAMETERS)):
        return None
    if not module.has_gate or module.has_post_expert_norm or module.gate_up_proj.dtype != torch.float32:
        return None
    random = torch.Generator().manual_seed(0)
    size = torch.logspace(-3, 3, 128, dtype=torch.float32)[:, None]
    gate, up = (torch.randn(len(size), 8, generator=random) * size for _ in range(2))
    joined = torch.cat([gate, up], 1) if module.is_concatenated else torch.stack([gate, up], 2).flatten(1)
    try:
        wanted = module._apply_gate(joined)
    except Exception:  # whatever a function of other needs raises
        return None
    limits = {getattr(module, name, None) for name in ("limit", "swiglu_limit")}
    known = [
        _Gate(alpha, beta, limit)
        for alpha in (1.0, getattr(module, "alpha", 1.0))
        for beta in (0.0, 1.0)
        for limit in (float("inf"), *(number for number in limits if isinstance(number, float | int)))
        if isinstance(alpha, float | int)
    ]
    return next((found for found in known if torch.allclose(found(gate, up), wanted, rtol=1e-5, atol=1e-6)), None)


def _never_negative(value: Any) -> bool:
    """Tell whether numbers are certain not to be negative, by what computes them."""
    node = value.producer()
    if node is None:
        return value.const_value is not None and bool((value.const_value.numpy() >= 0).all())
    if node.domain or node.op_type in _NEVER_NEGATIVE:
        return not node.domain
    numbers = node.inputs if node.op_type in _OF_NUMBERS else node.inputs[:1]
    known = node.op_type in _KEEPING | _OF_NUMBERS
    return known and all(_never_negative(number) for number in numbers if number is not None)
