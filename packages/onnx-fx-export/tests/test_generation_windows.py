"""Layers with sliding windows keep no more than their windows, where the user asks for that."""

from __future__ import annotations

import json

import numpy as np
import pytest
from generation_steps import check_conversation
from language_models import input_shapes, language_model

from onnx_fx_export import InvalidArgumentError, RuntimeSupportError
from onnx_fx_export.generation import Generator, caches, export_folder
from onnx_fx_export.generation.engines import engine_of
from onnx_fx_export.generation.kinds import kind_of

pytest.importorskip("onnxruntime_genai", reason="folders with caches of windows are for this optional package")
if (caches.installed_release() or (1, 32)) < (1, 32):
    pytest.skip("rows of different lengths need ONNX Runtime 1.32", allow_module_level=True)
WINDOW = 16


@pytest.fixture(
    scope="module",
    params=["gemma2", pytest.param("mistral", marks=pytest.mark.wide), pytest.param("gpt_oss", marks=pytest.mark.wide)],
)
def model_and_folder(request, tmp_path_factory):
    """A model, and a folder that was compared with it in GenAI."""
    model = language_model(request.param, **({"hidden_size": 64} if request.param == "mistral" else {}))
    return model, export_folder(model, tmp_path_factory.mktemp(request.param) / "out", windowed_caches=True)


def test_layers_with_windows_have_caches_of_their_own_length(model_and_folder):
    model, folder = model_and_folder
    shapes = input_shapes(folder.path / "model.onnx")
    window = json.loads((folder.path / "genai_config.json").read_text())["model"]["decoder"]["sliding_window"]

    types = getattr(model.config, "layer_types", None) or ["sliding_attention"] * 2
    assert window["window_size"] == WINDOW
    assert window["layers"] == [place for place, kind in enumerate(types) if kind == "sliding_attention"]
    for place, kind in enumerate(types):
        length = "window_cache_length" if kind == "sliding_attention" else "past_sequence_length"
        assert shapes[f"past_key_values.{place}.key"][2] == length


@pytest.mark.parametrize("engine", ["genai", "onnxruntime"])
@pytest.mark.parametrize("lengths", [(3, 70, 41), (200,)])
def test_what_follows_is_as_it_was_where_prompts_are_longer_than_the_window(model_and_folder, engine, lengths):
    model, folder = model_and_folder
    kind = kind_of(model)
    batch = kind.batch(lengths)

    found = engine_of(engine, folder.path, Generator(folder.path))(batch, kind.prefix(batch), 40, None)

    for row, tokens in zip(batch.rows, found, strict=True):
        np.testing.assert_array_equal(tokens, kind.generate(kind.extended(row, np.zeros(0, np.int64)), 40))


def test_a_conversation_that_is_longer_than_the_window_goes_on_token_for_token(model_and_folder):
    model, folder = model_and_folder

    check_conversation(model, folder.path, [8, 5, 1, 6, 7])


@pytest.mark.filterwarnings("ignore:The model has sliding windows")
@pytest.mark.parametrize(
    ("name", "settings", "engine", "message"),
    [
        ("gemma2", {}, "onnxruntime", "is for engine='genai'; leave it out for 'onnxruntime'"),
        ("llama", {}, "genai", "LlamaForCausalLM has no layer"),
        ("gemma2", {"sliding_window": 256}, "genai", "would change nothing"),
        ("gemma2", {"head_dim": 12, "num_hidden_layers": 1}, "genai", "would change nothing"),
    ],
    ids=["another engine", "no windows", "a window for the whole text", "heads that the operator does not take"],
)
def test_windows_that_make_nothing_shorter_are_refused(tmp_path, name, settings, engine, message):
    with pytest.raises(InvalidArgumentError, match=message):
        export_folder(language_model(name, **settings), tmp_path / "out", engine=engine, windowed_caches=True)

    assert list(tmp_path.iterdir()) == []


def test_an_old_runtime_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "installed_release", lambda: (1, 31))

    with pytest.raises(RuntimeSupportError, match=r"needs ONNX Runtime 1\.32 or newer; 1\.31 is installed"):
        export_folder(language_model("gemma2"), tmp_path / "out", windowed_caches=True)
