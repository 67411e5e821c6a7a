"""Models with short convolutions (LFM2) generate token for token in ONNX Runtime GenAI, from one graph."""

from __future__ import annotations

import sys

import onnx
import pytest
import torch
from generation_steps import STEPS, check_conversation, check_steps
from language_models import input_shapes, language_model

from onnx_fx_export import InvalidArgumentError, export
from onnx_fx_export.generation import export_folder
from onnx_fx_export.generation.operators.convolutions import has_convolutions
from onnx_fx_export.generation.operators.padding import TRANSLATIONS, before_padding

pytest.importorskip("onnxruntime_genai", reason="the engine of these tests is an optional package")
ALL_BATCHES = [(1,), (7,), (100,), (3, 11, 6)]
TABLE = {"custom_translation_table": TRANSLATIONS, "opset_version": 23}


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory):
    """A model, and the folder that was written of it and verified."""
    model = language_model("lfm2")
    if not has_convolutions(model):
        pytest.skip("the installed ONNX Runtime or transformers is older than the operator")
    return model, export_folder(model, tmp_path_factory.mktemp("lfm2") / "out")


def test_genai_runs_the_folder_token_for_token(lfm2):
    assert [compared.prompts for compared in lfm2[1].compared] == ALL_BATCHES
    assert not any(compared.ties for compared in lfm2[1].compared)


def test_columns_are_inputs_and_outputs(lfm2):
    path = lfm2[1].path / "model.onnx"

    assert input_shapes(path) == {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", "total_sequence_length"],
        "past_key_values.0.conv": ["batch_size", 32, 2],
        "past_key_values.1.key": ["batch_size", 2, "past_sequence_length", 8],
        "past_key_values.1.value": ["batch_size", 2, "past_sequence_length", 8],
    }
    model = onnx.load(path, load_external_data=False)
    nodes = [node.op_type for node in model.graph.node]
    assert nodes.count("CausalConvWithState") == nodes.count("GroupQueryAttention") == 1
    assert "Conv" not in nodes
    # The gate of the convolution is not transposed, and what padding changes is looked for once, of logits as well.
    assert nodes.count("Transpose") == 2
    assert nodes.count("Loop") == 1
    assert not {"ArgMax", "If"} & {*nodes}
    # Padding stands behind prompts, and none of it is read: nothing is multiplied by the mask.
    (convolution,) = (node for node in model.graph.node if node.op_type == "CausalConvWithState")
    made = {output: node for node in model.graph.node for output in node.output}
    assert made[convolution.input[0]].op_type == "Transpose"


def test_a_conversation_goes_on_token_for_token(lfm2):
    check_conversation(lfm2[0], lfm2[1].path, [6, 3, 5])


@pytest.mark.parametrize("name", [name for name in STEPS if name != "padding in between"])
@pytest.mark.parametrize("biased", [False, True])
def test_texts_are_read_in_steps_of_any_size(name, biased, lfm2, tmp_path):
    model, path = lfm2[0], lfm2[1].path
    if biased:
        model, path = language_model("lfm2", conv_bias=True), tmp_path / "out"
        export_folder(model, path, verify=False)

    check_steps(model, path, *STEPS[name], tolerance=1e-4)


@pytest.mark.parametrize("name", ["padding on the left", "padding on the right", "padding in between"])
def test_padding_may_stand_anywhere_for_onnx_runtime(name, lfm2, tmp_path):
    model = lfm2[0]
    export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    check_steps(model, tmp_path / "out", *STEPS[name], tolerance=1e-4)


def test_logits_of_all_tokens_leave_the_columns_right(lfm2, tmp_path):
    export_folder(lfm2[0], tmp_path / "out", logits="all", verify=False)

    check_steps(lfm2[0], tmp_path / "out", *STEPS["padding on the right"], tolerance=1e-4)


@pytest.mark.parametrize("with_states", [False, True])
def test_what_stands_before_padding_is_found(with_states):
    class Model(torch.nn.Module):
        def forward(self, state, new, past, mask):
            new = [new, new * 2]
            last = [torch.cat([past, part], -1)[..., -2:] for part in new]
            return before_padding([state] if with_states else [], last, [past, past], new, mask)

    def inputs(*rows: list[int]) -> tuple[torch.Tensor, ...]:
        mask = torch.tensor(rows)
        batch, new = len(rows), mask.shape[1] - 1
        return torch.randn(batch, new, 4), torch.randn(batch, 6, new), torch.randn(batch, 6, 2), mask

    batch, new = {0: "batch"}, {0: "batch", 2: "new"}
    shapes = ({0: "batch", 1: "new"}, new, batch, {0: "batch", 1: "all"})
    program = export(Model(), inputs([1, 1, 1, 0], [1, 1, 0, 0]), dynamic_shapes=shapes, **TABLE)

    for rows in ([[1, 1, 0]], [[0, 0], [1, 1]], [[1, 0, 1, 0, 1], [1, 0, 0, 0, 0], [0, 1, 1, 1, 0]], [[1, 1, 1]]):
        given = inputs(*rows)
        for found, wanted in zip(program(*given), Model()(*given), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_weights_stay_in_their_files(precision, tmp_path):
    model = language_model("lfm2_moe")
    model.save_pretrained(tmp_path / "source")

    export_folder(tmp_path / "source", tmp_path / "out", precision, verify=False, tokenizer=False)

    if precision == "fp32":
        check_steps(model, tmp_path / "out", *STEPS["padding on the right"], tolerance=1e-4)


def test_another_convolution_under_that_name_is_refused(monkeypatch, lfm2, tmp_path):
    model = language_model("lfm2")
    modeling = sys.modules[type(model).__module__]
    own = modeling.causal_conv1d_fn

    monkeypatch.setattr(modeling, "causal_conv1d_fn", lambda *args, **given: own(*args, **given) * 2)

    with pytest.raises(InvalidArgumentError, match=r"GenAI cannot run Lfm2ForCausalLM\. Pass engine='onnxruntime'"):
        export_folder(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.wide
@pytest.mark.parametrize("precision", ["fp32", "int4", "int8"])
@pytest.mark.parametrize("name", ["lfm2", "lfm2_moe"])
def test_every_precision_generates_alike(name, precision, lfm2, tmp_path):
    folder = export_folder(language_model(name), tmp_path / "out", precision)

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES


def test_half_precision_generates_alike(lfm2, tmp_path):
    folder = export_folder(language_model("lfm2").half(), tmp_path / "out", "fp16")

    assert [compared.prompts for compared in folder.compared] == ALL_BATCHES
