"""Scripted programs that mix loops, returns, containers and writes through views, at every opset."""

from __future__ import annotations

from typing import NamedTuple, Optional

import pytest
import torch
from torch import Tensor
from ts_models import exported, n, over_opsets, refused_below


class Counted(NamedTuple):
    total: Tensor
    count: int


@torch.jit.script
def returned_from_nested_loops(x: Tensor) -> Tensor:
    for i in range(x.size(0)):
        for j in range(x.size(1)):
            if bool(x[i, j] > 2.0):
                return x[i] * j
            if bool(x[i, j] < -2.0):
                break
    return x.sum(0)


@torch.jit.script
def views_written_in_a_loop(x: Tensor) -> Tensor:
    y = x.clone()
    for i in range(x.size(0)):
        r = y[i]
        r[0] = r[1] + i
        c = y[:, 1:]
        c.add_(1)
        if bool(r.sum() > 3):
            r.zero_()
    return y


@torch.jit.script
def swapped_in_a_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x[0], x[0] * 0 + 1
    for i in range(x.size(0)):
        a, b = b, a + x[i]
    return a, b


@torch.jit.script
def named_tuple_in_a_loop(x: Tensor) -> Tensor:
    p = Counted(x[0], 0)
    for i in range(x.size(0)):
        if bool(x[i].sum() > 0):
            p = Counted(p.total + x[i], p.count + 1)
    return p.total * p.count


@torch.jit.script
def lists_in_a_dict(x: Tensor) -> Tensor:
    d: dict[str, list[Tensor]] = {"p": [], "q": [x[0]]}
    for i in range(x.size(0)):
        if bool(x[i].sum() > 0):
            d["p"].append(x[i])
        else:
            d["q"].append(-x[i])
    if len(d["p"]) == 0:
        return torch.stack(d["q"])
    return torch.cat([torch.stack(d["p"]), torch.stack(d["q"])])


@torch.jit.script
def optional_tuple_in_a_loop(x: Tensor) -> Tensor:
    best: Optional[tuple[Tensor, int]] = None  # noqa: UP045
    for i in range(x.size(0)):
        if best is None or bool(x[i].sum() > best[0].sum()):
            best = (x[i], i)
    assert best is not None
    return best[0] + best[1]


@torch.jit.script
def stack_of_tensors(x: Tensor) -> Tensor:
    st = [x]
    n = 0
    while len(st) > 0 and n < 5:
        v = st.pop()
        n += 1
        if bool(v.sum() > 0):
            st.append(v - 1)
            st.append(v * 0.5)
        x = x + v
    return x * n


@torch.jit.script
def bubble_sort(x: Tensor) -> Tensor:
    idx = list(range(x.size(0)))
    for i in range(len(idx)):
        for j in range(len(idx) - 1):
            if bool(x[idx[j]].sum() > x[idx[j + 1]].sum()):
                tmp = idx[j]
                idx[j] = idx[j + 1]
                idx[j + 1] = tmp
    return x[torch.tensor(idx)]


@torch.jit.script
def list_of_views(x: Tensor) -> Tensor:
    y = x.clone()
    rows = [y[0], y[1]]
    rows[0].mul_(3)
    for r in rows:
        r += 1
    if bool(x.sum() > 0):
        rows[1].zero_()
    return y


@torch.jit.script
def searched(x: Tensor) -> tuple[Tensor, int, bool]:
    i = 0
    ok = False
    while i < x.size(0):
        if bool(x[i].max() > 1.5):
            ok = True
            break
        i += 1
    else_val = x[i] if i < x.size(0) else x[0] * 0
    return else_val, i, ok


@torch.jit.script
def fibonacci(x: Tensor) -> Tensor:
    a, b = 0, 1
    out: list[int] = []
    for _ in range(x.size(0)):
        out.append(a)
        a, b = b, a + b
    return torch.tensor(out) * x[:, 0]


@torch.jit.script
def slices_from_the_end(x: Tensor) -> Tensor:
    k = x.size(0) // 2
    return torch.cat([x[-k:], x[:-k], x[::2], x[k - 1 : k + 1]])


