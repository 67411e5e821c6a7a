"""Whether what a call leaves behind makes a difference to the next one: found out by calling the model.

A cache that is filled once, such as a mask for a length, makes none; a counter that decides something does.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.state.containers import same
from onnxops_decomp.exporting.state.contents import KeptContents
from onnxops_decomp.exporting.state.gradients import gradient_mode
from onnxops_decomp.exporting.state.inventory import Change, Inventory
from onnxops_decomp.torch_private import Computations, fake_mode_of, is_without_data

__all__ = ["are_close", "equal_results", "lasting", "lasting_in_copies", "other_leaves", "results_of"]

_Call = Callable[[Sequence[Any]], Any]
_Run = Callable[[_Call, Sequence[Any]], list[Any]]
_NUMBERS = {bool, int, float, complex, str, bytes, type(None)}


def lasting(inventory: Inventory, changes: Sequence[Change], call: _Call, leaves: Sequence[Any]) -> list[Change]:
    """Return those of the changes that make a difference to a later call, or may make one.

    Other inputs than those of the first call have to give what they give to a fresh model, and the second call must
    change nothing anew.

    Args:
        inventory: What the model can reach; everything is put back.
        changes: What a call changed.
        call: Calls the model on the flat leaves of its arguments.
        leaves: Those of the example.
    """
    tensors = [x for x in (*inventory.weights.values(), *inventory.tensors.values(), *leaves) if _is_tensor(x)]
    mode = next((fake_mode_of(x) for x in tensors if is_without_data(x)), None)
    try:
        leaves = [_without_data(leaf, mode) for leaf in leaves] if mode else leaves
        other = other_leaves(leaves)
    except Exception:
        # Of what cannot be changed nothing can be tried.
        return list(changes)
    attempt = partial(_attempt, inventory, changes, call, leaves, other)
    if any(map(is_without_data, tensors)):
        found = attempt(partial(_computations, Computations(), mode))
        # What cannot be tried is taken to matter.
        return list(changes) if found is None else found
    # How results are computed tells most, and takes a fraction of the time.
    with contextlib.suppress(RuntimeError):
        computed = partial(_computations, Computations([*tensors, *filter(_is_tensor, other)]), None)
        if all(map(_is_of_numbers, changes)) and _makes_no_difference(inventory, call, leaves, computed):
            return []
        if attempt(computed, repeats=True) == []:
            return []
    found = attempt(partial(results_of, inventory))
    return list(changes) if found is None else found


def _makes_no_difference(inventory: Inventory, call: _Call, leaves: Sequence[Any], run: _Run) -> bool:
    """Tell whether a call leaves nothing but numbers, and the next one computes and leaves the same.

    Where no tensor is left, other inputs would tell no more: ``run`` knows how results are computed, not what they are.
    """
    try:
        inventory.restore()
        first, left = run(call, leaves), inventory.changes()
        if not left or not all(map(_is_of_numbers, left)):
            return False
        second, settled = run(call, leaves), inventory.changes()
    except Exception:
        return False
    finally:
        inventory.restore()
    before, after = ({(id(each.record), each.key): each.after for each in found} for found in (left, settled))
    return equal_results(first, second) and same(before, after)


def _is_of_numbers(change: Change) -> bool:
    return {type(change.before), type(change.after)} <= _NUMBERS


def _attempt(
    inventory: Inventory,
    changes: Sequence[Change],
    call: _Call,
    leaves: Sequence[Any],
    other: Sequence[Any],
    run: _Run,
    *,
    repeats: bool = False,
) -> list[Change] | None:
    """Return what :func:`lasting` does, as ``run`` calls the model; None if that fails.

    With ``repeats`` it fails, too, if a call so made leaves out a change: code may look at where its tensors are.
    """
    try:
        inventory.restore()
        fresh = run(call, other)
        inventory.restore()
        run(call, leaves)
        records = {id(change.record): change.record for change in changes}
        left = [(record, record.now()) for record in records.values()]
        if repeats and any(same(each.record.before.get(each.key), each.record.now().get(each.key)) for each in changes):
            return None
        inventory.restore(caches=False)
        for record, items in left:
            record.put(items)
        second = run(call, other)
        moved = {
            (id(record), key)
            for record, items in left
            for key in {**items, **record.now()}
            if not _settled(items.get(key), record.now().get(key))
        }
    except Exception:
        return None
    finally:
        inventory.restore()
    if not equal_results(fresh, second):
        return list(changes)
    return [change for change in changes if (id(change.record), change.key) in moved]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def lasting_in_copies(
    model: Any,
    call: Callable[[Any, Sequence[Any]], Any],
    held: Callable[[Any], Mapping[str, Any]],
    leaves: Sequence[Any],
) -> set[str]:
    """Return those of the things a model holds whose changes make a difference to a later call, or may make one.

    Args:
        model: The model, of which copies are called.
        call: Calls one on the flat leaves of its arguments.
        held: Returns what one holds, by path.
        leaves: Those of the example.
    """

    def results(copied: Any, given: Sequence[Any]) -> list[Any]:
        own = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in given]
        with torch.random.fork_rng(devices=[]), gradient_mode(model):
            torch.default_generator.manual_seed(0)
            return pytree.tree_leaves(call(copied, own))

    other = other_leaves(leaves)
    try:
        fresh, used = results(copy.deepcopy(model), other), copy.deepcopy(model)
        results(used, leaves)
        first = copy.deepcopy(held(used))
        same_results = equal_results(fresh, results(used, other))
    except Exception:
        # What cannot be tried is taken to matter.
        return set(held(model))
    return {path for path, value in held(used).items() if not (same_results and _settled(first[path], value))}


def results_of(
    inventory: Inventory, call: _Call, leaves: Sequence[Any], random_state: torch.Tensor | None = None
) -> list[Any]:
    """Return the leaves of what a model gives for copies of its arguments, and take back what it writes to tensors.

    Args:
        inventory: What the model can reach.
        call: Calls it on the flat leaves of its arguments.
        leaves: Those.
        random_state: The state of the default generator that it begins with; the same one for each call if left out.
    """
    copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    kept = KeptContents([*inventory.weights.values(), *inventory.tensors.values()])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        if random_state is None:
            torch.default_generator.manual_seed(0)
        else:
            torch.set_rng_state(random_state)
        try:
            with kept:
                results = pytree.tree_leaves(call(copies))
            return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in results]
        finally:
            kept.restore()


def _computations(numbers: Computations, mode: Any, call: _Call, leaves: Sequence[Any]) -> list[Any]:
    """Call the model on tensors without data, and return what tells how its results are computed."""
    with torch.random.fork_rng(devices=[]), mode or contextlib.nullcontext(), numbers, torch.no_grad():
        return [numbers.number(x) if isinstance(x, torch.Tensor) else x for x in pytree.tree_leaves(call(leaves))]


def _without_data(leaf: Any, mode: Any) -> Any:
    return mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) and fake_mode_of(leaf) is None else leaf


def other_leaves(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves of arguments like these with other numbers in their tensors."""
    return [_other(leaf) for leaf in leaves]


