"""Caches, model outputs and dataclasses go in and come out as they are in torch."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from both_exporters import EXPORTERS, exporters, tracing

from onnx_fx_export import InvalidArgumentError, OnnxExporterError, export


@pytest.fixture(scope="module")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=50,
    )
    return LlamaForCausalLM(config).eval()


def cache_after(model, batch: int, length: int):
    with torch.no_grad():
        return model(input_ids=torch.randint(0, 50, (batch, length))).past_key_values


@pytest.mark.parametrize("opset", [20, 23])
def test_decoding_with_a_dynamic_cache(llama, opset: int) -> None:
    ids = torch.randint(0, 50, (2, 3))
    program = export(
        llama,
        kwargs={"input_ids": ids, "past_key_values": cache_after(llama, 2, 5)},
        dynamic_shapes={
            "input_ids": {0: "batch", 1: "length"},
            "past_key_values": [{0: "batch", 2: "past"}] * 4,
        },
        opset_version=opset,
    )
    assert program.input_names[:2] == ["input_ids", "past_key_values.key_cache.0"]
    assert program.output_names[:2] == ["logits", "past_key_values.key_cache.0.out"]
    for batch, length, past in ((2, 3, 5), (3, 2, 9)):
        ids, cache = torch.randint(0, 50, (batch, length)), cache_after(llama, batch, past)
        actual = program(input_ids=ids, past_key_values=copy.deepcopy(cache))
        with torch.no_grad():
            expected = llama(input_ids=ids, past_key_values=copy.deepcopy(cache))
        assert type(actual) is type(expected)
        torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(actual.past_key_values.layers, expected.past_key_values.layers, strict=True):
            torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def test_dataclasses_are_taken_apart_and_put_together() -> None:
    class Swap(torch.nn.Module):
        def forward(self, pair: Pair) -> Pair:
            return Pair(left=pair.right * 2, right=pair.left)

    program = export(Swap(), (Pair(torch.ones(2), torch.zeros(2)),), dynamic_shapes={"pair": [{0: "n"}, {0: "m"}]})
    assert program.input_names == ["pair.left", "pair.right"]
    assert program.output_names == ["left", "right"]
    result = program(Pair(torch.ones(3), torch.full((4,), 2.0)))
    assert isinstance(result, Pair)
    torch.testing.assert_close(result.left, torch.full((4,), 4.0))
    torch.testing.assert_close(result.right, torch.ones(3))


def test_nested_dynamic_shapes_follow_the_structure() -> None:
    class Sum(torch.nn.Module):
        def forward(self, inputs):
            return inputs["a"].sum(0) + inputs["b"][0].sum(0) + inputs["b"][1]

    example = ({"a": torch.ones(2, 3), "b": [torch.ones(4, 3), torch.ones(3)]},)
    program = export(Sum(), example, dynamic_shapes={"inputs": {"a": {0: "n"}, "b": [{0: "m"}, None]}})
    other = {"a": torch.randn(5, 3), "b": [torch.randn(1, 3), torch.randn(3)]}
    torch.testing.assert_close(program(other), Sum()(other))


def static_cache(model, batch: int, past: int):
    from transformers import StaticCache

    cache = StaticCache(model.config, max_cache_len=16)
    cache.early_initialization(batch, 2, 8, torch.float32, torch.device("cpu"))
    if past:
        with torch.no_grad():
            model(input_ids=torch.randint(0, 50, (batch, past)), past_key_values=cache)
    return cache


@pytest.mark.parametrize("opset", [18, 24])
def test_decoding_with_a_static_cache_that_is_written_in_place(llama, opset: int) -> None:
    layer = {"keys": {0: "batch"}, "values": {0: "batch"}, "cumulative_length": None}
    program = export(
        llama,
        kwargs={"input_ids": torch.randint(0, 50, (2, 3)), "past_key_values": static_cache(llama, 2, 4)},
        dynamic_shapes={"input_ids": {0: "batch", 1: "length"}, "past_key_values": [*layer.values()] * 2},
        opset_version=opset,
        state="io",
    )
    assert program.input_names[:3] == ["input_ids", "past_key_values.0.keys", "past_key_values.0.values"]
    assert "past_key_values.1.cumulative_length.next" in program.output_names
    for batch, length, past in ((2, 3, 4), (3, 2, 7), (1, 5, 0)):
        ids, cache = torch.randint(0, 50, (batch, length)), static_cache(llama, batch, past)
        actual = program(input_ids=ids, past_key_values=copy.deepcopy(cache))
        with torch.no_grad():
            expected = llama(input_ids=ids, past_key_values=cache)
        torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(actual.past_key_values.layers, expected.past_key_values.layers, strict=True):
            assert mine.cumulative_length == theirs.cumulative_length == past + length
            torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


def test_a_static_cache_without_tensors_is_refused_with_the_call_that_makes_them(llama) -> None:
    from transformers import StaticCache

    cache = StaticCache(llama.config, max_cache_len=16)
    with pytest.raises(InvalidArgumentError, match="early_initialization"):
        export(llama, kwargs={"input_ids": torch.randint(0, 50, (2, 3)), "past_key_values": cache}, state="io")


def test_a_static_cache_with_a_sliding_window_is_refused() -> None:
    from transformers import MistralConfig, StaticCache

    config = MistralConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, sliding_window=8
    )
    cache = StaticCache(config, max_cache_len=16)
    cache.early_initialization(2, 2, 8, torch.float32, torch.device("cpu"))
    with pytest.raises(InvalidArgumentError, match="sliding window"):
        export(torch.nn.Identity(), (cache,))


@exporters
def test_a_dict_at_the_end_is_an_argument_unless_its_keys_are_parameters(exporter: str) -> None:
    class Weighted(torch.nn.Module):
        def forward(self, x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
            return x * parts["scale"] - parts["shift"]

    x, parts = torch.randn(2, 3), {"scale": torch.randn(3), "shift": torch.randn(3)}
    for args in ((x, parts), (x, {"parts": parts})):
        program = EXPORTERS[exporter](Weighted(), args)

        program.answer = "structure"
        torch.testing.assert_close(program(x + 1, parts), Weighted()(x + 1, parts))


@tracing
def test_caches_of_sliding_windows_and_of_encoders_go_in_and_out(exporter: str) -> None:
    import transformers

    sizes = {"vocab_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.Gemma2Config(**sizes, hidden_size=16, num_key_value_heads=1, head_dim=8, sliding_window=8)
    t5 = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    ids = torch.randint(0, 32, (2, 5))
    decoders = [
        (transformers.Gemma2ForCausalLM(config), {"input_ids": ids}),
        (
            transformers.T5ForConditionalGeneration(transformers.T5Config(**t5)),
            {"input_ids": ids, "decoder_input_ids": ids[:, :3]},
        ),
    ]
    for model, call in decoders:
        with torch.no_grad():
            past = model.eval()(**call, use_cache=True).past_key_values
        call = {**call, list(call)[-1]: ids[:, :1], "past_key_values": past, "use_cache": True}
        program = EXPORTERS[exporter](model, (), kwargs=copy.deepcopy(call))

        program.answer = "structure"
        actual = program(**copy.deepcopy(call))
        with torch.no_grad():
            expected = model(**copy.deepcopy(call))
        torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-4)
        mine, theirs = (torch.utils._pytree.tree_leaves(each.past_key_values) for each in (actual, expected))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@tracing
def test_a_cache_whose_window_has_dropped_tokens_is_refused(exporter: str) -> None:
    import transformers

    sizes = {"vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.MistralForCausalLM(
        transformers.MistralConfig(**sizes, hidden_size=16, num_key_value_heads=1, sliding_window=4)
    ).eval()
    with torch.no_grad():
        past = model(input_ids=torch.ones(1, 6, dtype=torch.long), use_cache=True).past_key_values

    with pytest.raises(OnnxExporterError, match="has seen 6 tokens, and its sliding windows hold 3"):
        EXPORTERS[exporter](
            model, (), kwargs={"input_ids": torch.ones(1, 1, dtype=torch.long), "past_key_values": past}
        )
