"""Runs a call that was lowered with symbolic sizes at sizes other than those it was recorded at.

Every size other than 0 and 1 of every tensor is symbolic, equal ones by the same symbol, and so are the size arguments
of the call that follow from them. The call is then run with each symbol at other values, as far as eager PyTorch takes
it there and nothing that torch noted while it recorded the call forbids them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import decomp_harness as harness
import sympy
import torch
from opinfo_samples import Call
from recorded_calls import recorded
from torch.utils import _pytree as pytree

__all__ = ["Outcome", "check_other_sizes"]

Sizes = Mapping[int, int]
# Arguments that may be symbolic for torch, and say how a kernel moves, not how large a tensor is.
_NOT_SIZES = frozenset(
    """stride padding dilation groups output_padding kernel_size ignore_index storage_offset pooled_height
    pooled_width sampling_ratio""".split()
)
_REFUSED = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError, ZeroDivisionError)


@dataclasses.dataclass(frozen=True)
class SizedCall:
    """A call whose size arguments follow from the sizes of tensors.

    Attributes:
        call: The call as it was sampled.
        sources: For each of its leaves that is such an argument, the axes whose sizes it is the product of, as
            (position of the tensor, axis).
        carrier: Where the call has no tensors, one of all its sizes.
    """

    call: Call
    sources: Mapping[int, tuple[tuple[int, int], ...]]
    carrier: torch.Tensor | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self.call.tensors if self.carrier is None else [self.carrier]

    @property
    def function(self) -> Any:
        return self.call.function

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for fx nodes or tensors in place of the sampled tensors."""
        return self.call.arguments([] if self.carrier is not None else tensors)

    def __call__(self, *tensors: torch.Tensor, function: Callable[..., Any] | None = None) -> Any:
        leaves = list(self.call.leaves)
        for index, axes in self.sources.items():
            size: Any = 1
            for position, axis in axes:
                size = size * tensors[position].shape[axis]
            leaves[index] = size
        call = dataclasses.replace(self.call, leaves=leaves, function=function or self.call.function)
        return call(*([] if self.carrier is not None else tensors))


def _sized(call: Call) -> SizedCall:
    """Bind the size arguments of a call to the sizes that they equal, or to products of sizes of one tensor."""
    leaves = _size_leaves(call)
    carrier = None
    if not call.tensors:
        carrier = torch.zeros(sorted({call.leaves[leaf] for leaf in leaves if call.leaves[leaf] > 1}))
    by_value: dict[int, tuple[tuple[int, int], ...]] = {}
    for count in (1, 2, 3):
        for position, tensor in enumerate([carrier] if carrier is not None else call.tensors):
            for axes in itertools.combinations(range(tensor.ndim), count):
                chosen = [tensor.shape[axis] for axis in axes]
                if min(chosen) > 1:
                    by_value.setdefault(math.prod(chosen), tuple((position, axis) for axis in axes))
    found = {leaf: by_value[call.leaves[leaf]] for leaf in leaves if call.leaves[leaf] in by_value}
    return SizedCall(call, found, carrier)


def _size_leaves(call: Call) -> list[int]:
    """Return which leaves of a call of an overload are sizes by its schema."""
    args, kwargs = pytree.tree_unflatten(list(range(len(call.leaves))), call.structure)
    schema = call.function._schema
    by_name = {a.name: a for a in schema.arguments}
    given = [*zip(schema.arguments, args, strict=False), *((by_name[name], value) for name, value in kwargs.items())]
    # The types of a schema's arguments call these ints; its text tells them from numbers that are not sizes.
    sizes = set(re.findall(r"SymInt(?:\[\d*\])?\??\s+(\w+)", str(schema))) - _NOT_SIZES
    found = [leaf for a, value in given if a.name in sizes for leaf in pytree.tree_leaves(value)]
    return [leaf for leaf in found if type(call.leaves[leaf]) is int]


