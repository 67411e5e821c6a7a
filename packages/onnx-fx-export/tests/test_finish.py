"""Passes replace groups of nodes by one that computes the same, and leave look-alikes alone."""

from __future__ import annotations

import collections

import onnx
import onnxruntime
import pytest
import torch

from onnx_fx_export import InvalidArgumentError, export


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


def by_power(x, weight, bias):
    mean = x.mean(-1, keepdim=True)
    return weight * ((x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-6)) + bias


def by_variance(x, weight, bias):
    var = x.var(-1, keepdim=True, unbiased=False)
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(var + 1e-6) * weight + bias


def without_bias(x, weight, bias):
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered * centered).mean(-1, keepdim=True).add(1e-6).sqrt() * weight


def by_rsqrt(x, weight, bias):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight + bias


def by_root(x, weight, bias):
    return weight * (x / torch.sqrt(torch.mean(x**2, -1, keepdim=True) + 1e-6)) + bias


def of_another_mean(x, weight, bias):
    centered = x - x.mean(0, keepdim=True)
    return centered / (centered * centered).mean(-1, keepdim=True).add(1e-6).sqrt() * weight + bias


class Spelled(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = torch.nn.Linear(4, 8), function
        self.weight, self.bias = (torch.nn.Parameter(torch.rand(8) + 0.5) for _ in range(2))

    def forward(self, x):
        return self.function(self.linear(x), self.weight, self.bias).tanh()


def optimized_operators(program, folder) -> set[str]:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return {node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node}


@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
    reason="before 1.27 layers stay as they are written, as ONNX Runtime loses the digits of large means",
)
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("function", [by_power, by_variance, without_bias])
def test_layers_that_are_normalized_by_hand_become_one_node(function, opset: int) -> None:
    model = Spelled(function)
    program = export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},), opset_version=opset)
    assert op_counts(program)["LayerNormalization"] == 1
    assert not op_counts(program).keys() & {"ReduceMean", "Sqrt", "Div"}
    for rows in (0, 1, 5):
        x = torch.randn(rows, 4) * 3 + 50
        torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [13, 17, 22, 23])
@pytest.mark.parametrize("function", [by_rsqrt, by_root])
def test_root_mean_squares_by_hand_are_one_operation(function, opset: int, tmp_path) -> None:
    model = Spelled(function)
    program = export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},), opset_version=opset)
    expected = {"RMSNormalization", "SimplifiedLayerNormalization"}
    assert len(optimized_operators(program, tmp_path) & expected) == 1
    assert op_counts(program)["RMSNormalization"] == (opset >= 23)
    for rows in (0, 1, 5):
        x = torch.randn(rows, 4) * 3
        torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_the_module_for_root_mean_squares_is_one_operation_at_old_opsets(tmp_path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.RMSNorm(8), torch.nn.Tanh()).eval()
    program = export(model, (torch.randn(3, 4),), opset_version=17)
    assert "SimplifiedLayerNormalization" in optimized_operators(program, tmp_path)


@pytest.mark.parametrize("opset", [17, 23])
def test_what_is_centered_by_another_mean_is_no_layer(opset: int) -> None:
    model = Spelled(of_another_mean)
    assert "LayerNormalization" not in exported(model, torch.randn(3, 4), opset=opset)


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


