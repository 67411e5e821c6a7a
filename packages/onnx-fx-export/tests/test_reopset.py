"""ONNX models at another opset: compared with the original, written whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from typer.testing import CliRunner

import onnx_fx_export
from onnx_fx_export import InvalidArgumentError, UnsupportedOpsetError, VerificationError, reopset
from onnx_fx_export.cli import reopset_app as app

FLOAT = TensorProto.FLOAT


class Attending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(17, 8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.head = torch.nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)).mean(1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    tokens = torch.randint(0, 17, (2, 5))
    shapes = ({0: "batch", 1: "length"},)
    onnx_fx_export.export(Attending().eval(), (tokens,), path, dynamic_shapes=shapes, opset_version=20)
    return path


def outputs(path, tokens):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"tokens": tokens})[0]


@pytest.mark.parametrize("opset", [11, 13, 23])
def test_a_network_is_the_same_at_sizes_that_were_not_compared(exported, tmp_path, opset: int) -> None:
    path = tmp_path / "out.onnx"
    made = reopset(exported, path, opset_version=opset)

    assert made.engine == "ort"
    assert len(made.compared) == 2
    model = onnx.load(path)
    assert [each.version for each in model.opset_import if not each.domain] == [opset]
    assert model.graph.input[0] == onnx.load(exported).graph.input[0]
    for batch, length in ((1, 7), (6, 4)):
        tokens = np.random.default_rng(0).integers(0, 17, (batch, length))
        np.testing.assert_allclose(outputs(path, tokens), outputs(exported, tokens), rtol=1e-4, atol=1e-5)


def simple(op_type, opset, **attributes):
    node = helper.make_node(op_type, ["x"], ["y"], name="made", **attributes)
    infos = [helper.make_tensor_value_info(name, FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([node], "graph", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_what_the_opset_cannot_express_is_named_and_no_file_is_left(tmp_path) -> None:
    strings = simple("StringNormalizer", 20)
    for value in (*strings.graph.input, *strings.graph.output):
        value.type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(UnsupportedOpsetError, match=r"'made'.*StringNormalizer.*lowest opset that works is 10"):
        reopset(strings, tmp_path / "out.onnx", opset_version=9)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [6, 29, "13", None])
def test_what_is_no_opset_is_refused_before_the_model_is_read(tmp_path, opset) -> None:
    with pytest.raises(InvalidArgumentError, match="a whole number from 7 to 28"):
        reopset(tmp_path / "missing.onnx", opset_version=opset)


def test_a_result_that_differs_is_not_written(tmp_path, monkeypatch) -> None:
    wrong = onnx_fx_export.reopset.__globals__
    monkeypatch.setitem(wrong, "convert_opset", lambda *args, **kwargs: onnx_ir_of(simple("Neg", 13)))
    with pytest.raises(VerificationError, match="does not give what the original gives"):
        reopset(simple("Abs", 18), tmp_path / "out.onnx", opset_version=13)
    assert not list(tmp_path.iterdir())


def onnx_ir_of(proto):
    import onnx_ir

    return onnx_ir.from_proto(proto)


def test_what_onnx_runtime_has_no_kernel_for_at_the_opset_is_written_otherwise(tmp_path) -> None:
    node = helper.make_node("Max", ["x", "z"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.UINT64, ["n"]) for name in "xzy"]
    graph = helper.make_graph([node], "graph", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert not reopset(model, opset_version=17).for_onnxruntime
    made = reopset(model, opset_version=9)
    assert made.for_onnxruntime
    assert made.engine == "ort"


def test_what_nothing_runs_is_not_written_unless_it_is_asked_for(tmp_path) -> None:
    foreign = simple("Special", 18)
    foreign.graph.node[0].domain = "com.example"
    foreign.opset_import.add(domain="com.example", version=1)
    with pytest.raises(VerificationError, match="No engine can run the original"):
        reopset(foreign, tmp_path / "out.onnx", opset_version=13)
    assert not list(tmp_path.iterdir())
    reopset(foreign, tmp_path / "out.onnx", opset_version=13, verify=False)
    assert (tmp_path / "out.onnx").exists()


def test_inputs_and_sizes_of_the_caller_are_those_that_are_compared() -> None:
    made = reopset(simple("Abs", 18), opset_version=13, sizes={"n": [4]})
    assert made.compared == ("random n=4",)
    assert len(reopset(simple("Abs", 18), opset_version=13, inputs=(np.ones(3, np.float32),)).compared) == 1


def test_the_command_writes_and_prints_json(exported, tmp_path) -> None:
    out = tmp_path / "out.onnx"
    result = CliRunner().invoke(app, [str(exported), "-o", str(out), "--opset", "13", "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["opset"] == 13
    assert summary["compared in"] == "ort"
    assert out.exists()


def test_the_command_ends_with_1_where_it_fails_and_2_where_it_is_wrong(exported, tmp_path) -> None:
    out = str(tmp_path / "out.onnx")
    missing = str(tmp_path / "missing.onnx")
    assert CliRunner().invoke(app, [missing, "-o", out, "--opset", "13"]).exit_code == 1
    assert CliRunner().invoke(app, [str(exported), "-o", out, "--opset", "3"]).exit_code == 2
    assert CliRunner().invoke(app, [str(exported), "-o", out, "--opset", "13", "--size", "batch"]).exit_code == 2


def test_reopset_is_a_word_of_the_command_line() -> None:
    code = "import sys; sys.argv[1:] = ['reopset', '--help']\nfrom onnx_fx_export.entry import main; main()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "--opset" in shown
    assert "--no-verify" in shown
