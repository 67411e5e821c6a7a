"""Loops over a dynamic number of steps are scans, right at other lengths, or the export is refused."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export import DynamicShapeError, OnnxExporterError, export

BOTH = ({0: "batch", 1: "length"},)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(3, 3)

    def forward(self, x):
        state, outputs, parts = torch.zeros(x.shape[0], 3), [], []
        written = torch.zeros_like(x)
        for t in range(x.shape[1]):
            new = torch.tanh(self.weight(x[:, t]))
            state = new + 0.5 * state
            outputs.append(state * 2)
            parts.append(state[:, :2].unsqueeze(1))
            written[:, t, 1:] = state[..., 1:]
        new = state + 1
        return torch.stack(outputs, dim=-1), torch.cat(parts, 1), state, written, new


class FromOne(torch.nn.Module):
    """Looks back, reads the last dimension, and changes what it writes to."""

    def forward(self, x):
        result = x.clone()
        for index in range(1, x.shape[-1]):
            result[..., index] += 0.5 * result[..., index - 1] + index
        return result


class Nested(torch.nn.Module):
    def forward(self, x):
        total = x.new_zeros(3)
        for t in range(x.size(1)):
            for k in range(3):
                total[k] = total[k] + x[:, t, k].sum()
        return total


class Branches(torch.nn.Module):
    """Uses a name of the loop in another way before and after it, as state space models do."""

    def forward(self, x, fast: bool = False):
        output = x.sum()
        if fast:
            return output
        state, outputs = x[:, 0] * 0, []
        for t in range(x.shape[1]):
            state *= 0.5
            state = state + x[:, t]
            output = state.exp()
            outputs.append(output)
        output = torch.stack(outputs, dim=1)
        return output, state


def decayed(x):
    state = x[:, 0] * 0
    for t in range(x.shape[1]):
        state = state * 0.5 + x[:, t]
    return state


class Calling(torch.nn.Module):
    def forward(self, x):
        return decayed(x) + decayed(-2 * x).exp()


@pytest.mark.parametrize("kind", [Recurrent, Nested, Calling, Branches])
def test_a_loop_over_a_size_is_a_scan(kind) -> None:
    check(kind().eval(), (2, 5, 3), [(2, 5, 3), (3, 9, 3), (1, 2, 3), (4, 1, 3)], BOTH)


def test_a_loop_that_looks_back_is_a_loop_that_may_have_no_steps() -> None:
    sizes = [(2, 3, 4), (1, 3, 9), (5, 3, 2), (2, 3, 1)]
    check(FromOne(), (2, 3, 4), sizes, ({0: "batch", 2: "length"},), operator="Loop")


def check(model, example, sizes, dims, operator="Scan") -> None:
    program = export(model, (torch.randn(example),), dynamic_shapes=dims)
    assert program.capture_strategy == "size-loops"
    assert operator in {node.op_type for node in program.model.graph}
    for shape in sizes:
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def stacked_list(x):
    return torch.stack([x[i].cumsum(0) for i in range(x.size(0))])


def joined_rows(x):
    parts = []
    for number, row in enumerate(x): parts.append(row * number)  # fmt: skip  # noqa: E701
    return torch.cat(parts)


def added_generator(x):
    return sum(x[i] * i for i in range(len(x)))


def added_to_a_number(x):
    y = 0
    for i in range(x.shape[0]):
        y = y + x[i] * i
    return y


def multiplied_rows(x):
    product = 1.0
    for row in x:
        product = product * row
    return product


def multiplied_pairs(x):
    product = 1.0
    for i in range(1, x.shape[0]):
        product = product * x[i] * x[i - 1]
    return product * x[0]


def first_or_more(x):
    total = None
    for i in range(x.shape[0]):
        total = x[i] if total is None else total + x[i]
    return total


def list_of_a_list(x):
    rows = [x[i] + 1 for i in range(x.shape[0])]
    rows = [row * 2 for row in rows]
    return torch.stack(rows, 1), rows[-1]


def filled_before(x):
    state, states = torch.zeros(3), [x.new_zeros(3), x.sum(0)]
    for row in x:
        state = torch.tanh(state + row)
        states.append(state)
    return torch.stack(states, 1)


def filled_twice(x):
    rows = []
    for row in x:
        rows.append(row)
    for i in range(x.shape[0]):
        rows.append(x[i] * 2)
    return torch.cat(rows)


def backwards(x):
    state = x.new_zeros(3)
    for t in reversed(range(x.shape[0])):
        state = torch.tanh(state + x[t])
    return state


def pairs(x):
    return torch.stack([a - b for a, b in zip(x, x.flip(0), strict=False)])


def unbound(x):
    state, states = torch.zeros(3), []
    for row in torch.unbind(x, 0):
        state = torch.tanh(state + row)
        states.append(state)
    return torch.stack(states), torch.cat(x.unbind(0))


def single_pieces(x):
    state, states = torch.zeros(1, 3), []
    for row in x.split(1, dim=0):
        state = torch.tanh(state + row)
        states.append(state)
    pieces = [piece * 2 for piece in torch.chunk(x, x.shape[0])]
    return torch.cat(states), torch.cat(pieces), x.split(1)[0], "a b".split(" ")[1] + str(len("a b".split(" "))) == "b2"


def mapped_rows(x):
    return torch.stack(list(map(torch.tanh, x))), list(map(str, (1, 2))) == ["1", "2"]


class Parts:
    def unbind(self):
        return [1.0, 2.0]

    def split(self, text):
        return [text * 2]


def other_unbinds_and_joins(x):
    rows = [x * factor for factor in Parts().unbind()]
    joined = torch.cat(tensors=[torch.stack(rows, axis=1), torch.cat((x[:, None], x[:, None]), axis=1)], dim=0)
    return joined, torch.stack([row * 2 for row in x], axis=1), len(Parts().split("a")[0]) * x


def within_a_fixed_loop(x):
    for _ in range(2):
        x = x + sum(x[i] for i in range(x.shape[0]))
    return x


class OfLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = torch.stack([layer(row) for row in x])
        state, weights = x[0], [layer.weight for layer in self.layers]
        for t in range(x.shape[0]):
            for weight in weights:
                state = state @ weight + x[t]
        return state, sum(float(number) for number in (1, 2)) * x


FORMS = (
    *(
        stacked_list,
        joined_rows,
        added_generator,
        added_to_a_number,
        multiplied_rows,
        multiplied_pairs,
        first_or_more,
        list_of_a_list,
    ),
    *(
        filled_before,
        filled_twice,
        backwards,
        pairs,
        unbound,
        single_pieces,
        mapped_rows,
        other_unbinds_and_joins,
        within_a_fixed_loop,
        OfLayers().eval(),
    ),
)


@pytest.mark.parametrize("model", FORMS, ids=lambda model: getattr(model, "__name__", "of_layers"))
def test_each_way_to_write_a_loop_stays_dynamic(model) -> None:
    program = export(model, (torch.randn(3, 3),), dynamic_shapes=({0: "n"},))
    assert program.capture_strategy == "size-loops"
    for rows in (3, 5, 2, 1):
        x = torch.randn(rows, 3)
        if model is multiplied_pairs and rows == 1:
            with pytest.raises(OnnxExporterError, match="captured for n"):
                program(x)
            continue
        with torch.no_grad():
            torch.testing.assert_close(
                pytree.tree_leaves(program(x)), pytree.tree_leaves(model(x)), rtol=1e-4, atol=1e-5
            )


def first_part(x):
    return x.split(3, 0)[0] * 2


def part_of_columns(x):
    return x.T.split(2, dim=1)[0]


def second_part(x):
    return torch.split(x, 2)[1]


def several_parts(x):
    return x.split(split_size=2)[0].sum(0) + x.split(2, -1)[1].sum() + "a,b".split(",")[0].count("a")


@pytest.mark.parametrize("model", [first_part, part_of_columns, second_part, several_parts])
def test_a_part_of_a_split_stays_dynamic(model) -> None:
    program = export(model, (torch.randn(5, 3),), dynamic_shapes=({0: "n"},))
    assert program.capture_strategy == "size-loops"
    for rows in (5, 3, 9, 6, 2, 1):
        x = torch.randn(rows, 3)
        if model is second_part and rows < 3:
            with pytest.raises(OnnxExporterError, match=r"n > 2|n >= 3"):
                program(x)
        else:
            torch.testing.assert_close(program(x), model(x))


def test_the_code_of_the_model_is_as_before() -> None:
    before = Recurrent.forward.__code__, decayed.__code__
    export(Calling(), (torch.randn(2, 5, 3),), dynamic_shapes=BOTH)
    assert (Recurrent.forward.__code__, decayed.__code__) == before


def test_a_loop_over_a_fixed_size_is_unrolled() -> None:
    program = export(Recurrent().eval(), (torch.randn(2, 5, 3),), dynamic_shapes=({0: "batch"},))
    assert program.capture_strategy == "non-strict"


class Growing(torch.nn.Module):
    def forward(self, x):
        state = x[:, 0]
        for t in range(x.shape[1]):
            state = torch.cat([state, x[:, t]], 1)
        return state


class Decaying(torch.nn.Module):
    """Multiplies integers by a number that a scan would carry as a tensor, which promotes in another way."""

    def forward(self, x):
        factor = 0.5
        for _ in range(x.shape[1]):
            factor = factor * 0.9
        return (x * 10).long() * factor


class Remembering(torch.nn.Module):
    def forward(self, x):
        last = x[:, 0]
        for t in range(x.shape[1]):
            last = x[:, t]
            self.count = t
        return last


@pytest.mark.parametrize("kind", [Growing, Decaying, Remembering])
def test_another_loop_is_refused(kind) -> None:
    with pytest.raises(OnnxExporterError):
        export(kind(), (torch.randn(2, 5, 3),), dynamic_shapes=BOTH)


def test_the_strategy_alone_refuses_a_model_without_loops() -> None:
    with pytest.raises(OnnxExporterError, match="no loop"):
        export(torch.nn.ReLU(), (torch.randn(2, 5),), dynamic_shapes=BOTH, strategy="size-loops")


def test_without_trial_runs_the_length_is_fixed() -> None:
    with pytest.raises(DynamicShapeError):
        export(Recurrent().eval(), (torch.randn(2, 5, 3),), dynamic_shapes=BOTH, trial_runs=False)
