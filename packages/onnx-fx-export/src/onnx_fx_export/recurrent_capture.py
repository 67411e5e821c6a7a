"""Keeps recurrent networks whole while a model is captured.

torch.export finds the result shapes of ``lstm`` by unrolling it over time, which fixes the sequence length to that of
the example. While a model is captured, calls of the recurrent functions therefore go through operators of the same
signature whose shapes are computed; in the captured graph they are ATen calls again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["RecurrentCalls", "restored"]

_NAMESPACE = "onnx_fx_export_recurrent"
_FUNCTIONS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def _fake(
    input: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return empty results of the right shapes: the output follows the input, the states keep their shapes."""
    states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
    # With a projection the first state has its size, and so has the output.
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return (input.new_empty((*input.shape[:-1], width)), *(torch.empty_like(state) for state in states))


@functools.cache
def _library() -> tuple[torch.library.Library, dict[Any, torch._ops.OpOverload]]:
    """Define the stand-in operators on first use and return them by the ATen overload that they stand for."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    overloads: dict[Any, torch._ops.OpOverload] = {}
    for name in _FUNCTIONS:
        aten = getattr(torch.ops.aten, name).input
        signature = str(aten._schema).removeprefix(f"aten::{name}.input")
        library.define(f"{name}{signature}")
        library.impl(name, aten, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", _fake, lib=library)
        overloads[aten] = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return library, overloads


class RecurrentCalls(TorchFunctionMode):
    """Sends calls of ``torch.lstm`` and its kin with padded input through the stand-in operators."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        # The overload for packed sequences has the batch sizes, a tensor, in second place and a list in third.
        if name in _FUNCTIONS and not kwargs and len(args) == 9 and isinstance(args[3], bool):
            _, overloads = _library()
            stand_in = overloads[getattr(torch.ops.aten, name).input]
            hx = list(args[1]) if isinstance(args[1], tuple) else args[1]
            return stand_in(args[0], hx, list(args[2]), *args[3:])
        return func(*args, **(kwargs or {}))


def restored(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Turn the stand-in calls of a captured program back into ATen calls, in place."""
    back = {stand_in: aten for aten, stand_in in _library()[1].items()}
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        changed = False
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target in back:
                node.target = back[node.target]
                changed = True
        if changed:
            module.recompile()
    return program
