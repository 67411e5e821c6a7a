"""Lists and dicts that two variables of a scripted program share on only some of its paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from ts_models import exported, n, scripted_program

import onnx_ts_legacy
from onnx_ts_legacy.errors import UnsupportedOperatorsError

X = [n(4, 3), -n(4, 3).abs(), n(4, 3).abs(), n(6, 5), n(1, 1), n(2, 3)]
AXES = {"x": {0: "n", 1: "m"}}

READ_AFTER_ITS_ALIAS_WAS_CHANGED = {
    "in a branch": """
        a, b = [1], [9]
        c = b
        if bool(x.sum() > 0):
            c = a
        c.append(5)
        return torch.tensor(a), torch.tensor(c)
    """,
    "the other way round": """
        a, c = [1], [2]
        if bool(x.sum() > 0):
            c = a
        a[0] = 7
        return torch.tensor(c)
    """,
    "tensors": """
        a, c = [x], [x * 2]
        if bool(x.sum() > 0):
            c = a
        c[0] = x * 3
        return a[0], c[0]
    """,
    "a dict": """
        a, c = {"k": x}, {"k": x + 1}
        if bool(x.sum() > 0):
            c = a
        c["k"] = x * 3
        return a["k"], c["k"]
    """,
    "in a list": """
        a = [[1], [2]]
        c = a[0]
        if bool(x.sum() > 0):
            c = a[1]
        c.append(3)
        return torch.tensor(a[0]), torch.tensor(a[1])
    """,
    "in a tuple": """
        a = [1]
        b = (a, 2)
        if bool(x.sum() > 0):
            b = ([5], 3)
        b[0].append(3)
        return torch.tensor(a), b[1]
    """,
    "in a loop": """
        a = [1]
        b = a
        for i in range(x.size(0)):
            b.append(i)
            if i == 2:
                b = b + [7]
        return torch.tensor(a), torch.tensor(b)
    """,
    "in a branch of a loop": """
        a, b = [x], [x]
        for i in range(x.size(0)):
            c = a
            if i % 2 == 0:
                c = b
            c.append(x + i)
        return torch.stack(a), torch.stack(b)
    """,
}

RIGHT = {
    "what is read is the one that was changed": """
        a, b = [1], [9]
        c = b
        if bool(x.sum() > 0):
            c = a
        c.append(5)
        return torch.tensor(c)
    """,
    "a copy": """
        a, b = [1], [9]
        c = b.copy()
        if bool(x.sum() > 0):
            c = a.copy()
        c.append(5)
        return torch.tensor(a), torch.tensor(b), torch.tensor(c)
    """,
    "the longest run": """
        best, current = [x.size(0)], [x.size(0)]
        for i in range(x.size(0)):
            if bool(x[i, 0] > 0):
                current.append(i)
            else:
                if len(current) > len(best):
                    best = current
                current = [x.size(1)]
        return torch.tensor(best), torch.tensor(current)
    """,
    "swapped in each iteration": """
        a, b = [x.size(0)], [x.size(1)]
        for i in range(x.size(0)):
            a, b = b, a
            a.append(i)
        return torch.tensor(a), torch.tensor(b)
    """,
}


@pytest.mark.parametrize("body", READ_AFTER_ITS_ALIAS_WAS_CHANGED.values(), ids=READ_AFTER_ITS_ALIAS_WAS_CHANGED)
def test_what_may_have_been_changed_through_another_variable_is_refused(body: str, tmp_path: Path) -> None:
    program = scripted_program(tmp_path, "x", body)

    with pytest.raises(UnsupportedOperatorsError, match="changed through another variable"):
        onnx_ts_legacy.export(program, (X[0],), dynamic_axes=AXES)


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_what_no_other_variable_changed_agrees(body: str, tmp_path: Path) -> None:
    program = scripted_program(tmp_path, "x", body)

    exported(program, *((x,) for x in X), dynamic_axes=AXES)
