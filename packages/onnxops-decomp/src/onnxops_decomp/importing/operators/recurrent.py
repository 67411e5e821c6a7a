"""RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxops_core import is_in_onnx_export
from onnxops_decomp.importing.recording import is_dynamic, recording, scanned
from onnxops_decomp.importing.registry import onnx_op

_ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, a, b: torch.relu(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: torch.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, b: torch.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
    "hardsigmoid": lambda x, a, b: torch.clamp(a * x + b, 0, 1),
    "elu": lambda x, a, b: torch.where(x < 0, a * (torch.exp(x) - 1), x),
    "softsign": lambda x, a, b: x / (1 + torch.abs(x)),
    "softplus": lambda x, a, b: torch.nn.functional.softplus(x),
}
_DEFAULTS = {"affine": (1.0, 0.0), "leakyrelu": (0.01, 0.0), "thresholdedrelu": (1.0, 0.0), "scaledtanh": (1.0, 1.0)}
_DEFAULTS |= {"hardsigmoid": (0.2, 0.5), "elu": (1.0, 0.0)}
_TAKES = {"affine": 2, "scaledtanh": 2, "hardsigmoid": 2, "leakyrelu": 1, "thresholdedrelu": 1, "elu": 1}

Activation = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def _activations(names: list[str], alpha: Any, beta: Any, clip: float | None, of_gates: int = 0) -> list[Activation]:
    """Return the activations; of each three, ``clip`` bounds what goes into the first ``of_gates``, or into all."""
    alphas, betas = list(alpha or []), list(beta or [])

    def chosen(place: int, name: str) -> Activation:
        key = name.lower()
        function = _ACTIVATIONS[key]
        first, second = _DEFAULTS.get(key, (0.0, 0.0))
        takes = _TAKES.get(key, 0)
        a = alphas.pop(0) if alphas and takes > 0 else first
        b = betas.pop(0) if betas and takes > 1 else second

        bounded = clip is not None and not (of_gates and place % 3 >= of_gates)

        def apply(x: Tensor) -> Tensor:
            return function(torch.clamp(x, -clip, clip) if bounded else x, a, b)  # type: ignore[operator]

        return apply

    return [chosen(place, name) for place, name in enumerate(names)]


def _are(names: list[str], each: list[str]) -> bool:
    return [name.lower() for name in names] == each * (len(names) // len(each))


def _run(
    X: Tensor, state: tuple[Tensor, ...], lengths: Tensor | None, reverse: bool, step: Step
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return all hidden states of one direction, and the last states."""
    if is_dynamic(X.shape[0]):
        return _scanned(X, state, lengths, reverse, step)
    outputs: list[Tensor] = []
    for t in reversed(range(X.shape[0])) if reverse else range(X.shape[0]):
        state, hidden = _advanced(step(X[t], state), state, None if lengths is None else t < lengths)
        outputs.append(hidden)
    if not outputs:
        return X.new_zeros(0, *state[0].shape), state
    return torch.stack(outputs[::-1] if reverse else outputs), state


