"""What models read beside text, and what they make of the text around it, is what their folders make of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_models import SPEECH_LANGUAGE, input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder

IMAGE = SOUND = 63
BANDS, FRAMES = 8, 40


@pytest.fixture(scope="module")
def paligemma(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model whose prompts may have a prefix that sees itself as a whole, and the folder that was written of it."""
    model = language_model("paligemma")
    return model, export_folder(model, tmp_path_factory.mktemp("prefix") / "out", engine="onnxruntime")


def test_prompts_are_compared_as_processors_make_them(paligemma):
    assert [compared.prompts for compared in paligemma[1].compared] == [(1,), (23,), (116,), (19, 27, 22)]


@pytest.mark.parametrize("suffix", [0, 4, 22, None])
def test_a_prefix_sees_itself_as_a_whole(suffix, paligemma):
    model, folder = paligemma
    tokens = torch.tensor([[*[0] * 4, *[IMAGE] * 16, 7, 9], [*[IMAGE] * 16, 4, 8, 9, 3, 5, 11]])
    inputs = {
        "attention_mask": (tokens != 0).long(),
        "pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
    }
    if suffix is not None:
        inputs["token_type_ids"] = (torch.arange(22) >= 22 - suffix).long().expand(2, -1)

    found = Generator(folder.path).generate(
        tokens.numpy(), **{name: value.numpy() for name, value in inputs.items()}, max_new_tokens=12
    )

    wanted = model.generate(tokens, **inputs, do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=2)
    np.testing.assert_array_equal(found, wanted.numpy())


@pytest.mark.parametrize("types", [[[0, 0]], [[0, 0, 2]]])
def test_types_of_a_prefix_have_to_fit(types, paligemma):
    with pytest.raises(InvalidArgumentError, match="token_type_ids is 0 for each token of the prefix"):
        Generator(paligemma[1].path).generate(np.array([[5, 7, 9]]), token_type_ids=np.array(types))


