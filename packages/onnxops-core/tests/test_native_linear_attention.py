"""The chunked form of LinearAttention against the recurrence, over sequences that cross the borders of chunks."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnxops_core import native
from onnxops_core.native import find_native_op

OP = find_native_op(torch.ops.onnxops.LinearAttention.opset27)


def _call(rule, length, *, per_feature=True, dtype=torch.float64, batch=2, **attributes):
    query, key = (torch.nn.functional.normalize(torch.randn(batch, length, n, 6), dim=-1) for n in (4, 2))
    value, state = torch.randn(batch, length, 10), torch.randn(batch, 2, 6, 5)
    decay = -torch.rand(batch, length, 12 if per_feature else 2) if "gated" in rule else None
    beta = torch.rand(batch, length, 2) if "delta" in rule else None
    tensors = [query.flatten(2), key.flatten(2), value, state, decay, beta]
    args = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
    return args, {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule} | attributes


def _compare(args, kwargs, tolerance=1e-10):
    expected = OP.reference(*args, **kwargs)

    for one, other in zip(native.linear_attention(*args, **kwargs), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("length", [1, 4, 5, 64, 65, 150])
@pytest.mark.parametrize("per_feature", [False, True])
def test_chunks_give_what_the_recurrence_gives(rule, length, per_feature):
    _compare(*_call(rule, length, per_feature=per_feature))


@pytest.mark.parametrize("chunk_size", [1, 3, 1000])
def test_chunk_size_has_no_influence(chunk_size):
    _compare(*_call("gated_delta", 70, chunk_size=chunk_size))


@pytest.mark.parametrize("rule", ["linear", "gated_delta"])
def test_float32_keeps_its_precision_over_a_long_sequence(rule):
    args, kwargs = _call(rule, 1000, dtype=torch.float32)

    _compare(args, kwargs, tolerance=1e-4)


@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("logarithm", [-math.inf, -200.0, 0.5])
def test_decay_to_nothing_and_growth(per_feature, logarithm):
    args, kwargs = _call("gated_delta", 40, per_feature=per_feature)
    args[4][:, 7] = logarithm
    args[4][:, 22:25, 0] = logarithm

    _compare(args, kwargs)


def test_gradients_are_finite_after_a_decay_to_nothing():
    args, kwargs = _call("gated_delta", 20)
    args[4][:, 7] = -math.inf
    tensors = [tensor.requires_grad_() for tensor in args]

    output, state = native.linear_attention(*tensors, **kwargs)
    (output.sum() + state.sum()).backward()

    assert all(bool(tensor.grad.isfinite().all()) for tensor in tensors)


class _Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("per_feature", "times"), [(False, 5), (True, 1.5)])
def test_chunks_take_far_fewer_operators_than_steps(per_feature, times):
    args, kwargs = _call("gated_delta", 256, per_feature=per_feature)

    with _Count() as chunks:
        OP.decomposition(*args, **kwargs)
    with _Count() as steps:
        OP.reference(*args, **kwargs)

    assert chunks.calls * times < steps.calls