def _other(leaf: Any) -> Any:
    """Return a tensor of the same shape with other numbers; integers and truth values only change places."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    moved = leaf.detach().flatten().roll(1).reshape(leaf.shape)
    return moved * 0.75 + 0.125 if moved.is_floating_point() or moved.is_complex() else moved


def _settled(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape == second.shape
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_settled, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_settled(first[key], second[key]) for key in first)
    return same(first, second) or (
        type(first) is type(second) and not isinstance(first, bool | int | float | str | bytes)
    )


def are_close(actual: Any, expected: Any) -> bool:
    """Tell whether two leaves of results, tensors or anything else, differ by no more than rounding does."""
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        if type(actual) is float and type(expected) is float:
            return math.isclose(actual, expected, rel_tol=1e-6) or same(actual, expected)
        return same(actual, expected)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not expected.is_floating_point() and not expected.is_complex():
        return torch.equal(actual, expected)
    scale = expected.abs().nan_to_num(posinf=0).max() if expected.numel() else 0
    epsilon = torch.finfo(expected.dtype).eps
    return torch.allclose(actual, expected, rtol=256 * epsilon, atol=float(64 * epsilon * scale), equal_nan=True)


def _equal_tensors(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True)


def equal_results(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Tell whether two lists of results are the same but for rounding."""
    if len(first) != len(second):
        return False
    return all(
        type(a) is type(b) and (_equal_tensors(a, b) if isinstance(a, torch.Tensor) else same(a, b))
        for a, b in zip(first, second, strict=True)
    )
