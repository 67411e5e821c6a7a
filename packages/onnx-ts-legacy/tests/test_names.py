"""Inputs carry the names of their arguments, however the example gives them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import onnx_ts_legacy

X, MASK, Y = torch.linspace(-2, 2, 6).reshape(2, 3), torch.full((2, 3), 2.0), torch.full((2, 3), 9.0)


class Masked(torch.nn.Module):
    def forward(self, x, mask=None, y=None, *, scale=1.0, **more):
        result = x * mask - y * scale
        for value in more.values():
            result = result * 2 + value
        return result


CALLS: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {
    "in order": ((X,), {"mask": MASK, "y": Y}),
    "in another order": ((X,), {"y": Y, "mask": MASK}),
    "all by keyword": ((), {"y": Y, "x": X, "mask": MASK}),
    "keyword-only before others": ((X,), {"scale": MASK, "y": Y, "mask": MASK + 1}),
    "collected by **more": ((X,), {"z": Y, "y": MASK, "a": X, "mask": MASK}),
}


@pytest.mark.parametrize("dict_at_the_end", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_keyword_arguments_keep_their_names(call: str, dict_at_the_end: bool) -> None:
    args, kwargs = CALLS[call]
    given = {"args": (*args, kwargs)} if dict_at_the_end else {"args": args, "kwargs": kwargs}
    program = onnx_ts_legacy.export(Masked(), **given, verify=True)
    named = {**dict(zip(["x"], args, strict=False)), **kwargs}
    assert set(program.input_names) == set(named)
    torch.testing.assert_close(program(**named)[0], Masked()(**named))
