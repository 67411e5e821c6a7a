"""Calls of chosen modules become calls of ONNX functions, which compute the same at any size."""

from __future__ import annotations

import onnx
import pytest
import torch
from stacks import Block, Stack

from onnx_fx_export import InvalidArgumentError, ONNXProgram, export

DIMS = {"x": {0: "batch", 1: "length"}}


def calls(program: ONNXProgram, name: str) -> int:
    graphs = [program.model.graph, *(function.graph for function in program.model.functions.values())]
    return sum(node.op_type == name for graph in graphs for node in graph.all_nodes())


def functions(program: ONNXProgram) -> list[str]:
    return sorted(function.name for function in program.model.functions.values())


def check(program: ONNXProgram, model, *args) -> None:
    onnx.checker.check_model(program.model_proto, full_check=True)
    torch.testing.assert_close(program(*args), model(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [15, 18, 20, 23])
def test_identical_blocks_are_one_function_with_many_calls(opset: int) -> None:
    model = Stack(Block(), Block(), Block())
    program = export(
        model, (torch.randn(2, 3, 4),), dynamic_shapes=DIMS, opset_version=opset, export_modules_as_functions={Block}
    )
    assert functions(program) == ["Block"]
    assert calls(program, "Block") == 3
    assert program.model.graph.opset_imports[""] == opset
    check(program, model, torch.randn(5, 1, 4))


def test_without_the_option_everything_is_inlined() -> None:
    program = export(Stack(Block(), Block()), (torch.randn(2, 3, 4),))
    assert not program.model.functions


def test_blocks_that_compute_something_else_are_other_functions() -> None:
    model = Stack(Block(), Block(scale=2.0), Block())
    program = export(model, (torch.randn(2, 3, 4),), dynamic_shapes=DIMS, export_modules_as_functions={Block})
    assert functions(program) == ["Block", "Block_1"]
    assert (calls(program, "Block"), calls(program, "Block_1")) == (2, 1)
    check(program, model, torch.randn(1, 4, 4))


def test_all_modules_as_functions_nest() -> None:
    model = Stack(Block(), Block())
    program = export(model, (torch.randn(2, 3, 4),), dynamic_shapes=DIMS, export_modules_as_functions=True)
    assert functions(program) == ["Block", "LayerNorm", "Linear", "Linear_1"]
    assert calls(program, "LayerNorm") == 1
    check(program, model, torch.randn(3, 5, 4))


def test_weights_are_inputs_stored_as_they_are_read() -> None:
    model = Stack(Block(), Block())
    program = export(model, (torch.randn(2, 3, 4),), export_modules_as_functions={Block, torch.nn.Linear})
    assert calls(program, "Transpose") == 0
    assert "blocks.1.up.weight.transposed" in program.model.graph.initializers
    check(program, model, torch.randn(2, 3, 4))


def test_a_block_used_twice_shares_weights() -> None:
    block = Block()
    model = Stack(block, Block(), block)
    program = export(model, (torch.randn(2, 3, 4),), export_modules_as_functions={Block})
    assert functions(program) == ["Block"]
    assert len([name for name in program.model.graph.initializers if "up.weight" in name]) == 2
    check(program, model, torch.randn(2, 3, 4))


def test_sizes_that_no_operand_has_are_passed() -> None:
    class Widen(torch.nn.Module):
        def forward(self, flat, length: int):
            return flat.reshape(-1, length, 3) * length

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.widen = Widen()

        def forward(self, x):
            flat = torch.cat([x.flatten(), x.flatten()])
            return self.widen(flat, x.shape[1]), self.widen(2 * flat, x.shape[1])

    model = Model()
    program = export(model, (torch.randn(2, 5, 3),), dynamic_shapes=DIMS, export_modules_as_functions={Widen})
    assert functions(program) == ["Widen"]
    check(program, model, torch.randn(4, 7, 3))


def test_functions_contain_conditions() -> None:
    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = x * 2
            return torch.cond(x.sum() > 0, lambda x, y: self.linear(x) + y + 7, lambda x, y: y.relu(), (x, y))

    model = Stack(Chosen(), Chosen())
    program = export(model, (torch.randn(2, 3, 4),), dynamic_shapes=DIMS, export_modules_as_functions={Chosen})
    assert functions(program) == ["Chosen"]
    check(program, model, torch.ones(3, 1, 4))
    check(program, model, -torch.ones(3, 2, 4))


def test_functions_are_called_inside_branches() -> None:
    block = Block()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = block, Block()

        def forward(self, x):
            x = self.first(x)
            return torch.cond(x.sum() > 0, lambda x: self.second(x), lambda x: -x, (x,))

    model = Model()
    program = export(model, (torch.randn(2, 3, 4),), dynamic_shapes=DIMS, export_modules_as_functions={Block})
    check(program, model, 5 + torch.randn(3, 1, 4))
    check(program, model, -5 + torch.randn(3, 1, 4))


class Lengthen(torch.nn.Module):
    def forward(self, x):
        kept = x[x > 0]
        torch._check(kept.shape[0] >= 1)
        return torch.cat([kept, kept[:1]]), kept.shape[0]


def test_sizes_that_data_decides_leave_a_function() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lengthen = Lengthen()

        def forward(self, x):
            longer, count = self.lengthen(x)
            return longer.reshape(1, -1) * torch.ones(longer.shape[0]), longer.sum() + count

    model = Model()
    program = export(model, (torch.randn(9),), dynamic_shapes={"x": {0: "n"}}, export_modules_as_functions={Lengthen})
    assert functions(program) == ["Lengthen"]
    for x in (torch.arange(-3.0, 4), torch.arange(1.0, 12)):
        for actual, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(actual, expected)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        return x * self.seen


def test_state_is_written_inside_functions() -> None:
    model = Stack(Counting(), Counting())
    program = export(
        model,
        (torch.ones(2, 3),),
        dynamic_shapes={"x": {0: "batch"}},
        export_modules_as_functions={Counting},
        state="io",
    )
    assert functions(program) == ["Counting"]
    assert calls(program, "Counting") == 2
    feeds = {"x": torch.randn(5, 3), **{name: torch.randn(3) for name in program.initial_state}}
    for name, value in feeds.items():
        if name != "x":
            model.get_buffer(name).copy_(value)
    outputs = program.run(feeds)
    torch.testing.assert_close(outputs["output"], model(feeds["x"]))
    for name, following in program.state.items():
        torch.testing.assert_close(outputs[following], model.get_buffer(name))


def test_operands_are_written_inside_functions() -> None:
    class Shift(torch.nn.Module):
        def forward(self, x):
            x.add_(1)
            x.mul_(3)
            return x * 2

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = Shift()

        def forward(self, x):
            y = x - 2
            z = self.shift(y)
            return y + z, self.shift(y)

    model = Model()
    program = export(model, (torch.ones(3),), export_modules_as_functions={Shift})
    assert functions(program) == ["Shift"]
    x = torch.randn(3)
    for actual, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(actual, expected)


def test_constants_are_part_of_a_function() -> None:
    class Shift(torch.nn.Module):
        def __init__(self, *values: float) -> None:
            super().__init__()
            self.values = values

        def forward(self, x):
            return x + torch.tensor(self.values)

    model = Stack(Shift(1.0, 2.0), Shift(1.0, 3.0), Shift(1.0, 2.0))
    program = export(model, (torch.ones(4, 2),), export_modules_as_functions={Shift})
    assert functions(program) == ["Shift", "Shift_1"]
    check(program, model, torch.randn(4, 2))


def test_functions_take_and_give_nested_structures() -> None:
    class Pairs(torch.nn.Module):
        def forward(self, parts, table):
            first, second = parts
            return {"sum": first + second + table["bias"], "same": first}, [second * 2, 3]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pairs = Pairs()

        def forward(self, x, bias):
            named, (double, three) = self.pairs(x.chunk(2, dim=-1), {"bias": bias})
            return named["sum"] + named["same"] * three, double

    model, args = Model(), (torch.randn(3, 4), torch.randn(2))
    program = export(model, args, export_modules_as_functions={Pairs})
    assert functions(program) == ["Pairs"]
    for actual, expected in zip(program(*args), model(*args), strict=True):
        torch.testing.assert_close(actual, expected)


def test_complex_values_pass_through_functions() -> None:
    class Rotate(torch.nn.Module):
        def forward(self, x, angles):
            return x * torch.polar(torch.ones_like(angles), angles)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotate = Rotate()

        def forward(self, x, angles):
            x = torch.view_as_complex(x)
            return torch.view_as_real(self.rotate(self.rotate(x, angles), -3 * angles))

    model = Model()
    program = export(
        model,
        (torch.randn(4, 2), torch.randn(4)),
        dynamic_shapes={"x": {0: "n"}, "angles": {0: "n"}},
        export_modules_as_functions={Rotate},
    )
    assert functions(program) == ["Rotate"]
    check(program, model, torch.randn(6, 2), torch.randn(6))


def test_random_operators_stay_apart() -> None:
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    program = export(Stack(Noise(), Noise()), (torch.zeros(2, 3),), export_modules_as_functions={Noise})
    assert calls(program, "Noise") == 2
    assert program(torch.zeros(2, 3)).shape == (2, 3)


def test_paths_of_nodes_are_relative_to_the_function() -> None:
    program = export(Stack(Block(), Block()), (torch.randn(2, 3, 4),), export_modules_as_functions={Block})
    (function,) = program.model.functions.values()
    assert {node.metadata_props.get("onnxops.module") for node in function.graph} >= {"up", "down", None}
    paths = [n.metadata_props["onnxops.module"] for n in program.model.graph if n.op_type == "Block"]
    assert paths == ["blocks.0", "blocks.1"]


def test_saved_models_keep_functions(tmp_path) -> None:
    import onnxruntime

    model, x = Stack(Block(), Block()), torch.randn(2, 3, 4)
    program = export(model, (x,), tmp_path / "m.onnx", export_modules_as_functions={Block}, external_data=True)
    program.optimize()
    check(program, model, x)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (actual,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(actual), model(x))


def test_dimensions_are_renamed_inside_functions() -> None:
    program = export(
        Stack(Block(), Block()), (torch.randn(2, 3, 4),), dynamic_shapes=DIMS, export_modules_as_functions={Block}
    )
    program.rename_axes({"batch": "n"})
    (function,) = program.model.functions.values()
    assert [str(dim) for dim in function.outputs[0].shape] == ["n", "length", "4"]


def test_functions_are_inlined_on_request() -> None:
    model = Stack(Block(), Block())
    program = export(model, (torch.randn(2, 3, 4),), dynamic_shapes=DIMS, export_modules_as_functions=True)
    program.inline_functions()
    assert not program.model.functions
    assert calls(program, "LayerNormalization") == 2
    paths = [node.metadata_props.get("onnxops.module") for node in program.model.graph]
    assert paths.count("blocks.1.up") == paths.count("blocks.0.up") > 0
    assert set(program.model.graph.opset_imports) == {""}
    check(program, model, torch.randn(4, 2, 4))


def test_too_low_an_opset_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="opset 15"):
        export(Stack(Block()), (torch.randn(2, 3, 4),), opset_version=14, export_modules_as_functions={Block})


