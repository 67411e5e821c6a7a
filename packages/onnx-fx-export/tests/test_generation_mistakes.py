"""What a new user gets wrong when a folder is written is one clear error, and nothing is left behind."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from language_models import language_model

from onnx_fx_export import CaptureError, InvalidArgumentError, SaveError, VerificationError
from onnx_fx_export.generation import Generator, export_folder
from onnx_fx_export.generation.config import unapplied_settings
from onnx_fx_export.generation.engines import engine_of
from onnx_fx_export.generation.kinds import kind_of
from onnxops_decomp.exporting import MissingRuntimeError


def one_layer(**settings: object) -> torch.nn.Module:
    return language_model("llama", num_hidden_layers=1, **settings)


def encoder() -> torch.nn.Module:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    return transformers.BertLMHeadModel(transformers.BertConfig(vocab_size=64, **sizes))


def without_a_config() -> torch.nn.Module:
    model = one_layer()
    model.config = None
    return model


class Own(torch.nn.Module):
    """A model of the user's own, which calls another one and is called like it."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.inner = one_layer()
        self.config, self.generation_config = self.inner.config, self.inner.generation_config
        self.get_output_embeddings = self.inner.get_output_embeddings

    def can_generate(self) -> bool:
        return True

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None, **given):
        return self.inner(input_ids, attention_mask, past_key_values=past_key_values, use_cache=use_cache, **given)


class Failing(Own):
    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None, return_dict=None):
        raise KeyError("boom")


def with_a_word_that_ends() -> torch.nn.Module:
    model = one_layer()
    model.generation_config.eos_token_id = "2"
    return model


def that_makes_sounds() -> torch.nn.Module:
    model = one_layer()
    model.output_modalities = ("audio",)
    return model


def with_steps_of_its_own() -> torch.nn.Module:
    model = one_layer()

    class Own(type(model)):
        def _sample(self, *args, **given):
            raise NotImplementedError

    model.__class__ = Own
    return model


def whose_cache_alone_has_a_window(**settings: object) -> torch.nn.Module:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8, "ffn_dim": 64}
    config = transformers.MoshiConfig(
        vocab_size=64, audio_vocab_size=32, max_position_embeddings=64, depth_decoder_config={}, **sizes, **settings
    )
    return transformers.MoshiForCausalLM(config)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: "meta-llama/Llama-3.2-1B", r"There is no folder meta-llama/Llama-3\.2-1B\. .* download one first"),
        (encoder, "BertLMHeadModel .*: it returns no cache. With config.is_decoder = False it is an encoder"),
        (without_a_config, "has no config, which says what it is like"),
        (lambda: torch.compile(one_layer()), "has no .*input_ids, .* as torch.compile does, pass that"),
        (Failing, "Failing cannot be run: its own code raises KeyError: 'boom'. Call its generate with a short"),
        (that_makes_sounds, "LlamaForCausalLM cannot be written .*: it generates audio by steps of its own"),
        (with_steps_of_its_own, "Own cannot be written .*: it generates text by steps of its own, and so far only"),
        (with_a_word_that_ends, "has the token '2', and tokens are numbers"),
        (
            lambda: whose_cache_alone_has_a_window(sliding_window=8),
            "its cache keeps 8 tokens, but its masks .* Set config.sliding_window to at least 64",
        ),
    ],
)
def test_a_model_that_is_no_decoder_is_refused(make, text, tmp_path):
    with pytest.raises(InvalidArgumentError, match=text):
        export_folder(make(), tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


def test_a_window_that_no_text_reaches_is_none(tmp_path):
    model = whose_cache_alone_has_a_window(sliding_window=64)
    assert export_folder(model, tmp_path / "out", engine="onnxruntime").nodes


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("config.json", {"model_type": "vit", "architectures": ["ViTModel"]}, "holds ViTModel, which cannot generate"),
        ("adapter_config.json", {}, "has no config.json. It holds adapters: load the model"),
        ("notes.json", {}, "is not a folder of a transformers model: it has no config.json.$"),
    ],
)
@pytest.mark.parametrize("verify", [False, True])
def test_a_folder_of_something_else_is_refused_for_what_it_is(file, content, text, verify, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / file).write_text(json.dumps(content))

    with pytest.raises(InvalidArgumentError, match=text):
        export_folder(source, tmp_path / "out", engine="onnxruntime", tokenizer=False, verify=verify)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("out", [None, 5, torch.nn.Linear(1, 1)])
def test_a_place_that_is_no_path_is_refused(out):
    with pytest.raises(InvalidArgumentError, match=r"is no path\. Pass the model first, then the folder"):
        export_folder(torch.nn.Linear(2, 2), out)


def test_a_place_that_no_name_may_be_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="is no path: it has a character that no name may have"):
        export_folder(torch.nn.Linear(2, 2), tmp_path / "a\0b")


def test_a_link_to_nowhere_is_not_replaced(tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")

    with pytest.raises(SaveError, match="already exists"):
        export_folder(torch.nn.Linear(2, 2), tmp_path / "out")


def test_progress_that_cannot_be_called_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="progress=5 cannot be called"):
        export_folder(torch.nn.Linear(2, 2), tmp_path / "out", progress=5)