class PlacedRotary(torch.nn.Module):
    """Turns heads by angles of positions that the length alone decides."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, q):
        angles = torch.arange(q.shape[2])[None, :, None].float() * torch.tensor([1.0, 0.5, 0.25, 0.125])
        twice = {
            "halves": torch.cat((angles, angles), -1),
            "neighbours": angles.repeat_interleave(2, -1),
            "unlike": torch.cat((angles, angles * 2), -1),
        }[self.kind]
        cos, sin = (table.unsqueeze(1).to(q.dtype) for table in (twice.cos(), twice.sin()))
        if self.kind == "neighbours":
            return q * cos + torch.stack((-q[..., 1::2], q[..., ::2]), -1).flatten(-2) * sin
        return q * cos + torch.cat((-q[..., 4:], q[..., :4]), -1) * sin


@pytest.mark.parametrize("dynamic", [False, True], ids=["static batch", "dynamic batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["halves", "neighbours", "unlike"])
def test_rotary_embedding_of_known_positions_is_one_node(kind: str, dtype: torch.dtype, dynamic: bool) -> None:
    model, shapes = PlacedRotary(kind), ({0: "batch"},) if dynamic else None
    program = export(model, (torch.randn(2, 3, 5, 8, dtype=dtype),), opset_version=23, dynamic_shapes=shapes)
    assert op_counts(program)["RotaryEmbedding"] == (kind != "unlike")
    q = torch.randn(4 if dynamic else 2, 3, 5, 8, dtype=dtype)
    exact = 1e-5 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(program(q), model(q), rtol=exact, atol=exact)


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


class MatrixProduct(torch.nn.Module):
    def __init__(self, bias: tuple[int, ...]) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(bias))

    def forward(self, x, weight):
        return self.bias + x @ weight


@pytest.mark.parametrize("bias", [(5,), (1,), (3, 5), (1, 5), (3, 1), ()])
@pytest.mark.parametrize("opset", [9, 23])
def test_a_matrix_product_and_its_bias_are_one_gemm(bias: tuple[int, ...], opset: int) -> None:
    assert exported(MatrixProduct(bias), torch.randn(3, 4), torch.randn(4, 5), opset=opset) == {"Gemm": 1}


@pytest.mark.parametrize("x, bias", [((3, 4), (2, 3, 5)), ((1, 4), (3, 5)), ((2, 3, 4), (5,))])
def test_an_addition_that_gemm_cannot_do_stays(x: tuple[int, ...], bias: tuple[int, ...]) -> None:
    assert exported(MatrixProduct(bias), torch.randn(x), torch.randn(4, 5)) == {"MatMul": 1, "Add": 1}


def test_a_product_that_is_used_twice_stays() -> None:
    def function(x, weight, bias):
        product = x @ weight
        return product + bias, product

    class Model(torch.nn.Module):
        forward = staticmethod(function)

    counts = exported(Model(), torch.randn(3, 4), torch.randn(4, 5), torch.randn(5))
    assert counts == {"MatMul": 1, "Add": 1}


NO_OPERATIONS = {
    "reshape of a reshape": lambda x: x.reshape(x.shape[0], -1).reshape(x.shape),
    "flatten and back": lambda x: x.flatten(0, 1).unflatten(0, (x.shape[0], -1)),
    "view of its own shape": lambda x: x.view(x.shape),
    "expand to its own shape": lambda x: x.expand(x.shape),
    "expand of nothing": lambda x: x.expand(-1, -1, 4),
    "cast there and back": lambda x: x.double().float(),
    "slice of everything": lambda x: x[:, :, :4][:, :],
    "transpose there and back": lambda x: x.permute(1, 2, 0).permute(2, 0, 1),
    "unsqueeze and squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "clone": lambda x: x.clone().contiguous(),
}


@pytest.mark.parametrize("name", NO_OPERATIONS)
def test_what_changes_nothing_leaves_no_node(name: str) -> None:
    shapes = {"x": {0: "batch", 1: "length"}}
    program = export(lambda x: NO_OPERATIONS[name](x).relu(), (torch.randn(2, 3, 4),), dynamic_shapes=shapes)
    assert op_counts(program) == {"Relu": 1}
    x = torch.randn(5, 6, 4)
    assert torch.equal(program(x), x.relu())


def test_a_cast_that_loses_bits_stays() -> None:
    assert exported(torch.nn.Identity(), torch.randn(3), opset=20) == {"Identity": 1}
    program = export(lambda x: x.half().float(), (torch.randn(3),))
    assert op_counts(program) == {"Cast": 2}


class Twice(torch.nn.Module):
    """Two layers whose weights are equal, but not one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.load_state_dict(self.first.state_dict())

    def forward(self, x):
        return self.second(self.first(x).relu())


def stored(program) -> list[int]:
    return sorted(value.const_value.size for value in program.model.graph.initializers.values())


def test_equal_weights_are_stored_once() -> None:
    assert stored(export(Twice(), (torch.randn(2, 3, 4),))) == [4, 16]


def test_equal_weights_of_half_precision_stay_apart() -> None:
    """Else ONNX Runtime would convert them at every call, and lay out no convolution for the processor."""
    model = torch.nn.Sequential(*(torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)))
    for layer in model:
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    x = torch.randn(1, 8, 6, 6)
    assert stored(export(model, (x,))) == [8, 576]
    assert stored(export(model.half(), (x.half(),))) == [8, 8, 576, 576]


def test_zeros_of_either_sign_are_not_equal() -> None:
    model = Twice()
    torch.nn.init.zeros_(model.first.bias)
    model.second.bias = torch.nn.Parameter(-torch.zeros(4))
    assert stored(export(model, (torch.randn(2, 3, 4),))) == [4, 4, 16]


def test_weights_that_were_equal_can_be_replaced_by_others() -> None:
    program = export(Twice(), (torch.randn(2, 3, 4),))
    other = Twice()
    torch.nn.init.normal_(other.second.weight)
    assert program.apply_weights(other.state_dict()) == []
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(program(x), other(x).detach())
    assert stored(program) == [4, 16, 16]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


def test_a_tied_weight_can_be_replaced_under_both_names() -> None:
    program, other = export(Tied(), (torch.tensor([[1, 2]]),)), Tied()
    assert program.apply_weights(other.state_dict()) == []
    ids = torch.tensor([[3, 4]])
    torch.testing.assert_close(program(ids), other(ids).detach())


def test_a_tied_weight_is_not_given_two_contents() -> None:
    program = export(Tied(), (torch.tensor([[1, 2]]),))
    with pytest.raises(InvalidArgumentError, match="one weight"):
        program.apply_weights({"embedding.weight": torch.ones(10, 4), "head.weight": torch.zeros(10, 4)})