def test_a_class_that_is_not_called_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match=r"GELU.*Block"):
        export(Stack(Block()), (torch.randn(2, 3, 4),), export_modules_as_functions={torch.nn.GELU})


def test_weights_can_be_replaced() -> None:
    model, other = Stack(Block(), Block()), Stack(Block(), Block())
    program = export(model, (torch.randn(2, 3, 4),), export_modules_as_functions={Block})
    assert program.apply_weights(other.state_dict()) == []
    check(program, other, torch.randn(2, 3, 4))


def region(x, weight):
    return (torch.relu(x @ weight) + x.shape[0],)


class Regions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))

    def forward(self, x):
        (y,) = torch.ops.higher_order.invoke_subgraph(region, "layer", x, self.first)
        (z,) = torch.ops.higher_order.invoke_subgraph(region, "layer", y, self.second)
        return z


def test_regions_that_torch_keeps_are_functions() -> None:
    program = export(Regions(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}}, opset_version=18)
    assert functions(program) == ["layer"]
    assert calls(program, "layer") == 2
    onnx.checker.check_model(program.model_proto, full_check=True)
    weights = [program.model.graph.initializers[name].const_value for name in ("first", "second")]
    x = torch.randn(5, 4)
    expected = x
    for weight in weights:
        (expected,) = region(expected, torch.from_numpy(weight.numpy()))
    torch.testing.assert_close(program(x), expected)


def test_regions_are_inlined_where_the_opset_has_no_functions() -> None:
    program = export(Regions(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}}, opset_version=13)
    assert not program.model.functions
    assert calls(program, "MatMul") + calls(program, "Gemm") == 2


def test_calls_of_nested_compile_region_are_exported() -> None:
    marked = torch.compiler.nested_compile_region(lambda x: torch.sin(x) * x.shape[0])
    program = export(lambda x: marked(marked(x)), (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), torch.sin(torch.sin(x) * 5) * 5)


def test_regions_that_dynamo_captured_are_functions() -> None:
    region = torch.compiler.nested_compile_region(lambda x: torch.sin(x) * 2)

    class Twice(torch.nn.Module):
        def forward(self, x):
            return region(region(x))

    program = export(torch.export.export(Twice(), (torch.randn(3),), strict=True))
    assert functions(program) == ["subgraph_0"]
    assert calls(program, "subgraph_0") == 2
    check(program, Twice(), torch.randn(3))
