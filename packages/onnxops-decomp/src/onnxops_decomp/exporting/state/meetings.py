"""Places of a model that come to share memory in a call: found, and tried whether that changes a later call.

The values of an ONNX model are apart from each other. After ``self.last = self.first`` a later call that writes to one
of them changes both in PyTorch, and one in ONNX.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.state.containers import Record
from onnxops_decomp.exporting.state.contents import KeptContents
from onnxops_decomp.exporting.state.inventory import Inventory
from onnxops_decomp.exporting.state.trial import equal_results, other_leaves
from onnxops_decomp.torch_private import is_without_data, memory_of_tensor

__all__ = ["differs_apart", "differs_apart_in_copies", "meeting_refusal", "meetings"]


def meetings(records: Sequence[Record], bound: Collection[str]) -> dict[str, str]:
    """Return the paths of tensors that show memory of others now, and did not before, each with another one.

    Args:
        records: Containers, with what they held before.
        bound: Paths of what is another object than before.
    """
    known = {id(record.target) for record in records}
    before = {
        path: memory_of_tensor(tensor) for record in records for path, tensor in _tensors(record, record.before, known)
    }
    groups: dict[int, list[str]] = defaultdict(list)
    for record in records:
        for path, tensor in _tensors(record, record.now(), known):
            groups[memory_of_tensor(tensor)].append(path)
    return {
        path: other
        for paths in groups.values()
        for path in paths
        if _begins(path, bound)
        for other in paths
        if other != path and (path not in before or before[path] != before.get(other))
    }


def _begins(path: str, bound: Collection[str]) -> bool:
    return path in bound or any(path.startswith(f"{each}.") for each in bound)


def meeting_refusal(name: str, other: str) -> str:
    """Return the message for a place that is bound to the memory of another one."""
    return (
        f"The model binds {name} to the memory of {other}, and a later call that writes to one of them changes both. "
        "The values of an ONNX model are apart from each other: bind a clone."
    )


def differs_apart(inventory: Inventory, call: Callable[[Sequence[Any]], Any], leaves: Sequence[Any]) -> bool:
    """Tell whether a second call computes or leaves something else where nothing shares memory after the first one.

    Args:
        inventory: What the model can reach; everything is put back.
        call: Calls the model on the flat leaves of its arguments.
        leaves: Those of the example.

    Returns:
        That; true also if it cannot be tried.
    """
    tensors = [*inventory.weights.values(), *inventory.tensors.values(), *leaves]
    if any(isinstance(x, torch.Tensor) and is_without_data(x) for x in tensors):
        return True
    try:
        other = other_leaves(leaves)
        together, apart = (_after_two(inventory, call, leaves, other, part) for part in (lambda _: None, _take_apart))
    except Exception:
        return True
    return not equal_results(together, apart)


def differs_apart_in_copies(
    model: Any,
    call: Callable[[Any, Sequence[Any]], Any],
    held: Callable[[Any], Sequence[Any]],
    take_apart: Callable[[Any], None],
    leaves: Sequence[Any],
) -> bool:
    """Tell whether a second call computes or leaves something else where nothing shares memory after the first one.

    Args:
        model: The model, of which copies are called.
        call: Calls one on the flat leaves of its arguments.
        held: Returns what one holds.
        take_apart: Gives each place of one a tensor of its own.
        leaves: Those of the example.

    Returns:
        That; true also if it cannot be tried.
    """

    def after_two(between: Callable[[Any], None]) -> list[Any]:
        copied = copy.deepcopy(model)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)
            call(copied, _copies(leaves))
            between(copied)
            results = pytree.tree_leaves(call(copied, _copies(other)))
            return _copies([*results, *pytree.tree_leaves(held(copied))])

    try:
        other = other_leaves(leaves)
        return not equal_results(after_two(lambda _: None), after_two(take_apart))
    except Exception:
        return True


def _after_two(
    inventory: Inventory,
    call: Callable[[Sequence[Any]], Any],
    leaves: Sequence[Any],
    other: Sequence[Any],
    between: Callable[[Sequence[Record]], None],
) -> list[Any]:
    """Return what the second of two calls gives, and what the model holds then."""
    contents = KeptContents([*inventory.weights.values(), *inventory.tensors.values()])
    records = inventory.all_records
    known = {id(record.target) for record in records}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), contents:
            torch.default_generator.manual_seed(0)
            call(_copies(leaves))
            between(records)
            results = pytree.tree_leaves(call(_copies(other)))
            held = [tensor for record in records for _, tensor in _tensors(record, record.now(), known)]
            return _copies([*results, *held])
    finally:
        inventory.restore()
        contents.restore()


def _take_apart(records: Sequence[Record]) -> None:
    """Give each place a tensor of its own where several show the same memory."""
    known = {id(record.target) for record in records}
    counts: dict[int, int] = defaultdict(int)
    for record in records:
        for _, tensor in _tensors(record, record.now(), known):
            counts[memory_of_tensor(tensor)] += 1

    def own(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) and counts[memory_of_tensor(value)] > 1 else value

    for record in records:
        items = record.now()
        if any(counts[memory_of_tensor(tensor)] > 1 for _, tensor in _tensors(record, items, known)):
            record.put({key: pytree.tree_map(own, value, is_leaf=_is_in(known)) for key, value in items.items()})


def _copies(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _is_in(known: Collection[int]) -> Callable[[Any], bool]:
    return lambda value: id(value) in known


def _tensors(record: Record, items: dict[Any, Any], known: Collection[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a container holds, itself or in containers without a record, by path."""
    for key, value in items.items():
        if isinstance(value, torch.Tensor):
            yield record.path_of(key), value
        elif isinstance(value, list | tuple | dict) and id(value) not in known:
            for index, leaf in enumerate(pytree.tree_leaves(value, is_leaf=_is_in(known))):
                if isinstance(leaf, torch.Tensor):
                    yield f"{record.path_of(key)}.{index}", leaf
