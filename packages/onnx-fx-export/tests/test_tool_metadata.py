"""The metadata by which other tools group nodes: torch's keys, beside what torch's exporter writes."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import onnx_ts_legacy
from onnx_fx_export import export, replace_torch_onnx

X = torch.linspace(-2, 2, 8).reshape(2, 4)
PREFIXES = ("pkg.torch.", "namespace")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = torch.nn.Linear(4, 4), torch.nn.ReLU()
        self.register_buffer("offset", torch.ones(4))
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)

    def forward(self, x):
        return self.act(self.linear(x)) * self.scale + self.offset


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.softmax(-1)


MODEL = Stack().eval()
Program = torch.export.ExportedProgram


@pytest.fixture(scope="module")
def captured() -> torch.export.ExportedProgram:
    return torch.export.export(MODEL, (X,), dynamic_shapes=({0: torch.export.Dim("n")},))


@pytest.fixture(scope="module")
def of_torch(captured: torch.export.ExportedProgram) -> onnx.ModelProto:
    return torch.onnx.export(captured, dynamo=True, verbose=False, optimize=False).model_proto


def saved(program: torch.export.ExportedProgram, path: Path, **options: Any) -> onnx.ModelProto:
    export(program, f=path, **options)
    return onnx.load(path)


def torch_keys(owner: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in owner.metadata_props if entry.key.startswith(PREFIXES)}


def by_node(model: onnx.ModelProto) -> list[dict[str, str]]:
    return [keys for node in model.graph.node if (keys := torch_keys(node))]


def comparable(keys: dict[str, str]) -> dict[str, Any]:
    """Leave out the names of nodes, which torch's exporter numbers anew when it decomposes the program."""
    return {
        "namespace": repr([re.sub(r"^\w+: aten", "aten", part) for part in keys["namespace"].split("/")]),
        "classes": keys["pkg.torch.onnx.class_hierarchy"],
        "scopes": repr(ast.literal_eval(keys["pkg.torch.onnx.name_scopes"])[:-1]),
        "target": re.search(r"target=([\w.]+)", keys["pkg.torch.onnx.fx_node"])[1],
        "trace": keys["pkg.torch.onnx.stack_trace"],
    }


def size_of_metadata(model: onnx.ModelProto) -> int:
    return sum(entry.ByteSize() for node in model.graph.node for entry in node.metadata_props)


def test_nodes_carry_what_torch_writes(tmp_path: Path, captured: Program, of_torch: onnx.ModelProto) -> None:
    theirs = {tuple(comparable(keys).values()) for keys in by_node(of_torch)}
    ours = by_node(saved(captured, tmp_path / "m.onnx", metadata="full"))
    assert len(theirs) == len(by_node(of_torch)) == 9
    assert {tuple(comparable(keys).values()) for keys in ours} == theirs
    assert all(keys.keys() == by_node(of_torch)[0].keys() for keys in ours)


def test_values_carry_what_torch_writes(tmp_path: Path, captured: Program, of_torch: onnx.ModelProto) -> None:
    ours = saved(captured, tmp_path / "m.onnx", metadata="full").graph
    for mine, theirs in ((ours.input, of_torch.graph.input), (ours.output, of_torch.graph.output)):
        assert [torch_keys(value) for value in mine] == [torch_keys(value) for value in theirs]
    weights = {value.name: torch_keys(value) for value in of_torch.graph.value_info if torch_keys(value)}
    found = {value.name: torch_keys(value) for value in ours.value_info if torch_keys(value)}
    assert found
    assert {name: found[name] for name in found if name in weights} == {
        name: keys for name, keys in weights.items() if name in found
    }
    assert {key.key for key in ours.metadata_props} == {key.key for key in of_torch.graph.metadata_props}


