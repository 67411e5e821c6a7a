"""Models that choose by an index which tokens they attend to keep it beside keys and values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_models import input_shapes, language_model

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.kinds import kind_of
from onnx_fx_export.generation.rounding import other_roundings

CHOSEN = 8  # of all tokens, by each


@pytest.fixture(scope="module")
def indexed(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model with an index in one layer, and the folder that was written of it."""
    model = language_model("deepseek_v32", num_hidden_layers=1)
    out = tmp_path_factory.mktemp("indexed") / "out"
    return model, export_folder(model, out, engine="onnxruntime", verify=False)


def test_an_index_is_input_and_output(indexed):
    shapes = input_shapes(indexed[1].path / "model.onnx")

    assert shapes["past_key_values.0.index"] == ["batch_size", "past_sequence_length", 16]


def test_tokens_are_chosen_in_prompts_and_behind_them(indexed):
    model, folder = indexed
    rows = np.random.default_rng(0).integers(3, 64, (2, 3 * CHOSEN))
    tokens, mask = rows.copy(), np.ones_like(rows)
    tokens[0, :4], mask[0, :4] = 0, 0
    steps = Generator(folder.path).logits(tokens[:, :-2], mask[:, :-2])

    found = [next(steps), steps.send(tokens[:, -2:-1]), steps.send(tokens[:, -1:])]

    with torch.no_grad():
        wanted = [model(torch.from_numpy(row[None])).logits[0, -3:] for row in (rows[0, 4:], rows[1])]
    np.testing.assert_allclose(np.stack(found, 1), torch.stack(wanted).numpy(), atol=1e-4)


def test_genai_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"keeps an index of tokens beside keys and values\. Pass engine="):
        export_folder(language_model("deepseek_v32", num_hidden_layers=1), tmp_path / "out", verify=False)
    assert not list(tmp_path.iterdir())


def test_of_equal_numbers_the_earlier_ones_may_be_chosen():
    kind = kind_of(language_model("llama", num_hidden_layers=1))
    kind.logits = lambda _: torch.zeros(1, 64).topk(CHOSEN).indices.float()

    first = next(other_roundings(kind, {}))

    np.testing.assert_array_equal(first, np.arange(CHOSEN))
