"""Short convolutions that go on from what they have read, by one operator of ONNX Runtime.

The code of models joins what a layer has kept to what is new, and drops what comes before it again. The operator reads
both as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnx_fx_export.generation.operators.functions import has_operators, modules_with
from onnxops_core.exporting import replaced

__all__ = [
    "TRANSLATIONS",
    "Columns",
    "Kept",
    "convolutions_as_operators",
    "has_convolutions",
    "read_without_mask",
]

# Modules of transformers call it by this name, with the arguments that causal-conv1d gave it.
_NAME = "causal_conv1d_fn"
# What makes the mask by which they take padding out.
_MASK = "create_recurrent_attention_mask"
# The release whose operator was compared with the models.
_SINCE = (1, 32)
_DOMAIN = "com.microsoft"
_ACTIVATIONS = {None: "none", "silu": "silu", "swish": "silu"}


@torch.library.custom_op("onnx_fx_export::convolution_behind", mutates_args=())
def _convolution(
    new: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kept: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the convolution of each channel over what is new and the columns before it, and the last K - 1 columns.

    Args:
        new: What is new (B, C, S).
        weight: A kernel of each channel (C, K).
        bias: A bias of each channel (C,).
        kept: The columns before (B, C, K - 1).
        activation: ``"none"`` or ``"silu"``.
    """
    joined = torch.cat([kept, new], -1)
    result = torch.nn.functional.conv1d(joined.to(weight.dtype), weight[:, None], bias, groups=weight.shape[0])
    result = torch.nn.functional.silu(result) if activation == "silu" else result
    return result.to(new.dtype), joined[..., new.shape[2] :].clone()


@_convolution.register_fake
def _(new: torch.Tensor, weight: Any, bias: Any, kept: torch.Tensor, activation: str) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(new), torch.empty_like(kept)


def _write(op: Any, new: Any, weight: Any, bias: Any, kept: Any, activation: str) -> Any:
    """Write ``CausalConvWithState``."""
    return op.emit_custom(
        _DOMAIN,
        "CausalConvWithState",
        [new, op.Unsqueeze(weight, [1]), bias, kept],
        {"activation": activation, "ndim": 1},
        [new.dtype, new.dtype],
        shapes=[[*new.shape], [*kept.shape]],
    )


class Columns(Protocol):
    """What one convolution has read before, and what it leaves.

    Attributes:
        past: The columns before what is new (B, C, K - 1).
        last: The last columns behind it, padding among them (B, C, K - 1).
    """

    past: torch.Tensor
    last: torch.Tensor


class Kept:
    """What convolutions have read before, by the tensor that is new; each is asked for once."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.Tensor, Columns]] = []

    def put(self, new: torch.Tensor, columns: Columns) -> None:
        """Remember what stands before a tensor."""
        self._pairs.append((new, columns))

    def pop(self, new: torch.Tensor) -> Columns | None:
        """Return what stands before a tensor, if that is known."""
        place = next((place for place, (other, _) in enumerate(self._pairs) if other is new), None)
        return None if place is None else self._pairs.pop(place)[1]

    def __len__(self) -> int:
        return len(self._pairs)


def _stand_in(function: Callable[..., torch.Tensor], kept: Kept) -> Callable[..., torch.Tensor]:
    def by_operator(
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **given: Any,
    ) -> torch.Tensor:
        """Return what the function of the models returns, behind what was kept."""
        columns = kept.pop(hidden_states)
        if columns is None:
            return function(hidden_states, weight, bias, activation, **given)
        result: torch.Tensor
        result, columns.last = _convolution(hidden_states, weight, bias, columns.past, _ACTIVATIONS[activation])
        return result

    return by_operator


def has_convolutions(model: torch.nn.Module) -> bool:
    """Tell whether layers of a model compute convolutions that an operator of ONNX Runtime stands for."""
    return has_operators(_NAME, model, _agree, _SINCE)


@torch.no_grad()
def _agree(function: Callable[..., torch.Tensor]) -> bool:
    """Tell whether a function computes what the operator does, of all columns in one."""
    random = torch.Generator().manual_seed(0)
    new, before = torch.randn(2, 6, 7, generator=random), torch.randn(2, 6, 2, generator=random)
    weight, bias = torch.randn(6, 3, generator=random), torch.randn(6, generator=random)
    for given, activation in ((None, None), (bias, "silu")):
        wanted = function(torch.cat([before, new], -1), weight, given, activation)[..., -new.shape[-1] :]
        found, _ = _convolution(new, weight, given, before, _ACTIVATIONS[activation])
        if not torch.allclose(wanted, found, rtol=1e-4, atol=1e-5):
            return False
    return True


@contextlib.contextmanager
def convolutions_as_operators(model: torch.nn.Module, kept: Kept) -> Iterator[None]:
    """Let layers compute convolutions of what ``kept`` knows by the operator; undo it afterwards.

    Padding is not taken out of what layers read, which code does for several tokens and not for one: what is kept and
    what is new have to be without it.
    """
    modules = modules_with(_NAME, model)
    stand_ins = [(module, _NAME, _stand_in(getattr(module, _NAME), kept)) for module in modules]
    masks = [(module, _MASK, lambda *_, **__: None) for module in modules if hasattr(module, _MASK)]
    with replaced([*stand_ins, *masks]):
        yield


def read_without_mask(model: ir.Model, mask: str) -> bool:
    """Let convolutions read what is new as it is, where padding stands behind all tokens; tell whether any did not.

    No token reads what is behind it, and what is to be kept is taken from before the padding
    (:mod:`onnx_fx_export.generation.operators.padding`).

    Args:
        model: A model whose convolutions are operators.
        mask: Name of the padding mask, an input.
    """
    for node in list(model.graph):
        masked = node.inputs[0].producer() if node.op_type == "CausalConvWithState" and node.inputs[0] else None
        if masked is None or masked.op_type != "Mul":
            continue
        read = [value for value in masked.inputs if value is not None and not _is_made_of(value, mask)]
        if len(read) == 1:
            ir.convenience.replace_all_uses_with(masked.outputs[0], read[0])
    return RemoveUnusedNodesPass()(model).modified


def _is_made_of(value: ir.Value, name: str) -> bool:
    """Tell whether a value is an input, or part of it, in another dtype or shape."""
    node = value.producer()
    while node is not None and node.op_type in ("Cast", "Unsqueeze", "Slice") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value.is_graph_input() and value.name == name


TRANSLATIONS: dict[Any, Callable[..., Any]] = {_convolution: _write}
