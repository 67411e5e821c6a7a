"""What the exporter uses of torch without a public promise is still there and means the same."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes import shape_prop
from torch.overrides import TorchFunctionMode
from torch.utils._traceback import CapturedTraceback
from torch_names import found, private_names

import onnx_fx_export
from onnx_fx_export.capture.equations import equating_operators, specializations
from onnx_fx_export.capture.torch_private import (
    code_written_late,
    equations_left_unsolved,
    replaced_kernels,
    scans_over_no_rows,
    shared_memory_formats,
    shared_stack_frames,
    unassigned_buffers,
    values_noted_without_modes,
    without_cache_of_calls,
)
from onnx_fx_export.inputs.arguments import FunctionModule
from onnx_fx_export.sizes import torch_private
from onnx_fx_export.sizes.fixed import equations_that_fix
from onnx_fx_export.sizes.numbers.torch_private import logarithm_of, tensors_of_doubles
from onnx_fx_export.sizes.questions import Sizes
from onnx_fx_export.sizes.torch_private import shared_bounds, short_divisions, whole_bounds
from onnx_fx_export.torch_private import (
    Writes,
    answer_for_rows,
    causal_mask_detection,
    dimension_facts,
    exported,
    fake_beside,
    fake_like,
    followed_scalars,
    guard_texts,
    interpreted_nodes,
    is_decided_by_data,
    is_dimension_error,
    number_symbols_from,
    recorded_apart,
    scan,
    undecided_condition,
)
from onnxops_core.exporting import replaced


def test_gradients_are_captured_below_autograd() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.func.grad(lambda x: x.sin().sum())(x)

    program = exported(Model(), (torch.ones(3),), {}, dynamic_shapes=None, strict=False, below_autograd=True)
    x = torch.randn(3)
    torch.testing.assert_close(program.module()(x), x.cos())


def test_only_operators_of_torch_are_recorded_apart() -> None:
    entered: list[int] = []
    recorded: list[str] = []
    inside: dict[str, bool] = {}

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        entered.append(1)
        recorded.append("aten")
        yield
        entered.pop()

    @torch.library.custom_op("recorded_apart::own", mutates_args=())
    def own(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @own.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        inside["kernel of others"] = bool(entered)
        return torch.empty_like(x)

    class Model(torch.nn.Module):
        def forward(self, x):
            inside["model"] = bool(entered)
            return own(x).sin()

    with recorded_apart(around):
        exported(Model(), (torch.ones(3),), {}, dynamic_shapes=None, strict=False, below_autograd=False)
    assert inside == {"model": False, "kernel of others": False}
    assert recorded == ["aten"]


def test_lines_of_stacks_are_looked_up_once() -> None:
    def stacks() -> tuple[list[Any], list[str]]:
        found = [CapturedTraceback.extract() for _ in range(2)]
        return [trace.summary()[0] for trace in found], [line for trace in found for line in trace.format()]

    with shared_stack_frames():
        frames, lines = stacks()
    assert frames[0] is frames[1]
    own = [line for line in lines if "CapturedTraceback.extract()" in line]
    assert len(own) == 2 * 2  # the list and the function around it
    assert stacks()[0][0] is not frames[0]


def test_code_of_graphs_is_written_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    written: list[torch.fx.Graph] = []
    write = torch.fx.Graph.python_code

    def counted(self: torch.fx.Graph, *args: Any, **options: Any) -> Any:
        written.append(self)
        return write(self, *args, **options)

    monkeypatch.setattr(torch.fx.Graph, "python_code", counted)
    x = torch.ones(3)
    torch.export.export(Model(), (x,))
    usual = len(written)
    written.clear()
    with code_written_late():
        program = torch.export.export(Model(), (x,))
    assert 0 < len(written) < usual
    for given in (x, -x):
        torch.testing.assert_close(program.module()(given), Model()(given))


def test_memory_formats_of_equal_tensors_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def formats() -> list[torch.memory_format | None]:
        def function(x):
            return x.sin().cos(), x.permute(0, 3, 1, 2), x.transpose(1, 2)

        example = (torch.randn(3, 4, 5, 6),)
        sizes = ({0: torch.export.Dim("n"), 1: torch.export.Dim("m")},)
        nodes = torch.export.export(FunctionModule(function), example, dynamic_shapes=sizes).graph.nodes
        return [node.meta["tensor_meta"].memory_format for node in nodes if "tensor_meta" in node.meta]

    asked: list[torch.Tensor] = []
    ask = shape_prop.is_contiguous_for_memory_format_or_false

    def counted(tensor: torch.Tensor, **options: Any) -> bool:
        asked.append(tensor)
        return ask(tensor, **options)

    monkeypatch.setattr(shape_prop, "is_contiguous_for_memory_format_or_false", counted)
    expected = formats()
    usual = len(asked)
    assert {torch.contiguous_format, torch.channels_last, None} == {*expected}
    asked.clear()
    with shared_memory_formats():
        assert formats() == expected
    assert 0 < len(asked) < usual


def test_calls_without_data_are_run_anew_where_that_is_asked_for() -> None:
    def cached() -> bool:
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            return mode.cache_enabled

    assert cached()
    with without_cache_of_calls():
        assert not cached()


def test_torch_writes_nothing_to_buffers_that_are_bound_anew_where_that_is_asked_for() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x):
            self.last = self.last + x
            return x + 1

    def written() -> list[str]:
        return list(torch.export.export(Model(), (torch.ones(3),)).graph_signature.buffers_to_mutate.values())

    with unassigned_buffers():
        assert written() == []
    assert "last" in {
        *map(str, torch.export.export(Model(), (torch.ones(3),)).graph_signature.inputs_to_buffers.values())
    }


def test_scans_over_no_rows_are_rewritten() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scan(lambda total, row: [total + row, total.clone()], torch.zeros(2), x)[0]

    program = torch.export.export(Model(), (torch.ones(3, 2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    module = importlib.import_module("torch._higher_order_ops.scan")
    assert module.first_slice_copy(torch.ones(3, 2)).shape == (2,)
    with scans_over_no_rows():
        # Before torch 2.15 its own takes the first row, which there may not be.
        assert module.first_slice_copy(torch.ones(0, 2)).shape == (2,)
        rewritten = program.run_decompositions({})
    assert rewritten.module()(torch.ones(5, 2)).tolist() == [5, 5]


def test_guards_are_texts_over_input_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] > 5 else x

    program = torch.export.export(Model(), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert "L['x'].size()[0] > 5" in guard_texts(program)


def test_guards_call_extremes_as_python_does() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return x + 1 if min(x.shape[0], x.shape[1]) > 5 else x

    dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(Model(), (torch.ones(8, 9),), dynamic_shapes=(dims,), strict=False)
    texts = guard_texts(program)
    assert any(text.startswith("min(") for text in texts), texts


def test_writes_are_noted_of_tensors_without_data_and_their_views() -> None:
    written, read = fake_like([torch.ones(2, 3), torch.ones(2, 3)])
    with Writes() as writes:
        written.view(-1).add_(read.view(-1))
    assert writes.reached(written)
    assert not writes.reached(read)


def test_symbols_of_sizes_that_data_decides_are_told_from_those_of_inputs() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return x.nonzero()

    program = torch.export.export(Model(), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    values = (node.meta.get("val") for node in program.graph.nodes)
    sizes = [value.shape[0].node.expr for value in values if isinstance(value, torch.Tensor)]
    assert [is_decided_by_data(size) for size in sizes] == [False, True]


class Broken(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def refusal(function, x, declared=None) -> Exception:
    """Return what torch.export raises."""
    with pytest.raises(Exception) as caught:
        torch.export.export(Broken(function), (x,), dynamic_shapes=None if declared is None else ({0: declared},))
    return caught.value


@pytest.mark.parametrize(
    "declared, fact",
    [
        (torch.export.Dim("n"), "You marked n as dynamic but your code specialized it to be a constant (4)."),
        (torch.export.Dim.DYNAMIC, "You marked L['x'].size()[0] as dynamic"),
    ],
)
def test_dimensions_that_the_model_fixes_are_told_with_what_torch_found(declared, fact: str) -> None:
    error = refusal(lambda x: x + torch.ones(4), torch.ones(4), declared)
    facts, _, is_condition = dimension_facts(error)
    assert is_dimension_error(error)
    assert not is_condition
    assert len(facts) == 1
    assert facts[0].startswith(fact)


def test_a_range_that_the_model_does_not_have_is_told_too() -> None:
    error = refusal(lambda x: x + 1 if x.shape[0] < 8 else x, torch.ones(4), torch.export.Dim.DYNAMIC(min=9))
    assert is_dimension_error(error)
    assert "[9, " in dimension_facts(error)[0][0]


def unsolved() -> torch.export.ExportedProgram:
    halved = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.Conv2d(4, 4, 2, 2), torch.nn.AvgPool2d(7, 1))
    model = torch.nn.Sequential(halved, torch.nn.Flatten(2), torch.nn.Linear(1, 2))
    dims = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    return torch.export.export(model, (torch.ones(2, 3, 28, 28),), dynamic_shapes=(dims,))


def test_an_equation_that_sympy_cannot_solve_is_about_a_dimension() -> None:
    with pytest.raises(NotImplementedError) as caught:
        unsolved()
    assert is_dimension_error(caught.value)
    assert dimension_facts(caught.value)[0][0].startswith("The inequality")


def test_an_equation_that_sympy_cannot_solve_can_be_left_to_the_program() -> None:
    with equations_left_unsolved():
        program = unsolved()
    guards = Sizes.of(program, [{}]).final_guards()
    assert any(isinstance(guard, sympy.Eq) for guard in guards)
    assert equations_that_fix(program, [{}])


def test_declarations_that_torch_suggests_are_code() -> None:
    error = refusal(lambda x: x + 1 if x.shape[0] < 8 else x, torch.ones(4), torch.export.Dim("n"))
    assert is_dimension_error(error)
    assert dimension_facts(error)[1:] == (["n = Dim('n', max=7)"], True)


def test_a_condition_on_data_is_an_expression() -> None:
    error = refusal(lambda x: x + 1 if x.sum() > 0 else x, torch.ones(4))
    condition = undecided_condition(error)
    assert not is_dimension_error(error)
    assert condition is not None
    assert condition.rhs == 1
    assert undecided_condition(RuntimeError("data-dependent")) is None


def test_bounds_of_what_is_cut_off_are_whole() -> None:
    from torch.utils._sympy.value_ranges import SymPyValueRangeAnalysis, ValueRanges

    with whole_bounds():
        found = SymPyValueRangeAnalysis.trunc_to_int(ValueRanges(sympy.Float(0.0), sympy.oo), torch.int64)
    assert found.lower.is_Integer


def test_bounds_of_parts_are_found_once_and_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._sympy.functions import FloorDiv
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    x, y = sympy.symbols("x y", integer=True)
    part = FloorDiv(3 * x + y, 2) ** 2
    asked = [part, part + 1, sympy.Max(part, y) - part, sympy.Ge(part, 2), x]
    ranges = [{x: ValueRanges(2, 9), y: ValueRanges(0, upper)} for upper in (4, 7)]
    expected = [bound_sympy(each, of_symbols) for of_symbols in ranges for each in asked]
    calls, usual = [], torch_private._run_sympy_handler
    counting = lambda analysis, args, part: (calls.append(part), usual(analysis, args, part))[1]  # noqa: E731
    monkeypatch.setattr(torch_private, "_run_sympy_handler", counting)
    with shared_bounds():
        assert [bound_sympy(each, of_symbols) for of_symbols in ranges for each in asked] == expected
    assert calls.count(part) == len(ranges)


def test_common_divisors_of_long_expressions_are_not_looked_for() -> None:
    from torch.utils._sympy import functions

    x, y = sympy.symbols("x y", integer=True, positive=True)
    short, long = 2 * x + 2 * y, sympy.prod([x + n * y + n for n in range(1, 12)])
    assert functions.safe_gcd(long, long * (x - y)) == sympy.gcd(long, long * (x - y))
    with short_divisions():
        assert functions.safe_gcd(short, 2 * short) == functions.simple_floordiv_gcd(short, 2 * short) * (x + y)
        assert functions.FloorDiv(4 * short, short) == 4
        assert functions.safe_gcd(long, long * (x - y)) == functions.simple_floordiv_gcd(long, long * (x - y))


@pytest.mark.parametrize("operator", ["nonzero", "item"])
def test_only_numbers_of_rows_are_taken_for_many(operator: str) -> None:
    answers = []

    def function(x):
        size = x.nonzero().shape[0] if operator == "nonzero" else x.sum().item()
        answers.append(answer_for_rows(size > 2))
        return x

    torch.export.export(Broken(function), (torch.ones(4, dtype=torch.int64),), strict=False)
    assert set(answers) == {True if operator == "nonzero" else None}


def test_the_nodes_that_failed_are_found_inside_out() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    with pytest.raises(TypeError) as caught:
        torch.fx.Interpreter(graph).run("text")
    assert [node.target for node in interpreted_nodes(caught.value)] == [torch.relu]
    assert interpreted_nodes(ValueError()) == []


def test_scalars_are_followed_from_where_they_are_made_to_where_they_are_read() -> None:
    operators, buffers, reads = list[str](), list[torch.Tensor](), list[torch.Tensor]()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(4))

        def forward(self, x):
            return x.view((self.count * 2).item())

    def read(tensor: torch.Tensor) -> int:
        reads.append(tensor)
        return 8

    model = Model()
    noted = (lambda operator, *_: operators.append(str(operator)), lambda real, _: buffers.append(real))
    with followed_scalars(*noted, read, lambda tensor, symbol: None):
        program = torch.export.export(model, (torch.ones(2, 4),))
    assert "aten.mul.Tensor" in operators
    assert any(buffer is model.count for buffer in buffers)
    assert reads
    assert program.graph.output_node().args[0][0].meta["val"].shape == (8,)


def test_the_symbols_of_scalars_are_followed() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.zeros(x.max().item())

    symbols = list[torch.SymInt]()
    with followed_scalars(lambda *_: None, lambda *_: None, lambda _: None, lambda _, symbol: symbols.append(symbol)):
        program = torch.export.export(Model(), (torch.tensor([2, 3]),))
    assert symbols[0].node.expr == program.graph.output_node().args[0][0].meta["val"].shape[0].node.expr


def test_no_mode_hears_what_a_graph_notes_of_values() -> None:
    class Mode(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.heard.append(str(func))
            return func(*args, **(kwargs or {}))

    def captured(around: contextlib.AbstractContextManager[None]) -> tuple[list[str], torch.fx.Graph]:
        model, mode = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval(), Mode()
        rows = {0: torch.export.Dim.DYNAMIC}
        with around, mode:
            program = torch.export.export(model, (torch.ones(2, 3),), dynamic_shapes=(rows,))
        return mode.heard, program.graph

    usual, expected = captured(contextlib.nullcontext())
    fewer, graph = captured(values_noted_without_modes())
    assert len(fewer) < len(usual)
    assert str(graph) == str(expected)
    for node, other in zip(graph.nodes, expected.nodes, strict=True):
        assert str(node.meta.get("val")) == str(other.meta.get("val"))


def test_no_mode_is_asked_while_a_plain_tensor_is_described() -> None:
    class Mode(TorchFunctionMode):
        asked = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Mode.asked += 1
            return func(*args, **(kwargs or {}))

    weight = torch.nn.Parameter(torch.ones(3))
    with followed_scalars(lambda *_: None, lambda *_: None, lambda _: None, lambda *_: None), Mode():
        described = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(weight)
        assert Mode.asked == 0
    assert isinstance(described, torch.nn.Parameter)
    assert described.shape == (3,)


@pytest.mark.parametrize("name", private_names(onnx_fx_export))
def test_every_private_name_in_use_is_there(name: str) -> None:
    assert found(name) is not None


@pytest.mark.parametrize("key", ["Meta", "CompositeImplicitAutograd"])
def test_kernels_in_python_that_cannot_be_put_back_are_left(key: str) -> None:
    with torch.library._scoped_library(f"kept_{key.lower()}", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x.new_empty((2 * x.shape[0],)), key)
        operator = getattr(torch.ops, f"kept_{key.lower()}").twice.default

        with replaced_kernels({operator: lambda kernel: torch.empty_like}), FakeTensorMode():
            assert operator(torch.ones(3)).shape == (6,)
        with FakeTensorMode():
            assert operator(torch.ones(4)).shape == (8,)


def test_encoders_ask_whether_a_mask_is_causal() -> None:
    asked = []

    def note(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        asked.append(mask)
        return False

    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), 1).eval()
    with replaced(causal_mask_detection(note)):
        encoder(torch.ones(1, 2, 4), mask=torch.zeros(2, 2))
    assert [mask.shape for mask in asked] == [(2, 2)]


@pytest.mark.parametrize("operator", [torch.ops.aten.add.Tensor, torch.ops.aten.maximum.default], ids=str)
def test_replaced_kernels_are_called_before_what_fake_tensors_do_by_themselves(operator) -> None:
    """``get_fast_op_impls``, decompositions, and ``py_kernels`` are passed by, and are back afterwards."""
    called = []

    def noting(kernel):
        def noted(x, y):
            called.append(operator)
            return torch.empty_like(x)

        return noted

    def exported():
        model = FunctionModule(lambda x, y: operator(x, y))
        dims = ({0: torch.export.Dim.DYNAMIC},) * 2
        return torch.export.export(model, (torch.ones(3, 2), torch.ones(3, 2)), dynamic_shapes=dims)

    with replaced_kernels({operator: noting}):
        exported()
    assert called

    called.clear()
    exported()
    # Of sizes that no cache has an answer for.
    with FakeTensorMode():
        assert operator(torch.ones(1, 3, 7), torch.ones(5, 1, 7)).shape == (5, 3, 7)
    assert not called


def test_symbols_of_data_can_be_numbered_anew() -> None:
    env = ShapeEnv()
    for least in (50, 10):
        number_symbols_from(env.create_unbacked_symbool(), least)
    assert str(env.create_unbacked_symint().node.expr) == "u51"


def test_a_constant_gets_a_stand_in_beside_others() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    fake = fake_beside(program.graph.nodes, torch.ones(3, 4))
    (own,) = program.graph.find_nodes(op="placeholder")
    assert fake.shape == (3, 4)
    assert fake.fake_mode is own.meta["val"].fake_mode


def test_equations_are_noted_one_listener_inside_the_other() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 3) + 1

    with specializations() as lines, equating_operators() as operators, contextlib.suppress(Exception):
        torch.export.export(Fixed(), (torch.ones(6),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert any("x.reshape(2, 3)" in line for line in lines)
    assert operators


def test_logarithms_of_sizes_are_expressions() -> None:
    env = ShapeEnv()
    size = env.create_unspecified_symint_and_symbol(
        6, torch._dynamo.source.ConstantSource("n"), torch.fx.experimental.symbolic_shapes.DimDynamic.DYNAMIC
    )
    logarithm = logarithm_of(torch.sym_float(size), "log2")
    assert type(logarithm.node.expr).__name__ == "OpaqueUnaryFn_log2"
    assert logarithm.node.hint == pytest.approx(2.584962500721156)


def test_tensors_of_sizes_may_be_doubles() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.tensor(x.shape[0] / 2)

    for answer, dtype in ((True, torch.float64), (False, torch.float32)):
        with replaced([tensors_of_doubles(lambda data, answer=answer: answer)]):
            program = torch.export.export(Model(), (torch.ones(6),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        assert program.module()(torch.ones(6)).dtype == dtype
