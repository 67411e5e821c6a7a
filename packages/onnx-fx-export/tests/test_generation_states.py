"""Models whose layers keep states of one size generate token for token, from graphs with these states."""

from __future__ import annotations

import functools
import sys

import numpy as np
import onnx
import pytest
import torch
from language_models import STATE_SPACES, input_shapes, language_model

from onnx_fx_export import InvalidArgumentError, export
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.operators import delta_rules, selective_scans
from onnx_fx_export.generation.operators.linear_attention import TRANSLATIONS
from onnx_fx_export.generation.operators.recurrences import has_recurrences
from onnx_fx_export.generation.sessions import GraphSession

STEP_BY_STEP = [(1,), (7,), (100,), (3, 11, 6)]
# Of models that read prompts in chunks of 16 tokens: one batch is longer than two of them.
WITH_CHUNKS = [(1,), (7,), (100,), (35, 16), (3, 11, 6)]


@pytest.fixture(scope="module")
def bamba(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model with a layer of states and one of attention, and the folder that was written of it and verified."""
    model = language_model("bamba")
    return model, export_folder(model, tmp_path_factory.mktemp("bamba") / "out", engine="onnxruntime")


def test_states_are_inputs_and_outputs(bamba):
    path = bamba[1].path / "model.onnx"
    shapes = input_shapes(path)

    assert shapes.pop("input_ids") == ["batch_size", 1]
    assert shapes.pop("attention_mask") == ["batch_size", "total_sequence_length"]
    assert shapes == {
        "past_key_values.0.conv": ["batch_size", 80, 4],
        "past_key_values.0.recurrent": ["batch_size", 8, 8, 8],
        "past_key_values.1.key": ["batch_size", 2, "past_sequence_length", 8],
        "past_key_values.1.value": ["batch_size", 2, "past_sequence_length", 8],
    }
    states = {name.replace("past_key_values", "present") for name in shapes}
    assert {value.name for value in onnx.load(path, load_external_data=False).graph.output} == {"logits", *states}


def test_a_hybrid_generates_alike(bamba):
    assert [compared.prompts for compared in bamba[1].compared] == WITH_CHUNKS


@pytest.mark.parametrize(("length", "padded"), [(8, 32), (32, 32), (33, 48), (100, 112)])
def test_prompts_are_read_in_one_call(length, padded, bamba, monkeypatch):
    model, folder = bamba
    generator, calls, run = Generator(folder.path), [], GraphSession.run

    def counted(session, given, kept):
        calls.append(given["input_ids"].shape)
        return run(session, given, kept)

    monkeypatch.setattr(GraphSession, "run", counted)
    tokens = np.arange(2 * length).reshape(2, length) % 50 + 3

    found = generator.generate(tokens, max_new_tokens=3)

    assert calls == [(2, padded), (2, 1), (2, 1)]
    wanted = model.generate(torch.from_numpy(tokens), do_sample=False, max_new_tokens=3)
    np.testing.assert_array_equal(found, wanted.numpy())


def test_prompts_are_longer_than_windows(tmp_path):
    pytest.importorskip("transformers.models.lara_mini", reason="a release of transformers has no such hybrid")
    model, tokens = language_model("lara_mini", sliding_window=8), np.arange(40)[None] + 3

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    wanted = model.generate(torch.from_numpy(tokens), do_sample=False, max_new_tokens=12, min_new_tokens=12)
    found = Generator(folder.path).generate(tokens, max_new_tokens=12, min_new_tokens=12)
    np.testing.assert_array_equal(found, wanted.numpy())


def test_the_graph_for_prompts_shares_its_weights(bamba):
    model, folder = bamba

    weights = sum(weight.nbytes for weight in model.parameters())
    assert folder.files["model.onnx.data"] < 1.3 * weights  # with room to the next page of each


def test_prompts_are_read_token_by_token_where_their_graph_cannot_be_captured(tmp_path):
    model, told = language_model("lfm2"), []
    own = model.forward

    @functools.wraps(own)
    def asking(*args, **given):
        tokens = given["input_ids"]
        if tokens.shape[1] > 1 and bool((tokens == 5).any()):
            tokens = tokens.clone()
        return own(*args, **{**given, "input_ids": tokens})

    model.forward = asking
    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", progress=told.append)

    assert [compared.prompts for compared in folder.compared] == WITH_CHUNKS
    assert "prompt.onnx" not in folder.files
    assert any(line.startswith("leave out prompt.onnx: ") for line in told)
    assert "prompt" not in Generator(folder.path).config["model"]


def zamba(**settings: object) -> torch.nn.Module:
    """A model that makes something else of a prompt than of its tokens one by one."""
    return language_model("zamba2", num_hidden_layers=2, layers_block_type=["mamba", "hybrid"], **settings)


def test_short_prompts_are_read_at_once_where_steps_compute_something_else(tmp_path):
    model, prompts = zamba(), np.array([[5, 9, 4, 7, 6, 3]])

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    with torch.no_grad():
        wanted = model(torch.from_numpy(prompts)).logits[:, -1]
    np.testing.assert_allclose(next(Generator(folder.path).logits(prompts)), wanted.numpy(), atol=1e-4)


def test_short_prompts_are_read_at_once_where_these_alone_have_time_steps_within_limits(tmp_path):
    # So rarely are time steps smaller that few tokens show no difference.
    model, prompts = language_model("bamba", time_step_limit=(0.1, float("inf"))), np.array([[5, 9, 4, 7, 6, 3, 8]])

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    with torch.no_grad():
        wanted = model(torch.from_numpy(prompts)).logits[:, -1]
        model.model.layers[0].mamba.time_step_limit = (0.0, float("inf"))
        unlimited = model(torch.from_numpy(prompts)).logits[:, -1]
    np.testing.assert_allclose(next(Generator(folder.path).logits(prompts)), wanted.numpy(), atol=1e-4)
    assert (wanted - unlimited).abs().max() > 1e-3


def test_prompts_that_have_to_be_read_at_once_and_cannot_be_are_refused(tmp_path):
    model = zamba()
    model.config.chunk_size = 0

    with pytest.raises(InvalidArgumentError, match="something else of a prompt than of its tokens one by one"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


def test_a_gated_delta_rule_is_one_operator_of_the_graph_for_prompts(tmp_path):
    model = language_model("qwen3_next")

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == WITH_CHUNKS
    graph = onnx.load(folder.path / "prompt.onnx", load_external_data=False).graph
    assert [node.op_type for node in graph.node].count("LinearAttention") == 1


class Function(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function, **given) -> None:
        super().__init__()
        self.function = functools.partial(function, **given)

    def forward(self, **inputs):
        return self.function(**inputs)


def compared_at_two_lengths(function, own, given, axes, **call) -> None:
    """Compare a function that is exported with another one, of the first tokens, too."""
    program = export(
        Function(function, **call), kwargs=given, dynamic_shapes={key: {axes[key]: "length"} for key in given},
        target="onnxruntime", custom_translation_table=TRANSLATIONS,
    )  # fmt: skip
    for length in (20, 3):
        inputs = {key: each.narrow(axes[key], 0, length) for key, each in given.items()}
        for found, wanted in zip(program(**inputs), own(**inputs, **call), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("by_rows", [True, False])
def test_the_operator_computes_delta_rules_of_models(by_rows, normalized, goes_on):
    place, name = (
        ("kimi_linear", "chunk_kimi_delta_attention") if by_rows else ("qwen3_next", "torch_chunk_gated_delta_rule")
    )
    modeling = pytest.importorskip(f"transformers.models.{place}.modeling_{place}")
    heads = 2 if by_rows else 4
    sizes = {"query": (2, 20, 2, 8), "key": (2, 20, 2, 8), "value": (2, 20, heads, 6), "beta": (2, 20, heads)}
    given = {key: 0.3 * torch.rand(size) for key, size in sizes.items()}
    given["g"] = -torch.rand(2, 20, heads, *((8,) if by_rows else ()))
    call = {"output_final_state": True, "use_qk_l2norm_in_kernel": normalized}
    state = torch.randn(2, heads, 8, 6) if goes_on else None

    compared_at_two_lengths(
        delta_rules.by_operator, getattr(modeling, name), given, dict.fromkeys(given, 1), initial_state=state, **call
    )


def test_the_operator_computes_selective_scans_of_models():
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    sizes = {"hidden_states": (2, 6, 20), "dt": (2, 6, 20), "B": (2, 4, 20), "C": (2, 4, 20), "z": (2, 6, 20)}
    given = {key: torch.randn(size) for key, size in sizes.items()}
    weights = {"A": -torch.rand(6, 4), "D": torch.randn(6), "delta_bias": torch.randn(6)}

    compared_at_two_lengths(
        selective_scans.by_operator, modeling.mamba_selective_scan, given, dict.fromkeys(given, 2), **weights,
        delta_softplus=True, return_last_state=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "name", "other"),
    [
        ("qwen3_next", "torch_chunk_gated_delta_rule", lambda given: {"g": given["g"] * 2}),
        ("mamba", "mamba_selective_scan", lambda given: {"delta_softplus": False}),
    ],
)
def test_another_function_under_that_name_is_left_as_it_is(model, name, other, monkeypatch):
    model = language_model(model)
    modeling = sys.modules[type(model).__module__]
    own = getattr(modeling, name)
    assert has_recurrences(model)

    monkeypatch.setattr(modeling, name, lambda *args, **given: own(*args, **given | other(given)))

    assert not has_recurrences(model)


def test_padding_changes_no_state(bamba):
    model, folder = bamba
    tokens, mask = np.array([[9, 4, 0, 0], [5, 6, 7, 8]]), np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    aside = np.array([[0, 9, 0, 4], [5, 6, 7, 8]])

    found = Generator(folder.path).generate(tokens, mask, max_new_tokens=12)
    between = Generator(folder.path).generate(aside, (aside != 0).astype(np.int64), max_new_tokens=12)

    for row, length in enumerate((2, 4)):
        alone = torch.from_numpy(tokens[row : row + 1, :length])
        wanted = model.generate(alone, do_sample=False, max_new_tokens=12)[0, length:].numpy()
        np.testing.assert_array_equal(found[row, 4:], wanted)
        np.testing.assert_array_equal(between[row, 4:], wanted)


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_a_selective_scan_is_one_operator_of_the_graph_for_prompts(name, tmp_path):
    folder = export_folder(language_model(name), tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == WITH_CHUNKS
    nodes = onnx.load(folder.path / "prompt.onnx", load_external_data=False).graph.node
    assert [node.op_type for node in nodes].count("LinearAttention") == (2 if name == "mamba" else 1)


@pytest.mark.parametrize(("name", "bias"), [("mamba", "use_bias"), ("bamba", "mamba_proj_bias")])
def test_prompts_are_read_token_by_token_where_padding_would_change_them(name, bias, tmp_path):
    model = language_model(name, **{bias: True})
    for parameter, value in model.named_parameters():
        if parameter.endswith("bias"):
            torch.nn.init.normal_(value, std=0.3)

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == STEP_BY_STEP
    assert "prompt.onnx" not in folder.files


@pytest.mark.wide
@pytest.mark.parametrize("name", STATE_SPACES)
def test_every_architecture_generates_alike(name, tmp_path):
    folder = export_folder(language_model(name), tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == WITH_CHUNKS
    assert "prompt.onnx" in folder.files


def test_genai_is_refused(tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    with pytest.raises(InvalidArgumentError, match=r"GenAI cannot run MambaForCausalLM\. Pass engine='onnxruntime'"):
        export_folder(language_model("mamba"), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_states_that_a_model_keeps_to_itself_are_refused(tmp_path):
    import transformers

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = transformers.RecurrentGemmaConfig(**sizes, num_hidden_layers=3)

    with pytest.raises(
        InvalidArgumentError,
        match=r"RecurrentGemmaForCausalLM cannot be written .*: its layers keep states to themselves",
    ):
        export_folder(transformers.RecurrentGemmaForCausalLM(config), tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


def test_a_cache_of_a_class_of_the_model_is_refused(tmp_path):
    import transformers

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8}
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2}
    config = transformers.MiniMaxConfig(**sizes, **layers, num_key_value_heads=1, block_size=16)

    with pytest.raises(
        InvalidArgumentError, match=r"MiniMaxForCausalLM cannot be written .*: its cache is MiniMaxCache"
    ):
        export_folder(transformers.MiniMaxForCausalLM(config), tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())
