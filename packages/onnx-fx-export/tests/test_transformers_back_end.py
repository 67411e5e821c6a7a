"""transformers' own exporters run on this package, with the names and sizes that its users expect."""

from __future__ import annotations

import copy
import importlib.metadata

import pytest
import torch
import transformers
from transformers.exporters import AutoHfExporter, ExportedModel
from transformers.exporters.utils import decompose_for_generation

from onnx_fx_export import DynamicShapeError, OnnxExporterError
from onnx_fx_export.transformers import OnnxFxConfig, OnnxFxExporter
from onnx_fx_export.transformers.requirements import require_transformers

SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def mistral():
    config = transformers.MistralConfig(**SIZES, **TOKENS, num_key_value_heads=1, sliding_window=8)
    return transformers.MistralForCausalLM(config).eval()


def t5():
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()


def text(batch: int, length: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, :2] = 0
    return {"input_ids": torch.randint(3, 50, (batch, length)), "attention_mask": mask}


@pytest.mark.parametrize("make", [mistral, t5])
def test_stages_of_a_generation_are_saved_loaded_and_run_at_other_sizes(make, tmp_path) -> None:
    model = make()
    stages = OnnxFxExporter().export_for_generation(model, text(2, 5), OnnxFxConfig(dynamic=True))
    assert list(stages.components) == ["prefill", "decode"]
    stages.save_pretrained(tmp_path)

    loaded = ExportedModel.from_pretrained(tmp_path)

    with torch.no_grad():
        for name, (_, call) in decompose_for_generation(model, text(3, 6)).items():
            call = {key: value for key, value in call.items() if key not in ("use_cache", "return_dict")}
            expected = model(**copy.deepcopy(call)).logits
            torch.testing.assert_close(loaded.runners[name](**call).logits, expected, rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_have_the_names_that_tools_expect() -> None:
    stages = OnnxFxExporter().export_for_generation(
        mistral(), text(2, 5), OnnxFxConfig(dynamic=True), multi_token_decode=True
    )
    program = stages.components["decode"].program
    assert program.input_names[:2] == ["input_ids", "attention_mask"]
    assert program.input_names[-2:] == ["past_key_values.0.key", "past_key_values.0.value"]
    assert program.output_names == ["logits", "present.0.key", "present.0.value"]
    shapes = {value.name: str(value.shape) for value in program.model.graph.inputs}
    assert shapes["input_ids"] == "[batch_size,sequence_length]"
    assert shapes["past_key_values.0.key"] == "[batch_size,1,past_sequence_length,8]"


def test_a_window_does_not_end_what_is_prefilled_and_decoded_step_by_step() -> None:
    model = mistral()
    stages = OnnxFxExporter().export_for_generation(
        model, text(2, 5), OnnxFxConfig(dynamic=True), multi_token_decode=True
    )
    ids = torch.randint(3, 50, (1, 20))
    with torch.no_grad():
        expected = model(input_ids=ids).logits

    mask, positions = torch.ones_like(ids), torch.arange(20)[None]
    given = {"input_ids": ids[:, :12], "attention_mask": mask[:, :12], "position_ids": positions[:, :12]}
    result = stages.runners["prefill"](**given)
    torch.testing.assert_close(result.logits[:, -1], expected[:, 11], rtol=1e-4, atol=1e-5)
    for end in range(14, 21, 2):
        given = {
            "input_ids": ids[:, end - 2 : end],
            "attention_mask": mask[:, :end],
            "position_ids": positions[:, end - 2 : end],
        }
        result = stages.runners["decode"](**given, past_key_values=result.past_key_values)
        torch.testing.assert_close(result.logits, expected[:, end - 2 : end], rtol=1e-4, atol=1e-5)


def test_the_back_end_is_found_by_its_format_and_leaves_the_model_as_it_was() -> None:
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    before = set(vars(model))
    exporter = AutoHfExporter.from_config({"export_format": "onnx-fx"})
    exported = exporter.export(model, text(2, 5), OnnxFxConfig(dynamic=True))
    other = text(3, 8)
    with torch.no_grad():
        expected = model(**other).last_hidden_state
    torch.testing.assert_close(exported(**other).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
    assert set(vars(model)) == before


def test_a_missing_transformers_is_an_error_of_the_package(monkeypatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(OnnxExporterError, match=r"onnx-fx-export\[transformers\]"):
        require_transformers()


def test_a_dimension_that_the_model_fixes_is_an_error() -> None:
    config = transformers.ViTConfig(**{**SIZES, "image_size": 16}, patch_size=8)
    del config.vocab_size
    pixels = {"pixel_values": torch.randn(2, 3, 16, 16)}
    shapes = {"pixel_values": {0: "batch", 2: "height"}}
    with pytest.raises(DynamicShapeError):
        OnnxFxExporter().export(transformers.ViTModel(config).eval(), pixels, OnnxFxConfig(dynamic_shapes=shapes))
