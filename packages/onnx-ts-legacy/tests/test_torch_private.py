"""Fails when torch changes one of the private things that the exporter relies on."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import sympy
import torch
from torch.onnx.ops import symbolic, symbolic_multi_out
from torch.overrides import TorchFunctionMode
from torch_names import found, private_names
from ts_models import in_another_thread

import onnx_ts_legacy
from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import CaptureError
from onnxops_core.exporting import replaced


def test_fake_tensors_take_sizes_without_values_and_say_what_they_share() -> None:
    mode = private.fake_mode(private.shape_env())
    size = mode.shape_env.create_unbacked_symint()

    with mode:
        x = torch.empty(size, 3)
        view, copy = x.view(-1), x.clone()

    assert private.same_storage(x, view)
    assert not private.same_storage(x, copy)
    assert private.decided(view.shape[0] == size * 3)


def test_a_size_that_is_set_to_be_at_least_one_is_known_to_be() -> None:
    size = private.fake_mode(private.shape_env()).shape_env.create_unbacked_symint()

    private.set_at_least_one(size)

    assert private.decided(size >= 1) is True
    assert private.decided(size < 1) is False
    assert private.decided(size >= 2) is None


def test_what_was_taken_for_granted_of_sizes_is_told_and_forgotten() -> None:
    mode = private.fake_mode(private.shape_env())
    n, m = (mode.shape_env.create_unbacked_symint() for _ in range(2))
    for size in (n, m):
        private.set_at_least_one(size)

    for _ in range(2):
        with private.forgetting(mode.shape_env) as taken:
            torch._check(m == n)
            torch._check(n >= 3)
            assert private.decided(m == n) is True

        relations = (sympy.Eq(m.node.expr, n.node.expr), sympy.Ge(n.node.expr, 3))
        assert {check.canonical for check in taken} == {relation.canonical for relation in relations}
        assert [str(m.node.expr), private.decided(m == n), private.decided(n >= 3)] == ["u1", None, None]
        assert private.decided(m >= 1) is True


def test_what_is_taken_for_granted_stays_known() -> None:
    mode = private.fake_mode(private.shape_env())
    n, m = (mode.shape_env.create_unbacked_symint() for _ in range(2))
    with private.forgetting(mode.shape_env) as taken:
        torch._check(m == n)

    for check in taken:
        private.take_for_granted(mode.shape_env, check)

    assert private.decided(m == n) is True


def test_sizes_with_examples_are_symbols() -> None:
    mode = private.fake_mode(private.shape_env())

    size = private.new_dimension(mode, "batch", 4)

    assert size.node.expr.is_Symbol
    assert size.node.hint == 4


def test_a_call_that_needs_the_value_of_a_symbol_is_told_apart() -> None:
    mode = private.fake_mode(private.shape_env())
    size = mode.shape_env.create_unbacked_symint()

    try:
        bool(size == 3)
    except Exception as error:
        caught = error

    assert private.is_data_dependent(caught)
    assert not private.is_data_dependent(RuntimeError())


def test_schemas_of_nodes_resolve_to_overloads() -> None:
    graph = torch.jit.trace(lambda x: x.add(1), torch.zeros(1)).graph
    schemas = [node.schema() for node in graph.nodes() if node.kind() == "aten::add"]

    assert private.overload_of_schema(schemas[0]) is torch.ops.aten.add.Tensor
    assert private.overload_of_schema("no::such(Tensor x) -> Tensor") is None


def test_calls_of_methods_are_inlined() -> None:
    graph = torch.jit.trace(torch.nn.Sequential(torch.nn.ReLU()), torch.zeros(1)).graph.copy()

    private.inline_calls(graph)

    assert "prim::CallMethod" not in {node.kind() for node in graph.nodes()}


def test_deprecations_of_torchscript_are_hidden_and_others_are_not() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with private.hidden_deprecations():
            torch.jit.trace(torch.nn.ReLU(), torch.zeros(1))
            warnings.warn("something else", stacklevel=1)  # noqa: TID251

    assert [str(warning.message) for warning in seen] == ["something else"]


def test_a_kernel_that_refuses_symbols_has_another_in_python_that_takes_them() -> None:
    mode = private.fake_mode(private.shape_env())
    size = mode.shape_env.create_unbacked_symint()

    def resized() -> torch.Tensor:
        with mode:
            return torch.ops.aten.upsample_bilinear2d.vec(torch.empty(1, 1, 4, 4), [size, 3], False, None)

    try:
        resized()
    except RuntimeError as error:
        refused = error
    with private.python_kernels():
        result = resized()

    assert private.refuses_symbols(refused)
    assert not private.refuses_symbols(RuntimeError("other"))
    assert result.shape[2].node.expr == size.node.expr


def test_a_symbol_where_an_operator_takes_a_number_alone_is_refused_by_the_parser_of_arguments() -> None:
    mode = private.fake_mode(private.shape_env())
    size = mode.shape_env.create_unbacked_symint()

    with mode, pytest.raises(RuntimeError) as refused:
        torch.ops.aten.cumsum.default(torch.ones(2, 3), size)

    assert private.refuses_argument(refused.value)
    assert not private.refuses_argument(RuntimeError("other"))


def test_sizes_of_a_call_that_fails_in_a_trace_are_not_given_to_the_next_one() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.size(0), "one")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="failed to unpack"):
        private.trace_graph(program, [torch.zeros(2, 3)], {})
    graph = private.trace_graph(lambda x: x.reshape(3, 2), [torch.zeros(2, 3)], {})

    (node,) = graph.findAllNodes("aten::reshape")
    assert graph.findNode("aten::size") is None
    assert node.inputsAt(1).node().kind() != "prim::Param"


def test_what_tracing_does_not_record_is_replaced_while_it_runs_and_for_its_thread_alone() -> None:
    seen: list[bool] = []

    def read(x: torch.Tensor) -> torch.Tensor:
        other = threading.Thread(target=lambda: seen.append(torch.ones(1).data.requires_grad))
        other.start()
        other.join()
        seen.extend(name in vars(torch.Tensor) for name in ("data", "set_"))
        return x.data

    with private.recording(TypeError), private.recording(TypeError):
        graph = private.trace_graph(read, [torch.ones(2)], {})

    assert seen == [False, True, True]
    assert [node.kind() for node in graph.nodes()] == ["aten::detach"]
    assert not {"data", "set_"} & set(vars(torch.Tensor))
    assert "atleast_1d" not in vars(torch._VF)
    assert torch.atleast_1d(torch.tensor(3.0)).tolist() == [3.0]


def test_what_another_thread_traces_for_itself_is_as_ever() -> None:
    seen: list[str] = []

    def trace() -> None:
        seen.append(str(torch.jit.trace(lambda x: x.data * 2, torch.ones(3)).inlined_graph))

    def run_apart(x: torch.Tensor) -> torch.Tensor:
        other = threading.Thread(target=trace)
        other.start()
        other.join()
        return x.data

    trace()
    with private.recording(TypeError):
        run_apart(torch.ones(2))

    assert seen[0].replace("detach", "") == seen[0]
    assert seen[1] == seen[0]


def test_operators_that_stand_for_nodes_are_recorded_in_the_thread_of_the_export_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call() -> torch.Tensor:
        return torch.onnx.ops.symbolic("b::B", (), dtype=1, shape=[2])

    monkeypatch.setattr(torch.onnx.ops._symbolic_impl, "_symbolic", lambda *args, **kwargs: torch.ones(2))
    with private.recording(TypeError):
        assert in_another_thread(call).tolist() == [1, 1]
        assert call().tolist() == [0, 0]
    assert call().tolist() == [1, 1]


def test_another_thread_that_switches_autocast_is_not_part_of_the_trace() -> None:
    class Switches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            in_another_thread(half_precision)
            return torch.nn.functional.linear(x, x)

    def half_precision() -> torch.dtype:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype

    with pytest.warns(private.TracerWarning, match="in another thread"):
        program = onnx_ts_legacy.export(Switches(), (torch.ones(2, 2),))

    assert "Cast" not in {node.op_type for node in program.model.graph}


def test_a_trace_is_recorded_for_an_export_as_long_as_the_program_runs() -> None:
    seen: list[bool] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.append(private.traces())
        return x * x.size(0)

    with private.recording(TypeError):
        private.trace_graph(program, [torch.zeros(2)], {})
        assert not private.traces()
    private.trace_graph(program, [torch.zeros(2)], {})

    assert seen == [True, False]


def test_no_mode_sees_that_the_rank_of_a_tensor_is_asked_for() -> None:
    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    x = torch.zeros(2, 3)
    with Watch():
        assert private.rank_of(x) == 2
        assert not seen
        assert x.dim() == 2
    assert seen


@pytest.mark.parametrize("name", private_names(onnx_ts_legacy))
def test_every_private_name_in_use_is_there(name: str) -> None:
    assert found(name) is not None


def test_operators_that_stand_for_nodes_are_recorded_by_whatever_name() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        first, _ = symbolic_multi_out("A", (x, None), {"a": [1]}, dtypes=[1, 7], shapes=[x.shape, [2]], version=3)
        return symbolic("b::B", (first,), {"b": "c"}, dtype=x.dtype, shape=x.shape, metadata_props={"d": "e"})

    with private.recording(TypeError):
        graph = private.trace_graph(program, [torch.zeros(2)], {})

    kinds = [node.kind() for node in graph.nodes()]
    assert kinds.count("onnxops_symbolic::call") == kinds.count("onnxops_symbolic::call_multi_out") == 1
    assert torch.onnx.ops.symbolic("b::B", (), dtype=1, shape=[2]).tolist() == [0, 0]


def test_symbolics_that_torch_knows_are_found_and_no_built_in_ones() -> None:
    def symbolic(g: Any, x: Any) -> Any:
        return g.op("Abs", x)

    before = private.registered_symbolics()
    torch.onnx.register_custom_op_symbolic("aten::relu", symbolic, 11)
    try:
        assert [entry for entry in private.registered_symbolics() if entry not in before] == [
            ("aten::relu", 11, symbolic)
        ]
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::relu", 11)
    assert private.registered_symbolics() == before


def test_checks_end_in_one_function_and_parts_in_one_operator() -> None:
    seen: list[Any] = []

    def check(error_type: Any, cond: Any, message: Any) -> None:
        seen.append((error_type, cond))

    with replaced([(torch, private.CHECK, check)]):
        torch._check(False)
        torch._check_value(False, lambda: "no")
    assert seen == [(RuntimeError, False), (ValueError, False)]
    assert [len(part) for part in private.split(torch.ones(5), 2, 0)] == [2, 2, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,)),
        lambda x: torch.compile(torch.sin, backend="eager")(x),
    ],
    ids=["cond", "compile"],
)
def test_compiled_code_is_refused_by_its_line(call: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return call(x) + 1

    with pytest.raises(CaptureError, match=r"calls compiled code at .*test_torch_private\.py:\d+, as"):
        onnx_ts_legacy.export(Model(), (torch.ones(2),))
    torch.testing.assert_close(Model()(torch.ones(2)), call(torch.ones(2)) + 1)
