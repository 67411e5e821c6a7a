"""``target="onnxruntime"``: operators of com.microsoft, the same results, and nothing of it without the target."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from onnx_fx_export import InvalidArgumentError, ONNXProgram, export
from onnx_fx_export.cli import app
from onnxops_decomp.exporting import FuseSkipNormalization

OPSETS = [13, 17, 20, 23, 26]
WIDTH, HEADS = 32, 4


class Layer(torch.nn.Module):
    """A layer of a transformer, with a norm behind each residual or before the next step."""

    def __init__(self, norm=torch.nn.LayerNorm, approximate="none", causal=False) -> None:
        super().__init__()
        self.project = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = torch.nn.ModuleList(norm(WIDTH) for _ in range(2))
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.approximate, self.causal = approximate, causal

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x, mask=None):
        q, k, v = (self.heads(self.project[index](x)) for index in range(3))
        attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        x = self.norms[0](x + self.project[3](attended.transpose(1, 2).flatten(2)))
        total = x + self.down(F.gelu(self.up(x), approximate=self.approximate))
        return self.norms[1](total), total


class Gated(torch.nn.Module):
    def forward(self, x):
        return F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh")


def operators(program: ONNXProgram) -> set[str]:
    graphs = [program.model.graph, *(function.graph for function in program.model.functions.values())]
    return {node.op_type for graph in graphs for node in graph.all_nodes() if node.domain == "com.microsoft"}


def exported(model, args, opset=20, dims=({0: "batch", 1: "length"},), **options) -> ONNXProgram:
    return export(model, args, dynamic_shapes=dims, opset_version=opset, target="onnxruntime", **options)


def check(program: ONNXProgram, model, *args, **tolerances) -> None:
    onnx.checker.check_model(program.model_proto)
    with torch.no_grad():
        torch.testing.assert_close(program(*args), model(*args), **tolerances)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("norm", "approximate", "causal"), [
    (torch.nn.LayerNorm, "none", False),
    (torch.nn.LayerNorm, "tanh", True),
    (torch.nn.RMSNorm, "none", True),
])  # fmt: skip
def test_a_transformer_layer_equals_eager_at_other_sizes(opset: int, norm, approximate: str, causal: bool) -> None:
    model = Layer(norm, approximate, causal).eval()
    program = exported(model, (torch.randn(2, 5, WIDTH),), opset)
    assert program.model.opset_imports == {"": opset, "com.microsoft": 1}
    expected = {"BiasGelu" if approximate == "none" else "FastGelu"}
    assert operators(program) == expected | ({"MultiHeadAttention"} if opset < 23 else set())
    for shape in ((2, 5), (3, 8), (1, 1)):
        check(program, model, torch.randn(*shape, WIDTH))


@pytest.mark.parametrize(("dtype", "opset"), [(torch.float32, 17), (torch.float32, 23), (torch.float16, 20)])
def test_the_runtime_adds_no_residual_inside_a_normalization(dtype: torch.dtype, opset: int, tmp_path) -> None:
    program = exported(Layer().eval().to(dtype), (torch.randn(2, 5, WIDTH, dtype=dtype),), opset)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options, ["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx").graph
    assert [node.op_type for node in optimized.node].count("LayerNormalization") == 2


@pytest.mark.parametrize(("norm", "opset", "fused"), [
    (torch.nn.LayerNorm, 17, "SkipLayerNormalization"),
    (torch.nn.RMSNorm, 23, "SkipSimplifiedLayerNormalization"),
    (torch.nn.RMSNorm, 20, None),
])  # fmt: skip
def test_a_graph_for_single_tokens_may_add_residuals_inside_normalizations(norm, opset: int, fused: str | None) -> None:
    if norm is torch.nn.LayerNorm and tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27):
        pytest.skip("before 1.27, the mean is subtracted apart, as ONNX Runtime loses the digits of large ones")
    model = Layer(norm).eval()
    program = exported(model, (torch.randn(2, 5, WIDTH),), opset)
    nodes = len(program.model.graph)
    FuseSkipNormalization()(program.model)
    assert (fused in operators(program)) is (fused is not None)
    # One has the bias inside as well, and the sum of the other is a result.
    assert nodes - len(program.model.graph) == (4 if fused else 0)
    for shape in ((2, 5), (3, 8), (1, 1)):
        check(program, model, torch.randn(*shape, WIDTH))


@pytest.mark.parametrize("opset", [17, 20, 23])
def test_half_precision_stays_half_precision(opset: int) -> None:
    model = Layer().eval().half()
    program = exported(model, (torch.randn(2, 5, WIDTH).half(),), opset)
    assert operators(program)
    check(program, model, torch.randn(3, 7, WIDTH).half(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_groups_are_normalized_by_an_operator_with_a_kernel(dtype: torch.dtype) -> None:
    model = torch.nn.GroupNorm(2, 6).eval().to(dtype)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    program = export(
        model,
        (torch.randn(2, 6, 4, 5, dtype=dtype),),
        dynamic_shapes=({0: "batch", 2: "height"},),
        opset_version=23,
        target="onnxruntime",
    )
    assert "GroupNormalization" not in [node.op_type for node in program.model.graph]
    for batch, height in ((2, 4), (1, 1), (3, 7)):
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        x = torch.randn(batch, 6, height, 5, dtype=dtype)
        check(program, model, x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("opset", OPSETS)
def test_activations_alone(opset: int) -> None:
    program = exported(Gated(), (torch.randn(2, 3),), opset)
    assert operators(program) == {"QuickGelu", "Gelu", "FastGelu"}
    check(program, Gated(), 4 * torch.randn(4, 7))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_without_kernels_take_the_operators_of_onnx(dtype: torch.dtype) -> None:
    args = (torch.randn(2, 3, dtype=dtype),)
    with_target, without = (export(Gated(), args, target=target) for target in ("onnxruntime", None))
    assert [node.op_type for node in with_target.model.graph] == [node.op_type for node in without.model.graph]
    assert not operators(with_target)


@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_boolean_mask_may_hide_whole_rows(heads: int) -> None:
    model = Layer().eval()
    dims = ({0: "batch", 1: "length"}, {0: "batch", 2: "length", 3: "length"})
    program = exported(model, (torch.randn(2, 5, WIDTH), torch.ones(2, heads, 5, 5, dtype=torch.bool)), dims=dims)
    # The operator has one bias for all heads, or one for each: only the first kind is used.
    assert ("MultiHeadAttention" in operators(program)) == (heads == 1)
    mask = torch.rand(3, heads, 7, 7) > 0.5
    mask[1, :, 2] = False
    check(program, model, torch.randn(3, 7, WIDTH), mask)


def test_a_mask_of_numbers_keeps_its_rows_of_minus_infinity() -> None:
    model = Layer().eval()
    dims = ({0: "batch", 1: "length"}, {0: "batch", 2: "length", 3: "length"})
    program = exported(model, (torch.randn(2, 5, WIDTH), torch.randn(2, 1, 5, 5)), dims=dims)
    assert "MultiHeadAttention" not in operators(program)
    mask = torch.randn(3, 1, 7, 7)
    mask[0, :, 3] = -torch.inf
    check(program, model, torch.randn(3, 7, WIDTH), mask)


def test_causal_attention_over_more_keys_than_queries_is_left_alone() -> None:
    class Causal(torch.nn.Module):
        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    dims = ({0: "batch", 2: "queries"}, {0: "batch", 2: "keys"})
    program = exported(Causal(), (torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8)), dims=dims)
    assert "MultiHeadAttention" not in operators(program)
    check(program, Causal(), torch.randn(2, 3, 3, 8), torch.randn(2, 3, 9, 8))


def test_a_residual_that_broadcasts_is_added_before() -> None:
    class Broadcast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH)

        def forward(self, x, y):
            return self.norm(x + y)

    model = Broadcast().eval()
    program = exported(model, (torch.randn(2, 5, WIDTH), torch.randn(5, WIDTH)), dims=({0: "batch"}, None))
    assert not operators(program)
    check(program, model, torch.randn(3, 5, WIDTH), torch.randn(5, WIDTH))


def decoder() -> tuple[Any, Callable[[int, int], tuple[torch.Tensor, dict[str, Any]]]]:
    """A Llama with grouped queries, and a step of its decoding: one token, a mask, and a cache."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, max_position_embeddings=128,
    )  # fmt: skip

    def step(batch: int, past: int) -> tuple[torch.Tensor, dict[str, Any]]:
        cache = DynamicCache(config=config)
        for layer in range(2):
            cache.update(torch.randn(batch, 2, past, 16), torch.randn(batch, 2, past, 16), layer)
        mask = torch.ones(batch, past + 1, dtype=torch.long)
        mask[-1, : past // 2] = 0
        return torch.randint(0, 50, (batch, 1)), {"past_key_values": cache, "attention_mask": mask}

    return LlamaForCausalLM(config).eval(), step


@pytest.mark.parametrize("masked", [False, True])
def test_a_step_of_decoding(masked: bool) -> None:
    model, step = decoder()
    shapes = {"input_ids": {0: "batch"}, "past_key_values": [{0: "batch", 2: "past"}] * 4}
    shapes |= {"attention_mask": {0: "batch", 1: "total"}} if masked else {}

    def call(batch: int, past: int) -> tuple[torch.Tensor, dict[str, Any]]:
        ids, others = step(batch, past)
        return ids, others if masked else {"past_key_values": others["past_key_values"]}

    ids, others = call(2, 3)
    program = exported(model, (ids,), dims=shapes, kwargs=others)
    used = [node for node in program.model.graph if node.op_type == "GroupQueryAttention"]
    assert len(used) == 2
    # The caches that come out are those of the operator.
    assert {value.producer() for value in program.model.graph.outputs[1:]} == {*used}
    for batch, past in ((1, 1), (3, 9), (2, 40)):
        ids, others = call(batch, past)
        actual = program(ids, **copy.deepcopy(others))
        expected = model(ids, **others)
        torch.testing.assert_close(actual.logits, expected.logits.detach(), rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(actual.past_key_values.layers, expected.past_key_values.layers, strict=True):
            torch.testing.assert_close(mine.keys, theirs.keys.detach())
            torch.testing.assert_close(mine.values, theirs.values.detach())


class FourBits(torch.nn.Module):
    """A linear layer whose weight is stored as numbers of four bits, in groups of 32 columns."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.randint(-8, 8, (rows, columns), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(rows, columns // 32))
        self.bias = torch.nn.Parameter(torch.randn(rows))

    def forward(self, x):
        groups = self.numbers.unflatten(1, (-1, 32)).to(self.scales.dtype) * self.scales.unsqueeze(-1)
        return F.linear(x, groups.flatten(1), self.bias)


@pytest.mark.parametrize("opset", [13, 20, 23])
@pytest.mark.parametrize("rank", [2, 3])
def test_weights_of_four_bits_are_multiplied_as_they_are(rank: int, opset: int, tmp_path) -> None:
    model = torch.nn.Sequential(FourBits(128, 64), torch.nn.ReLU(), FourBits(64, 32))
    program = exported(model, (torch.randn(*(2, 3)[: rank - 1], 128),), opset, dims=({0: "batch"},))
    assert operators(program) >= {"MatMulNBits"}
    x = torch.randn(*(5, 3)[: rank - 1], 128)
    check(program, model, x, rtol=1e-4, atol=1e-4)
    program.save(tmp_path / "model.onnx")
    # Half a byte for each number, and a float for 32 of them.
    assert (tmp_path / "model.onnx").stat().st_size < (128 * 64 + 64 * 32) * (0.5 + 4 / 32) + 4096
    other = torch.nn.Sequential(FourBits(128, 64), torch.nn.ReLU(), FourBits(64, 32))
    assert program.apply_weights(other.state_dict()) == []
    check(program, other, x, rtol=1e-4, atol=1e-4)


def test_functions_import_the_domain_too() -> None:
    model = torch.nn.Sequential(
        *(torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True) for _ in range(2))
    )
    model.eval()
    options = {"export_modules_as_functions": {torch.nn.TransformerEncoderLayer}}
    program = exported(model, (torch.randn(2, 5, WIDTH),), 20, **options)
    assert "FusedMatMul" in operators(program)
    check(program, model, torch.randn(3, 6, WIDTH))
    program.inline_functions()
    check(program, model, torch.randn(3, 6, WIDTH))


@pytest.mark.parametrize("opset", OPSETS)
def test_without_the_target_there_is_nothing_of_it(opset: int) -> None:
    program = export(Layer().eval(), (torch.randn(2, 5, WIDTH),), opset_version=opset)
    assert not operators(program)
    assert program.model.opset_imports == {"": opset}


def test_the_result_is_verified() -> None:
    model = Layer().eval()
    program = exported(model, (torch.randn(2, 5, WIDTH),), verify=True)
    program.verify(torch.randn(4, 9, WIDTH))


def test_another_target_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="onnxruntime"):
        export(torch.nn.ReLU(), (torch.randn(2),), target="tensorrt")


def test_the_command_line_takes_a_target(tmp_path) -> None:
    torch.export.save(torch.export.export(Gated(), (torch.randn(2, 3),)), tmp_path / "gated.pt2")
    arguments = [str(tmp_path / "gated.pt2"), "-o", str(tmp_path / "gated.onnx"), "--target", "onnxruntime", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["nodes"] == 3
    assert {node.domain for node in onnx.load(tmp_path / "gated.onnx").graph.node} == {"com.microsoft"}