@torch.jit.script
def written_at_found_places(x: Tensor) -> Tensor:
    y = x.clone()
    i = x.argmax(0)
    y[i, torch.arange(x.size(1))] = -7.0
    y[i[0]] += 1
    for k in range(x.size(1)):
        y[i[k], k] = y[i[k], k] * 2
    return y


@torch.jit.script
def augmented_numbers(x: Tensor) -> Tensor:
    s = 0.0
    c = 0
    for i in range(x.size(0)):
        v = float(x[i].mean())
        if v > 0:
            s += v
            c += 1
        else:
            s -= v * 0.5
    return x / (s + 1.0) + c


@torch.jit.script
def dict_returned_early(x: Tensor) -> dict[str, Tensor]:
    if x.size(0) > 4:
        return {"a": x.sum(0), "b": x}
    y = x * 2
    return {"a": y.mean(0), "b": y}


@torch.jit.script
def names_compared(x: Tensor, mode: str = "mean") -> Tensor:
    names = ["mean", "sum"]
    for i, nme in enumerate(names):
        if nme == mode:
            return x.mean(0) if i == 0 else x.sum(0)
    return x[0]


@torch.jit.script
def zipped_rows(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x[0])
    for a, b in zip(x.unbind(0), y.unbind(0)):
        if bool((a > b).any()):
            out = out + a
        else:
            out = torch.maximum(out, b)
    return out


@torch.jit.script
def view_chosen_in_a_loop(x: Tensor) -> Tensor:
    y = x.clone()
    v = y[0]
    for i in range(x.size(0)):
        if bool(x[i].sum() > 0):
            v = y[i]
    w = v * 2
    return w + y


@torch.jit.script
def pieces_in_a_loop(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for c in x.chunk(3, 1):
        outs.append(c.sum(1))
    return torch.stack(outs, 1)


@torch.jit.script
def rows_written(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.size(0)):
        out[i] = x[: i + 1].sum(0)
    out[x.size(0) - 1] += 1
    return out


@torch.jit.script
def mask_in_a_while(x: Tensor) -> Tensor:
    y = x.clone()
    while bool((y > 1).any()):
        y[y > 1] -= 1
    return y


@torch.jit.script
def truth_values(x: Tensor) -> Tensor:
    p = bool(x.sum() > 0)
    q = x.size(0) > 3
    r = (p and q) or (not p and not q)
    return x * (2 if r else 3) + int(p ^ q)


X = torch.tensor([[1.0, 2.0, -1.0], [0.5, -3.0, 2.0], [2.5, 1.0, 0.2]])
INPUTS = [(X,), (n(6, 3),), (-n(4, 3).abs() * 3,), (n(2, 3) * 2,)]
PROGRAMS = [
    returned_from_nested_loops,
    views_written_in_a_loop,
    swapped_in_a_loop,
    named_tuple_in_a_loop,
    lists_in_a_dict,
    optional_tuple_in_a_loop,
    stack_of_tensors,
    bubble_sort,
    list_of_views,
    searched,
    fibonacci,
    slices_from_the_end,
    written_at_found_places,
    augmented_numbers,
    dict_returned_early,
    names_compared,
    view_chosen_in_a_loop,
    pieces_in_a_loop,
    rows_written,
    mask_in_a_while,
    truth_values,
]
LOWEST = {
    "written_at_found_places": 9,
    "mask_in_a_while": 9,
    "slices_from_the_end": 10,
    "rows_written": 10,
    "lists_in_a_dict": 13,
    "stack_of_tensors": 13,
}


@pytest.mark.parametrize(("program", "lowest", "opset"), over_opsets({p.name: p for p in PROGRAMS}, LOWEST))
def test_a_program_agrees_on_every_path(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        exported(program, *INPUTS, dynamic_axes={"x": {0: "n"}}, opset=opset)


def test_two_tensors_are_taken_row_by_row() -> None:
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    inputs = [(x, x.flip(0) * 1.5) for (x,) in INPUTS]
    for opset in (11, 17, 26):
        exported(zipped_rows, *inputs, dynamic_axes=axes, opset=opset)
