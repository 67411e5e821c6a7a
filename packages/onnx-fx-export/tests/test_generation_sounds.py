"""Models that hear sounds of any length among the tokens of a text generate token for token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_models import input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder

SOUND, BANDS, BLOCK = 63, 8, 100
# Frames of three sounds, and the tokens that stand for them: the first two are of one text.
FRAMES, COUNTS = (130, 290, 40), (17, 38, 5)
TEXTS = torch.tensor([[5, *[SOUND] * 17, 7, *[SOUND] * 38, 8], [*[0] * 50, 9, 4, *[SOUND] * 5, 6]])
MASK = (TEXTS != 0).long()


@pytest.fixture(scope="module")
def listener(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model whose sounds have any length, and the folder that was written of it."""
    model = language_model("qwen3_asr")
    return model, export_folder(model, tmp_path_factory.mktemp("heard") / "out", engine="onnxruntime", verify=False)


def heard() -> dict[str, torch.Tensor]:
    """Return the sounds, with something in the padding of whole blocks that must not be heard."""
    parts = (torch.arange(400) < torch.tensor(FRAMES)[:, None]).long()
    return {"input_features": torch.randn(3, BANDS, 400, generator=torch.Generator().manual_seed(1)),
            "input_features_mask": parts}  # fmt: skip


def test_sounds_of_any_length_stand_in_their_order(listener):
    model, folder = listener
    sounds = heard()

    found, other = (
        Generator(folder.path).generate(
            TEXTS.numpy(), MASK.numpy(), max_new_tokens=12, input_features=given.numpy(),
            input_features_mask=sounds["input_features_mask"].numpy(),
        )
        for given in (sounds["input_features"], sounds["input_features"].flip(1))
    )  # fmt: skip

    wanted = model.generate(TEXTS, attention_mask=MASK, **sounds, do_sample=False, max_new_tokens=12).numpy()
    np.testing.assert_array_equal(found, wanted)
    assert (found != other).any()
    assert input_shapes(folder.path / "speech.onnx") == {
        "input_features": [1, BANDS, "100*block_count"],
        "input_features_mask": [1, "100*block_count"],
    }


def test_a_sound_of_one_block_may_come_without_a_mask(listener):
    model, folder = listener
    tokens, sound = torch.tensor([[5, *[SOUND] * 13, 8]]), heard()["input_features"][:1, :, :BLOCK]

    found = Generator(folder.path).generate(tokens.numpy(), input_features=sound.numpy(), max_new_tokens=12)

    wanted = model.generate(
        tokens, input_features=sound, input_features_mask=torch.ones(1, BLOCK).long(), do_sample=False,
        max_new_tokens=12,
    )  # fmt: skip
    np.testing.assert_array_equal(found, wanted.numpy())


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_features": np.zeros((3, BANDS, 350), np.float32)},
        {"input_features": np.zeros((BANDS, 400), np.float32)},
        {"input_features_mask": np.ones((3, 300), np.int64)},
        {"input_features_mask": np.flip(heard()["input_features_mask"].numpy(), 1)},
    ],
)
def test_sounds_and_their_padding_have_to_fit(wrong, listener):
    sounds = {**{name: value.numpy() for name, value in heard().items()}, **wrong}

    with pytest.raises(
        InvalidArgumentError, match=r"Sounds are input_features \(N, bands, frames\) with frames by 100"
    ):
        Generator(listener[1].path).generate(TEXTS.numpy(), MASK.numpy(), **sounds)


def test_sounds_and_their_tokens_have_to_fit(listener):
    sounds = {name: value.numpy()[:2] for name, value in heard().items()}

    with pytest.raises(InvalidArgumentError, match=r"prompts have 60 tokens for sounds, but .* stand for 55"):
        Generator(listener[1].path).generate(TEXTS.numpy(), MASK.numpy(), **sounds)
