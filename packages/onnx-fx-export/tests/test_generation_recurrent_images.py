"""Models that see, and whose layers keep states of one size, generate token for token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_models import RECURRENT_VISION, input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.kinds import recurrent

IMAGE = 63
# Tokens of two texts, the first of which has two images: of 2 x 2 and 6 x 2 patches, and of 4 x 4 in the other.
TEXTS = torch.tensor([[9, IMAGE, 5, IMAGE, IMAGE, IMAGE, 7], [0, 0, IMAGE, IMAGE, IMAGE, IMAGE, 8]])
SIZES = [(2, 2), (6, 2), (4, 4)]
MASK = torch.tensor([[1] * 7, [0, 0, *[1] * 5]])


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model with convolutions and attention that reads patches with their rows and columns, and its folder."""
    model = language_model("lfm2_vl")
    return model, export_folder(model, tmp_path_factory.mktemp("lfm2") / "out", engine="onnxruntime", verify=False)


def shaped() -> dict[str, torch.Tensor]:
    """Return the images as LFM2-VL reads them, with something in the padding that must not be read."""
    sizes = torch.tensor(SIZES)
    parts = (torch.arange(20) < sizes.prod(1)[:, None]).long()
    patches = torch.rand(3, 20, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return {"pixel_values": patches, "spatial_shapes": sizes, "pixel_attention_mask": parts}


def on_grids() -> dict[str, torch.Tensor]:
    """Return the images as Qwen3.5 reads them."""
    grids = torch.tensor([(1, *size) for size in SIZES])
    patches = torch.rand(int(grids.prod(1).sum()), 96, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": patches, "image_grid_thw": grids, "mm_token_type_ids": (TEXTS == IMAGE).int()}


def check(model: torch.nn.Module, folder: GenerationFolder, images: dict[str, torch.Tensor], new: int = 12) -> None:
    """Compare what follows the texts with what the model's own ``generate`` gives."""
    wanted = model.generate(TEXTS, attention_mask=MASK, **images, do_sample=False, max_new_tokens=new).numpy()
    assert len(np.unique(wanted[:, TEXTS.shape[1] :])) > 5

    given = {name: value.numpy() for name, value in images.items()}
    found = Generator(folder.path).generate(TEXTS.numpy(), MASK.numpy(), max_new_tokens=new, **given)

    np.testing.assert_array_equal(found, wanted)


def test_patches_with_their_rows_and_columns_generate_alike(lfm2):
    assert {"prompt.onnx", "vision.onnx", "embedding.onnx"} < lfm2[1].files.keys()
    check(*lfm2, shaped())


def test_images_may_come_without_a_mask_of_their_patches(lfm2):
    images = {name: value.numpy() for name, value in shaped().items()}
    call = {"input_ids": TEXTS.numpy(), "attention_mask": MASK.numpy()}

    given, alone = (
        next(Generator(lfm2[1].path).logits(**call, **{name: images[name] for name in names}))
        for names in (images, ["pixel_values", "spatial_shapes"])
    )

    np.testing.assert_array_equal(given, alone)


@pytest.mark.parametrize(
    "wrong",
    [
        {"spatial_shapes": np.array([(2, 2), (5, 2), (4, 4)])},
        {"spatial_shapes": np.array([(2, 2), (6, 2), (8, 4)])},
        {"spatial_shapes": np.array([(2, 2), (6, 2)])},
        {"pixel_attention_mask": np.ones((3, 20), np.int64)},
        {"pixel_values": np.zeros((12, 48), np.float32)},
    ],
)
def test_patches_rows_and_columns_have_to_fit(wrong, lfm2):
    images = {**{name: value.numpy() for name, value in shaped().items()}, **wrong}

    with pytest.raises(InvalidArgumentError, match="spatial_shapes has to say how many rows and columns of patches"):
        Generator(lfm2[1].path).generate(TEXTS.numpy(), MASK.numpy(), **images)


@pytest.mark.wide
def test_patches_on_grids_are_read_token_by_token_without_a_graph_for_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(recurrent, "has_recurrences", lambda _: False)
    model = language_model("qwen3_5_vl")

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert "prompt.onnx" not in folder.files
    shapes = input_shapes(folder.path / "model.onnx")
    assert shapes["inputs_embeds"] == ["batch_size", 1, 32]
    assert shapes["position_ids"] == [3, "batch_size", 1]
    check(model, folder, on_grids())


@pytest.mark.wide
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
@pytest.mark.parametrize("name", RECURRENT_VISION)
def test_every_precision_generates_alike(name, precision, tmp_path):
    model = language_model(name).to(torch.float16 if precision == "fp16" else torch.float32)

    folder = export_folder(model, tmp_path / "out", precision, engine="onnxruntime")

    assert {compared.tokens for compared in folder.compared} == {64}
    assert "prompt.onnx" in folder.files


@pytest.mark.wide
def test_patches_on_grids_are_read_at_once_with_a_graph_for_prompts(tmp_path):
    model = language_model("qwen3_5_vl")

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert "prompt.onnx" in folder.files
    check(model, folder, on_grids())


def test_genai_is_refused(tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    with pytest.raises(InvalidArgumentError, match=r"GenAI cannot run Lfm2VlForConditionalGeneration\. Pass engine="):
        export_folder(language_model("lfm2_vl"), tmp_path / "out")
    assert not list(tmp_path.iterdir())
