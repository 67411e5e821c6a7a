"""Watches what a capture changes outside of buffers, and decides what becomes of it.

A tensor that is written to, or replaced by another one after it was read, can be an input and an output of the model:
the model is captured once more with that tensor as an input. Of everything else it is asked whether a later call gives
other results for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.state.containers import Record, with_replaced
from onnxops_decomp.exporting.state.inventory import Change, Inventory
from onnxops_decomp.exporting.state.library_objects import memory_of
from onnxops_decomp.exporting.state.meetings import differs_apart, meeting_refusal, meetings
from onnxops_decomp.exporting.state.memory import shared_memory, with_line, with_lines
from onnxops_decomp.exporting.state.reachability import contents_before, reachable
from onnxops_decomp.exporting.state.trial import lasting

__all__ = ["StatePlace", "StateWatch", "ignored_state", "state_refusal"]


@dataclasses.dataclass(frozen=True, eq=False)
class StatePlace:
    """A tensor outside of the buffers that is an input and an output of the captured program.

    Attributes:
        path: What leads to it, such as ``cache.l0``.
        tensor: What it holds before the first call.
        line: Where the code changes it.
        held: The containers that hold it, with the attribute, key or index.
        read: Where the next value stands after a call, and its index among the leaves there.
    """

    path: str
    tensor: torch.Tensor
    line: str
    held: Sequence[tuple[Record, Any]]
    read: tuple[Record, Any, int]


class StateWatch:
    """The state of one model while it is captured.

    Args:
        inventory: What the model can reach.
        resizable: Whether the capture takes tensors whose next value has another size.

    Attributes:
        places: The tensors that :meth:`enter` replaces by inputs of the program.
        changes: What the last run changed beside them.
        parted: Tensors that a run replaced under one name and not under others, by path, with another one.
        met: Tensors that show memory of others after a run, and not before, by path, with another one.
    """

    def __init__(self, inventory: Inventory, *, resizable: bool = False) -> None:
        self.inventory, self._resizable = inventory, resizable
        self.places: list[StatePlace] = []
        self.changes: list[Change] = []
        self.parted: dict[str, str] = {}
        self.met: dict[str, str] = {}
        self._continued: list[Change] = []

    def enter(self, tensors: Sequence[torch.Tensor], *, is_restored: bool = False) -> None:
        """Let the model find these tensors in place of those of :attr:`places`.

        torch.export puts copies of containers into a model between two calls; here the model gets its own back.

        Args:
            tensors: The tensors.
            is_restored: Whether the model has what it had: nothing has touched it since this or :meth:`leave` said so.
        """
        if not is_restored:
            self.inventory.restore(registries=False)
        given = {id(place.tensor): tensor for place, tensor in zip(self.places, tensors, strict=True)}
        for place in self.places:
            for record, key in place.held:
                items = record.now()
                record.put({**items, key: with_replaced(items[key], given)})

    def leave(self, rebound: Iterable[str] = ()) -> list[Any]:
        """Note what the run changed, undo it, and return what stands in :attr:`places` now, None where nothing does.

        Args:
            rebound: Names of the parameters and buffers that it replaced.
        """
        results = [_held(place) for place in self.places]
        known = {(id(record), key) for place in self.places for record, key in (*place.held, place.read[:2])}
        changed = self.inventory.changed()
        if changes := self.inventory.changes(changed):
            # What became of a container that the model let go makes no difference.
            is_reached = reachable(self.inventory.records)
            changes = [change for change in changes if is_reached(change.record.target)]
        self.changes = [change for change in changes if (id(change.record), change.key) not in known]
        # Beside the tensors of the places they may hold others.
        self._continued = [change for change in changes if (id(change.record), change.key) in known]
        self._note_parted(rebound := list(rebound))
        if rebound or any(isinstance(leaf, torch.Tensor) for change in changes for leaf in _leaves(change.after)):
            self.met = meetings(self.inventory.all_records, {*rebound, *(change.path for change in changes)})
        if changed:
            self.inventory.restore(registries=False)
        return results

    def _note_parted(self, rebound: Iterable[str]) -> None:
        weights = {id(weight): path for path, weight in self.inventory.weights.items()}
        replaced = [each for change in self.changes for each in self._tensors_of(change) or ()]
        parted = [*((path, old) for _, path, old in replaced), *self._named(rebound)]
        is_reached = reachable(self.inventory.records) if parted else bool
        for path, old in parted:
            others = [weights[id(old)]] if id(old) in weights and weights[id(old)] != path else []
            for record, key in self.inventory.holding(old):
                # What takes another place in what was changed is followed, and what was replaced is not found again.
                if record.now().get(key) is record.before.get(key) and is_reached(record.target):
                    others.append(record.path_of(key))
            if others:
                self.parted[path] = others[0]

    def _named(self, weights: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        found = ((path, self.inventory.weights.get(path)) for path in weights)
        return ((path, weight) for path, weight in found if weight is not None)

    def check_parted(self, refuse: Callable[[str], Exception]) -> None:
        """Refuse what takes the place of a tensor that the model keeps under another name as well.

        Args:
            refuse: Makes the exception.
        """
        for path, other in self.parted.items():
            name = with_line(path, self.inventory.line(path))
            raise refuse(
                f"The model binds {name} anew, which it keeps as {other} as well: "
                "later calls find two tensors there. Write to it with copy_(), or keep it under one name."
            )

    def check_met(
        self, call: Callable[[Sequence[Any]], Any], leaves: Sequence[Any], refuse: Callable[[str], Exception]
    ) -> None:
        """Refuse what comes to show the memory of something else, where a later call changes both by one name.

        Args:
            call: Calls the model on the flat leaves of the arguments.
            leaves: Those of the example.
            refuse: Makes the exception.
        """
        if self.met and differs_apart(self.inventory, call, leaves):
            path, other = next(iter(self.met.items()))
            raise refuse(meeting_refusal(with_line(path, self.inventory.line(path)), other))

    def check_constants(
        self, written: Iterable[str], is_used: Callable[[torch.Tensor], bool], refuse: Callable[[str], Exception]
    ) -> None:
        """Refuse writes to parameters and buffers whose memory the program reads as a constant, too.

        Args:
            written: Names of those that the model writes to.
            is_used: Whether the program reads a tensor as a constant.
            refuse: Makes the exception.
        """
        others = {path: tensor for path, tensor in self.inventory.tensors.items() if is_used(tensor)}
        for path, weight in self._named(written):
            name = with_line(path, self.inventory.line(path))
            if text := shared_memory(name, weight, others, same_counts=True):
                raise refuse(text)

    def find_places(self, is_used: Callable[[torch.Tensor], bool], written: Mapping[str, str]) -> bool:
        """Enter the tensors that have to be inputs of the program; return whether there are new ones.

        Args:
            is_used: Whether the program reads a tensor.
            written: Paths of the tensors that it writes to, with the lines that do.
        """
        known = {id(place.tensor) for place in self.places}
        found: list[StatePlace] = []
        changes = [*self.changes, *self._continued]
        replaced = [(change, leaves) for change in changes if (leaves := self._tensors_of(change)) is not None]
        # A tensor that moves to another place is read by whoever reads that one.
        moved = {id(leaf) for change, _ in replaced for leaf in _leaves(change.after)}
        for change, leaves in replaced:
            if change in self.changes:
                self.changes.remove(change)
            line = self.inventory.line(change.path, change.record.owner)
            for index, path, tensor in leaves:
                if id(tensor) not in known and (is_used(tensor) or id(tensor) in moved or path in written):
                    known.add(id(tensor))
                    found.append(self._place(path, tensor, line, (change.record, change.key, index)))
        for path, line in written.items():
            tensor = self.inventory.tensors[path]
            if id(tensor) not in known:
                known.add(id(tensor))
                found.append(self._place(path, tensor, line, None))
        order = {id(tensor): index for index, tensor in enumerate(self.inventory.tensors.values())}
        self.places = sorted([*self.places, *found], key=lambda place: order.get(id(place.tensor), len(order)))
        return bool(found)

    def tensor_changes(self) -> list[str]:
        """Return the paths of the tensors that the last run replaced by others of their kind."""
        return [path for change in self.changes for _, path, _ in self._tensors_of(change) or ()]

    def check_memory(self, written: Iterable[str], refuse: Callable[[str], Exception]) -> None:
        """Refuse writes to tensors that show memory of others.

        Args:
            written: Paths of the tensors that the model writes to.
            refuse: Makes the exception.
        """
        known = {**self.inventory.weights, **self.inventory.tensors}
        for path in written:
            tensor = known[path]
            record, _ = self.inventory.holding(tensor)[0]
            others = {other: value for other, value in known.items() if value is not tensor}
            name = with_line(path, self.inventory.line(path, record.owner))
            if text := shared_memory(name, tensor, others, same_counts=True):
                raise refuse(text)

    def check_arrays(self, constants: Collection[int], refuse: Callable[[str], Exception]) -> None:
        """Refuse tensors that show the memory of arrays that the model changes: they will show what is put back there.

        Args:
            constants: Where the memory of the tensors begins that the capture keeps.
            refuse: Makes the exception.
        """
        for change in self.changes:
            address, end = memory_of(change.record.target)
            if any(address <= constant < end for constant in constants):
                line = self.inventory.line(change.path, change.record.owner)
                raise refuse(
                    f"The model changes {with_line(change.path, line)}, and a tensor shows the memory of it. Make the "
                    "tensor of a copy, as torch.from_numpy(a.copy()) does, or keep a buffer instead."
                )

    def lasting(self, call: Callable[[Sequence[Any]], Any], leaves: Sequence[Any]) -> dict[str, str]:
        """Return the paths of the other changes that make a difference to a later call, with their lines.

        Args:
            call: Calls the model on the flat leaves of the arguments.
            leaves: Those of the example.
        """
        inventory = self.inventory
        read = [change for change in self.changes if inventory.is_read(change)]
        found = lasting(inventory, read, call, leaves) if read else []
        return {change.path: inventory.line(change.path, change.record.owner) for change in found}

    def _tensors_of(self, change: Change) -> list[tuple[int, str, torch.Tensor]] | None:
        """Return the tensors that a change replaces by others of their kind; None if it does something else."""
        before, spec = pytree.tree_flatten_with_path(contents_before(self.inventory.records, change.before))
        after, spec_after = pytree.tree_flatten(change.after)
        if spec != spec_after:
            return None
        found: list[tuple[int, str, torch.Tensor]] = []
        for index, ((path, old), new) in enumerate(zip(before, after, strict=True)):
            if old is new:
                continue
            if not (isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)) or not self._fits(old, new):
                if isinstance(old, bool | int | float | str | None) and type(old) is type(new) and old == new:
                    continue
                return None
            parts = (str(getattr(part, "idx", getattr(part, "key", part))) for part in path)
            found.append((index, ".".join([change.path, *parts]), old))
        return found

    def _fits(self, old: torch.Tensor, new: torch.Tensor) -> bool:
        sizes = all(isinstance(size, int) for size in new.shape) and old.shape == new.shape
        return old.dtype == new.dtype and (self._resizable or sizes)

    def _place(self, path: str, tensor: torch.Tensor, line: str, read: tuple[Record, Any, int] | None) -> StatePlace:
        held = self.inventory.holding(tensor)
        if read is None:
            record, key = held[0]
            read = (record, key, next(i for i, leaf in enumerate(_leaves(record.before[key])) if leaf is tensor))
            line = line or self.inventory.line(path, record.owner)
        return StatePlace(path, tensor, line, held, read)


def _held(place: StatePlace) -> Any:
    record, key, index = place.read
    leaves = _leaves(record.now().get(key))
    return leaves[index] if index < len(leaves) else None


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = pytree.tree_leaves(value)
    return leaves


def state_refusal(found: Mapping[str, str]) -> str:
    """Return the message for what cannot be state of an ONNX model, by path with the lines that change it."""
    return (
        f"The model changes {with_lines(found)} when it runs, and later calls "
        "depend on it. Only tensors of one dtype can be inputs and outputs of an ONNX model in its place: keep it in "
        'a buffer and pass state="io", or pass state="ignore" for a model that always does what the first call does.'
    )


def ignored_state(found: Mapping[str, str]) -> str:
    """Return the warning for what a model changes and the export leaves out, by path with the lines that change it."""
    return (
        f"The model changes {with_lines(found)} when it runs, but the ONNX model does not: each of its calls "
        "computes what the first call of the model does."
    )
