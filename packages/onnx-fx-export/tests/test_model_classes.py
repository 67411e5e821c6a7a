"""Classes of transformers, of different kinds, are right with dynamic sizes at three of them, padded masks included."""

from __future__ import annotations

import pytest
import torch

from tools.architectures.judge import Call, judged
from tools.architectures.page import page_text
from tools.architectures.small import small_model

# Decoders with sliding windows and with experts, encoders and decoders, attention without softmax, images, sound, and a
# loop over the tokens.
CLASSES = [
    "AlbertModel",
    "Gemma3TextModel",
    "WhisperModel",
    "MixtralModel",
    "T5Model",
    "BartModel",
    "FNetModel",
    "SegformerModel",
    "Dinov2Model",
    "CLIPTextModel",
    "Wav2Vec2Model",
    "BloomModel",
    "RecurrentGemmaModel",
]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_right_at_other_sizes(name: str) -> None:
    pytest.importorskip("transformers")
    found = judged("transformers", name, timed=False)
    assert (found.verdict, found.reason) == ("right", "")


def test_a_class_that_cannot_be_built_is_no_success() -> None:
    assert judged("transformers", "NoSuchModel").verdict == "not built"


@pytest.mark.parametrize("name", ["Mamba2Model", "LongcatFlashModel", "GlmImageTextModel"])
def test_sizes_of_a_small_model_that_follow_from_others_fit(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = small_model("transformers", name, lambda model: model(input_ids=torch.ones(2, 12, dtype=torch.int64)))
    assert isinstance(model, getattr(transformers, name))


def test_a_class_that_draws_random_numbers_is_not_compared() -> None:
    pytest.importorskip("transformers")
    found = judged("transformers", "ViTMAEModel")
    assert found.verdict == "not built"
    assert "random numbers" in found.reason


def test_the_page_tells_of_each_class_and_counts_them() -> None:
    row = {"library": "some", "torch_onnx": "refused: why", "strategy": "strict", "reason": "", "nodes": 3}
    rows = [
        {**row, "name": "One", "verdict": "right", "seconds": 3.0, "capture": 2.0, "imported": "wrong: much"},
        {**row, "name": "Two", "verdict": "not built", "seconds": None, "capture": None},
    ]
    text = page_text(rows)
    assert "Of 2 classes tried, 1 could not be built, and 0 did not end. Of the other 1: 1 right, 0 static," in text
    assert "Of 1 that were imported again, 0 agree with their class." in text
    assert "| One | right (strict) | wrong | 3 | 1.5 | refused |  |" in text


class Cancelling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1e4) - 1e4


def test_results_nearer_to_double_precision_are_rounding_and_others_are_wrong() -> None:
    x = torch.linspace(0, 1, 50)
    call = Call(Cancelling(), {"x": x}, [Cancelling()(x)])

    assert (call.wanted[0] - x).abs().max() > 4e-4
    assert call.difference([x]) == ""
    assert call.difference([x + 3e-3]).startswith("output 0 differs by")
    assert call.difference([x, x]) == "2 outputs, not 1"