def test_the_amount_is_an_option(tmp_path: Path, captured: Program, of_torch: onnx.ModelProto) -> None:
    models = {kind: saved(captured, tmp_path / f"{kind}.onnx", metadata=kind) for kind in ("full", "source", "none")}
    assert saved(captured, tmp_path / "default.onnx") == models["source"]
    assert not any(node.metadata_props for node in models["none"].graph.node)
    keys = {entry.key for node in models["source"].graph.node for entry in node.metadata_props}
    assert keys == {"onnxops.fx_node", "onnxops.module", "onnxops.source"}
    sizes = {kind: size_of_metadata(model) for kind, model in models.items()}
    assert sizes["source"] < 200 * len(models["source"].graph.node)
    assert sizes["full"] <= sizes["source"] + size_of_metadata(of_torch)


def test_nodes_of_branches_carry_their_own(tmp_path: Path) -> None:
    class Branching(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    program = export(Branching(), (X,), metadata="full")
    inner = [node for node in program.model.graph.all_nodes() if node.op_type in ("Sin", "Cos")]
    assert ["aten.sin.default" in inner[0].metadata_props["namespace"]] == [True]
    assert all("pkg.torch.onnx.fx_node" in node.metadata_props for node in inner)


@pytest.mark.parametrize("dynamo", [True, False])
def test_in_place_of_torch_it_is_always_there(dynamo: bool) -> None:
    with replace_torch_onnx():
        program = torch.onnx.export(Stack().eval(), (X,), dynamo=dynamo)
    assert all("namespace" in node.metadata_props for node in program.model.graph)


def test_the_torchscript_exporter_names_the_same_modules() -> None:
    program = onnx_ts_legacy.export(MODEL, (X,), metadata="full")
    hierarchies = {
        node.op_type: (
            node.metadata_props["pkg.torch.onnx.name_scopes"],
            node.metadata_props["pkg.torch.onnx.class_hierarchy"],
            node.metadata_props["pkg.torch.onnx.stack_trace"],
        )
        for node in program.model.graph
    }
    scopes, classes, trace = hierarchies["Relu"]
    assert ast.literal_eval(scopes)[:3] == ["", "blocks.1", "blocks.1.act"]
    assert [kind.rpartition(".")[2] for kind in ast.literal_eval(classes)[:3]] == ["Stack", "Block", "ReLU"]
    assert ast.literal_eval(classes)[3] == "aten::relu"
    assert trace.startswith('File "')
    assert ast.literal_eval(hierarchies["Softmax"][0])[:-1] == [""]
    kinds = {
        str(value.name): value.metadata_props["pkg.torch.export.graph_signature.InputSpec.kind"]
        for value in (*program.model.graph.inputs, *program.model.graph.initializers.values())
        if value.metadata_props
    }
    assert kinds["blocks.0.linear.weight"] == "PARAMETER"
    assert kinds[str(program.model.graph.inputs[0].name)] == "USER_INPUT"


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_the_torchscript_exporter_writes_the_keys_of_torch(of_torch: onnx.ModelProto, scripted: bool) -> None:
    model = torch.jit.script(MODEL) if scripted else MODEL
    program = onnx_ts_legacy.export(model, (X,), metadata="full")

    keys = set(by_node(of_torch)[0])
    assert all({key for key in node.metadata_props if key.startswith(PREFIXES)} == keys for node in program.model.graph)
    scopes = {tuple(ast.literal_eval(node["pkg.torch.onnx.name_scopes"])[:-1]) for node in by_node(of_torch)}
    assert {ast_scopes(node) for node in program.model.graph} == scopes
    calls = {(classes_of(node), target_of(node)) for node in by_node(of_torch)}
    assert {(classes_of(node.metadata_props), target_of(node.metadata_props)) for node in program.model.graph} == calls
    assert {node.metadata_props.get("onnxops.module", "") for node in program.model.graph} == {
        path[-1] for path in scopes
    }


def classes_of(keys: Any) -> tuple[str, ...]:
    return tuple(ast.literal_eval(keys["pkg.torch.onnx.class_hierarchy"])[:-1])


def target_of(keys: Any) -> str:
    """Return the operator that a node is of, without its overload."""
    return re.search(r"target=torch\.ops\.(aten\.\w+)", keys["pkg.torch.onnx.fx_node"])[1]


def ast_scopes(node: Any) -> tuple[str, ...]:
    return tuple(ast.literal_eval(node.metadata_props["pkg.torch.onnx.name_scopes"])[:-1])
