"""Operators whose kernels call others under autocast, so that a graph of ATen calls does not hold what is cast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxops_decomp.graph.whole_calls import whole_call

__all__ = ["autocast_definition", "casts_unseen"]

aten = torch.ops.aten


def _bilinear(
    input1: torch.Tensor, input2: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the matrix products of ``aten::_trilinear``, which adds them up in the dtype of the first operand."""
    joined = torch.einsum("...i,oij->...oj", input1, weight)
    result = torch.einsum("...oj,...j->...o", joined, input2).to(input1.dtype)
    return result if bias is None else (result + bias).to(input1.dtype)


def _lstm(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the layers of an LSTM one by one, as torch calls its kernel for CPUs, whatever the sizes are."""
    directions = 2 if bidirectional else 1
    count = len(params) // (num_layers * directions)
    if count in (3, 5):  # Projections, which the kernel does not know.
        arguments = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return tuple(_recurrent("lstm")(input, hx, params, *arguments))
    x = input.transpose(0, 1) if batch_first else input
    finals: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(num_layers):
        outputs = []
        for place in range(layer * directions, (layer + 1) * directions):
            weights = params[place * count : (place + 1) * count]
            weights = [*weights, *(weights if count == 2 else ())]
            flags = (hx[0].shape[2], num_layers, has_biases, bidirectional, False, train)
            states = hx[0][place], hx[1][place]
            reverse = place % directions == 1
            y, h, c, _ = aten.mkldnn_rnn_layer(x, *weights, *states, reverse, [], _MKLDNN_LSTM, *flags)
            outputs.append(y)
            finals.append((h, c))
        x = torch.cat(outputs, 2) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, train)
    hidden, cell = (torch.stack([final[state] for final in finals]) for state in (0, 1))
    return x.transpose(0, 1) if batch_first else x, hidden, cell


_MKLDNN_LSTM = 2


def _linear_maps(input: torch.Tensor, hx: torch.Tensor, weights: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Return the linear maps of the input and the state of a cell, given its weights and then its biases."""
    w_ih, w_hh, b_ih, b_hh = [*weights, None, None][:4]
    return [aten.linear(input, w_ih, b_ih), aten.linear(hx, w_hh, b_hh)]


def _lstm_cell(
    input: torch.Tensor, hx: Sequence[torch.Tensor], *weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    ours, theirs = _linear_maps(input, hx[0], weights)
    i, f, g, o = (theirs + ours).chunk(4, 1)
    cell = f.sigmoid() * hx[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru_cell(input: torch.Tensor, hx: torch.Tensor, *weights: torch.Tensor | None) -> torch.Tensor:
    ours, theirs = (gates.chunk(3, 1) for gates in _linear_maps(input, hx, weights))
    reset, update = (theirs[gate] + ours[gate] for gate in (0, 1))
    new = (ours[2] + theirs[2] * reset.sigmoid()).tanh()
    return (hx - new) * update.sigmoid() + new


def _recurrent(name: str) -> Callable[..., Any]:
    """Return what a recurrent network does under autocast: step by step, unless the number of steps is dynamic.

    Then it is one call on operands of the dtype that is cast to, whose steps are computed in float32.
    """
    overload = getattr(aten, name).input

    def definition(
        input: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *options: Any
    ) -> tuple[torch.Tensor, ...]:
        device, batch_first = input.device.type, options[-1]
        if isinstance(input.shape[1 if batch_first else 0], int):
            return tuple(overload(input, hx, params, *options))
        if not torch.is_autocast_enabled(device):
            return tuple(whole_call(name, "input", input, hx, params, *options))
        dtype = torch.get_autocast_dtype(device)
        states = [*hx] if name == "lstm" else [hx]
        # The linear maps are cast, what a GRU and the cell of an LSTM add up is not.
        kept = torch.promote_types(states[-1].dtype, dtype)
        results = {"gru": (kept, kept), "lstm": (dtype, dtype, kept)}.get(name, (dtype, dtype))
        with torch.autocast(device, enabled=False):
            inputs, *weights = (x.to(dtype).float() for x in (input, *params))
            wide = [state.float() for state in states]
            found = whole_call(name, "input", inputs, wide if name == "lstm" else wide[0], weights, *options)
            return tuple(x.to(result) for x, result in zip(found, results, strict=True))

    return definition


_DEFINITIONS: dict[Any, Callable[..., Any]] = {
    aten.bilinear.default: _bilinear,
    aten.lstm.input: _lstm,
    aten.gru.input: _recurrent("gru"),
    aten.rnn_tanh.input: _recurrent("rnn_tanh"),
    aten.rnn_relu.input: _recurrent("rnn_relu"),
    # torch's own look at the size of the batch.
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
    aten.rnn_tanh_cell.default: lambda input, hx, *weights: torch.add(*_linear_maps(input, hx, weights)).tanh(),
    aten.rnn_relu_cell.default: lambda input, hx, *weights: torch.add(*_linear_maps(input, hx, weights)).relu(),
}
_UNSEEN = frozenset(("aten::_trilinear", "aten::affine_grid_generator", "aten::linalg_pinv.atol_rtol_tensor"))


def autocast_definition(overload: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return what an operator does under autocast, by operators that autocast has rules for."""
    return _DEFINITIONS.get(overload, overload)


def casts_unseen(overload: Any) -> bool:
    """Tell whether autocast casts inside the kernel of an operator, which no graph shows."""
    return isinstance(overload, torch._ops.OpOverload) and overload.name() in _UNSEEN
