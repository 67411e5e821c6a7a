"""Random inputs take sizes that the reference runs, and never hide that a candidate does not run there."""

import numpy as np
import pytest
import torch
from models import build, info
from onnx import helper

from onnx_verify import RandomInputs, blame, compare, find_mismatch, portable
from onnx_verify.errors import ModelRunError


def image_model(kernel, block=1, factor=1.0):
    """Return a convolution with a square kernel after a split into blocks; images are (n, 1, h, w)."""
    weight = np.full((1, block * block, kernel, kernel), factor, np.float32)
    nodes = [
        helper.make_node("SpaceToDepth", ["image"], ["blocks"], blocksize=block),
        helper.make_node("Conv", ["blocks", "weight"], ["map"]),
        helper.make_node("GlobalAveragePool", ["map"], ["y"]),
    ]
    return build(nodes, [info("image", ["n", 1, "h", "w"])], [info("y", ["n", 1, 1, 1])], {"weight": weight})


def sizes(verdict):
    return [case.label for case in verdict.cases]


@pytest.mark.parametrize(
    ("kernel", "block", "first"),
    [
        (1, 1, "random n=2, h=3, w=5"),
        (3, 1, "random n=2, h=24, w=40"),
        (2, 8, "random n=2, h=24, w=40"),
        (2, 32, "random n=2, h=96, w=160"),
        (7, 32, "random n=2, h=256, w=320"),
    ],
)
def test_sizes_grow_until_the_model_runs(kernel, block, first):
    model = image_model(kernel, block)
    verdict = compare(model, model, "random")
    assert verdict
    assert sizes(verdict)[0] == first
    assert not compare(model, image_model(kernel, block, 1.1), "random")


def test_size_one_is_left_out_only_where_the_reference_does_not_run_there():
    assert "dynamic sizes 1" in sizes(compare(image_model(1), image_model(1), "random"))
    assert "dynamic sizes 1" not in sizes(compare(image_model(2), image_model(2), "random"))


def test_a_candidate_that_runs_at_fewer_sizes_than_its_reference_is_not_excused():
    with pytest.raises(ModelRunError, match="Conv"):
        compare(image_model(1), image_model(3), "random")
    with pytest.raises(ModelRunError, match="Conv"):
        compare(torch.nn.AdaptiveAvgPool2d(1), image_model(3), "random")


def test_a_torch_module_as_the_reference_says_what_sizes_fit():
    conv = torch.nn.Conv2d(1, 1, 3, bias=False)
    conv.weight.data.fill_(1)
    verdict = compare(torch.nn.Sequential(conv, torch.nn.AdaptiveAvgPool2d(1)).eval(), image_model(3), "random")
    assert verdict
    assert sizes(verdict)[0] == "random n=2, h=24, w=40"


def test_sizes_that_a_user_gives_stay():
    with pytest.raises(ModelRunError, match="Conv"):
        compare(image_model(3), image_model(3), RandomInputs(sizes={"h": (2,), "w": (2,)}))


def test_searches_and_engines_get_sizes_that_fit():
    model = image_model(3)
    assert not find_mismatch(image_model(3, factor=1.1), "random", reference=model).ok
    assert blame(model, engines=["ort", "reference"]).ok
    assert all(place.ok for place in portable(model, engines=["ort", "reference"]))
