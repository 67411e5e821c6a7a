"""LoRA adapters become files beside a language model, which engines load by name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from language_models import language_model
from test_generation_sources import command

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export.generation import Generator, export_folder

RANKS = {"formal": 4, "short": 2}


class Adapted(torch.nn.Module):
    """A linear layer with LoRA adapters, of the form that peft gives them."""

    def __init__(self, base_layer: torch.nn.Linear, ranks: dict[str, int]) -> None:
        super().__init__()
        self.base_layer, self.scaling = base_layer, dict.fromkeys(ranks, 9.0)
        width, height = base_layer.in_features, base_layer.out_features
        self.lora_A = torch.nn.ModuleDict({n: torch.nn.Linear(width, r, bias=False) for n, r in ranks.items()})
        self.lora_B = torch.nn.ModuleDict({n: torch.nn.Linear(r, height, bias=False) for n, r in ranks.items()})
        self.active_adapters, self.disable_adapters = [next(iter(ranks))], False

    def set_adapter(self, names):
        self.active_adapters = names

    def enable_adapters(self, enabled):
        self.disable_adapters = not enabled

    def forward(self, x):
        result = self.base_layer(x)
        for name in [] if self.disable_adapters else self.active_adapters:
            if name in self.lora_A:
                result = result + self.lora_B[name](self.lora_A[name](x)) * self.scaling[name]
        return result


def adapted(**settings) -> torch.nn.Module:
    """A model with two adapters, one of which leaves layers out."""
    model = language_model("llama", num_hidden_layers=1, **settings)
    attention = model.model.layers[0].self_attn
    torch.manual_seed(1)
    attention.q_proj = Adapted(attention.q_proj, RANKS)
    attention.o_proj = Adapted(attention.o_proj, {"formal": 4})
    return model.eval()


def continued(model: torch.nn.Module, tokens: torch.Tensor, new: int) -> np.ndarray:
    return model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=new).numpy()


def use(model: torch.nn.Module, name: str | None) -> None:
    for layer in model.modules():
        if isinstance(layer, Adapted):
            layer.set_adapter([name])
            layer.enable_adapters(name is not None)


@pytest.mark.parametrize("engine", ["onnxruntime", "genai"])
def test_each_adapter_generates_as_the_model_does_with_it(engine, tmp_path):
    if engine == "genai":
        pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    model, tokens = adapted(), torch.tensor([[9, 4, 5]])
    before = continued(model, tokens, 12)

    folder = export_folder(model, tmp_path / "out", engine=engine, adapters=True)

    assert {f"{name}.onnx_adapter" for name in RANKS} <= folder.files.keys()
    assert [(compared.adapter, compared.prompts) for compared in folder.compared] == [
        *((None, prompts) for prompts in ((1,), (7,), (100,), (3, 11, 6))),
        *((name, prompts) for name in RANKS for prompts in ((7,), (3, 11, 6))),
    ]
    np.testing.assert_array_equal(continued(model, tokens, 12), before)  # the model is as it was
    if engine == "genai":
        return
    generator, found = Generator(folder.path), {}
    for name in (None, *RANKS):
        use(model, name)
        found[name] = generator.generate(tokens.numpy(), max_new_tokens=12, adapter=name)
        np.testing.assert_array_equal(found[name], continued(model, tokens, 12))
    assert len({tuple(row.ravel()) for row in found.values()}) == 3
    with pytest.raises(InvalidArgumentError, match=r"no adapter 'long'; it has formal, short"):
        generator.generate(tokens.numpy(), adapter="long")


def test_rounding_leaves_adapters_as_they_are(tmp_path):
    folder = export_folder(adapted(), tmp_path / "out", "int4", engine="onnxruntime", adapters=True, verify=False)

    graph = onnx.load(folder.path / "model.onnx", load_external_data=False).graph
    assert folder.quantization.layers == 8
    factors = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input[-4:]}
    assert factors == {
        "model.model.layers.0.self_attn.q_proj.lora_A": [32, 4],
        "model.model.layers.0.self_attn.q_proj.lora_B": [4, 32],
        "model.model.layers.0.self_attn.o_proj.lora_A": [32, 4],
        "model.model.layers.0.self_attn.o_proj.lora_B": [4, 32],
    }


def test_an_active_adapter_is_part_of_the_model_by_default(tmp_path):
    model, tokens = adapted(), torch.tensor([[9, 4, 5]])
    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    found = Generator(folder.path).generate(tokens.numpy(), max_new_tokens=12)

    assert not [file for file in folder.files if file.endswith(".onnx_adapter")]
    np.testing.assert_array_equal(found, continued(model, tokens, 12))


def with_a_direction() -> torch.nn.Module:
    model = adapted()
    model.model.layers[0].self_attn.q_proj.lora_magnitude_vector = torch.nn.ModuleDict({"formal": torch.nn.Identity()})
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: language_model("llama", num_hidden_layers=1), "LlamaForCausalLM has no LoRA adapters"),
        (with_a_direction, r"q_proj has adapters of another kind \(lora_magnitude_vector\); merge them"),
    ],
)
def test_other_adapters_are_refused(make, text, tmp_path):
    with pytest.raises(InvalidArgumentError, match=text):
        export_folder(make(), tmp_path / "out", engine="onnxruntime", adapters=True)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_adapters(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text("from test_generation_adapters import adapted as model\n")
    monkeypatch.chdir(tmp_path)

    result = command("models.py:model", "-o", "out", "--engine", "onnxruntime", "--adapters", "--no-verify")

    assert result.exit_code == 0, result.stderr
    assert "formal.onnx_adapter" in result.stdout


def test_adapters_of_peft_are_written(tmp_path):
    peft = pytest.importorskip("peft", reason="peft makes the adapters of this test")
    model = peft.get_peft_model(
        language_model("llama", num_hidden_layers=1),
        peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
        adapter_name="formal",
    )
    model.add_adapter("short", peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False))

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", adapters=True)

    assert [compared.adapter for compared in folder.compared] == [None] * 4 + ["formal"] * 2 + ["short"] * 2
    assert model.active_adapters == ["formal"]
