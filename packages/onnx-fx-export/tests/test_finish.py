"""Passes replace groups of nodes by one that computes the same, and leave look-alikes alone."""

from __future__ import annotations

import collections

import pytest
import torch

from onnx_fx_export import export


def op_counts(program) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in program.model.graph)


def exported(model, *args, opset: int = 23, **kwargs):
    program = export(model, args, opset_version=opset, **kwargs)
    with torch.no_grad():
        torch.testing.assert_close(program(*args), model(*args), rtol=1e-4, atol=1e-5)
    return op_counts(program)


class RMSNorm(torch.nn.Module):
    def __init__(self, axis: int = -1, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8) + 0.5)
        self.axis, self.eps = axis, eps

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(self.axis, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


def test_spelled_out_rms_norm_becomes_one_node() -> None:
    assert exported(RMSNorm(), torch.randn(2, 3, 8)) == {"RMSNormalization": 1}


def test_rms_norm_in_half_precision_loses_its_casts() -> None:
    model = RMSNorm().half()
    x = torch.randn(2, 3, 8).half() * 3
    program = export(model, (x,), opset_version=23)
    assert op_counts(program) == {"RMSNormalization": 1}
    torch.testing.assert_close(program(x), model(x), rtol=2e-3, atol=2e-3)


def test_rms_norm_of_a_float64_model_keeps_its_precision() -> None:
    def function(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    args = (torch.randn(2, 8, dtype=torch.float64), torch.rand(8, dtype=torch.float64))
    program = export(function, args, opset_version=23)
    torch.testing.assert_close(program(*args), function(*args), rtol=1e-12, atol=1e-12)


def test_a_mean_over_another_axis_is_no_rms_norm() -> None:
    assert "RMSNormalization" not in exported(RMSNorm(axis=1), torch.randn(2, 8, 8))


def test_rms_norm_is_spelled_out_below_its_opset() -> None:
    assert "RMSNormalization" not in exported(RMSNorm(), torch.randn(2, 3, 8), opset=22)


def test_linear_weights_are_stored_transposed() -> None:
    model = torch.nn.Linear(8, 4)
    assert exported(model, torch.randn(2, 3, 8)) == {"MatMul": 1, "Add": 1}


def test_a_tied_weight_is_stored_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6, 8))

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight) @ self.weight

    program = export(Tied(), (torch.randn(2, 3, 8),))
    assert [value.const_value.size for value in program.model.graph.initializers.values()] == [48]


class Attention(torch.nn.Module):
    def __init__(self, heads: int = 4, kv_heads: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.causal = heads, kv_heads, causal
        self.q = torch.nn.Linear(32, heads * 8)
        self.k = torch.nn.Linear(32, kv_heads * 8)
        self.v = torch.nn.Linear(32, kv_heads * 8)

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, 8).transpose(1, 2)

    def forward(self, x):
        q, k, v = (
            self.split(f(x), n) for f, n in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        )
        if self.kv_heads != self.heads:
            k, v = repeat_heads(k, self.heads // self.kv_heads), repeat_heads(v, self.heads // self.kv_heads)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)


def repeat_heads(x, count: int):
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, count, length, width).reshape(batch, heads * count, length, width)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_are_split_and_repeated_by_attention(kv_heads: int, causal: bool) -> None:
    model = Attention(kv_heads=kv_heads, causal=causal)
    program = export(model, (torch.randn(2, 5, 32),), opset_version=23, dynamic_shapes={"x": {0: "b", 1: "s"}})
    assert op_counts(program) == {"MatMul": 3, "Add": 3, "Attention": 1}
    for shape in ((2, 5, 32), (3, 9, 32)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_heads_repeated_in_another_order_stay() -> None:
    class Interleaved(Attention):
        def forward(self, x):
            q = self.split(self.q(x), 4)
            k, v = (self.split(f(x), 2).repeat(1, 2, 1, 1) for f in (self.k, self.v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    exported(Interleaved(kv_heads=2), torch.randn(2, 5, 32))


class Rotary(torch.nn.Module):
    def __init__(self, halves_differ: bool = False) -> None:
        super().__init__()
        self.register_buffer("frequency", torch.rand(4))
        self.halves_differ = halves_differ

    def forward(self, q, k, position):
        angles = position[:, :, None].float() * self.frequency
        angles = torch.cat((angles, angles * 2 if self.halves_differ else angles), -1)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        return tuple(x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin for x in (q, k))


def rotary_inputs(batch: int, length: int, positions: int):
    q, k = torch.randn(batch, 3, length, 8), torch.randn(batch, 2, length, 8)
    return q, k, torch.arange(length).repeat(positions, 1) + torch.arange(positions)[:, None]


@pytest.mark.parametrize("shared", [False, True], ids=["positions per entry", "shared positions"])
def test_spelled_out_rotary_embedding_becomes_one_node_each(shared: bool) -> None:
    dims = {0: "batch", 2: "length"}
    positions = {1: "length"} if shared else {0: "batch", 1: "length"}
    program = export(
        Rotary(),
        rotary_inputs(2, 5, 1 if shared else 2),
        opset_version=23,
        dynamic_shapes={"q": dims, "k": dims, "position": positions},
    )
    assert op_counts(program)["RotaryEmbedding"] == 2
    other = rotary_inputs(3, 7, 1 if shared else 3)
    for actual, expected in zip(program(*other), eager(program, other), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def eager(program, args):
    module = program.exported_program.module()
    return module(*args)


def test_rotary_embedding_with_two_different_halves_stays() -> None:
    assert "RotaryEmbedding" not in exported(Rotary(halves_differ=True), *rotary_inputs(2, 5, 2))


def conv_net(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 6, 3, groups=2),
        torch.nn.BatchNorm2d(6, affine=False),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(5),
        torch.nn.BatchNorm1d(5),
    )
    model(torch.randn(16, 3, 7, 7))  # the running statistics become those of some data
    return model.eval().to(dtype)


@pytest.mark.parametrize("opset", [9, 20, 23])
def test_batch_normalization_goes_into_weights(opset: int) -> None:
    model, x = conv_net(), torch.randn(2, 3, 7, 7)
    program = export(model, (x,), opset_version=opset, dynamic_shapes=[{0: "batch"}])
    assert op_counts(program) == {"Conv": 1, "Relu": 1, "ConvTranspose": 1, "Reshape": 1, "Gemm": 1}
    x = torch.randn(5, 3, 7, 7)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-5)


def test_folded_weights_are_computed_from_weights_applied_later() -> None:
    other = conv_net()
    with torch.no_grad():
        for tensor in other.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1.5)
    program = export(conv_net(), (torch.randn(2, 3, 7, 7),))
    assert set(program.apply_weights(other.state_dict())) == {f"{n}.num_batches_tracked" for n in ("1", "4", "7")}
    x = torch.randn(2, 3, 7, 7)
    with torch.no_grad():
        torch.testing.assert_close(program(x), other(x), rtol=1e-5, atol=1e-5)


def test_without_optimize_batch_normalization_stays() -> None:
    assert op_counts(export(conv_net(), (torch.randn(2, 3, 7, 7),), optimize=False))["BatchNormalization"] == 3
