"""Layers of experts that become one operator each."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.generation.groups import GroupNumbers, GroupScales, group_size
from onnx_fx_export.generation.operators.experts import Gate
from onnx_fx_export.generation.operators.experts import experts as experts_operator
from onnxops_decomp.exporting import RowConversion, converted_rows

__all__ = ["SCALES", "JoinedExperts", "hold_experts", "joined_experts", "rounded_experts"]

_PARAMETERS = ("gate_up_proj", "down_proj")
_BIAS, SCALES = "_bias", "_scales"
# The kernel for integers of eight bits in groups rounds what it multiplies by them, too; that for whole rows does not.
_BITS_OF_ROWS = 8
_FLAGS = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated")


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


@dataclasses.dataclass(frozen=True)
class RoundedRows:
    """Makes weights of experts integers, or their scales.

    Attributes:
        rows: Makes them weights (E, N, K).
        rounding: What is made of matrices (N, K).
    """

    rows: ExpertRows
    rounding: GroupScales

    def __call__(self, experts: torch.Tensor) -> torch.Tensor:
        """Return integers (E, N, bytes) or scales (E, N, groups); scales of whole rows are (E, N)."""
        weights = self.rows(experts)
        rounded = self.rounding(weights.flatten(0, 1))
        made = rounded.reshape(*weights.shape[:2], *rounded.shape[1:])
        if isinstance(self.rounding, GroupNumbers):
            return made.flatten(2)
        return made.squeeze(2) if self.rounding.bits == _BITS_OF_ROWS else made


class JoinedExperts(torch.nn.Module):
    """Experts as one operator.

    Args:
        experts: A module of transformers.
        gate: How it gates.
        bits: Of how many bits the integers are that its weights are rounded to, if they are.
        on_paper: Whether its weights are only to have their shapes.
    """

    def __init__(self, experts: Any, gate: Gate, bits: int | None = None, *, on_paper: bool = False) -> None:
        super().__init__()
        self._gate = gate
        self._conversions = _conversions(experts, bits)
        for name, conversion in self._conversions.items():
            weight = getattr(experts, name.removesuffix(SCALES)).detach()
            self.register_buffer(name, converted_rows(weight.to("meta") if on_paper else weight, conversion))

    def conversions(self, _: torch.dtype) -> dict[str, RowConversion]:
        """Return what makes each buffer of the weight of its name, and scales of the weight that they belong to."""
        return self._conversions

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return what the experts chosen (T, k) make of tokens (T, H), by weight (T, k)."""
        operands = [getattr(self, f"{part}{kind}", None) for part in _PARAMETERS for kind in ("", SCALES, _BIAS)]
        gate, weights = self._gate, top_k_weights.to(hidden_states.dtype)
        result: torch.Tensor = experts_operator(
            hidden_states, weights, top_k_index, *operands, gate.alpha, gate.beta, gate.limit
        )
        return result


def _conversions(experts: Any, bits: int | None) -> dict[str, RowConversion]:
    """Return what makes the weights of experts what ``MoE`` or ``QMoE`` reads."""
    found: dict[str, RowConversion] = {}
    dtype, columns = experts.gate_up_proj.dtype, _columns(experts, bits) if bits else {}
    for part in _PARAMETERS:
        halves = part == "gate_up_proj" and experts.is_concatenated
        rows = ExpertRows(experts.is_transposed, halves, dtype)
        found[part] = rows
        if bits:
            found[part] = RoundedRows(rows, GroupNumbers(bits, columns[part], dtype))
            found[f"{part}{SCALES}"] = RoundedRows(rows, GroupScales(bits, columns[part], dtype))
        if experts.has_bias:
            found[f"{part}{_BIAS}"] = ExpertRows(False, halves, dtype)
    return found


def _columns(experts: Any, bits: int) -> dict[str, int]:
    """Return how many columns of each weight of experts share a scale; nothing if they cannot be rounded."""
    widths = {name: getattr(experts, name).shape[1 if experts.is_transposed else 2] for name in _PARAMETERS}
    size = group_size(*widths.values())
    if size is None:
        return {}
    return widths if bits == _BITS_OF_ROWS else dict.fromkeys(widths, size)


def rounded_experts(module: Any, bits: int) -> JoinedExperts | None:
    """Return a layer of experts in float32 with rounded weights.

    Args:
        module: A module.
        bits: 4 or 8.

    Returns:
        The layer, or None if the module is none that one operator stands for, or no group divides its widths.
    """
    gate = _gate_of(module)
    if gate is None or not _columns(module, bits):
        return None
    return JoinedExperts(module, gate, bits)


@contextlib.contextmanager
def joined_experts(root: torch.nn.Module, *, on_paper: bool) -> Iterator[None]:
    """Let layers of experts in float32 be one operator each, for which ONNX Runtime has a kernel; undo it afterwards.

    Args:
        root: A module that holds them; itself it is none.
        on_paper: Whether the weights are only to have their shapes.
    """
    own: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    try:
        for module in list(root.modules()):
            for name, child in list(module.named_children()):
                gate = _gate_of(child)
                if gate is not None:
                    own.append((module, name, child))
                    setattr(module, name, JoinedExperts(child, gate, on_paper=on_paper).train(child.training))
        yield
    finally:
        for module, name, child in reversed(own):
            setattr(module, name, child)


def hold_experts(module: Any) -> bool:
    """Tell whether a module holds the weights of experts, which it may use in a way of its own."""
    weight = getattr(module, "down_proj", None)
    return _are_experts(module) or (isinstance(weight, torch.nn.Parameter) and weight.dim() == 3)


def _are_experts(module: Any) -> bool:
    """Tell whether a module is a layer of experts, whose calling convention transformers has made."""
    dispatched = inspect.unwrap(type(module).forward) is not type(module).forward
    return dispatched and all(hasattr(module, name) for name in (*_FLAGS, "down_proj"))


def _gate_of(module: Any) -> Gate | None:
    """Return how a module of experts gates, or None if it is none, or none that one operator stands for.

    Transformers gives experts one calling convention, and tells by attributes how their weights lie; how they gate is
    a function, which is compared with ours on numbers small and large.
    """
    if not _are_experts(module) or not module.has_gate:
        return None
    if module.has_post_expert_norm or module.gate_up_proj.dtype != torch.float32:
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
        Gate(alpha, beta, limit)
        for alpha in (1.0, getattr(module, "alpha", 1.0))
        for beta in (0.0, 1.0)
        for limit in (float("inf"), *(number for number in limits if isinstance(number, float | int)))
        if isinstance(alpha, float | int)
    ]
    return next((found for found in known if torch.allclose(found(gate, up), wanted, rtol=1e-5, atol=1e-6)), None)
