"""Caches, model outputs and dataclasses go in and come out as they are in torch."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys

import pytest
import torch
from both_exporters import EXPORTERS, exporters, tracing

from onnx_fx_export import InvalidArgumentError, OnnxExporterError, export
from onnxops_decomp.exporting import cache_argument


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
    ids, name = torch.randint(0, 50, (2, 3)), cache_argument(llama)
    program = export(
        llama,
        kwargs={"input_ids": ids, name: cache_after(llama, 2, 5)},
        dynamic_shapes={"input_ids": {0: "batch", 1: "length"}, name: [{0: "batch", 2: "past"}] * 4},
        opset_version=opset,
    )
    assert program.input_names[:2] == ["input_ids", f"{name}.key_cache.0"]
    assert program.output_names[:2] == ["logits", f"{name}.key_cache.0.out"]
    for batch, length, past in ((2, 3, 5), (3, 2, 9)):
        ids, cache = torch.randint(0, 50, (batch, length)), cache_after(llama, batch, past)
        actual = program(input_ids=ids, **{name: copy.deepcopy(cache)})
        with torch.no_grad():
            expected = llama(input_ids=ids, **{name: copy.deepcopy(cache)})
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


@pytest.mark.parametrize("form", ["flat", "by kind", "by name"])
def test_sizes_of_a_cache_are_declared_for_its_tensors_or_for_each_kind_of_them(llama, form: str) -> None:
    past = {0: "batch", 2: "past"}
    forms = {
        "flat": [past] * 4,
        "by kind": [[past] * 2] * 2,
        "by name": {"value_cache": [past] * 2, "key_cache": [past] * 2},
    }
    program = export(
        llama,
        kwargs={"input_ids": torch.randint(0, 50, (2, 3)), "past_key_values": cache_after(llama, 2, 5)},
        dynamic_shapes={"input_ids": {0: "batch"}, "past_key_values": forms[form]},
    )
    names = ["key_cache.0", "value_cache.0", "key_cache.1", "value_cache.1"]
    assert program.input_names == ["input_ids", *(f"past_key_values.{name}" for name in names)]
    shapes = [str(value.shape) for value in program.model.graph.inputs][1:]
    assert shapes == ["[batch,2,past,8]"] * 4


def assert_decodes_like(program, model, name: str, batch: int, past: int, length: int) -> None:
    """Compare the logits of a step with those of the model."""
    ids = torch.randint(3, 50, (batch, past + length))
    with torch.no_grad():
        cache = model(input_ids=ids[:, :past], use_cache=True)[name]
        expected = model(input_ids=ids[:, past:], **{name: copy.deepcopy(cache)}).logits
    actual = program(input_ids=ids[:, past:], **{name: cache}).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_states_of_linear_attention_go_in_and_come_out() -> None:
    import transformers

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**sizes, **heads, full_attn_idxs=[1])).eval()
    ids = torch.randint(3, 50, (2, 5))
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    program = export(
        model,
        kwargs={"input_ids": ids[:, :1], "past_key_values": copy.deepcopy(cache)},
        dynamic_shapes={"input_ids": {0: "b"}, "past_key_values": [{0: "b"}, {0: "b", 2: "past"}, {0: "b", 2: "past"}]},
    )
    assert program.input_names[1:] == [
        f"past_key_values.{name}.0" for name in ("conv_states", "key_cache", "value_cache")
    ]
    for batch, past in ((2, 5), (3, 9), (1, 2)):
        assert_decodes_like(program, model, "past_key_values", batch, past, 1)
    before = copy.deepcopy(cache)
    program(input_ids=ids[:, :1], past_key_values=cache)
    torch.testing.assert_close(cache.layers[0].conv_states[0], before.layers[0].conv_states[0])


class Asking(torch.nn.Module):
    """Asks for a class in a way that has its export compared with the model."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, past_key_values):
        if type(input_ids) is not torch.Tensor:
            input_ids = torch.as_tensor(input_ids)
        return self.model(input_ids=input_ids, past_key_values=past_key_values)


@pytest.mark.parametrize("around", [torch.nn.Module.eval, Asking])
def test_a_sliding_window_does_not_limit_a_cache_that_holds_all_tokens(around) -> None:
    import transformers

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, **heads, sliding_window=6)).eval()
    ids = torch.randint(3, 50, (2, 16))
    with torch.no_grad():
        cache = model(input_ids=ids[:, :3], use_cache=True).past_key_values
        expected = model(input_ids=ids).logits
    program = export(
        around(model),
        kwargs={"input_ids": ids[:, 3:5], "past_key_values": copy.deepcopy(cache)},
        dynamic_shapes={"input_ids": {0: "b", 1: "s"}, "past_key_values": [{0: "b", 2: "past"}] * 2},
    )
    for start in range(3, 15, 2):
        result = program(input_ids=ids[:, start : start + 2], past_key_values=cache)
        cache = result.past_key_values
        torch.testing.assert_close(result.logits, expected[:, start : start + 2], rtol=1e-4, atol=1e-5)


def test_caches_are_taken_apart_alike_whoever_registered_them_first() -> None:
    source = """
import copy, torch, transformers
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter
from onnx_fx_export import export

torch.set_grad_enabled(False)
sizes = dict(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=1)).eval()
ids = torch.randint(3, 50, (2, 3))
cache = model(input_ids=ids, use_cache=True).past_key_values
call = {"input_ids": ids, "past_key_values": cache}
theirs = DynamoExporter().export(model, copy.deepcopy(call), DynamoConfig())
program = export(model, kwargs=copy.deepcopy(call))
assert program.input_names[1:] == ["past_key_values.key_cache.0", "past_key_values.value_cache.0"], program.input_names
expected = model(**copy.deepcopy(call)).logits
torch.testing.assert_close(program(**copy.deepcopy(call)).logits, expected, rtol=1e-4, atol=1e-5)
again = DynamoExporter().export(model, copy.deepcopy(call), DynamoConfig())
torch.testing.assert_close(again(**copy.deepcopy(call)).logits, expected, rtol=1e-4, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", source], check=True)


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