def test_a_model_whose_body_alone_has_features_of_images_is_written_with_them(tmp_path):
    folder = export_folder(language_model("deepseek_vl"), tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == [(1,), (23,), (116,), (19, 27, 22)]
    assert input_shapes(folder.path / "vision.onnx") == {"pixel_values": [1, 3, 16, 16]}


def test_a_token_that_means_something_beside_an_image_is_refused(tmp_path):
    model = language_model("llava")
    model.config.row_token_id, own = 60, model.model.forward

    def forward(input_ids=None, pixel_values=None, **given):
        if pixel_values is not None:
            input_ids = torch.where(input_ids == 60, 7, input_ids)
        return own(input_ids=input_ids, pixel_values=pixel_values, **given)

    model.model.forward = forward

    with pytest.raises(InvalidArgumentError, match="what it makes of images is not"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_sounds_that_a_folder_does_not_read_are_named(tmp_path):
    model = language_model("llama", num_hidden_layers=1)
    own = model.forward

    def forward(input_ids=None, attention_mask=None, past_key_values=None, audio_input_features=None, **given):
        return own(input_ids, attention_mask, past_key_values=past_key_values, **given)

    model.forward = forward

    with pytest.warns(UserWarning, match="also reads sounds, .* as a model that reads text alone"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_sounds_in_another_form_are_named(tmp_path):
    model = language_model("llama", num_hidden_layers=1)
    own = model.forward

    def forward(input_ids=None, attention_mask=None, past_key_values=None, input_values=None, **given):
        return own(input_ids, attention_mask, past_key_values=past_key_values, **given)

    model.forward = forward

    with pytest.warns(UserWarning, match=r"no graph for \(its sounds are input_values, not input_features\)"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_what_is_read_beside_sounds_is_named(tmp_path):
    model = language_model("voxtral")
    body, own = model.model, model.model.get_audio_features

    def with_texts(input_features, input_ids, **given):
        result = own(input_features, **given)
        result.pooler_output = result.pooler_output + input_ids.sum()
        return result

    body.get_audio_features = with_texts

    with pytest.warns(UserWarning, match="what makes features of its sounds also reads input_ids"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_adapters_that_are_switched_by_what_is_read_are_refused(tmp_path):
    model = language_model("granite_speech", has_lora_adapter=True)
    model.peft_config = {"default": object()}

    with pytest.raises(InvalidArgumentError, match="uses its LoRA adapters for prompts with sounds alone"):
        export_folder(model, tmp_path / "out", engine="onnxruntime")


@pytest.fixture(scope="module")
def flamingo(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model that hears sounds with padding behind them, and the folder that was written of it and verified."""
    model = language_model("audio_flamingo3")
    return model, export_folder(model, tmp_path_factory.mktemp("sounds") / "out", engine="onnxruntime")


def test_prompts_with_sounds_are_compared(flamingo):
    folder = flamingo[1]

    # Sounds of 40, 24 and 12 frames stand for 10, 6 and 3 tokens.
    assert [compared.prompts for compared in folder.compared] == [(1,), (17,), (110,), (13, 17, 9)]
    assert input_shapes(folder.path / "speech.onnx") == {
        "input_features": [1, BANDS, FRAMES],
        "input_features_mask": [1, FRAMES],
    }


def test_several_sounds_stand_in_their_order(flamingo):
    model, folder = flamingo
    tokens = torch.tensor([[*[0] * 4, 5, *[SOUND] * 10, 7], [*[SOUND] * 6, 4, 9, *[SOUND] * 3, 8, 5, 4, 3, 6]])
    mask, parts = (tokens != 0).long(), torch.arange(FRAMES)[None] < torch.tensor([[40], [24], [12]])
    sounds = torch.randn(3, BANDS, FRAMES, generator=torch.Generator().manual_seed(1))

    found, other = (
        Generator(folder.path).generate(
            tokens.numpy(), mask.numpy(), max_new_tokens=12, input_features=given.numpy(),
            input_features_mask=parts.numpy(),
        )
        for given in (sounds, sounds.flip(2))
    )  # fmt: skip

    wanted = model.generate(
        tokens, attention_mask=mask, input_features=sounds, input_features_mask=parts.long(), do_sample=False,
        max_new_tokens=12, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    np.testing.assert_array_equal(found, wanted.numpy())
    assert (found != other).any()


@pytest.mark.parametrize(
    ("count", "frames", "message"),
    [
        (1, FRAMES, "prompts have 8 tokens for sounds, but the sounds in input_features stand for 10"),
        (1, 30, r"Sounds have the shapes .*'input_features': \[1, 8, 40\], .* with as many in each"),
        (2, FRAMES, "with as many in each as there are, and these have"),
    ],
)
def test_sounds_and_their_tokens_have_to_fit(count, frames, message, flamingo):
    sounds = np.zeros((1, BANDS, frames), np.float32)

    with pytest.raises(InvalidArgumentError, match=message):
        Generator(flamingo[1].path).generate(
            np.array([[5, *[SOUND] * 8]]), input_features=sounds, input_features_mask=np.ones((count, frames))
        )


def test_sounds_without_marked_padding_are_written(tmp_path):
    folder = export_folder(language_model("voxtral"), tmp_path / "out", engine="onnxruntime", verify=False)

    assert input_shapes(folder.path / "speech.onnx") == {"input_features": [1, BANDS, FRAMES]}


def test_sounds_that_mean_something_else_are_left_out_with_a_warning(tmp_path):
    model = language_model("voxtral")
    own = model.model.get_audio_features

    def doubled(*args, **given):
        result = own(*args, **given)
        result.pooler_output = 2 * result.pooler_output
        return result

    model.get_audio_features = doubled

    with pytest.warns(UserWarning, match=r"also reads sounds, .* \(what it makes of sounds is not .* reads text alone"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


@pytest.mark.wide
@pytest.mark.parametrize("name", SPEECH_LANGUAGE)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_every_architecture_that_hears_generates_alike(precision, name, tmp_path):
    model = language_model(name).to(torch.float16 if precision == "fp16" else torch.float32)

    folder = export_folder(model, tmp_path / "out", precision, engine="onnxruntime")

    assert {compared.tokens for compared in folder.compared} == {64}
    assert (folder.path / "speech.onnx").exists()
