"""Attention becomes GroupQueryAttention where its mask is proven to be the causal one, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from language_models import language_model

import onnx_fx_export
from onnx_fx_export.generation import Generator, export_folder
from onnxops_decomp.exporting import share_caches

Mask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
HEADS, WIDTH = 2, 8


class OneLayer(torch.nn.Module):
    """Attention over a cache; ``mask`` gets the places of queries and keys, and the padding mask."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mask = mask
        self.embedding = torch.nn.Embedding(16, HEADS * WIDTH)
        self.project = torch.nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, input_ids, attention_mask, key, value):
        heads = self.project(self.embedding(input_ids)).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        query, new_key, new_value = heads.unbind(0)
        keys, values = torch.cat([key, new_key], 2), torch.cat([value, new_value], 2)
        queries = torch.arange(input_ids.shape[1])[:, None] + key.shape[2]
        allowed = self.mask(queries, torch.arange(keys.shape[2]), attention_mask.bool()[:, None, None])
        result = self.attended(query, keys, values, allowed, attention_mask)
        return result.transpose(1, 2).flatten(2), keys, values

    def attended(self, query, keys, values, allowed, padding):
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=allowed)


def call(batch: int, past: int, new: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    cache = [torch.randn(batch, HEADS, past, WIDTH) for _ in range(2)]
    return torch.randint(0, 16, (batch, new)), torch.ones(batch, past + new, dtype=torch.int64), *cache


def exported(mask: Mask, model: OneLayer | None = None) -> tuple[OneLayer, onnx_fx_export.ONNXProgram, bool]:
    model, kept = (model or OneLayer(mask)).eval(), {0: "batch", 2: "past"}
    shapes = ({0: "batch", 1: "new"}, {0: "batch", 1: "total"}, kept, kept)
    program = onnx_fx_export.export(
        model, call(2, 5, 3), dynamic_shapes=shapes, opset_version=23, target="onnxruntime",
        input_names=["tokens", "mask", "key", "value"],
    )  # fmt: skip
    return model, program, share_caches(program.model, "tokens", "mask", 64)


CAUSAL: dict[str, Mask] = {
    "no later than the query": lambda query, key, kept: (key <= query) & kept,
    "not after the query": lambda query, key, kept: kept & (query - key >= 0),
    "before the next": lambda query, key, kept: (key < query + 1) & kept,
    "in a window": lambda query, key, kept: (key <= query) & (key > query - 3) & kept,
    "at most two back": lambda query, key, kept: (query - key <= 2) & (key - query <= 0) & kept,
}
OTHERS: dict[str, Mask] = {
    "the next token, too": lambda query, key, kept: (key <= query + 1) & kept,
    "earlier tokens alone": lambda query, key, kept: (key <= query) & (key < query) & kept,
    "padding, too": lambda query, key, kept: ((key <= query) & (key >= 0)).expand(1, 1, -1, -1) | (kept & False),
    "a prefix in both directions": lambda query, key, kept: ((key <= query) | (key < 4)) & kept,
    "not the first token": lambda query, key, kept: (key <= query) & (key >= 1) & kept,
    "a window that moves by two": lambda query, key, kept: (key <= query) & (key * 2 > query) & kept,
    "within blocks": lambda query, key, kept: (key <= query) & (key // 4 == query // 4) & kept,
    "the token beside": lambda query, key, kept: (key <= query) & kept.roll(1, -1),
}


def count(program: onnx_fx_export.ONNXProgram, op_type: str) -> int:
    return sum(node.op_type == op_type for node in program.model.graph)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_causal_mask_is_known_however_it_is_written(name):
    model, program, shared = exported(CAUSAL[name])

    assert shared
    assert (count(program, "GroupQueryAttention"), count(program, "Attention")) == (1, 0)
    for sizes in [(1, 0, 1), (3, 0, 6), (1, 7, 4), (3, 9, 1)]:
        arguments = call(*sizes)
        for found, wanted in zip(program(*arguments), model(*arguments), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_stay(name):
    model, program, shared = exported(OTHERS[name])

    assert not shared
    assert count(program, "GroupQueryAttention") == 0
    arguments = call(2, 6, 4)
    torch.testing.assert_close(program(*arguments)[0], model(*arguments)[0], rtol=1e-4, atol=1e-5)


class ReadScores(OneLayer):
    """The same, spelled out; what it returns may also depend on the scores themselves."""

    def __init__(self, *, gated: bool) -> None:
        super().__init__(CAUSAL["no later than the query"])
        self.gated = gated

    def attended(self, query, keys, values, allowed, padding):
        added = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
        scores = query @ keys.transpose(2, 3) * WIDTH**-0.5 + added
        result = torch.softmax(scores, -1) @ values
        return result * torch.sigmoid(torch.logsumexp(scores, -1))[..., None] if self.gated else result


@pytest.mark.parametrize("gated", [False, True])
def test_scores_that_something_else_reads_stay(gated):
    model, program, shared = exported(CAUSAL["no later than the query"], ReadScores(gated=gated))

    assert shared is not gated
    for sizes in [(1, 0, 1), (2, 6, 1), (1, 7, 4)]:
        arguments = call(*sizes)
        for found, wanted in zip(program(*arguments), model(*arguments), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> tuple[torch.nn.Module, Path]:
    """A model with rotary embeddings, a window and grouped heads, as GenAI wants it."""
    model = language_model("mistral", hidden_size=64)
    return model, export_folder(model, tmp_path_factory.mktemp("shared") / "out", verify=False).path


def test_rotary_embeddings_and_products_go_into_the_operator(folder):
    graph = onnx.load(folder[1] / "model.onnx", load_external_data=False).graph
    types = [node.op_type for node in graph.node]

    assert types.count("GroupQueryAttention") == 2
    assert "RotaryEmbedding" not in types
    assert types.count("MatMul") == 2 * 5 + 1


@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("bias", [False, True])
def test_products_whose_heads_are_normalized_are_one_that_is_split(bias, precision, tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model = language_model("qwen3", attention_bias=bias)
    for weight in model.parameters():
        if weight.dim() == 1:  # those that are alike would be one weight
            weight.data.normal_(1, 0.1)
    path = export_folder(model, tmp_path / "out", precision).path
    graph = onnx.load(path / "model.onnx", load_external_data=False).graph
    types = [node.op_type for node in graph.node]

    assert types.count("GroupQueryAttention") == types.count("Split") == 2
    assert types.count("MatMul") + types.count("MatMulNBits") == 2 * 5 + 1
    assert sum(value.name.startswith("widths_") for value in graph.initializer) == 1


def test_weights_that_were_joined_are_stored_once(folder):
    graph = onnx.load(folder[1] / "model.onnx", load_external_data=False).graph

    assert {weight.name for weight in graph.initializer} <= {name for node in graph.node for name in node.input}


def test_padded_rows_are_as_they_are_alone(folder):
    model, path = folder
    tokens = np.array([[0, 0, 0, 9, 4], [5, 6, 7, 8, 3], [0, 3, 3, 9, 11]])

    found = Generator(path).generate(tokens, (tokens != 0).astype(np.int64), max_new_tokens=40, min_new_tokens=40)

    for row, given in zip(found, tokens, strict=True):
        alone = torch.from_numpy(given[given != 0])[None]
        wanted = model.generate(
            alone, attention_mask=torch.ones_like(alone), do_sample=False, max_new_tokens=40, min_new_tokens=40
        )
        np.testing.assert_array_equal(row[5:], wanted[0, alone.shape[1] :])


@pytest.mark.parametrize("rows", [1, 2])
def test_several_tokens_follow_a_cache(folder, rows):
    model, path = folder
    tokens = np.array([[9, 4, 5, 6, 7, 8], [3, 3, 8, 9, 5, 4]])[:rows]
    steps = Generator(path).logits(tokens[:, :2])
    next(steps)

    found = steps.send(tokens[:, 2:])

    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)).logits[:, -1].numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


class SpelledOut(OneLayer):
    """Attention of products and a Softmax, whose scores a function changes."""

    def __init__(self, change) -> None:
        super().__init__(lambda query, key, kept: (key <= query) & kept)
        self.change = change
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25]), requires_grad=False)
        self.sinks = torch.nn.Parameter(torch.randn(HEADS), requires_grad=False)
        self.near = torch.nn.Parameter(torch.randn(16), requires_grad=False)

    def attended(self, query, keys, values, allowed, padding):
        lowest = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
        weights = self.change(self, query @ keys.transpose(2, 3) * 0.3, lowest, padding)
        return self.finished(weights @ values, lowest)

    def finished(self, result, lowest):
        return result


