"""Models that read images become folders of three graphs, which generate token for token like the models themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_models import VISION_LANGUAGE, input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder

IMAGE = 63


@pytest.fixture(scope="module")
def llava(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model, and the folder that was written of it and verified."""
    model = language_model("llava")
    return model, export_folder(model, tmp_path_factory.mktemp("llava") / "out", engine="onnxruntime")


def test_prompts_with_images_are_compared(llava):
    # An image stands for 16 tokens; the first prompt has none.
    assert [compared.prompts for compared in llava[1].compared] == [(1,), (23,), (116,), (19, 27, 22)]
    assert {compared.tokens for compared in llava[1].compared} == {64}


def test_each_graph_reads_what_it_needs(llava):
    _, folder = llava

    assert input_shapes(folder.path / "vision.onnx") == {"pixel_values": [1, 3, 16, 16]}
    assert input_shapes(folder.path / "embedding.onnx") == {
        "input_ids": ["batch_size", "sequence_length"],
        "image_features": ["image_token_count", 32],
    }
    assert input_shapes(folder.path / "model.onnx")["inputs_embeds"] == ["batch_size", "sequence_length", 32]


def test_several_images_stand_in_their_order(llava):
    model, folder = llava
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    one, two = [5, *[IMAGE] * 16, 7], [*[IMAGE] * 16, 4, 9, *[IMAGE] * 16]
    tokens = torch.tensor([[0] * (len(two) - len(one)) + one, two])
    mask = (tokens != 0).long()

    found = Generator(folder.path).generate(
        tokens.numpy(), mask.numpy(), pixel_values=images.numpy(), max_new_tokens=12
    )

    wanted = model.generate(
        tokens, attention_mask=mask, pixel_values=images, do_sample=False, max_new_tokens=12, eos_token_id=2
    )
    np.testing.assert_array_equal(found, wanted.numpy())
    other = Generator(folder.path).generate(
        tokens.numpy(), mask.numpy(), pixel_values=images.numpy()[::-1], max_new_tokens=12
    )
    assert (found != other).any()


@pytest.mark.parametrize("count", [0, 2])
def test_images_and_their_tokens_have_to_fit(count, llava):
    tokens, images = np.array([[5, *[IMAGE] * 16, 7]]), np.zeros((count, 3, 16, 16), np.float32)

    with pytest.raises(InvalidArgumentError, match=rf"have 16 tokens for images, but .* stand for {16 * count}"):
        Generator(llava[1].path).generate(tokens, pixel_values=images)


@pytest.mark.wide
@pytest.mark.parametrize("name", VISION_LANGUAGE)
def test_every_architecture_generates_alike(name, tmp_path):
    folder = export_folder(language_model(name), tmp_path / "out", engine="onnxruntime")

    assert {compared.tokens for compared in folder.compared} == {64}


def test_images_of_any_size_are_refused(tmp_path):
    import transformers

    eyes = {"hidden_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 32}
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.Qwen2_5_VLConfig(text_config={**text, "num_key_value_heads": 2}, vision_config=eyes)

    with pytest.raises(
        InvalidArgumentError, match="nothing but the pixels of an image are supported: it reads image_grid_thw"
    ):
        export_folder(transformers.Qwen2_5_VLForConditionalGeneration(config), tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())
