"""Folders with rounded weights generate what the rounded model does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from language_models import language_model

from onnx_fx_export import InvalidArgumentError, VerificationError
from onnx_fx_export.generation import export_folder, verifying
from onnx_fx_export.generation.groups import GroupedLinear
from onnx_fx_export.generation.kinds import kind_of
from onnx_fx_export.generation.quantization import quantized
from onnx_fx_export.generation.rounding import other_roundings
from onnx_fx_export.generation.verifying import Compared


def operators(path) -> list[str]:
    return [node.op_type for node in onnx.load(path / "model.onnx", load_external_data=False).graph.node]


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_are_the_nearest_ones(bits):
    torch.manual_seed(0)
    weight = torch.randn(6, 64)

    layer = GroupedLinear(weight, None, bits, 32)

    step = layer.scales.abs().repeat_interleave(32, 1)
    # The largest number has no negation, so that what lies at the other end may be off by a whole step.
    assert ((layer.weight - weight).abs() <= step * (1 + 1e-6)).all()
    inner = (weight / layer.scales.repeat_interleave(32, 1)) <= 2 ** (bits - 1) - 1
    assert ((layer.weight - weight).abs()[inner] <= step[inner] / 2 * (1 + 1e-5)).all()
    extreme = weight.unflatten(1, (-1, 32)).abs().amax(-1)
    torch.testing.assert_close(layer.weight.unflatten(1, (-1, 32)).abs().amax(-1), extreme)


def test_a_group_of_zeros_stays_zero():
    assert not GroupedLinear(torch.zeros(2, 32), None, 4, 32).weight.any()


@pytest.mark.parametrize(("precision", "most"), [("int4", 0.6), ("int8", 0.1)])
def test_rounded_weights_are_stored_as_integers_and_generate_alike(precision, most, tmp_path):
    least = {"int4": "1.22", "int8": "1.23"}[precision]
    pytest.importorskip("onnxruntime", minversion=least, reason=f"ONNX Runtime has MatMulNBits for this since {least}")
    model = language_model("llama", num_hidden_layers=1)
    plain = sum(weight.numel() * 4 for weight in model.parameters())

    folder = export_folder(model, tmp_path / "out", precision, engine="onnxruntime")

    assert len(folder.compared) == 4
    assert operators(folder.path).count("MatMulNBits") == folder.quantization.layers == 8
    assert folder.files["model.onnx.data"] < plain / 2
    assert 0 < folder.quantization.difference < most
    assert all(type(module) is not GroupedLinear for module in model.modules())


@pytest.mark.parametrize(("name", "precision", "most"), [("mixtral", "int4", 0.6), ("qwen3_moe", "int8", 0.1)])
def test_experts_are_rounded_and_generate_alike_in_genai(name, precision, most, tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model = language_model(name, num_hidden_layers=1)

    folder = export_folder(model, tmp_path / "out", precision)

    assert [compared.ties for compared in folder.compared] == [0] * 4
    assert operators(folder.path).count("QMoE") == 1
    assert (folder.quantization.layers, folder.quantization.left) == (6, ())
    assert 0 < folder.quantization.difference < most


def test_layers_of_odd_widths_stay_and_are_named():
    model = language_model("llama", num_hidden_layers=1, intermediate_size=40)

    with quantized(model, 4) as (layers, left):
        assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear

    assert (layers, left) == (7, ("model.layers.0.mlp.down_proj",))


def test_a_head_that_shares_the_weight_of_the_embedding_is_rounded_alone():
    model = language_model("llama", num_hidden_layers=1, tie_word_embeddings=True)
    before = model.get_input_embeddings().weight.clone()

    with quantized(model, 4):
        assert isinstance(model.get_output_embeddings(), GroupedLinear)
        assert torch.equal(model.get_input_embeddings().weight, before)

    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def undecided() -> torch.nn.Module:
    """Return a model in half precision whose router finds all experts about as good."""
    model = language_model("mixtral", num_hidden_layers=1).half()
    router = model.model.layers[0].mlp.gate.weight
    router.data[1:] = router.data[:1] + 1e-4 * torch.randn(3, 32)
    return model


def test_rounding_changes_what_a_model_computes_where_a_router_hardly_decides():
    def choices(model) -> int:
        kind = kind_of(model)
        (row,) = kind.batch((1,)).rows
        inputs = kind.extended(row, np.zeros(0, np.int64))
        logits = kind.logits(inputs)[-1].numpy()
        found = []
        for run in [logits, *other_roundings(kind, inputs)]:
            if all(np.abs(run - other).max() > 0.03 * np.abs(logits).max() for other in found):
                found.append(run)
        assert not any(module._forward_hooks for module in model.modules())
        return len(found)

    assert choices(language_model("mixtral", num_hidden_layers=1).half()) == 1
    assert 1 < choices(undecided()) <= 6  # two of four experts


class OtherModel:
    """Stands for a folder and its engine, with what another model of torch computes."""

    pads_behind = False

    def __init__(self, model) -> None:
        self.kind = kind_of(model)

    def logits(self, *, adapter, **inputs):
        with torch.no_grad():
            result = self.kind.model(**{name: torch.from_numpy(value) for name, value in inputs.items()})
        yield result.logits[:, -1].float().numpy()

    def generate(self, batch, prefix, new, adapter):
        return np.stack([self.kind.generate(self.kind.extended(row, np.zeros(0, np.int64)), new) for row in batch.rows])


@pytest.fixture
def verified(monkeypatch) -> Callable[[torch.nn.Module, torch.nn.Module], list[Compared]]:
    """Return what verifies a model for another one."""

    def verify(model, engine) -> list[Compared]:
        other = OtherModel(engine)
        monkeypatch.setattr(verifying, "_NEW", 8)
        monkeypatch.setattr(verifying, "Generator", lambda _: other)
        monkeypatch.setattr(verifying, "engine_of", lambda *_: other.generate)
        return verifying.verify_folder(kind_of(model), Path(), "onnxruntime", str)

    return verify


def swapped(model) -> None:
    for weight in model.model.layers[0].mlp.experts.parameters():
        weight[:2] = weight[:2].flip(0)


def stronger(model) -> None:
    model.model.layers[0].mlp.experts.down_proj[2] *= 1.3


def rows_of_another(model) -> None:
    weight = model.model.layers[0].mlp.experts.gate_up_proj
    weight[3, :8] = weight[3, 8:16]


def one_expert(model) -> None:
    model.model.layers[0].mlp.gate.top_k = 1


def other_values(model) -> None:
    model.model.layers[0].self_attn.v_proj.weight[:8] *= 1.3


WRONG = [swapped, stronger, rows_of_another, one_expert, other_values]


def changed(model, change):
    with torch.no_grad():
        change(model)
    return model


def test_what_a_router_may_choose_explains_the_same_model_in_another_precision(verified):
    assert sum(compared.ties for compared in verified(undecided(), undecided().float())) > 0


@pytest.mark.parametrize("change", WRONG)
def test_what_a_router_may_choose_explains_no_wrong_model(verified, change):
    with pytest.raises(VerificationError, match="logits"):
        verified(undecided(), changed(undecided(), change))


def test_the_best_token_explains_no_other_one_that_generate_gives(verified, monkeypatch):
    model, engine = undecided(), undecided()
    own = model.generate
    monkeypatch.setattr(model, "generate", lambda *args, **options: 3 + (own(*args, **options) - 2) % 61)

    with pytest.raises(VerificationError, match="Token 0 after a prompt of 1 tokens"):
        verified(model, engine)


@pytest.mark.wide
@pytest.mark.parametrize("engine", ["genai", "onnxruntime"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
@pytest.mark.filterwarnings("ignore:The model has sliding windows")
def test_experts_in_half_precision_generate_alike(name, engine, tmp_path):
    if engine == "genai":
        pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")

    model = language_model(name).half()
    folder = export_folder(model, tmp_path / "out", "fp16", engine=engine)

    assert len(folder.compared) == 4
    with pytest.raises(VerificationError, match="logits"):
        verifying.verify_folder(kind_of(changed(model, swapped)), folder.path, engine, str)


def test_half_precision_is_written_of_a_model_that_has_it(tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model = language_model("llama", num_hidden_layers=1, head_dim=16)
    with pytest.raises(InvalidArgumentError, match=r"weights of torch\.float32.*half\(\)"):
        export_folder(model, tmp_path / "out", "fp16")

    folder = export_folder(model.half(), tmp_path / "out", "fp16")

    graph = onnx.load(folder.path / "model.onnx", load_external_data=False).graph
    assert {value.type.tensor_type.elem_type for value in graph.output} == {onnx.TensorProto.FLOAT16}
    assert len(folder.compared) == 4
    with pytest.raises(VerificationError, match="the logits differ"):
        verifying.verify_folder(
            kind_of(language_model("llama", num_hidden_layers=1, head_dim=16, rms_norm_eps=0.5).half()),
            folder.path,
            "genai",
            str,
        )
    (attention,) = (node for node in graph.node if node.op_type == "GroupQueryAttention")
    assert {attribute.name: attribute.i for attribute in attention.attribute}["do_rotary"] == 1


@pytest.mark.parametrize(("name", "settings"), [("t5", {"num_layers": 1}), ("deepseek_v3", {})])
def test_weights_that_stay_in_float32_in_half_precision_are_written_so(name, settings, tmp_path):
    language_model(name, **settings).save_pretrained(tmp_path / "source")
    path, given = tmp_path / "source", {"engine": "onnxruntime", "tokenizer": False}

    folder = export_folder(path, tmp_path / "out", "fp16", **given)
    streamed = export_folder(path, tmp_path / "streamed", "fp16", verify=False, **given)

    assert len(folder.compared) == 4
    dtypes = {dtype for file in folder.path.glob("*.onnx") for dtype in initializers(file).values()}
    assert {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16} <= dtypes
    for file in folder.path.glob("*.onnx"):
        assert initializers(file) == initializers(streamed.path / file.name)


def initializers(file: Path) -> dict[str, int]:
    """Return the dtypes of the weights of a model file."""
    graph = onnx.load(file, load_external_data=False).graph
    return {tensor.name: tensor.data_type for tensor in graph.initializer}