class WithoutEmptyRows(SpelledOut):
    """Attention whose result is zero for the queries that see no key, by the mask with a number added."""

    def __init__(self, more: float) -> None:
        super().__init__(plain)
        self.more = more

    def finished(self, result, lowest):
        lowest = lowest + self.more if self.more else lowest
        return torch.where(lowest.amax(-1, keepdim=True) == torch.finfo(torch.float32).min, 0.0, result)


def plain(layer, scores, lowest, mask):
    return (scores + lowest).softmax(-1)


def capped(layer, scores, lowest, mask):
    return (torch.tanh(scores / 2.0) * 2.0 + lowest).softmax(-1)


def with_sinks(layer, scores, lowest, mask):
    sinks = layer.sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
    joined = torch.cat([scores + lowest, sinks], -1)
    return (joined - joined.amax(-1, keepdim=True)).softmax(-1)[..., :-1]


def with_slopes(layer, scores, lowest, mask):
    positions = ((mask.cumsum(-1) - 1) * mask)[:, None, None]
    return (scores + layer.slopes[:, None, None] * positions + lowest).softmax(-1)


def capped_with_the_mask(layer, scores, lowest, mask):
    return (torch.tanh((scores + lowest) / 2.0) * 2.0).softmax(-1)


def with_numbers_of_the_mask(layer, scores, lowest, mask):
    return (scores + 0.5 * mask[:, None, None] + lowest).softmax(-1)