def _resized(tensor: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Take other sizes: of the first elements along each axis, over and over."""
    for axis, size in enumerate(tensor.shape):
        wanted = sizes.get(size, size)
        if wanted != size:
            tensor = tensor.index_select(axis, torch.arange(wanted) % size)
    return tensor


def _smaller(size: int) -> int:
    return size - 1 if size > 2 else 3


_WAYS: tuple[Callable[[int], int], ...] = (
    _smaller,
    lambda size: size + 1,
    lambda size: 2 * size,
    lambda size: size + 2,
    lambda size: 3 * size,
    lambda size: size // 2 if size > 3 else size + 3,
)


def _candidates(sizes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield other sizes: for all at once, products of others following them, then for one at a time."""
    factors = {size: pair for size in sizes for pair in _pairs(sizes) if pair[0] * pair[1] == size}
    for way in _WAYS:
        yield {size: way(size) for size in sizes}
        if factors:
            chosen = {size: way(size) for size in sizes if size not in factors}
            if all(part in chosen for pair in factors.values() for part in pair):
                yield chosen | {size: chosen[a] * chosen[b] for size, (a, b) in factors.items()}
    if len(sizes) > 1:
        for size in sizes:
            for way in _WAYS:
                yield {size: way(size)}


def _pairs(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    return itertools.combinations_with_replacement(sizes, 2)


def _few(sizes: Sequence[int], counts: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield few elements in place of sizes, for one at a time and for all."""
    for few in counts:
        yield from ({size: few} for size in sizes)
        if len(sizes) > 1:
            yield dict.fromkeys(sizes, few)


@dataclasses.dataclass
class Outcome:
    """What came of a call.

    Attributes:
        varied: Sizes that took another value in some run.
        fixed: Sizes that torch or the call itself does not let vary, with the reason.
        wrong: What went wrong, by the sizes at which it did.
        assumed: What lowering the call took for granted of the sizes, beyond what torch did.
    """

    varied: set[int] = dataclasses.field(default_factory=set)
    fixed: dict[int, str] = dataclasses.field(default_factory=dict)
    wrong: dict[str, str] = dataclasses.field(default_factory=dict)
    assumed: list[str] = dataclasses.field(default_factory=list)


def check_other_sizes(
    sample: Call,
    opset: int,
    *,
    compare: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None],
    reference: Callable[..., Any] | None = None,
    few: Sequence[int] = (1, 0),
    kept: Sequence[int] = (),
    first_alone: bool = False,
) -> Outcome:
    """Lower a call with symbolic sizes and compare it with eager PyTorch at other sizes.

    Args:
        sample: The call.
        opset: Opset to lower to.
        compare: Asserts that results equal those of PyTorch.
        reference: What the overload computes, where this torch has no kernel for it.
        few: Sizes that are tried besides, of which nothing is left where PyTorch takes another turn there.
        kept: Sizes that stay as they are.
        first_alone: Whether only the first result is compared.

    Raises:
        LoweringError: If the call cannot be lowered so.
    """
    call = _sized(sample)
    eager = functools.partial(call, function=reference)
    traced = recorded(call, dynamic=True, reference=eager, first_alone=first_alone)
    symbols = _symbols(traced, call.tensors)
    by_torch = _facts(traced)
    lowered = harness.lower_graph(traced, opset=opset)
    facts = [*_facts(traced), *lowered.assumptions]
    outcome = Outcome(assumed=[str(fact) for fact in facts[len(by_torch) :]])
    run = harness.session(lowered.proto)
    rank = [tensor.ndim for tensor in harness.expected_of(eager, call.tensors)]
    sizes = sorted(set(symbols.values()) - set(kept), reverse=True)
    if not sizes:
        return outcome
    for chosen in itertools.chain(_candidates(sizes), _few(sizes, few)):
        is_few = min(chosen.values()) < 2
        if not is_few and chosen.keys() <= outcome.varied:
            continue
        tensors = [_resized(tensor, chosen) for tensor in call.tensors]
        torch.manual_seed(0)
        try:
            expected = harness.expected_of(eager, tensors)
            broken = _broken(facts, {symbol: chosen.get(size, size) for symbol, size in symbols.items()})
        except _REFUSED:
            continue
        if broken is not None:
            outcome.fixed.update(dict.fromkeys(chosen, broken))
        elif not is_few or [tensor.ndim for tensor in expected] == rank:
            error = _error(lambda: compare(run(tensors), expected))
            # That a runtime refuses an empty tensor is not a wrong result.
            if error is None and not is_few:
                outcome.varied.update(chosen)
            elif isinstance(error, AssertionError) or (error is not None and 0 not in chosen.values()):
                outcome.wrong[str(chosen)] = f"{type(error).__name__}: {error}"
    return outcome


def _error(action: Callable[[], None]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None


def _broken(facts: Sequence[sympy.Basic], sizes: Mapping[sympy.Symbol, int]) -> str | None:
    """Return the first of the facts that does not hold at other sizes."""
    numbers = {symbol: sympy.Integer(size) for symbol, size in sizes.items()}
    return next((str(fact) for fact in facts if fact.xreplace(numbers) == sympy.false), None)


def _shape_env(traced: torch.fx.GraphModule) -> Any:
    for node in traced.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode.shape_env
    return None


def _facts(traced: torch.fx.GraphModule) -> list[sympy.Basic]:
    """Return what torch took for granted of the symbolic sizes so far."""
    env = _shape_env(traced)
    return [] if env is None else [guard.expr for guard in env.guards]


def _symbols(traced: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> dict[sympy.Symbol, int]:
    """Return the symbols that stand for sizes of the tensors, those left out that torch itself has fixed."""
    found: dict[sympy.Symbol, int] = {}
    placeholders = traced.graph.find_nodes(op="placeholder")
    for node, tensor in zip(placeholders, tensors, strict=True):
        for symbolic, size in zip(node.meta["val"].shape, tensor.shape, strict=True):
            if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_Symbol:
                found[symbolic.node.expr] = size
    return found
