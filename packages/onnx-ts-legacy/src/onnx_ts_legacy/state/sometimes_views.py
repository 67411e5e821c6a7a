"""Copies that are views at some sizes: ``y.t().reshape(-1)`` is one of ``y`` where a size of it is 1.

The model copies at all sizes. That differs from torch where one of the two is written to and the other one read later;
such programs are reported, or refused if they differ at the sizes of the example already.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.sources import source_line
from onnx_ts_legacy.shapes.metadata import Metadata, viewed_argument
from onnx_ts_legacy.shapes.tensor_forms import TensorForm
from onnx_ts_legacy.state.values import Content, Heap, Storage
from onnxops_core.exporting import warn_user

__all__ = ["Copy", "SometimesViews", "may_give_views"]

# Sizes that are tried besides those of the example and the numbers in sizes and strides.
_SIZES = (1, 2, 3)
_MOST_TRIALS = 1000


@dataclasses.dataclass(frozen=True)
class Copy:
    """A call that gave a copy, and the node that it belongs to."""

    overload: torch._ops.OpOverload
    args: list[Any]
    kwargs: dict[str, Any]
    node: Any

    @functools.cached_property
    def sizes(self) -> list[Any]:
        """Sizes and strides of its operands, and the numbers among them."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [size for leaf in leaves for size in (_layout(leaf) if isinstance(leaf, TensorForm) else [leaf])]

    def is_view(self, metadata: Metadata, values: Mapping[str, int]) -> bool:
        """Tell whether it gives a view at some sizes; not if it gives nothing or is refused there."""
        try:
            args, kwargs = pytree.tree_map(lambda leaf: metadata.plain(leaf, values, 2), (self.args, self.kwargs))
            result = metadata.run_plain(self.overload, args, kwargs)
        except Exception:
            return False
        return result.numel() > 0 and viewed_argument(args, result) is not None


Path = tuple[Copy, ...]


@dataclasses.dataclass(frozen=True)
class _Dispute:
    """A write after which a memory would hold something else, at sizes that make views of copies.

    Attributes:
        state: What the memory held.
        written: The memory that was written to.
        before: What that held before.
        path: The copies between the two.
        node: What writes.
    """

    state: Content
    written: Storage
    before: Content
    path: Path
    node: Any


class SometimesViews:
    """Follows the copies of one conversion."""

    def __init__(self, heap: Heap, metadata: Metadata) -> None:
        self._heap, self._metadata = heap, metadata
        self._copies: dict[Storage, list[tuple[Storage, Copy]]] = defaultdict(list)
        self._disputes: dict[Storage, list[_Dispute]] = defaultdict(list)
        self._reads: dict[Storage, tuple[int, Any]] = {}
        self._reported: set[tuple[str, ...]] = set()

    def note(self, source: Storage, result: Storage, copy: Copy) -> None:
        """Note a call that gave a tensor of its own, whose memory is ``result``, for one that shows ``source``."""
        if any(isinstance(size, torch.SymInt) for size in copy.sizes):
            self._copies[source].append((result, copy))
            self._copies[result].append((source, copy))

    def written(self, storage: Storage, before: Content, node: Any) -> None:
        """Note a write by ``node``; ``before`` is what the memory held."""
        for other, path in self._shared(storage):
            dispute = _Dispute(other.state, storage, before, path, node)
            self._disputes[other].append(dispute)
            frame, read = self._reads.get(other, (0, None))
            if any(max(other.frame, storage.frame) < loop <= frame for loop in self._heap.repeated):
                self._tell(dispute, read)

    def read(self, storage: Storage, node: Any) -> None:
        """Warn of what a write before a read by ``node`` would have changed in torch."""
        if storage not in self._copies and storage not in self._disputes:
            return
        self._reads[storage] = self._heap.frame, node
        for dispute in self._disputes.get(storage, ()):
            if storage.state is dispute.state and dispute.written.state is not dispute.before:
                self._tell(dispute, node)

    def _shared(self, storage: Storage) -> Iterator[tuple[Storage, Path]]:
        """Yield the memories that are the same one at some sizes, with the copies in between."""
        seen = {storage}
        waiting: list[tuple[Storage, Path]] = [(storage, ())]
        while waiting:
            memory, path = waiting.pop()
            near = [(other, (*path, copy)) for other, copy in self._copies.get(memory, ())]
            for other, longer in (*near, *((alias, path) for alias in memory.aliases)):
                if other not in seen:
                    seen.add(other)
                    waiting.append((other, longer))
                    if longer:
                        yield other, longer

    def _tell(self, dispute: _Dispute, read: Any) -> None:
        copies = " and ".join(dict.fromkeys(_called(copy) for copy in dispute.path))
        lines = tuple(f" at {line}" if (line := _line(node)) else "" for node in (dispute.node, read))
        if (copies, *lines) in self._reported:
            return
        self._reported.add((copies, *lines))
        sizes = self._sharing_sizes(dispute.path)
        if sizes is None:
            return
        changed, seen = lines[0], f"is read{lines[1]}" if read is not None else "the model returns"
        where = sizes or "at the sizes of the example"
        text = (
            f"{copies} gives a copy in the model, but a view in torch, {where}. Writing{changed} changes what "
            f"{seen} in torch, but not in the model. Call clone() on the result if a copy is meant; write to the "
            "tensor itself if not."
        )
        if not sizes:
            raise ScriptValueError(text)
        warn_user(text)

    def _sharing_sizes(self, path: Path) -> str | None:
        """Return sizes that make views of all copies; empty for those of the example, None if there are none."""
        metadata = self._metadata
        sizes = [size for copy in path for size in copy.sizes]
        symbols = {s for size in sizes if isinstance(size, torch.SymInt) for s in size.node.expr.free_symbols}
        example = {str(symbol): metadata.hinted({}).get(str(symbol), 4) for symbol in symbols}
        numbers = sorted({size for size in sizes if type(size) is int and size > 1})
        tried = list(dict.fromkeys((*_SIZES, *numbers, *example.values())))
        names = {str(symbol): metadata.symbols.renamed(symbol) for symbol in symbols}
        for values in itertools.islice(_choices(example, tried), _MOST_TRIALS):
            if all(copy.is_view(metadata, {**example, **values}) for copy in path):
                where = " and ".join(f"{names[name]} is {value}" for name, value in values.items())
                return f"for example where {where}" if where else ""
        return None


@functools.cache
def may_give_views(overload: torch._ops.OpOverload) -> bool:
    """Tell whether an operator gives a view or a copy, depending on its operands."""
    return any(returned.alias_info is not None for returned in overload._schema.returns)


def _layout(form: TensorForm) -> tuple[Any, ...]:
    return (*form.shape, *form.stride())


def _line(node: Any) -> str:
    return source_line(node) if node is not None else ""


def _called(copy: Copy) -> str:
    line = _line(copy.node)
    return f"{copy.overload._schema.name}{f' at {line}' if line else ''}"


def _choices(example: Mapping[str, int], tried: Sequence[int]) -> Iterator[dict[str, int]]:
    """Yield sizes that replace those of the example, the fewest first."""
    for count in range(len(example) + 1):
        for names in itertools.combinations(sorted(example), count):
            for values in itertools.product(tried, repeat=count):
                yield dict(zip(names, values, strict=True))