def _advanced(
    new: tuple[Tensor, ...], old: tuple[Tensor, ...], inside: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the next state and the hidden state that is seen: beyond a length the state stays, and zeros are seen."""
    if inside is None:
        return new, new[0]
    alive = inside.unsqueeze(1)
    state = tuple(torch.where(alive, now, before) for now, before in zip(new, old, strict=True))
    return state, torch.where(alive, new[0], 0)


def _scanned(
    X: Tensor, state: tuple[Tensor, ...], lengths: Tensor | None, reverse: bool, step: Step
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Do the same for a length that torch records as dynamic."""
    places = torch.arange(X.shape[0], device=X.device)
    items = (X.flip(0), places.flip(0)) if reverse else (X, places)

    def advance(carried: Any, slices: Any) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        x, t = slices
        after, hidden = _advanced(step(x, tuple(carried)), tuple(carried), None if lengths is None else t < lengths)
        return after, [hidden]

    last, (hidden,) = scanned(advance, state, items)
    return hidden.flip(0) if reverse else hidden, tuple(last)


def _directions(
    X: Tensor,
    states: tuple[Tensor | None, ...],
    hidden: int,
    direction: str,
    lengths: Tensor | None,
    layout: int,
    steps: Callable[[int], Step],
) -> tuple[Tensor, ...]:
    """Run each direction and return ONNX's outputs: all hidden states, then the last states."""
    count = 2 if direction == "bidirectional" else 1
    X = X.transpose(0, 1) if layout else X
    starts = [
        X.new_zeros(count, X.shape[1], hidden) if each is None else each.transpose(0, 1) if layout else each
        for each in states
    ]
    sequences, last = [], []
    for index in range(count):
        reverse = direction == "reverse" or index == 1
        sequence, final = _run(X, tuple(each[index] for each in starts), lengths, reverse, steps(index))
        sequences.append(sequence)
        last.append(final)
    everything = torch.stack(sequences, 1)
    finals = [torch.stack(each) for each in zip(*last, strict=True)]
    if layout:
        return everything.permute(2, 0, 1, 3), *(each.transpose(0, 1) for each in finals)
    return everything, *finals


def _halves(B: Tensor | None, index: int, like: Tensor, size: int) -> tuple[Tensor, Tensor]:
    bias = like.new_zeros(2 * size) if B is None else B[index]
    return bias[:size], bias[size:]


def _has_own_layer(X: Tensor, lengths: Tensor | None, plain: bool) -> bool:
    """Tell whether torch's own layer computes a call: always when it runs, and in an export that writes it as a node.

    Elsewhere torch records its layers step by step, which fixes the length.
    """
    recorded = recording() and not is_in_onnx_export()
    return plain and lengths is None and not recorded and X.dtype in (torch.float32, torch.float64) and X.shape[0] != 0


def _own_layer(
    layer: Callable[..., tuple[Tensor, ...]],
    X: Tensor,
    states: tuple[Tensor | None, ...],
    weights: tuple[Tensor, Tensor, Tensor | None],
    order: list[int],
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """Return ONNX's outputs of a recurrent layer by torch's.

    Args:
        layer: Computes ``(input, states, weights, ...)``.
        X: The input.
        states: First states, None for zeros.
        weights: ``W``, ``R`` and ``B`` of ONNX.
        order: Where each gate of torch stands among ONNX's.
        direction: ``direction`` of ONNX.
        layout: ``layout`` of ONNX.
    """
    W, R, B = weights
    count, hidden = W.shape[0], R.shape[2]
    X = X.transpose(0, 1) if layout else X
    X = X.flip(0) if direction == "reverse" else X
    starts = [
        X.new_zeros(count, X.shape[1], hidden) if each is None else each.transpose(0, 1) if layout else each
        for each in states
    ]

    def in_order(value: Tensor) -> Tensor:
        gates = value.split(hidden)
        return value if order == sorted(order) else torch.cat([gates[place] for place in order])

    flat: list[Tensor] = []
    for index in range(count):
        biases = () if B is None else B[index].split(len(order) * hidden)
        flat += [in_order(each) for each in (W[index], R[index], *biases)]
    made, *last = layer(
        X, starts if len(starts) > 1 else starts[0], flat, B is not None, 1, 0.0, False, count == 2, False
    )
    everything = made.unflatten(2, (count, hidden)).transpose(1, 2)
    everything = everything.flip(0) if direction == "reverse" else everything
    if layout:
        return everything.permute(2, 0, 1, 3), *(each.transpose(0, 1) for each in last)
    return everything, *last


@onnx_op("RNN", since=7)
def rnn(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: Any = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, Tensor]:
    hidden = R.shape[2]
    names = [each.lower() for each in activations or ["Tanh"] * W.shape[0]]
    if _has_own_layer(X, sequence_lens, clip is None and set(names) in ({"tanh"}, {"relu"})):
        layer = torch.rnn_tanh if names[0] == "tanh" else torch.rnn_relu
        everything, last = _own_layer(layer, X, (initial_h,), (W, R, B), [0], direction, layout)
        return everything, last
    functions = _activations(names, activation_alpha, activation_beta, clip)

    def steps(index: int) -> Step:
        input_bias, state_bias = _halves(B, index, X, hidden)
        bias = input_bias + state_bias

        def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (functions[index](x @ W[index].t() + state[0] @ R[index].t() + bias),)

        return step

    everything, last = _directions(X, (initial_h,), hidden, direction, sequence_lens, layout, steps)
    return everything, last


@onnx_op("GRU", since=7)
def gru(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: Any = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, Tensor]:
    hidden = R.shape[2]
    names = activations or ["Sigmoid", "Tanh"] * W.shape[0]
    plain = clip is None and linear_before_reset and _are(names, ["sigmoid", "tanh"])
    if _has_own_layer(X, sequence_lens, bool(plain)):
        everything, last = _own_layer(torch.gru, X, (initial_h,), (W, R, B), [1, 0, 2], direction, layout)
        return everything, last
    functions = _activations(names, activation_alpha, activation_beta, clip)

    def steps(index: int) -> Step:
        f, g = functions[2 * index : 2 * index + 2]

        def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (h,) = state
            # In here, because torch scans nothing that reads two views of one memory.
            input_bias, state_bias = _halves(B, index, X, 3 * hidden)
            recurrent, candidate = R[index].split([2 * hidden, hidden])
            gates, new = (x @ W[index].t() + input_bias).split([2 * hidden, hidden], -1)
            z, r = f(gates + h @ recurrent.t() + state_bias[: 2 * hidden]).split(hidden, -1)
            if linear_before_reset:
                inner = r * (h @ candidate.t() + state_bias[2 * hidden :])
            else:
                inner = (r * h) @ candidate.t() + state_bias[2 * hidden :]
            return ((1 - z) * g(new + inner) + z * h,)

        return step

    everything, last = _directions(X, (initial_h,), hidden, direction, sequence_lens, layout, steps)
    return everything, last


def lstm_that_sees(
    seen: Callable[[Tensor], Tensor] | None,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    P: Tensor | None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what an LSTM gives whose gates read of the hidden state what ``seen`` makes of it, or the state itself."""
    hidden = R.shape[2]
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * W.shape[0]
    plain = clip is None and P is None and seen is None and not input_forget
    plain = plain and _are(names, ["sigmoid", "tanh", "tanh"])
    if _has_own_layer(X, sequence_lens, plain):
        states = (initial_h, initial_c)
        everything, last_h, last_c = _own_layer(torch.lstm, X, states, (W, R, B), [0, 2, 3, 1], direction, layout)
        return everything, last_h, last_c
    # Runtimes bound what goes into the gates, and not the cell on its way to the hidden state.
    functions = _activations(names, activation_alpha, activation_beta, clip, of_gates=2)

    def steps(index: int) -> Step:
        f, g, h_of = functions[3 * index : 3 * index + 3]
        input_bias, state_bias = _halves(B, index, X, 4 * hidden)
        bias = input_bias + state_bias

        def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h, c = state
            # A recorded loop takes no parts of one tensor from around it.
            peep_i, peep_o, peep_f = (None, None, None) if P is None else P[index].split(hidden)
            read = h if seen is None else seen(h)
            i, o, forget, new = (x @ W[index].t() + read @ R[index].t() + bias).split(hidden, -1)
            i = f(i if peep_i is None else i + peep_i * c)
            forget = 1 - i if input_forget else f(forget if peep_f is None else forget + peep_f * c)
            c = forget * c + i * g(new)
            o = f(o if peep_o is None else o + peep_o * c)
            return o * h_of(c), c

        return step

    everything, last_h, last_c = _directions(X, (initial_h, initial_c), hidden, direction, sequence_lens, layout, steps)
    return everything, last_h, last_c


@onnx_op("LSTM", since=7, rest=lstm_that_sees)
def lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    **layer: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return lstm_that_sees(None, X, W, R, B, sequence_lens, initial_h, initial_c, P, **layer)
