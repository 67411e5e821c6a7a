"""Modules that are none of transformers, and are called like its models, generate what their forward finds likely."""

from __future__ import annotations

import types

import numpy as np
import onnx
import pytest
import torch
from language_models import language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import Generator, export_folder

ALL_BATCHES = [(1,), (7,), (100,), (3, 11, 6)]
_HEADS, _WIDTH, _KNOWN = 4, 8, 64


class Attention(torch.nn.Module):
    """Attention whose keys and values are kept by a cache of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = torch.nn.Linear(_HEADS * _WIDTH, 3 * _HEADS * _WIDTH)

    def forward(self, x, mask, cache):
        parts = self.joined(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (_HEADS, _WIDTH)).transpose(1, 2) for part in parts)
        key, value = cache.update(key, value, 0)
        read = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return x + read.transpose(1, 2).flatten(2)


class Plain(torch.nn.Module):
    """A language model of one layer, with nothing beside its forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.positions = (torch.nn.Embedding(rows, _HEADS * _WIDTH) for rows in (_KNOWN, 256))
        self.attention, self.head = Attention(), torch.nn.Linear(_HEADS * _WIDTH, _KNOWN)

    def forward(self, input_ids, attention_mask, past_key_values):
        past, new = past_key_values.get_seq_length(), input_ids.shape[1]
        places = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -new:]
        seen = torch.arange(past + new) <= torch.arange(new)[:, None] + past
        mask = torch.where(seen & attention_mask[:, None, None].bool(), 0.0, -1e9).to(self.head.weight.dtype)
        x = self.embedding(input_ids) + self.positions(places)
        return self.head(self.attention(x, mask, past_key_values))


class ByName(Plain):
    def forward(self, input_ids, attention_mask, past_key_values=None):
        return types.SimpleNamespace(logits=super().forward(input_ids, attention_mask, past_key_values))


class InADict(Plain):
    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=False):
        logits = super().forward(input_ids, attention_mask, past_key_values)
        return {"logits": logits, "past_key_values": past_key_values}


class InOrder(Plain):
    def forward(self, input_ids, attention_mask, past_key_values):
        return super().forward(input_ids, attention_mask, past_key_values), past_key_values


class Forgetting(Plain):
    def forward(self, input_ids, attention_mask, past_key_values):
        import transformers

        return super().forward(input_ids, torch.ones_like(input_ids), transformers.DynamicCache())


class WithoutLogits(Plain):
    def forward(self, input_ids, attention_mask, past_key_values):
        return {"scores": super().forward(input_ids, attention_mask, past_key_values)}


class WithPairs(Plain):
    def forward(self, input_ids, attention_mask, past_key_values):
        logits = super().forward(input_ids, attention_mask, past_key_values)
        return logits, tuple((layer.keys, layer.values) for layer in past_key_values.layers)


class WithoutCache(Plain):
    def forward(self, input_ids, attention_mask):
        raise NotImplementedError


class WithoutMask(Plain):
    def forward(self, input_ids, past_key_values):
        raise NotImplementedError


def most_likely(model: torch.nn.Module, tokens: list[int], new: int) -> list[int]:
    """The tokens that a model finds most likely behind others, each by reading all that is before it."""
    import transformers

    for _ in range(new):
        read, cache = torch.tensor([tokens]), transformers.DynamicCache()
        with torch.no_grad():
            tokens = [*tokens, int(model(read, torch.ones_like(read), cache)[0, -1].argmax())]
    return tokens


def test_a_module_with_nothing_beside_its_forward_generates_alike(tmp_path):
    model = Plain()

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES
    found = Generator(folder.path).generate(np.array([[5, 9, 4]]), max_new_tokens=20)
    assert found.tolist() == [most_likely(model, [5, 9, 4], 20)]
    assert len(set(found[0].tolist())) > 5