class Unsaved:
    """A tokenizer whose disk is full; what is written in Rust says so by a plain exception."""

    def save_pretrained(self, folder: Path) -> None:
        raise Exception("No space left on device (os error 28)")


def test_a_tokenizer_that_cannot_be_saved_is_an_error_of_the_package(tmp_path):
    with pytest.raises(SaveError, match="The tokenizer cannot be saved: No space left"):
        export_folder(one_layer(), tmp_path / "out", engine="onnxruntime", verify=False, tokenizer=Unsaved())
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_is_told_of_once(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise SaveError("The model cannot be written.") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("onnx_fx_export.generation.folder.ONNXProgram.save", full)

    with pytest.raises(SaveError, match=r"The folder \S*out cannot be written: No space left on device\.$"):
        export_folder(one_layer(), tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


def test_code_that_no_graph_holds_is_a_mistake_about_the_model(tmp_path, monkeypatch):
    def branching(*_: object, **__: object) -> None:
        raise CaptureError("The model branches on the values of a tensor at model.py:5.")

    monkeypatch.setattr("onnx_fx_export.generation.folder.export", branching)

    with pytest.raises(InvalidArgumentError, match=r"LlamaForCausalLM cannot .* makes of text\. .* at model\.py:5"):
        export_folder(one_layer(), tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupt(stage: str) -> None:
        if stage == "export model.onnx":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_folder(one_layer(), tmp_path / "out", engine="onnxruntime", verify=False, progress=interrupt)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("package", "old"), [("transformers", "4.57.1"), ("onnxruntime_genai", "0.9.2")])
def test_a_release_that_is_too_old_is_named(package, old, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime_genai", reason="an optional package")
    monkeypatch.setattr(pytest.importorskip(package, reason="an optional package"), "__version__", old)

    with pytest.raises(MissingRuntimeError, match=rf"or newer, and {old} is installed: pip install .* --upgrade"):
        export_folder(one_layer(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_settings_that_an_engine_does_not_apply_are_named(tmp_path):
    model = one_layer()
    model.generation_config.update(suppress_tokens=[5], repetition_penalty=1.3, guidance_scale=1.0, num_beams=1)

    with pytest.warns(UserWarning, match=r"sets repetition_penalty, suppress_tokens, which engine='onnxruntime' does"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)
    assert unapplied_settings(model, "genai") == ["suppress_tokens"]
    model.generation_config.update(forced_bos_token_id=7, forced_eos_token_id=2, suppress_tokens=None)
    assert unapplied_settings(model, "genai") == ["forced_bos_token_id", "forced_eos_token_id"]
    assert unapplied_settings(model, "onnxruntime") == ["repetition_penalty"]


@pytest.mark.parametrize(
    ("settings", "genai", "onnxruntime"),
    [
        ({"do_sample": True, "min_p": 0.1}, ["min_p"], ["do_sample", "min_p"]),
        ({"num_beams": 3}, ["num_beams"], ["num_beams"]),
        ({"cache_implementation": "quantized"}, ["cache_implementation"], ["cache_implementation"]),
        ({"cache_implementation": "static"}, [], []),
    ],
)
def test_what_an_engine_does_not_apply_depends_on_the_settings(settings, genai, onnxruntime):
    model = one_layer()
    model.generation_config.update(**settings)

    assert [unapplied_settings(model, engine) for engine in ("genai", "onnxruntime")] == [genai, onnxruntime]


def test_padding_that_ends_texts_and_is_penalized_is_told_of(tmp_path):
    model = one_layer()
    model.generation_config.update(repetition_penalty=1.3, pad_token_id=2)

    with pytest.warns(UserWarning, match="counts padding among the tokens that repetition_penalty makes less likely"):
        export_folder(model, tmp_path / "out", verify=False)


def test_tokens_that_a_model_does_not_know_end_no_text(tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model = one_layer()
    model.generation_config.update(eos_token_id=[999, 2, -1], pad_token_id=640)
    model.generation_config.update(num_beams=2, num_return_sequences=2)
    kind = kind_of(model)
    batch = kind.batch((3, 5))

    folder = export_folder(model, tmp_path / "out", verify=False)

    assert Generator(folder.path).config["model"]["eos_token_id"] == 2
    found = engine_of("genai", folder.path, Generator(folder.path))(batch, kind.prefix(batch), 6, None)
    for row, tokens in zip(batch.rows, found, strict=True):
        np.testing.assert_array_equal(tokens, kind.generate(kind.extended(row, np.zeros(0, np.int64)), 6))


def test_weights_that_are_no_numbers_are_told_of(tmp_path):
    model = one_layer()
    model.lm_head.weight.data[3, 3] = float("nan")

    with pytest.raises(VerificationError, match="the model's own logits are not all finite"):
        export_folder(model, tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


def test_what_is_no_path_has_no_generator() -> None:
    with pytest.raises(InvalidArgumentError, match="folder=NoneType is no path"):
        Generator(None)  # type: ignore[arg-type]
