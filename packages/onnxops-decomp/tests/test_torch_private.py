"""Fails when torch changes one of the private things that the tables rely on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_names import found, private_names

import onnxops_decomp
from onnxops_decomp import torch_private as private

aten = torch.ops.aten


@pytest.mark.parametrize("name", private_names(onnxops_decomp))
def test_every_private_name_in_use_is_there(name: str) -> None:
    assert found(name) is not None


def test_unwatched_calls_are_seen_by_no_mode() -> None:
    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    x = torch.zeros(2)
    with Watch():
        with private.unwatched():
            x.add_(1)
        assert not seen
        x.add_(1)
    assert (len(seen), x.tolist()) == (1, [2, 2])


def test_what_is_assumed_of_sizes_is_recorded_and_taken_back() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(4, 3), static_shapes=False)

    with private.recorded_guards(private.fake_mode_of(x)) as guards:
        assert x.shape[0] > 2

    assert [str(guard.rel_op) for guard in guards] == [">"]
    assert mode.shape_env.guards == []


def test_the_switch_of_the_grad_mode_stands_in_graphs_recorded_before_dispatch() -> None:
    def switches(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x * 2

    targets = [node.target for node in private.trace_graph(switches, [torch.ones(2)], whole=True).graph.nodes]

    assert private.grad_mode_switch in targets


def test_composite_operators_and_those_with_a_decomposition_are_told_apart() -> None:
    assert private.is_composite(aten.layer_norm.default)
    assert not private.is_composite(aten.mm.default)
    assert private.table_decomposition(aten.addcmul.default) is not None
    assert private.table_decomposition(aten.mm.default) is None


def test_a_call_is_recorded_as_it_is() -> None:
    graph = private.trace_call(aten.layer_norm.default, (torch.ones(2, 3), [3]), {}).graph

    assert [node.target for node in graph.nodes if node.op == "call_function"] == [aten.layer_norm.default]


def test_a_custom_operator_knows_its_overload() -> None:
    @torch.library.custom_op("decomp_private::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert private.overload_of_custom_op(doubled) is torch.ops.decomp_private.doubled.default
    assert private.overload_of_custom_op(torch.relu) is None


def test_what_was_compiled_is_found() -> None:
    def function(x):
        return x + 1

    module = torch.nn.ReLU()
    assert private.uncompiled(torch.compile(module)) is module
    assert private.uncompiled(torch.compile(function)) is function
    assert private.uncompiled(module) is module


def test_tensors_are_numbered_by_what_they_are_computed_from() -> None:
    x, y = torch.ones(2), torch.ones(2)

    with private.Computations() as computations:
        first, second, other = x.cos() + 1, x.cos() + 1, y.cos() + 1
        numbers = [computations.number(tensor) for tensor in (first, second, other)]

    assert numbers[0] == numbers[1] != numbers[2]


def test_numbers_tell_what_was_written_and_drawn() -> None:
    computations, x = private.Computations(), torch.zeros(4)

    def written(value: float) -> int:
        with computations:
            y = x.clone()
            y[1:].view(-1).mul_(value)
            return computations.number(y + 1)

    def drawn(before: int) -> int:
        with computations:
            for _ in range(before):
                torch.rand(3)
            return computations.number(torch.rand(4) + x)

    assert written(2.0) == written(2.0) != written(3.0)
    assert drawn(1) == drawn(1) != drawn(2)


def test_computations_are_numbered_without_a_look_at_data() -> None:
    weight, buffer = torch.nn.Parameter(torch.full((3, 3), torch.nan)), torch.zeros(3)
    computations = private.Computations([weight, buffer])

    def number(bias: float) -> int:
        with computations, torch.no_grad():
            buffer.add_(bias)
            result = torch.nn.functional.linear(torch.arange(3.0), weight, buffer.view(3)).relu_()
            assert result.is_meta
            return computations.number(result)

    assert number(1) == number(1) != number(2)
    torch.testing.assert_close(buffer, torch.zeros(3))
    with computations, pytest.raises(RuntimeError):
        weight.sum().item()
    with computations, pytest.raises(RuntimeError, match="what is not known"):
        torch.zeros(3).copy_(buffer)
    with computations, pytest.raises(RuntimeError, match="another shape"):
        buffer.unsqueeze_(0)
    other = torch.zeros(3)
    with computations, pytest.raises(RuntimeError, match="existed before"):
        other.view(3).add_(1)
    assert not other.any()


def test_tensors_have_data_inside_a_mode_that_makes_tensors_without() -> None:
    with torch._subclasses.FakeTensorMode():
        with private.real_tensors():
            inside = torch.ones(2) + 1
        assert private.is_without_data(torch.ones(2))
    torch.testing.assert_close(inside, torch.full((2,), 2.0))


def test_a_registration_of_a_class_makes_way_for_another() -> None:
    class Box:
        def __init__(self, content) -> None:
            self.content = content

    assert private.taken_over_node(Box) is None
    pytree.register_pytree_node(Box, lambda box: ([box.content], "old"), lambda items, _: Box(*items))
    restore = private.taken_over_node(Box)
    pytree.register_pytree_node(Box, lambda box: ([box.content] * 2, "new"), lambda items, _: Box(items[0]))
    assert pytree.tree_leaves(Box(1)) == [1, 1]
    assert restore([2], "old").content == 2


def test_functions_of_packed_sequences_pass_their_calls_to_modes() -> None:
    met = []

    class Noting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            met.append(func)
            return func(*args, **(kwargs or {}))

    rnn = torch.nn.utils.rnn
    with Noting():
        padded = rnn.pad_sequence([torch.ones(2), torch.ones(1)])
        rnn.pad_packed_sequence(rnn.pack_padded_sequence(padded, torch.tensor([2, 1])))
    assert {private.PACK_PADDED_SEQUENCE, private.PAD_PACKED_SEQUENCE, private.PAD_SEQUENCE} <= {*met}


def test_a_fake_tensor_is_made_without_the_dispatcher() -> None:
    with FakeTensorMode() as mode:
        usual = torch.empty_strided((2, 3), (1, 2), dtype=torch.float16)
    made = private.plain_fake(mode, usual.shape, usual.stride(), usual.dtype)
    assert type(made) is type(usual)
    assert (made.shape, made.stride(), made.dtype, made.device) == ((2, 3), (1, 2), torch.float16, usual.device)
    assert (made.to(torch.float32) + 1).fake_mode is mode  # type: ignore[attr-defined]
