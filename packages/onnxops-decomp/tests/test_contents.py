"""Tensors get back what they held, whoever wrote to them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from onnxops_decomp.exporting.state.contents import KeptContents, restored_contents
from onnxops_decomp.exporting.state.library_objects import contents_of, restore_contents


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


Normalization = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
F = torch.nn.functional
NORMALIZATIONS: dict[str, Normalization] = {
    "by name": lambda x, mean, variance, trains: F.batch_norm(x, mean, variance, training=trains),
    "by position": lambda x, mean, variance, trains: F.batch_norm(x, mean, variance, None, None, trains),
    "of torch": lambda x, mean, variance, trains: torch.batch_norm(
        x, None, None, mean, variance, trains, 0.1, 1e-5, False
    ),
    "of instances": lambda x, mean, variance, trains: F.instance_norm(x, mean, variance, use_input_stats=trains),
    "by default": lambda x, mean, variance, trains: (F.instance_norm if trains else F.batch_norm)(x, mean, variance),
    "operator": lambda x, mean, variance, trains: torch.ops.aten.native_batch_norm(
        x, None, None, mean, variance, trains, 0.1, 1e-5
    )[0],
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("normalize", NORMALIZATIONS.values(), ids=NORMALIZATIONS)
def test_statistics_that_a_normalization_in_training_writes_come_back(normalize: Normalization, trains: bool) -> None:
    mean, variance = torch.full((3,), 5.0), torch.full((3,), 2.0)
    x = torch.linspace(-2, 2, 48).reshape(2, 3, 8)
    with KeptContents([mean, variance]) as kept:
        normalize(x, mean, variance, trains)
        assert (mean.tolist() != [5, 5, 5]) is trains
        kept.restore()

    assert mean.tolist() == [5, 5, 5]
    assert variance.tolist() == [2, 2, 2]


class Counting(random.Random):
    """Has something else than hundreds of numbers for its state."""

    count = 0

    def random(self) -> float:
        self.count += 1
        return self.count / 8

    def getstate(self) -> tuple[int]:
        return (self.count,)

    def setstate(self, state: tuple[int]) -> None:
        (self.count,) = state


@pytest.mark.parametrize("generator", [random.Random(3), Counting(3)], ids=["of Python", "of a program"])
def test_the_state_of_a_generator_is_the_same_until_it_draws(generator: random.Random) -> None:
    generator.gauss(0, 1)  # The next one is drawn already.
    before = contents_of(generator)
    assert contents_of(generator) == before
    drawn = [generator.gauss(0, 1), generator.random(), generator.random()]
    assert contents_of(generator) != before

    restore_contents(generator, before)

    assert contents_of(generator) == before
    assert [generator.gauss(0, 1), generator.random(), generator.random()] == drawn or isinstance(generator, Counting)
