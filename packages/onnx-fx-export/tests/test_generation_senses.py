"""What models read beside text, and what they make of the text around it, is what their folders make of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_models import input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder

IMAGE = 63


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
