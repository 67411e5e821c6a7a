"""Lists whose length or contents are known only at run time: vectors of numbers and sequences of tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from ts_models import exported, over_opsets, refused_below

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

AXES = {"x": {0: "n"}}
INPUTS = [(torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]]),), (torch.arange(14.0).reshape(7, 2) - 6,)]


@torch.jit.script
def integers_appended(x: Tensor) -> tuple[Tensor, Tensor]:
    items: list[int] = []
    for i in range(x.size(0)):
        items.append(i * 2)
        if i % 3 == 1:
            items.append(-i)
    return torch.tensor(items), x + items[-1] + len(items)


@torch.jit.script
def floats_appended(x: Tensor) -> Tensor:
    items: list[float] = []
    for i in range(x.size(0)):
        items.append(float(x[i, 0]) * 0.5)
    return torch.tensor(items) + max(items) - min(items) + sum(items)


@torch.jit.script
def truths_appended(x: Tensor) -> Tensor:
    items: list[bool] = []
    for i in range(x.size(0)):
        items.append(bool(x[i, 0] > 0))
    total = 0
    for item in items:
        if item:
            total += 1
    return torch.tensor([total, int(all(items)), int(any(items))])


@torch.jit.script
def numbers_read_back(x: Tensor) -> Tensor:
    items = [5]
    for i in range(x.size(0)):
        items.append(items[-1] + items[0] * i)
    total = 0
    for item in items:
        total += item
    return x + total


@torch.jit.script
def numbers_taken_out(x: Tensor) -> Tensor:
    items = [i * i for i in range(x.size(0))]
    items.insert(1, 40)
    items.insert(-1, 50)
    items.append(60)
    last = items.pop()
    first = items.pop(0)
    del items[1]
    items[-1] = 7
    items[0] = items[0] + last - first
    items.reverse()
    return torch.tensor(items)


@torch.jit.script
def numbers_looked_for(x: Tensor) -> Tensor:
    items = [4 - i for i in range(x.size(0))]
    items.extend([4, 1])
    items += [9]
    added = [x.size(0)]
    joined = items + added
    joined.remove(4)
    found = [int(3 in joined), joined.count(4), joined.index(9)]
    joined.sort()
    return torch.cat([torch.tensor(found), torch.tensor(sorted(items)), torch.tensor(joined[1:-1])])


@torch.jit.script
def numbers_repeated(x: Tensor) -> Tensor:
    counts = [0] * x.size(0)
    for i in range(x.size(0)):
        counts[i] = i + 1
        counts[0] += 1
    return x * torch.tensor(counts).unsqueeze(1)


@torch.jit.script
def number_set_at_a_runtime_place(x: Tensor) -> Tensor:
    items = [2, 5, 7]
    total = 0
    for i in range(x.size(0)):
        total += items[i % 3]
        items[i % 3] = total
    return x + total + items[1]


@torch.jit.script
def values_of_a_tensor(x: Tensor) -> Tensor:
    column = x[:, 0]
    items: list[float] = column.tolist()
    items.append(0.25)
    return torch.tensor(items) * len(items)


@torch.jit.script
def list_made_anew(x: Tensor) -> Tensor:
    items = [x.size(0)]
    for i in range(x.size(0)):
        added = [i]
        items = items + added
    return torch.tensor(items)


NUMBERS = [
    *(integers_appended, floats_appended, truths_appended, numbers_read_back, numbers_taken_out, numbers_looked_for),
    *(numbers_repeated, number_set_at_a_runtime_place, values_of_a_tensor, list_made_anew),
]


NEEDS = {"integers_appended": 9, "numbers_taken_out": 10, "numbers_looked_for": 10}


@pytest.mark.parametrize(("program", "lowest", "opset"), over_opsets({p.name: p for p in NUMBERS}, NEEDS))
def test_numbers_in_a_list_of_unknown_length(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        exported(program, *INPUTS, dynamic_axes=AXES, opset=opset)


def test_a_returned_list_of_numbers_is_a_vector() -> None:
    @torch.jit.script
    def lengths(x: Tensor) -> list[int]:
        items: list[int] = []
        for i in range(x.size(0)):
            items.append(i * i)
        return items

    program = onnx_ts_legacy.export(lengths, INPUTS[0], dynamic_axes=AXES)

    for (x,) in INPUTS:
        assert program(x)[0].tolist() == lengths(x)


def test_a_list_of_unknown_length_is_refused_where_its_length_counts() -> None:
    @torch.jit.script
    def reshaped(x: Tensor) -> Tensor:
        sizes: list[int] = []
        for _ in range(x.size(0)):
            sizes.append(1)
        return x.reshape(sizes)

    with pytest.raises(OnnxExporterError, match="length has to be known"):
        onnx_ts_legacy.export(reshaped, INPUTS[0], dynamic_axes=AXES)


# ---- tensors


@torch.jit.script
def cut_to_pieces(x: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros(2)
    for row in x.unbind(0):
        total = total * 0.5 + row
    for rows in x.split(2):
        total = total - rows.sum(0)
    sizes: list[int] = []
    for _ in range(x.size(0)):
        sizes.append(1)
    return total, torch.split(x, sizes)[1]


@torch.jit.script
def rows_joined(x: Tensor) -> Tensor:
    items = [x[0]]
    more: list[Tensor] = []
    for i in range(x.size(0)):
        added = [x[i]]
        items = items + added
        more.append(x[i] * i)
        more += [x[i]]
    items.extend(more)
    return torch.stack(items + more[1:])


@torch.jit.script
def rows_sliced(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    items = [x[i] for i in range(x.size(0))]
    every = torch.stack(items[::2])
    end = torch.stack(items[-2:])
    items.reverse()
    return every, end, torch.stack(items)


@torch.jit.script
def pieces_changed(x: Tensor) -> Tensor:
    return torch.cat([piece * 2 for piece in torch.split(x, 2)], 0)


TENSORS = {p.name: p for p in (cut_to_pieces, rows_joined, rows_sliced, pieces_changed)}


@pytest.mark.parametrize(
    ("program", "lowest", "opset"), over_opsets(TENSORS, {**dict.fromkeys(TENSORS, 13), "cut_to_pieces": 11})
)
def test_tensors_in_a_list_of_unknown_length(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        exported(program, *INPUTS, dynamic_axes=AXES, opset=opset)


# ---- ranges and bits of numbers


@torch.jit.script
def ranges(x: Tensor) -> Tensor:
    total = torch.zeros(2)
    for i in range(x.size(0) - 1, -1, -1):
        total = total * 0.5 + x[i]
    for i in range(1, x.size(0), 2):
        total = total - x[i] * i
    for i in range(x.size(0), 2):
        total = total + 100 * i
    return total


@torch.jit.script
def bits(x: Tensor, k: Tensor) -> Tensor:
    n = int(k)
    return torch.tensor([n & 6, n | 9, n ^ 12, n << 1, n >> 2, x.size(0) & 5, 3 << x.size(0), n >> x.size(0)])


@pytest.mark.parametrize(("program", "lowest", "opset"), over_opsets({"ranges": ranges}))
def test_ranges_between_runtime_numbers(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    exported(program, *INPUTS, (torch.ones(1, 2),), dynamic_axes=AXES, opset=opset)


@pytest.mark.parametrize(("program", "lowest", "opset"), over_opsets({"bits": bits}))
def test_bits_of_runtime_integers(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    examples = [(*INPUTS[0], torch.tensor(13)), (*INPUTS[1], torch.tensor(-27)), (*INPUTS[1], torch.tensor(2**40 + 5))]
    exported(program, *examples, dynamic_axes=AXES, opset=opset)
