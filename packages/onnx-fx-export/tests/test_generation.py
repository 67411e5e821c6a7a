"""Language models become folders that an engine runs, token for token like the model's own generate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from generation_steps import STEPS, check_conversation, check_steps
from language_models import CONFIGURATIONS, UNEQUAL, input_shapes, language_model

from onnx_fx_export import (
    InvalidArgumentError,
    RuntimeSupportError,
    SaveError,
    VerificationError,
    export,
)
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.kinds import kind_of
from onnx_fx_export.generation.operators.last_token import TRANSLATIONS, last_kept
from onnx_fx_export.generation.verifying import verify_folder
from onnxops_decomp.exporting import MissingRuntimeError

ALL_BATCHES = [(1,), (7,), (100,), (3, 11, 6)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model, and the folder that was written of it and verified in plain ONNX Runtime."""
    model = language_model("llama")
    return model, export_folder(model, tmp_path_factory.mktemp("llama") / "out", engine="onnxruntime")


def alone(token: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a prompt of one token, and its mask."""
    return torch.tensor([[token]]), torch.ones(1, 1, dtype=torch.int64)


def continued(model, tokens: torch.Tensor, mask: torch.Tensor, new: int) -> np.ndarray:
    return model.generate(tokens, attention_mask=mask, do_sample=False, max_new_tokens=new).numpy()


def test_a_folder_holds_the_model_its_weights_and_the_settings(llama):
    _, folder = llama

    assert {"model.onnx", "model.onnx.data", "genai_config.json", "generation_config.json"} <= folder.files.keys()
    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES
    assert all(compared.tokens == 64 for compared in folder.compared)


def test_all_sizes_have_names(llama):
    _, folder = llama
    model = onnx.load(folder.path / "model.onnx", load_external_data=False)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }

    assert shapes["input_ids"] == ["batch_size", "sequence_length"]
    assert shapes["attention_mask"] == ["batch_size", "total_sequence_length"]
    assert shapes["past_key_values.1.value"] == ["batch_size", 2, "past_sequence_length", 8]
    assert shapes["logits"] == ["batch_size", 1, 64]
    assert shapes["present.0.key"][0] == "batch_size"


def test_residuals_are_added_inside_the_normalizations_behind_them(llama):
    _, folder = llama
    graph = onnx.load(folder.path / "model.onnx", load_external_data=False).graph

    assert [node.op_type for node in graph.node].count("SkipSimplifiedLayerNormalization") == 4


def test_genai_runs_the_folder_token_for_token(llama):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model, folder = llama

    compared = verify_folder(kind_of(model), folder.path, "genai", str)

    assert [batch.prompts for batch in compared] == ALL_BATCHES


def test_a_conversation_goes_on_token_for_token_in_genai(llama):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")

    check_conversation(llama[0], llama[1].path, [8, 5, 1, 6])


def test_a_padded_batch_ends_where_the_model_ends_it(llama):
    model, folder = llama
    tokens = torch.tensor([[0, 0, 9, 4], [5, 6, 7, 8], [0, 3, 3, 9]])
    mask = (tokens != 0).long()
    stop = int(continued(model, tokens, mask, 5)[1, -1])
    generator = Generator(folder.path)
    generator.config["model"]["eos_token_id"] = stop

    found = generator.generate(tokens.numpy(), mask.numpy(), max_new_tokens=30)

    wanted = model.generate(tokens, attention_mask=mask, do_sample=False, max_new_tokens=30, eos_token_id=stop)
    np.testing.assert_array_equal(found, wanted)


def test_padding_may_stand_on_the_right(llama):
    model, folder = llama
    tokens, mask = np.array([[9, 4, 0, 0], [5, 6, 7, 8]]), np.array([[1, 1, 0, 0], [1, 1, 1, 1]])

    found = Generator(folder.path).generate(tokens, mask, max_new_tokens=20)

    for row, length in enumerate((2, 4)):
        alone = torch.from_numpy(tokens[row : row + 1, :length])
        np.testing.assert_array_equal(found[row, 4:], continued(model, alone, torch.ones_like(alone), 20)[0, length:])


@pytest.mark.parametrize("name", STEPS)
def test_texts_are_read_in_steps_of_any_size(name, llama):
    check_steps(llama[0], llama[1].path, *STEPS[name], 1e-3)


@pytest.mark.wide
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("engine", ["onnxruntime", "genai"])
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt_neox", "opt", "bloom", "falcon", "mixtral"])
def test_every_architecture_reads_in_steps_of_any_size(name, engine, precision, tmp_path):
    # Rounding to float16 decides between experts whose scores lie as close as float16 numbers do: all are asked there.
    everyone = {"num_experts_per_tok": 4} if (name, precision) == ("mixtral", "fp16") else {}
    model = language_model(name, **everyone).to(torch.float16 if precision == "fp16" else torch.float32)
    folder = export_folder(model, tmp_path / "out", precision=precision, engine=engine, verify=False)

    for steps in STEPS.values():
        check_steps(model, folder.path, *steps, 1e-3 if precision == "fp32" else 5e-2)


def test_the_last_token_that_is_no_padding_is_read():
    class Last(torch.nn.Module):
        def forward(self, mask):
            return last_kept(mask)

    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    program = export(
        Last(), (mask[:2, :3],), dynamic_shapes=({0: "rows", 1: "tokens"},), custom_translation_table=TRANSLATIONS
    )

    for found in (last_kept(mask), program(mask)):
        assert found.tolist() == [[1], [3], [2], [3]]  # of padding alone some token


def test_frequencies_that_would_change_beyond_the_context_are_those_of_the_start(tmp_path):
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = language_model("llama", num_hidden_layers=1, rope_parameters=scaling, max_position_embeddings=32)
    continued(model, torch.full((1, 40), 5), torch.ones(1, 40, dtype=torch.int64), 1)  # it has outgrown them once
    grown = model.model.rotary_emb.inv_freq

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == [(1,), (7,), (3, 11, 6)]
    assert json.loads((folder.path / "genai_config.json").read_text())["model"]["context_length"] == 32
    assert model.model.rotary_emb.rope_type == "dynamic"
    assert not torch.equal(grown, model.model.rotary_emb.original_inv_freq)


def test_a_folder_ends_where_a_cache_would_hold_other_frequencies(tmp_path):
    lengths = {"original_max_position_embeddings": 32}
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaling = {"rope_type": "longrope", "rope_theta": 10000.0, **factors, **lengths}
    model = language_model("phi3", num_hidden_layers=1, rope_parameters=scaling, **lengths)

    with pytest.warns(UserWarning, match="the folder takes at most 32 tokens"):
        folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == [(1,), (7,), (3, 11, 6)]
    assert json.loads((folder.path / "genai_config.json").read_text())["model"]["context_length"] == 32


def test_several_tokens_follow_a_cache(llama):
    model, folder = llama
    tokens = np.array([[9, 4, 5, 6, 7, 8]])
    steps = Generator(folder.path).logits(tokens[:, :2])
    next(steps)

    found = steps.send(tokens[:, 2:])

    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)).logits[:, -1].numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "one_layer"), [("falcon_alibi", {"num_hidden_layers": 1}), ("mpt", {"n_layers": 1})])
def test_biases_by_position_generate_alike(name, one_layer, tmp_path):
    model = language_model(name, **one_layer)

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", logits="all")

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES


@pytest.mark.parametrize("name", ["gemma2", "bloom", "gpt_oss"])
@pytest.mark.filterwarnings("ignore:The model has sliding windows")
def test_genai_runs_attention_that_is_spelled_out(name, tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")

    folder = export_folder(language_model(name), tmp_path / "out")

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES
    graph = onnx.load(folder.path / "model.onnx", load_external_data=False).graph
    operators = [node.op_type for node in graph.node]
    assert operators.count("GroupQueryAttention") == 2
    assert operators.count("MoE") == (2 if name == "gpt_oss" else 0)
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert all(read & set(node.output) for node in graph.node)


def test_keys_and_values_of_different_widths_need_the_generator(tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="an optional package")
    model = language_model("deepseek_v3", num_hidden_layers=1)
    with pytest.raises(InvalidArgumentError, match=r"different shapes, \(heads, width\) .*Pass engine='onnxruntime'"):
        export_folder(model, tmp_path / "out")

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES


def test_genai_runs_a_model_without_tokens_that_begin_or_end_a_text(tmp_path):
    genai = pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model = language_model("llama", num_hidden_layers=1, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    prompt = next(row for row in np.arange(1, 64) if 0 in continued(model, *alone(row), 20))

    with pytest.warns(UserWarning, match="ends a text at the padding token then, which is 0"):
        folder = export_folder(model, tmp_path / "out")
    goes_on = export_folder(model, tmp_path / "other", engine="onnxruntime", verify=False)

    assert len(folder.compared) == len(ALL_BATCHES)
    wanted = continued(model, *alone(prompt), 20)
    end = list(wanted[0]).index(0)
    engine = genai.Model(str(folder.path))
    parameters = genai.GeneratorParams(engine)
    parameters.set_search_options(do_sample=False, max_length=21)
    generator = genai.Generator(engine, parameters)
    generator.append_tokens([int(prompt)])
    while not generator.is_done():
        generator.generate_next_token()
    assert generator.get_sequence(0)[:end].tolist() == wanted[0, :end].tolist()
    assert Generator(folder.path).generate(np.array([[prompt]]), max_new_tokens=20).tolist() == [
        wanted[0, : end + 1].tolist()
    ]
    np.testing.assert_array_equal(Generator(goes_on.path).generate(np.array([[prompt]]), max_new_tokens=20), wanted)


@pytest.mark.parametrize("engine", ["genai", "onnxruntime"])
def test_a_model_that_counts_padding_is_compared_without_it(engine, tmp_path):
    if engine == "genai":
        pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    import transformers

    sizes = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    ids = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.BartConfig(**sizes, **ids, init_std=0.3, max_position_embeddings=256)
    model = transformers.BartForCausalLM(config).eval()

    with pytest.warns(UserWarning, match="BartForCausalLM counts padding before a prompt as part of the text"):
        folder = export_folder(model, tmp_path / "out", engine=engine)

    assert [compared.prompts for compared in folder.compared] == [(1,), (7,), (100,), (11, 11, 11)]


def test_a_model_that_counts_padding_behind_a_cache_is_compared_without_it(tmp_path):
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    tower = {**sizes, "image_size": 16, "patch_size": 8}
    settings = {"vocab_size": 64, "max_position_embeddings": 256, "initializer_range": 0.3, "pad_token_id": 0}
    torch.manual_seed(0)
    config = transformers.GitConfig(vision_config=tower, bos_token_id=1, eos_token_id=2, **sizes, **settings)
    model = transformers.GitForCausalLM(config).eval()  # which takes what is kept for places of an image

    with pytest.warns(UserWarning, match="GitForCausalLM counts padding before a prompt as part of the text"):
        folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == [(1,), (7,), (100,), (11, 11, 11)]


def test_genai_is_not_asked_to_pad_where_positions_are_places(tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    import transformers

    class Places(transformers.LlamaForCausalLM):
        def forward(self, input_ids=None, attention_mask=None, past_key_values=None, use_cache=None, **others):
            others.pop("position_ids", None)
            given = {"attention_mask": attention_mask, "past_key_values": past_key_values, "use_cache": use_cache}
            return super().forward(input_ids, **given, **others)

    model = language_model("llama", num_hidden_layers=1)
    model.__class__ = Places

    with pytest.warns(UserWarning, match="pads a batch after the prompts, where the padding counts as part of them"):
        folder = export_folder(model, tmp_path / "out")
    other = export_folder(model, tmp_path / "other", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared][-1] == (11, 11, 11)
    assert [compared.prompts for compared in other.compared] == ALL_BATCHES


@pytest.mark.parametrize(("method", "what"), [("get_audio_features", "sounds"), ("get_image_features", "images")])
def test_a_model_that_reads_more_than_its_folder_is_written_with_a_warning(method, what, tmp_path):
    model = language_model("bart" if what == "images" else "llama")
    setattr(model, method, lambda: None)

    with pytest.warns(UserWarning, match=f"also reads {what}, .* as a model that reads text alone"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_layers_that_read_what_others_keep_have_no_inputs(tmp_path):
    model = language_model("gemma3n")
    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    kept = [name for name in input_shapes(folder.path / "model.onnx") if name.endswith("key")]
    assert kept == ["past_key_values.0.key", "past_key_values.1.key"]
    check_steps(model, folder.path, *STEPS["several tokens behind some"], 1e-3)


@pytest.mark.wide
@pytest.mark.parametrize("name", UNEQUAL)
def test_every_architecture_with_unequal_widths_generates_alike(name, tmp_path):
    folder = export_folder(language_model(name), tmp_path / "out", engine="onnxruntime")

    assert len(folder.compared) == len(ALL_BATCHES)


@pytest.mark.wide
@pytest.mark.parametrize("engine", ["genai", "onnxruntime"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.filterwarnings("ignore:The model has sliding windows")
def test_every_architecture_generates_alike(name, engine, tmp_path):
    if engine == "genai":
        pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")

    folder = export_folder(language_model(name), tmp_path / "out", engine=engine)

    assert len(folder.compared) == len(ALL_BATCHES)


def test_the_model_stays_as_it_is(llama):
    model, _ = llama
    hooks = model.get_output_embeddings()._forward_pre_hooks

    assert not hooks
    assert not model.training


def test_a_folder_of_another_model_is_found_out(llama):
    _, folder = llama
    other = language_model("llama", rms_norm_eps=0.1)

    with pytest.raises(VerificationError, match=r"After a prompt of 1 tokens, the logits differ"):
        verify_folder(kind_of(other), folder.path, "onnxruntime", str)


def test_a_wrong_token_leaves_no_folder(tmp_path, monkeypatch):
    model = language_model("llama", num_hidden_layers=1)
    own = model.generate

    def other_last_token(*args, **kwargs):
        tokens = own(*args, **kwargs)
        tokens[:, -1] = (tokens[:, -1] + 1) % 64
        return tokens

    monkeypatch.setattr(model, "generate", other_last_token)

    with pytest.raises(VerificationError, match=r"Token 63 after a prompt of 1 tokens is \d+, and the model's own"):
        export_folder(model, tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


def test_a_release_of_transformers_without_layers_of_states_has_decoders(monkeypatch):
    import transformers

    monkeypatch.delattr(transformers.cache_utils, "LinearAttentionCacheLayerMixin")

    assert type(kind_of(language_model("llama"))).__name__ == "Decoder"


def with_a_list_of_states() -> torch.nn.Module:
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 32}
    return transformers.RwkvForCausalLM(transformers.RwkvConfig(**sizes))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.nn.Linear(2, 2), "Linear cannot generate"),
        (with_a_list_of_states, "RwkvForCausalLM cannot be written as a folder for generation: its forward has no"),
    ],
)
def test_what_cannot_be_written_is_refused(make, text, tmp_path):
    with pytest.raises(InvalidArgumentError, match=text):
        export_folder(make(), tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [{"engine": "vllm"}, {"precision": "int3"}, {"logits": "first"}])
def test_unknown_options_are_refused(option, tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"is not known; it can be '"):
        export_folder(torch.nn.Linear(2, 2), tmp_path / "out", **option)


def test_a_folder_that_exists_is_not_touched(tmp_path):
    with pytest.raises(SaveError, match="already exists"):
        export_folder(torch.nn.Linear(2, 2), tmp_path)


def test_a_place_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(SaveError, match=r"cannot be written: its parent does not exist"):
        export_folder(torch.nn.Linear(2, 2), tmp_path / "nowhere" / "out", engine="onnxruntime")


def test_a_model_of_another_dtype_is_refused_and_its_folder_is_read_in_float32(tmp_path):
    model = language_model("llama", num_hidden_layers=1).bfloat16()
    with pytest.raises(InvalidArgumentError, match=r"weights of torch\.bfloat16.*float\(\)"):
        export_folder(model, tmp_path / "out", engine="onnxruntime")
    model.save_pretrained(tmp_path / "model")

    folder = export_folder(tmp_path / "model", tmp_path / "out", engine="onnxruntime", tokenizer=False)

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES


def test_a_missing_engine_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)

    with pytest.raises(MissingRuntimeError, match=r"onnxruntime-genai, which is not installed: pip install"):
        export_folder(torch.nn.Linear(2, 2), tmp_path / "out")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"has no genai_config\.json"):
        Generator(tmp_path)


def test_a_broken_model_file_is_an_error_of_the_package(llama, tmp_path):
    _, folder = llama
    (tmp_path / "genai_config.json").write_text((folder.path / "genai_config.json").read_text())
    (tmp_path / "model.onnx").write_bytes(b"no model")

    with pytest.raises(RuntimeSupportError, match="ONNX Runtime cannot load"):
        Generator(tmp_path)


def test_empty_prompts_are_refused(llama):
    with pytest.raises(InvalidArgumentError, match="at least one token"):
        Generator(llama[1].path).generate(np.zeros((2, 0), np.int64))


def test_a_saved_model_is_read_from_its_folder(tmp_path):
    model = language_model("llama", num_hidden_layers=1)
    model.generation_config.repetition_penalty = 1.5
    model.save_pretrained(tmp_path / "model")

    folder = export_folder(tmp_path / "model", tmp_path / "out", engine="onnxruntime", verify=False, tokenizer=False)

    config = json.loads(Path(folder.path / "genai_config.json").read_text())
    assert config["search"]["repetition_penalty"] == 1.5
    assert config["model"]["decoder"]["num_hidden_layers"] == 1
