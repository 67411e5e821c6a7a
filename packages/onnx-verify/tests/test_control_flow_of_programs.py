"""A fault in a body of an exported program is found by interpreting the nested graph of the higher-order operator."""

from types import SimpleNamespace

import faults
import numpy as np
import onnx
import pytest
import torch
from models import clone, info, normal
from onnx import helper
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over

from onnx_verify import find_mismatch

fx_export = pytest.importorskip("onnx_fx_export", reason="onnx-fx-export is not installed")


class Branches(torch.nn.Module):
    """A condition in a condition, one branch of which has weights."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        scale = x.abs() + 1

        def inner(x, scale):
            return torch.cond(scale.max() > 2, lambda x: x.tanh() * 3, lambda x: x - 5, (x,))

        y = torch.cond(x.sum() > 0, inner, lambda x, scale: self.linear(x).relu() * scale, (x, scale))
        return y.exp() * scale


class While(torch.nn.Module):
    """A loop that captures values, whose condition computes with the names that the body has too."""

    def forward(self, x, n):
        limit = n * 2

        def going(i, y):
            return (i + 1) * 2 < limit + 1

        def step(i, y):
            return i + 1, (y + x).sin() * 2

        count, y = while_loop(going, step, (torch.zeros((), dtype=torch.int64), x))
        return count + 1, y.cos()


class Scan(torch.nn.Module):
    def forward(self, x, start):
        def step(carry, value):
            following = carry * 0.5 + value
            return following, following.tanh()

        return scan(step, start, x, dim=0)


class Map(torch.nn.Module):
    def forward(self, x, y):
        return map_over(lambda row, y: (row * y).cos() + 1, x, y)


T = torch.from_numpy
X = T(normal(4, 3))
HIGH, LOW = T(abs(normal(2, 3))), T(-abs(normal(2, 3)))
CALLS = {
    "branches": (Branches, [(HIGH * 2,), (LOW,)]),
    "while": (While, [(T(normal(3)), torch.tensor(3)), (T(normal(3, seed=1)), torch.tensor(4))]),
    "scan": (Scan, [(X, T(normal(3, seed=2))), (X * 2, torch.zeros(3))]),
    "map": (Map, [(X, T(normal(3, seed=3))), (X, torch.ones(3))]),
}
PROGRAMS = {}


def program(name):
    if name not in PROGRAMS:
        torch.manual_seed(0)
        kind, samples = CALLS[name]
        PROGRAMS[name] = fx_export.export(kind().eval(), samples[0])
    return PROGRAMS[name]


def named(origin):
    """The name of the node that an fx node was lowered to, by its metadata; the last of several."""

    def find(model):
        found = [
            node.name
            for node in faults.all_nodes(model.graph)
            if any(entry.key == "onnxops.fx_node" and entry.value == origin for entry in node.metadata_props)
        ]
        return found[-1]

    return find


def becomes(origin, kind):
    def plant(model):
        name = named(origin)(model)
        faults.becomes(name, kind)(model)
        return name

    return plant


def own_value(origin, position, value):
    """Gives a node in a body another constant."""

    def plant(model):
        name = named(origin)(model)
        dtype = onnx.numpy_helper.to_array(initializer(model, faults.find(model, name).input[position])).dtype
        faults.own_values(name, position, value.numpy().astype(dtype))(model)
        return name

    return plant


def initializer(model, name):
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def body_output(kind, position, like):
    """Makes a body return the value that one of its nodes makes in place of another; the operator is to blame."""

    def plant(model):
        node = next(node for node in model.graph.node if node.op_type == kind)
        body = next(a.g for a in node.attribute if a.HasField("g"))
        value = next(n for n in body.node if n.name == named(like)(model)).output[0]
        assert body.output[position].name != value
        body.output[position].name = value
        return node.name

    return plant


FAULTS = {
    ("branches", "activation in the inner branch"): (
        becomes("cond/cond/tanh", "Sin"), ["If_1 then_branch", "If_0 then_branch"],
    ),
    ("branches", "weights in the other branch"): (becomes("cond/relu", "Abs"), ["If_1 else_branch"]),
    ("branches", "captured value"): (becomes("cond/mul", "Add"), ["If_1 else_branch"]),
    ("branches", "inner condition"): (becomes("cond/gt", "Less"), ["If_1 then_branch"]),
    ("branches", "outer condition"): (becomes("gt", "Less"), []),
    ("branches", "after the condition"): (becomes("exp", "Sin"), []),
    ("while", "step"): (becomes("while_loop/sin", "Cos"), ["Loop_0 iteration 0"]),
    ("while", "captured input"): (becomes("while_loop/add_1", "Sub"), ["Loop_0 iteration 0"]),
    ("while", "initial condition and loop invariant"): (
        becomes("while_loop/condition/add_1", "Sub"), ["Loop_0 initial condition"],
    ),
    ("while", "condition"): (becomes("while_loop/condition/mul", "Add"), ["Loop_0 iteration 1"]),
    ("while", "counter"): (own_value("while_loop/add", 1, torch.tensor(2)), ["Loop_0 iteration 0"]),
    ("while", "result after the loop"): (becomes("cos", "Sin"), []),
    ("scan", "decay"): (own_value("scan/mul", 1, torch.tensor(0.25)), ["Scan_0 iteration 1"]),
    ("scan", "carried sum"): (becomes("scan/add", "Sub"), ["Scan_0 iteration 0"]),
    ("scan", "output"): (becomes("scan/tanh", "Sigmoid"), ["Scan_0 iteration 0"]),
    ("map", "product"): (becomes("map_impl/mul", "Add"), ["Scan_0 iteration 0"]),
    ("map", "function"): (becomes("map_impl/cos", "Sin"), ["Scan_0 iteration 0"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_sound_program_agrees_node_by_node(name):
    report = find_mismatch(program(name), CALLS[name][1], exhaustive=True)
    assert report.ok, str(report)
    assert report.checked


@pytest.mark.parametrize("case", FAULTS, ids="-".join)
def test_the_fault_is_found_in_its_body(case):
    plant, path = FAULTS[case]
    model = clone(program(case[0]).model_proto)
    name = plant(model)
    report = find_mismatch(model, CALLS[case[0]][1], reference=program(case[0]).exported_program)
    assert report.first.confirmed
    assert report.first.node.name == name, str(report)
    assert report.first.path == path


WIRING = {
    ("while", "stale value"): (body_output("Loop", 2, "while_loop/sin"), "output 2 of its body returns 'sin'"),
    ("scan", "stale state"): (body_output("Scan", 0, "scan/mul"), "output 0 of its body returns 'mul'"),
    ("map", "value before the last"): (body_output("Scan", 0, "map_impl/cos"), "output 0 of its body returns 'cos'"),
    ("scan", "read backwards"): (faults.attribute("Scan_0", "scan_input_directions", [1]), "in the 4 iterations"),
    ("while", "one iteration at most"): (faults.own_values("Loop_0", 0, np.asarray(1, np.int64)), "trip count"),
}


@pytest.mark.parametrize("case", WIRING, ids="-".join)
def test_where_no_node_of_a_body_is_wrong_the_operator_is_blamed_with_the_reason(case):
    plant, reason = WIRING[case]
    model = clone(program(case[0]).model_proto)
    plant(model)
    report = find_mismatch(model, CALLS[case[0]][1], reference=program(case[0]).exported_program)
    assert report.first.confirmed
    assert report.first.node.op_type in {"If", "Loop", "Scan"}
    assert reason in " ".join(report.first.notes), str(report)


def test_values_that_share_a_name_with_another_graph_are_not_taken_for_each_other():
    """Nested graphs take the names first: the outer ``lt``, ``add`` and ``getitem`` are called something else."""

    class Clash(torch.nn.Module):
        def forward(self, x, n):
            count, y = while_loop(
                lambda i, y: i < n, lambda i, y: (i + 1, y * 2), (torch.zeros((), dtype=torch.int64), x)
            )
            return (count + 3, (y < 5).to(torch.float32) * 7)

    samples = [(torch.ones(3), torch.tensor(2)), (torch.ones(3), torch.tensor(3))]
    exported = fx_export.export(Clash(), samples[0])
    report = find_mismatch(exported, samples, exhaustive=True)
    assert report.ok, str(report)
    assert {each.op_type for each in report.profile} >= {"Loop", "Less", "Add", "Mul"}


def test_a_body_that_carries_other_values_is_not_entered_and_the_reason_given():
    model = clone(program("while").model_proto)
    becomes("while_loop/sin", "Cos")(model)
    loop = faults.find(model, "Loop_0")
    loop.input.append("x")
    loop.output.append("further")
    body = next(a.g for a in loop.attribute if a.HasField("g"))
    body.input.append(info("more", [3]))
    body.node.append(helper.make_node("Neg", ["more"], ["less"]))
    body.output.append(info("less", [3]))
    report = find_mismatch(model, CALLS["while"][1], reference=program("while").exported_program)
    assert report.first.node.name == "Loop_0"
    assert "takes 5 values, the program's 4" in str(report)


class Regions(torch.nn.Module):
    """A part that runs in another mode, as rotary embeddings do."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            y = x.float().sin() * 2 + 1
        return torch.topk(y.exp(), 2)[0], x.sin()


