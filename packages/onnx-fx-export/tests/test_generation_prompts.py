"""Prompts that the generator over plain ONNX Runtime cannot continue are refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from language_models import language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import Generator, export_folder

PROMPT = np.array([[5, 6, 7]])


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Generator:
    """A decoder."""
    out = tmp_path_factory.mktemp("llama") / "out"
    export_folder(language_model("llama", num_hidden_layers=1), out, engine="onnxruntime", verify=False)
    return Generator(out)


@pytest.fixture(scope="module")
def listener(tmp_path_factory) -> Generator:
    """A model with an encoder, which reads samples."""
    out = tmp_path_factory.mktemp("listener") / "out"
    model = language_model("moonshine", decoder_num_hidden_layers=1)
    export_folder(model, out, engine="onnxruntime", verify=False)
    return Generator(out)


@pytest.mark.parametrize(
    ("prompts", "settings", "text"),
    [
        ([[5], [6, 7]], {}, "input_ids is .batch, tokens., with rows of one length"),
        ("hello", {}, "input_ids are whole numbers, such as a tokenizer makes"),
        (np.array([[1.5]]), {}, "input_ids are whole numbers"),
        (np.array([[5, -1]]), {}, "Tokens are 0 or more"),
        (PROMPT, {"attention_mask": PROMPT}, "a mask is 1 for a token and 0 for padding"),
        (PROMPT, {"attention_mask": np.zeros_like(PROMPT)}, "at least one token, and one of these has padding alone"),
        (PROMPT, {"max_new_tokens": -1}, "max_new_tokens=-1 is no number of tokens"),
        (PROMPT, {"max_new_tokens": "3"}, "max_new_tokens='3' is no number of tokens"),
    ],
)
def test_prompts_that_are_none_are_refused(prompts, settings, text, llama):
    with pytest.raises(InvalidArgumentError, match=text):
        llama.generate(prompts, **settings)


def test_with_all_logits_those_of_the_last_token_count(tmp_path):
    model = language_model("llama", num_hidden_layers=1)
    tokens, mask = np.array([[9, 4, 0, 0], [5, 6, 7, 8]]), np.array([[1, 1, 0, 0], [1, 1, 1, 1]])

    export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False, logits="all")

    found = Generator(tmp_path / "out").generate(tokens, mask, max_new_tokens=8)
    for row, length in enumerate((2, 4)):
        alone = torch.from_numpy(tokens[row : row + 1, :length])
        wanted = model.generate(alone, do_sample=False, max_new_tokens=8)[0, length:]
        np.testing.assert_array_equal(found[row, 4:], wanted.numpy())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"decoder_input_ids": np.array([[1], [1]])}, "decoder_input_ids has 2 rows, and what is encoded has 1"),
        ({"decoder_input_ids": np.array([1])}, "with at least one token"),
        ({"attention_mask": np.arange(5000)[None] < 4000}, "The sounds have padding, which the folder does not read"),
    ],
)
def test_what_does_not_fit_a_sound_is_refused(settings, text, listener):
    with pytest.raises(InvalidArgumentError, match=text):
        listener.generate(input_values=np.zeros((1, 5000), np.float32), **settings)


def test_a_mask_that_hides_nothing_is_as_good_as_none(listener):
    sound = np.random.default_rng(0).standard_normal((1, 5000), np.float32)

    found = listener.generate(input_values=sound, attention_mask=np.ones((1, 5000)), max_new_tokens=4)

    np.testing.assert_array_equal(found, listener.generate(input_values=sound, max_new_tokens=4))


@pytest.mark.parametrize(
    ("content", "text"),
    [("{", "cannot be read: .* Write the folder anew"), ("[]", "holds no settings"), ("{}", "names no decoder")],
)
def test_a_folder_that_says_nothing_is_refused(content: str, text: str, tmp_path: Path):
    (tmp_path / "genai_config.json").write_text(content)

    with pytest.raises(InvalidArgumentError, match=text):
        Generator(tmp_path)