def with_distances(layer, scores, lowest, mask):
    places = torch.arange(mask.shape[1])
    queries = places[-scores.shape[2] :, None]
    return (scores + layer.near[(queries - places).clamp(0, 15)] + lowest).softmax(-1)


def over_the_queries(layer, scores, lowest, mask):
    return (scores + lowest).softmax(-2)


def exported_spelled_out(change) -> tuple[SpelledOut, onnx_fx_export.ONNXProgram, bool]:
    return exported_layer(SpelledOut(change))


def exported_layer(layer: SpelledOut) -> tuple[SpelledOut, onnx_fx_export.ONNXProgram, bool]:
    model, kept = layer.eval(), {0: "batch", 2: "past"}
    shapes = ({0: "batch", 1: "new"}, {0: "batch", 1: "total"}, kept, kept)
    program = onnx_fx_export.export(
        model, call(2, 5, 3), dynamic_shapes=shapes, opset_version=23, target="onnxruntime",
        input_names=["tokens", "mask", "key", "value"],
    )  # fmt: skip
    return model, program, share_caches(program.model, "tokens", "mask", 64)


@pytest.mark.parametrize("change", [plain, capped, with_sinks, with_slopes])
def test_attention_that_is_spelled_out_is_known(change):
    model, program, shared = exported_spelled_out(change)

    assert shared
    assert (count(program, "GroupQueryAttention"), count(program, "Softmax")) == (1, 0)
    for sizes in [(1, 0, 1), (3, 0, 6), (1, 7, 4), (3, 9, 1)]:
        arguments = call(*sizes)
        for found, wanted in zip(program(*arguments), model(*arguments), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.no_round_trip(reason="GroupQueryAttention leaves open what it gives for padding")
def test_what_is_added_counts_the_tokens_that_are_kept():
    model, program, _ = exported_spelled_out(with_slopes)
    tokens, _, key, value = call(2, 0, 6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])

    found = program(tokens, mask, key, value)[0]

    torch.testing.assert_close(found[1], model(tokens, mask, key, value)[0][1], rtol=1e-4, atol=1e-5)
    alone = model(tokens[:1, :4], mask[:1, :4], key[:1], value[:1])[0]
    torch.testing.assert_close(found[:1, :4], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", [capped_with_the_mask, with_numbers_of_the_mask, with_distances, over_the_queries])
def test_other_scores_stay(change):
    model, program, shared = exported_spelled_out(change)

    assert not shared
    arguments = call(2, 6, 4)
    torch.testing.assert_close(program(*arguments)[0], model(*arguments)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [0.0, -1e38])
def test_rows_without_keys_are_those_of_the_mask_itself(more):
    model, program, shared = exported_layer(WithoutEmptyRows(more))

    assert shared == (more == 0)
    assert count(program, "ReduceMax") == (more != 0)
    arguments = call(1, 6, 4)
    torch.testing.assert_close(program(*arguments)[0], model(*arguments)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("order", "bound", "whole"), [("qkv", 0, True), ("kqv", 0, False), ("qkv", 1, False)])
def test_columns_of_one_product_stay_together(order, bound, whole):
    size = HEADS * WIDTH

    class Cut(OneLayer):
        def forward(self, input_ids, attention_mask, key, value):
            columns = self.project(self.embedding(input_ids))
            columns = torch.nn.functional.pad(columns, (0, bound))
            parts = {name: columns[..., place * size : (place + 1) * size] for place, name in enumerate(order)}
            query, new_key, new_value = (parts[name].unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for name in "qkv")
            keys, values = torch.cat([key, new_key], 2), torch.cat([value, new_value], 2)
            queries = torch.arange(input_ids.shape[1])[:, None] + key.shape[2]
            allowed = self.mask(queries, torch.arange(keys.shape[2]), attention_mask.bool()[:, None, None])
            result = self.attended(query, keys, values, allowed, attention_mask)
            return result.transpose(1, 2).flatten(2), keys, values

    def causal(queries, keys, padding):
        return (keys <= queries) & padding

    _, program, shares = exported(causal, Cut(causal))

    assert shares
    (operator,) = (node for node in program.model.graph if node.op_type == "GroupQueryAttention")
    assert (operator.inputs[1] is None) == whole
    assert any(node.op_type == "Slice" for node in program.model.graph) != whole


def test_products_that_a_model_has_joined_run_joined(tmp_path):
    model = language_model("phi3", hidden_size=64)

    folder = export_folder(model, tmp_path / "out", verify=False)

    graph = onnx.load(folder.path / "model.onnx", load_external_data=False).graph
    attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    assert len(attentions) == 2
    assert not any(name for node in attentions for name in node.input[1:3])
    tokens = np.arange(3, 20)[None]
    wanted = model.generate(torch.from_numpy(tokens), do_sample=False, max_new_tokens=20, min_new_tokens=20)
    found = Generator(folder.path).generate(tokens, max_new_tokens=20, min_new_tokens=20)
    np.testing.assert_array_equal(found, wanted.numpy())