REGION_SAMPLES = [(HIGH,), (LOW,)]


@pytest.fixture(scope="module")
def regions():
    return fx_export.export(Regions(), REGION_SAMPLES[0])


def test_the_nodes_of_a_region_in_another_mode_are_checked(regions):
    report = find_mismatch(regions, REGION_SAMPLES, exhaustive=True)
    assert report.ok, str(report)
    assert {each.op_type for each in report.profile} >= {"Sin", "Mul", "Add", "Exp"}


@pytest.mark.parametrize("kind", ["Sin", "Mul", "Exp"])
def test_a_fault_in_a_region_in_another_mode_is_found(regions, kind):
    model = clone(regions.model_proto)
    node = next(node for node in model.graph.node if node.op_type == kind)
    node.op_type = {"Sin": "Cos", "Mul": "Add", "Exp": "Sigmoid"}[kind]
    report = find_mismatch(model, REGION_SAMPLES, reference=regions.lowered_program)
    assert report.first.node.name == node.name, str(report)


@pytest.mark.parametrize("kind", ["Sin", "Mul", "Exp"])
def test_the_captured_program_of_an_onnx_program_stands_for_the_one_that_its_nodes_name(regions, kind):
    model = clone(regions.model_proto)
    node = next(node for node in model.graph.node if node.op_type == kind)
    node.op_type = {"Sin": "Cos", "Mul": "Add", "Exp": "Sigmoid"}[kind]
    broken = SimpleNamespace(
        model=model, exported_program=regions.exported_program, lowered_program=regions.lowered_program
    )
    report = find_mismatch(broken, REGION_SAMPLES, reference=regions.exported_program)
    assert report.first.node.name == node.name, str(report)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x).sin() * x
        values, _ = torch.topk(y, 2)
        return y + values.sum(-1, keepdim=True)


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.cos()