def test_genai_runs_a_module_of_ones_own(tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    with pytest.warns(UserWarning, match="GenAI ends a text at the padding token"):
        folder = export_folder(Plain(), tmp_path / "out", "int4")
    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES


@pytest.mark.parametrize("kind", [ByName, InADict, InOrder])
def test_logits_and_cache_may_be_returned_in_several_forms(kind, tmp_path):
    folder = export_folder(kind(), tmp_path / "out", engine="onnxruntime", verify=False)

    found = Generator(folder.path).generate(np.array([[5, 9, 4]]), max_new_tokens=5)

    assert found.tolist() == [most_likely(Plain(), [5, 9, 4], 5)]


def test_logits_of_the_last_token_alone_are_made_where_a_layer_makes_them(tmp_path):
    for logits, count in (("last", 1), ("all", "sequence_length")):
        folder = export_folder(Plain(), tmp_path / logits, engine="onnxruntime", verify=False, logits=logits)
        (output, *_) = onnx.load(folder.path / "model.onnx", load_external_data=False).graph.output
        axis = output.type.tensor_type.shape.dim[1]
        assert (axis.dim_value or axis.dim_param) == count


def test_what_a_module_says_of_itself_counts(tmp_path):
    model, wanted = Plain(), most_likely(Plain(), [5, 9, 4], 20)
    model.config = {"max_position_embeddings": 40, "eos_token_id": wanted[8], "pad_token_id": 0}

    generator = Generator(export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False).path)

    found = generator.generate(np.array([[5, 9, 4]]), max_new_tokens=20).tolist()
    assert found == [wanted[: wanted.index(wanted[8], 3) + 1]]
    with pytest.raises(InvalidArgumentError, match="the model takes 40 at most"):
        generator.generate(np.array([[5, 9, 4]]), max_new_tokens=38)


def test_a_wrong_token_of_a_module_leaves_no_folder(tmp_path, monkeypatch):
    from onnx_fx_export import VerificationError
    from onnx_fx_export.generation.kinds import modules

    own = modules.CalledModule.generate

    def other(*args, **given):
        return own(*args, **given).roll(1)

    monkeypatch.setattr(modules.CalledModule, "generate", other)
    with pytest.raises(VerificationError, match="the model's own generate gives"):
        export_folder(Plain(), tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Forgetting, "it makes something else of a token behind its past_key_values than of a whole text"),
        (WithoutLogits, "it returns dict, which has no logits"),
        (WithPairs, "its cache is tuple, and so far only a DynamicCache is supported"),
        (WithoutCache, "its forward has no past_key_values"),
        (WithoutMask, "its forward has no attention_mask"),
    ],
)
def test_modules_that_are_called_in_another_way_are_refused(kind, text, tmp_path):
    with pytest.raises(InvalidArgumentError, match=f"{kind.__name__} cannot be written as a folder .*: {text}"):
        export_folder(kind(), tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


def test_a_module_elsewhere_than_on_the_cpu_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="The model has weights on meta, and is run on the CPU"):
        export_folder(Plain().to("meta"), tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


def test_a_configuration_that_says_little_is_filled_up(tmp_path):
    import transformers

    model = Plain()
    model.config = transformers.PreTrainedConfig(eos_token_id=7)

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert Generator(folder.path).config["model"]["eos_token_id"] == 7


@pytest.mark.wide
def test_a_module_that_holds_a_model_of_transformers_is_written_with_its_settings(tmp_path):
    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = language_model("gemma2", num_hidden_layers=2)
            self.config, self.generation_config = self.inner.config, self.inner.generation_config

        def forward(self, input_ids, attention_mask=None, past_key_values=None, **given):
            return self.inner(input_ids, attention_mask, past_key_values=past_key_values, **given)

    model, tokens = Holding(), np.array([[5, 9, 4]])

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES
    wanted = model.inner.generate(torch.from_numpy(tokens), do_sample=False, max_new_tokens=30)
    np.testing.assert_array_equal(Generator(folder.path).generate(tokens, max_new_tokens=30), wanted.numpy())
