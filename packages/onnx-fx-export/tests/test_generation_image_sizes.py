"""Models that read images with their sizes, whole or in tiles, generate like the models themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from language_models import input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.kinds import kind_of
from onnx_fx_export.generation.senses.tiles import TileLayout

IMAGE = 63
Written = tuple[Any, GenerationFolder]


def written(name: str, tmp_path_factory, *, verify: bool) -> Written:
    """Return a model, and the folder that was written of it."""
    model = language_model(name)
    return model, export_folder(model, tmp_path_factory.mktemp(name) / "out", engine="onnxruntime", verify=verify)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory) -> Written:
    return written("mistral3", tmp_path_factory, verify=True)


@pytest.fixture(scope="module")
def llava_next(tmp_path_factory) -> Written:
    return written("llava_next", tmp_path_factory, verify=False)


@pytest.fixture(scope="module")
def onevision(tmp_path_factory) -> Written:
    return written("llava_onevision", tmp_path_factory, verify=False)


def generated(written: Written, texts: list[list[int]], **inputs: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return what folder and model generate after texts, which are padded on the left."""
    model, folder = written
    longest = max(map(len, texts))
    tokens = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    inputs = {"attention_mask": (tokens != 0).long(), **inputs}
    arrays = {name: value.numpy() for name, value in inputs.items()}
    found = Generator(folder.path).generate(tokens.numpy(), **arrays, max_new_tokens=12)
    wanted = model.generate(tokens, **inputs, do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=2)
    return found, wanted.numpy()


def images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_prompts_with_images_of_several_sizes_are_compared(mistral):
    # 6, 8 and 9 blocks of 2 x 2 patches are images.
    assert [compared.prompts for compared in mistral[1].compared] == [(1,), (13,), (106,), (9, 19, 15)]
    assert input_shapes(mistral[1].path / "vision.onnx") == {"pixel_values": [1, 3, "8*rows", "8*columns"]}


def test_padding_of_smaller_images_counts_for_nothing(mistral):
    texts = [[5, *[IMAGE] * 10, 7, *[IMAGE] * 4, 9], [8, 4], [*[IMAGE] * 6, 7]]
    pixels, sizes = images(3, 3, 40, 24), torch.tensor([[40, 16], [16, 16], [16, 24]])

    found, wanted = generated(mistral, texts, pixel_values=pixels, image_sizes=sizes)
    other = pixels.clone()
    other[0, :, :, 16:] = 0.5
    padded, _ = generated(mistral, texts, pixel_values=other, image_sizes=sizes)

    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found, padded)
    assert len(np.unique(found)) > 8  # so that equal tokens say something


@pytest.mark.parametrize(
    "sizes",
    [[[12, 16]], [[8, 16]], [[16, 32]], [[16, 16], [16, 16]], [16, 16]],
    ids=["by 4", "1", "outside", "2", "flat"],
)
def test_sizes_of_images_have_to_fit(sizes, mistral):
    with pytest.raises(InvalidArgumentError, match=r"image_sizes has to say of each image .* by 8, and at least 16"):
        Generator(mistral[1].path).generate(
            np.array([[5, *[IMAGE] * 4]]), pixel_values=np.zeros((1, 3, 16, 24)), image_sizes=np.array(sizes)
        )


def test_a_tower_that_reads_sizes_is_found_behind_a_model_that_hands_them_on(tmp_path_factory):
    model = written("llava_pixtral", tmp_path_factory, verify=False)

    found, wanted = generated(
        model, [[*[IMAGE] * 15, 7, *[IMAGE] * 4]], pixel_values=images(2, 3, 20, 12),
        image_sizes=torch.tensor([[20, 12], [8, 8]]),
    )  # fmt: skip

    np.testing.assert_array_equal(found, wanted)


def text_of(model: Any, *sizes: list[int]) -> list[int]:
    """Return a text with images in tiles."""
    layout = kind_of(model)._layout
    counts = [layout.count(*size) for size in sizes]
    blanks = [np.zeros((count, layout.side**2, 1), np.float32) for count in counts]
    packed = [layout.packed(tiles, np.zeros(1), *size) for tiles, size in zip(blanks, sizes, strict=True)]
    return [5, *(token for image in packed for token in (*[IMAGE] * len(image), 7))]


SIZES = [[20, 44], [50, 9], [16, 16], [31, 33]]


@pytest.mark.parametrize("name", ["llava_next", "onevision"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_of_an_image_are_joined_by_its_size(size, name, request):
    model = request.getfixturevalue(name)
    count = kind_of(model[0])._layout.count(*size)

    found, wanted = generated(
        model, [text_of(model[0], size)], pixel_values=images(1, count + 1, 3, 16, 16), image_sizes=torch.tensor([size])
    )

    np.testing.assert_array_equal(found, wanted)


def test_several_images_in_tiles_stand_in_their_order(llava_next):
    sizes = [[50, 9], [31, 33], [20, 44]]
    texts = [text_of(llava_next[0], *sizes[:2]), [5, 8], text_of(llava_next[0], sizes[2])]

    found, wanted = generated(llava_next, texts, pixel_values=images(3, 5, 3, 16, 16), image_sizes=torch.tensor(sizes))

    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(found)) > 8  # so that equal tokens say something


def test_several_images_of_one_text_have_one_tile_each(onevision):
    texts = [[5, *[IMAGE] * 17, 7, *[IMAGE] * 17], text_of(onevision[0], [20, 44])]
    count = kind_of(onevision[0])._layout.count(20, 44)

    found, wanted = generated(
        onevision, texts, pixel_values=images(3, count, 3, 16, 16),
        image_sizes=torch.tensor([[31, 33], [50, 9], [20, 44]]), batch_num_images=torch.tensor([2, 1]),
    )  # fmt: skip

    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "given",
    [{"image_sizes": np.array([[16, 16]] * 2)}, {}, {"image_sizes": np.array([[0, 16]])}],
    ids=["2", "none", "0"],
)
def test_tiles_and_sizes_have_to_fit(given, llava_next):
    with pytest.raises(InvalidArgumentError, match=r"image_sizes .* has to say how high and wide each image was"):
        Generator(llava_next[1].path).generate(
            np.array([text_of(llava_next[0], [16, 16])]), pixel_values=np.zeros((1, 5, 3, 16, 16)), **given
        )


def test_tiles_that_are_joined_in_another_way_are_refused(tmp_path):
    model = language_model("llava_next")
    own = model.model.pack_image_features
    model.model.pack_image_features = lambda *args, **given: ([2 * each for each in own(*args, **given)[0]], None)

    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_of_several_sizes_that_show_as_much_the_one_with_the_least_around_it_is_best():
    layout = TileLayout([[32, 32], [16, 32], [32, 16]], tile=16, side=4)

    assert layout.best(8, 16) == (16, 32)
    assert layout.best(100, 10) == (32, 16) == layout.best(101, 10)
    assert layout.count(16, 32) == 3
