"""Models that read images become folders of three graphs, which generate token for token like the models themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_models import VISION_LANGUAGE, input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.kinds import grids, kind_of
from onnx_fx_export.generation.verifying import verify_folder

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


@pytest.fixture(scope="module")
def smol(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model that takes the images of each text apart, and the folder that was written of it."""
    model = language_model("smolvlm")
    out = tmp_path_factory.mktemp("smol") / "out"
    return model, export_folder(model, out, engine="onnxruntime", verify=False)


def test_images_of_each_text_may_be_apart(smol):
    model, folder = smol
    two, one = [5, *[IMAGE] * 4, 7, *[IMAGE] * 4, 9], [0, 0, 0, 0, 5, 8, *[IMAGE] * 4, 7]
    tokens = torch.tensor([two, one])
    mask = (tokens != 0).long()
    images = torch.randn(2, 2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    images[1, 1] = 0  # the second text has one image

    parts = np.ones((2, 2, 16, 16), bool)
    parts[1, 1] = False
    found = Generator(folder.path).generate(
        tokens.numpy(), mask.numpy(), pixel_values=images.numpy(), pixel_attention_mask=parts, max_new_tokens=12
    )

    wanted = model.generate(tokens, attention_mask=mask, pixel_values=images, do_sample=False, max_new_tokens=12)
    np.testing.assert_array_equal(found, wanted.numpy())
    assert len(np.unique(found)) > 8  # so that equal tokens say something


def test_padding_in_images_is_refused(smol):
    tokens, images = np.array([[5, *[IMAGE] * 4, 7]]), np.ones((1, 1, 3, 16, 16), np.float32)
    parts = np.ones((1, 1, 16, 16), bool)
    parts[..., 12:] = False

    with pytest.raises(InvalidArgumentError, match="says that images have padding"):
        Generator(smol[1].path).generate(tokens, pixel_values=images, pixel_attention_mask=parts)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_genai_runs_images_of_any_size(precision, name, tmp_path):
    model = language_model(name).to(torch.float16 if precision == "fp16" else torch.float32)

    with pytest.warns(UserWarning, match="Generate batches of prompts of equal length"):
        folder = export_folder(model, tmp_path / "out", precision=precision)

    assert {compared.tokens for compared in folder.compared} == {64}


@pytest.mark.wide
@pytest.mark.parametrize("name", VISION_LANGUAGE)
def test_every_architecture_generates_alike(name, tmp_path):
    folder = export_folder(language_model(name), tmp_path / "out", engine="onnxruntime")

    assert {compared.tokens for compared in folder.compared} == {64}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model whose images have any size, and the folder that was written of it and verified."""
    model = language_model("qwen2_5_vl")
    model.model.rope_deltas = torch.tensor([[7]])
    return model, export_folder(model, tmp_path_factory.mktemp("qwen") / "out", engine="onnxruntime")


def patches(*grids: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images as patches, and their grids."""
    sizes, width = torch.tensor(grids), 3 * 2 * 4 * 4
    generator = torch.Generator().manual_seed(1)
    return torch.rand(int(sizes.prod(1).sum()), width, generator=generator), sizes


def test_images_of_any_size_generate_alike(qwen):
    model, folder = qwen

    # 6, 1 and 12 blocks of 2 x 2 patches are images, of which windows of 2 x 2 blocks leave parts.
    assert [compared.prompts for compared in folder.compared] == [(1,), (14,), (109,), (10, 26, 19)]
    assert {compared.tokens for compared in folder.compared} == {64}
    shapes = input_shapes(folder.path / "model.onnx")
    assert shapes["position_ids"] == [3, "batch_size", "sequence_length"]
    assert input_shapes(folder.path / "vision.onnx") == {
        "pixel_values": ["patch_count", 96],
        "image_grid_thw": ["image_count", 3],
    }
    assert model.model.rope_deltas.tolist() == [[7]]
    assert model.config.vision_config._attn_implementation == "sdpa"


def test_genai_runs_the_folder_token_for_token(qwen):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model, folder = qwen

    compared = verify_folder(kind_of(model), folder.path, "genai", str)

    # It counts padding among the places of the batch, whose prompts have one length for that reason.
    assert [batch.prompts for batch in compared] == [(1,), (14,), (109,), (20, 20, 20)]


@pytest.mark.parametrize("grids", [[(1, 2, 2)], [(1, 10, 2)], [(1, 2, 14), (1, 6, 6)]], ids=str)
def test_images_of_other_sizes_generate_alike(grids, qwen):
    model, folder = qwen
    images, sizes = patches(*grids)
    marks = [mark for _, rows, columns in grids for mark in (61, *[IMAGE] * (rows * columns // 4), 60, 5)]
    tokens = torch.tensor([[9, *marks, 8]])

    found = Generator(folder.path).generate(
        tokens.numpy(), pixel_values=images.numpy(), image_grid_thw=sizes.numpy(), max_new_tokens=12
    )

    wanted = model.generate(
        tokens,
        pixel_values=images,
        image_grid_thw=sizes,
        mm_token_type_ids=(tokens == IMAGE).int(),
        do_sample=False,
        max_new_tokens=12,
    )
    np.testing.assert_array_equal(found, wanted.numpy())


def test_places_of_an_image_count(qwen):
    images, _ = patches((1, 4, 8))
    tokens = np.array([[61, *[IMAGE] * 8, 60]])

    wide, high = (
        next(Generator(qwen[1].path).logits(tokens, pixel_values=images.numpy(), image_grid_thw=np.array([grid])))
        for grid in ((1, 4, 8), (1, 8, 4))
    )

    assert np.abs(wide - high).max() > 1


@pytest.mark.parametrize(
    ("tokens", "grids", "message"),
    [
        ([IMAGE] * 5, [(1, 4, 4)], "have 5 tokens for images, but the images in pixel_values stand for 4"),
        ([IMAGE] * 4, [(1, 4, 2)], "pixel_values has 16 patches, and image_grid_thw"),
        ([IMAGE] * 4, [(1, 16, 1)], "rows and columns by 2"),
        ([IMAGE, 5, IMAGE, IMAGE, IMAGE], [(1, 4, 4)], "image in row 0 has 4 tokens by image_grid_thw, but .* fewer"),
    ],
)
def test_patches_grids_and_tokens_have_to_fit(tokens, grids, message, qwen):
    images, _ = patches((1, 4, 4))

    with pytest.raises(InvalidArgumentError, match=message):
        Generator(qwen[1].path).generate(
            np.array([tokens]), pixel_values=images.numpy(), image_grid_thw=np.array(grids)
        )


def test_types_of_other_tokens_are_refused(qwen):
    images, grids = patches((1, 4, 4))
    inputs = {"pixel_values": images.numpy(), "image_grid_thw": grids.numpy()}
    tokens = np.array([[61, *[IMAGE] * 4, 60]])
    generator = Generator(qwen[1].path)

    with pytest.raises(InvalidArgumentError, match="mm_token_type_ids marks other tokens"):
        generator.generate(tokens, mm_token_type_ids=np.ones_like(tokens) * 2, **inputs)

    alone, given = (
        generator.generate(tokens, max_new_tokens=5, **inputs, **types)
        for types in ({}, {"mm_token_type_ids": (tokens == IMAGE).astype(np.int64)})
    )
    np.testing.assert_array_equal(alone, given)


def test_images_that_are_read_in_another_way_are_refused(tmp_path):
    model = language_model("qwen2_5_vl")
    own = model.model.get_image_features

    def doubled(*args, **given):
        result = own(*args, **given)
        result.pooler_output = [2 * features for features in result.pooler_output]
        return result

    model.model.get_image_features = doubled

    with pytest.raises(InvalidArgumentError, match="what it makes of images is not what their patches alone give"):
        export_folder(model, tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


def three_images():
    """Patches of three images, their sizes, and the tokens of each with a mark before and after it."""
    images, sizes = patches((1, 2, 14), (1, 6, 6), (1, 2, 2))
    return images, sizes, [[61, *[IMAGE] * (rows * columns // 4), 60, 5] for _, rows, columns in sizes.tolist()]


def assert_sees_three_images_as(model, folder):
    images, sizes, (one, two, three) = three_images()
    tokens = torch.tensor([[9, *one, *two, *three, 8]])

    found = Generator(folder.path).generate(
        tokens.numpy(), pixel_values=images.numpy(), image_grid_thw=sizes.numpy(), max_new_tokens=12
    )

    types = (tokens == IMAGE).int()
    wanted = model.generate(
        tokens, pixel_values=images, image_grid_thw=sizes, mm_token_type_ids=types, do_sample=False, max_new_tokens=12
    )
    np.testing.assert_array_equal(found, wanted.numpy())


def test_what_layers_of_the_decoder_read_of_images_stands_beside_their_tokens(tmp_path):
    model = language_model("qwen3_vl")
    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert_sees_three_images_as(model, folder)
    assert input_shapes(folder.path / "model.onnx")["inputs_embeds"][2] == 3 * 32
    pytest.importorskip("onnxruntime_genai", reason="the engine of the rest is an optional package")
    assert len(verify_folder(kind_of(model), folder.path, "genai", str)) == 4


def test_learned_positions_between_which_patches_stand_follow_the_size_of_each_image(tmp_path):
    model = language_model("glm4v")
    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert_sees_three_images_as(model, folder)


def test_patches_on_grids_may_be_tokens_that_follow_each_other(tmp_path):
    model = language_model("exaone4_5")
    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")
    images, sizes, (first, second, third) = three_images()
    one, two = [9, *first], [9, *second, *third, 8]
    tokens = torch.tensor([[0] * (len(two) - len(one)) + one, two])
    mask = (tokens != 0).long()
    given = {"pixel_values": images, "image_grid_thw": sizes}

    found = Generator(folder.path).generate(
        tokens.numpy(), mask.numpy(), max_new_tokens=12, **{name: value.numpy() for name, value in given.items()}
    )

    wanted = model.generate(tokens, attention_mask=mask, **given, do_sample=False, max_new_tokens=12, pad_token_id=0)
    np.testing.assert_array_equal(found, wanted.numpy())
    assert "position_ids" not in input_shapes(folder.path / "model.onnx")


def test_positions_that_are_read_in_another_way_are_refused(tmp_path):
    model = language_model("qwen3_vl")
    model.model.visual.interpolation_align_corners = False

    with pytest.raises(InvalidArgumentError, match="not what their patches alone give"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["llava", "qwen"])
def test_a_generated_token_of_images_is_text(name, request):
    model, folder = request.getfixturevalue(name)
    tokens, following = np.array([[5, 7, 9]]), np.array([[IMAGE, 4, IMAGE]])

    steps = Generator(folder.path).logits(tokens)
    next(steps)
    found = steps.send(following)

    with torch.no_grad():
        wanted = model(torch.from_numpy(np.concatenate([tokens, following], 1))).logits[:, -1].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.mark.parametrize("other", [None, 61])
def test_genai_needs_the_token_that_stands_before_an_image_whatever_its_name(other, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model = language_model("qwen2_vl")
    monkeypatch.setattr(grids, "_STARTS", ("image_start_token_id",))
    model.config.image_start_token_id = other

    if other is None:
        with pytest.raises(
            InvalidArgumentError, match=r"GenAI cannot run Qwen2VLForConditionalGeneration\. Pass engine"
        ):
            export_folder(model, tmp_path / "out")
    else:
        assert len(export_folder(model, tmp_path / "out").compared) == 4


def test_a_model_that_does_not_say_which_token_stands_for_images_is_refused(tmp_path):
    model = language_model("llama", num_hidden_layers=1)
    model.get_image_features = lambda pixel_values: None
    own = type(model).forward

    def forward(self, input_ids=None, pixel_values=None, inputs_embeds=None, attention_mask=None, past_key_values=None):
        return own(self, input_ids, attention_mask=attention_mask, past_key_values=past_key_values)

    model.forward = forward.__get__(model)

    with pytest.raises(
        InvalidArgumentError, match=r"config\.image_token_id, the token that stands for images, is None"
    ):
        export_folder(model, tmp_path / "out", engine="onnxruntime")
