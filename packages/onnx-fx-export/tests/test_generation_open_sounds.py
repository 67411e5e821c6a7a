"""Models that hear sounds of any length together, or by an encoder that only their forward calls."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from language_models import input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.quantization import BITS, quantized

SOUND, BANDS = 63, 8
Written = tuple[torch.nn.Module, GenerationFolder]


def written(name: str, tmp_path_factory: pytest.TempPathFactory) -> Written:
    model = language_model(name)
    return model, export_folder(model, tmp_path_factory.mktemp(name) / "out", engine="onnxruntime", verify=False)


@pytest.fixture(scope="module")
def blockwise(tmp_path_factory) -> Written:
    """A model whose encoder reads sounds by blocks of 8 frames, of which 6 become 3 tokens."""
    return written("granite_speech", tmp_path_factory)


@pytest.fixture(scope="module")
def attentive(tmp_path_factory) -> Written:
    """A model whose encoder reads sounds as a whole, and is told where they have padding."""
    return written("fun_asr_nano", tmp_path_factory)


@pytest.fixture(scope="module")
def projected(tmp_path_factory) -> Written:
    """A model whose forward alone makes features of sounds, of 40 frames."""
    return written("qwen2_audio", tmp_path_factory)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def generated(folder: GenerationFolder, tokens: torch.Tensor, **inputs: torch.Tensor) -> np.ndarray:
    given = {name: value.numpy() for name, value in inputs.items()}
    return Generator(folder.path).generate(tokens.numpy(), max_new_tokens=12, **given)


def wanted(model: torch.nn.Module, tokens: torch.Tensor, **inputs: torch.Tensor) -> np.ndarray:
    result: torch.Tensor = model.generate(
        tokens, **inputs, do_sample=False, max_new_tokens=12, eos_token_id=2, pad_token_id=0
    )
    return result.numpy()


@pytest.mark.parametrize("frames", [1, 5, 8, 11, 16, 21, 24, 48])
def test_a_sound_of_any_length_is_heard(frames, blockwise):
    model, folder = blockwise
    tokens = torch.tensor([[5, *[SOUND] * (-(-frames // 6) * 3), 7, 9]])
    sound = random(1, frames, BANDS)

    found = generated(folder, tokens, input_features=sound)

    np.testing.assert_array_equal(found, wanted(model, tokens, input_features=sound))


def test_sounds_are_heard_together_with_the_padding_that_the_processor_makes(blockwise):
    model, folder = blockwise
    tokens = torch.tensor([[5, *[SOUND] * 3, 7, *[SOUND] * 9, 8], [*[0] * 8, 9, *[SOUND] * 6]])
    inputs = {
        "attention_mask": (tokens != 0).long(),
        "input_features": random(3, 18, BANDS),
        "input_features_mask": torch.arange(9)[None] < torch.tensor([[3], [9], [6]]),
    }

    np.testing.assert_array_equal(generated(folder, tokens, **inputs), wanted(model, tokens, **inputs))
    for file, frames in (("speech.onnx", "frame_count"), ("speech_blocks.onnx", "8*block_count")):
        assert input_shapes(folder.path / file) == {"input_features": ["sound_count", frames, BANDS]}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_features": random(1, BANDS)}, r"Sounds are input_features \(N, frames, bands\) with 8 bands"),
        ({"input_features": random(1, 12, 5)}, r"with 8 bands, and these have the shape \(1, 12, 5\)"),
        ({"input_features": random(1, 12, 8)}, "prompts have 3 tokens for sounds, but .* stand for 6"),
        (
            {"input_features": random(1, 12, 8), "input_features_mask": torch.ones(1, 5)},
            r"input_features_mask is 1 .* of the shape \(1, 6\) for these sounds: it has the shape \(1, 5\)",
        ),
    ],
)
def test_sounds_and_their_marks_have_to_fit(inputs, message, blockwise):
    with pytest.raises(InvalidArgumentError, match=message):
        generated(blockwise[1], torch.tensor([[5, *[SOUND] * 3]]), **inputs)


def test_padding_behind_sounds_is_not_heard(attentive):
    model, folder = attentive
    tokens = torch.tensor([[5, *[SOUND] * 7, 7, *[SOUND] * 4, 8], [*[0] * 3, 9, *[SOUND] * 10]])
    inputs = {
        "attention_mask": (tokens != 0).long(),
        "input_features": random(3, 10, BANDS),
        "input_features_mask": (torch.arange(10)[None] < torch.tensor([[7], [4], [10]])).long(),
    }

    np.testing.assert_array_equal(generated(folder, tokens, **inputs), wanted(model, tokens, **inputs))


def test_sounds_that_only_the_forward_encodes_are_heard(projected):
    model, folder = projected
    tokens = torch.tensor([[5, *[SOUND] * 10, 7, *[SOUND] * 3, 8], [*[0] * 9, 9, *[SOUND] * 6]])
    inputs = {
        "attention_mask": (tokens != 0).long(),
        "input_features": random(3, BANDS, 40),
        "feature_attention_mask": (torch.arange(40)[None] < torch.tensor([[40], [14], [25]])).long(),
    }

    np.testing.assert_array_equal(generated(folder, tokens, **inputs), wanted(model, tokens, **inputs))
    assert input_shapes(folder.path / "speech.onnx") == {
        "input_features": [1, BANDS, 40],
        "feature_attention_mask": [1, 40],
    }


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_folder_whose_weights_stay_in_files_hears(precision, tmp_path):
    model = language_model("voxtral")
    model.save_pretrained(tmp_path / "source")

    folder = export_folder(
        tmp_path / "source", tmp_path / "out", precision, engine="onnxruntime", verify=False, tokenizer=False
    )

    tokens, sound = torch.tensor([[5, *[SOUND] * 5, 8]]), random(1, BANDS, 40)
    with quantized(model, BITS[precision]) if precision in BITS else contextlib.nullcontext():
        expected = wanted(model, tokens, input_features=sound)
    np.testing.assert_array_equal(generated(folder, tokens, input_features=sound), expected)
