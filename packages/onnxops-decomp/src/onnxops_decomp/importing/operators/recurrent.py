"""RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


def _activations(names: list[str], alpha: Any, beta: Any, clip: float | None) -> list[Activation]:
    alphas, betas = list(alpha or []), list(beta or [])

    def chosen(name: str) -> Activation:
        key = name.lower()
        function = _ACTIVATIONS[key]
        first, second = _DEFAULTS.get(key, (0.0, 0.0))
        takes = _TAKES.get(key, 0)
        a = alphas.pop(0) if alphas and takes > 0 else first
        b = betas.pop(0) if betas and takes > 1 else second

        def apply(x: Tensor) -> Tensor:
            return function(x if clip is None else torch.clamp(x, -clip, clip), a, b)

        return apply

    return [chosen(name) for name in names]


def _run(
    X: Tensor, state: tuple[Tensor, ...], lengths: Tensor | None, reverse: bool, step: Step
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return all hidden states of one direction, and the last states."""
    outputs: list[Tensor] = []
    for t in reversed(range(X.shape[0])) if reverse else range(X.shape[0]):
        new = step(X[t], state)
        if lengths is None:
            state = new
            outputs.append(new[0])
        else:
            alive = (t < lengths).unsqueeze(1)
            state = tuple(torch.where(alive, now, old) for now, old in zip(new, state, strict=True))
            outputs.append(torch.where(alive, new[0], 0))
    return torch.stack(outputs[::-1] if reverse else outputs), state


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
    functions = _activations(activations or ["Tanh"] * W.shape[0], activation_alpha, activation_beta, clip)

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
    functions = _activations(names, activation_alpha, activation_beta, clip)

    def steps(index: int) -> Step:
        f, g = functions[2 * index : 2 * index + 2]
        input_bias, state_bias = _halves(B, index, X, 3 * hidden)
        recurrent, candidate = R[index].split([2 * hidden, hidden])

        def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (h,) = state
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


@onnx_op("LSTM", since=7)
def lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: Any = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = R.shape[2]
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * W.shape[0]
    functions = _activations(names, activation_alpha, activation_beta, clip)

    def steps(index: int) -> Step:
        f, g, h_of = functions[3 * index : 3 * index + 3]
        input_bias, state_bias = _halves(B, index, X, 4 * hidden)
        bias = input_bias + state_bias
        peep_i, peep_o, peep_f = (None, None, None) if P is None else P[index].split(hidden)

        def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h, c = state
            i, o, forget, new = (x @ W[index].t() + h @ R[index].t() + bias).split(hidden, -1)
            i = f(i if peep_i is None else i + peep_i * c)
            forget = 1 - i if input_forget else f(forget if peep_f is None else forget + peep_f * c)
            c = forget * c + i * g(new)
            o = f(o if peep_o is None else o + peep_o * c)
            return o * h_of(c), c

        return step

    everything, last_h, last_c = _directions(X, (initial_h, initial_c), hidden, direction, sequence_lens, layout, steps)
    return everything, last_h, last_c