@pytest.fixture(scope="module")
def outlined():
    torch.manual_seed(0)
    return fx_export.export(Blocks(), REGION_SAMPLES[0], export_modules_as_functions=[Block])


def test_the_calls_of_a_function_are_checked_node_by_node(outlined):
    assert len(outlined.model_proto.functions) == 1
    report = find_mismatch(outlined, REGION_SAMPLES, exhaustive=True)
    assert report.ok, str(report)
    assert [each.op_type for each in report.profile].count("Sin") == 3


def test_a_fault_in_a_function_is_found_in_its_first_call(outlined):
    model = clone(outlined.model_proto)
    next(node for node in model.functions[0].node if node.op_type == "Sin").op_type = "Tanh"
    report = find_mismatch(model, REGION_SAMPLES, reference=outlined.lowered_program, max_mismatches=9)
    assert [each.node.fx_node for each in report.mismatches] == ["sin"] * 3
    assert all(each.node.function.endswith("::Block") for each in report.mismatches)


def test_a_fault_in_one_call_of_a_function_is_found_in_that_call(outlined):
    model = clone(outlined.model_proto)
    calls = [node for node in model.graph.node if node.op_type == "Block"]
    calls[1].input[1] = calls[2].input[1]
    report = find_mismatch(model, REGION_SAMPLES, reference=outlined.lowered_program)
    assert report.first.node.op_type == "Gemm"
    assert report.first.node.outputs == ("linear__2",)


def test_complex_values_inside_a_program_are_checked_as_pairs():
    class Spectrum(torch.nn.Module):
        def forward(self, x):
            spectrum = torch.fft.rfft(x) * (2 + 1j)
            return torch.fft.irfft(spectrum), spectrum.abs()

    samples = [(T(normal(2, 8)),)]
    exported = fx_export.export(Spectrum(), samples[0])
    report = find_mismatch(exported, samples, exhaustive=True)
    assert report.ok, str(report)
    model = clone(exported.model_proto)
    faults.becomes("Sub_0", "Add")(model)
    report = find_mismatch(model, samples, reference=exported.lowered_program)
    assert report.first.node.fx_node == "mul"
    assert "Sub_0" in {node.name for node in report.first.nodes}
