"""Tensors get back what they held, whoever wrote to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onnxops_decomp.exporting.state.contents import restored_contents


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda x: x.add_(1),
    "a view": lambda x: x.view(-1)[1:3].zero_(),
    "a transposed view": lambda x: x.T.mul_(3),
    "data": lambda x: x.data.fill_(7),
    "other data": lambda x: setattr(x, "data", torch.ones(4, 5)),
    "memory that grows": lambda x: x.resize_(30).fill_(2),
    "memory that goes": lambda x: (x.zero_(), x.untyped_storage().resize_(0), x.resize_(0)),
    "out": lambda x: torch.add(torch.ones(2, 3), 1, out=x),
    "several at once": lambda x: torch._foreach_add_([x, torch.ones(2)], 1),
    "an item": lambda x: x.__setitem__((0, slice(None)), 5),
    "a script": lambda x: torch.jit.script(add_one)(x),
    "a batch normalization": lambda x: torch.nn.functional.batch_norm(
        torch.randn(4, 3), x[0], x[1].abs_(), training=True
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_written_goes_again(write: Callable[[torch.Tensor], object]) -> None:
    held = torch.arange(6.0).reshape(2, 3)
    kept, memory, other = held.clone(), held.untyped_storage()._cdata, torch.ones(3)
    with restored_contents([held]):
        write(held)
        other.add_(1)
        assert held.shape != kept.shape or not torch.equal(held, kept)

    assert torch.equal(held, kept)
    assert (held.untyped_storage()._cdata, held.stride()) == (memory, kept.stride())
    assert other.tolist() == [2, 2, 2]


def test_what_a_failure_leaves_goes_again() -> None:
    held = torch.zeros(3, requires_grad=True)

    @torch.no_grad()
    def fail() -> None:
        held.add_(1)
        held.resize_(-1)

    with pytest.raises(RuntimeError), restored_contents([held]):
        fail()

    assert held.tolist() == [0, 0, 0]
    assert held.requires_grad
