"""Records what code does to the pieces of a tensor whose number and lengths the data decides.

Sequences of different lengths that stand behind each other in one tensor are mostly taken apart by
``torch.split(x, lengths.tolist())``, computed one by one, and joined by ``torch.cat``. While a model is captured, such
a split gives two pieces of unknown lengths, whatever their number: what is computed of the second shows that the code
does the same for each. Pieces of one size, as ``x.split(4)`` and ``x.chunk(4)`` leave of a dynamic size with a shorter
one at the end, are such pieces too. :mod:`onnx_fx_export.capture.loops.joining` makes one loop of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import CaptureError
from onnx_fx_export.torch_private import FakeTensor
from onnxops_core.exporting import original

__all__ = ["COPIES", "PieceLoops", "piece_marks"]

_NAMESPACE = "onnx_fx_export_pieces"
#: How many pieces stand for all.
COPIES = 2
_SPLITS = (torch.split, torch.Tensor.split, torch.split_with_sizes, torch.Tensor.split_with_sizes)
_CHUNKS = (torch.chunk, torch.Tensor.chunk)
_JOINS = (torch.cat, torch.concat, torch.concatenate, torch.stack)


@dataclasses.dataclass
class _Loop:
    """The pieces of some lengths.

    Attributes:
        number: Its number.
        lengths: The lengths (pieces,).
        places: For each piece that stands for all, where its elements are in what is split.
        total: How many elements all pieces have, once something was split.
    """

    number: int
    lengths: torch.Tensor
    places: list[torch.Tensor]
    total: int | torch.SymInt | None = None


class _CountedError(CaptureError, TypeError):
    """Python takes a TypeError for an answer where it only wants to know how much memory it will need."""


def _refuse(*_: object) -> NoReturn:
    raise _CountedError(
        "The code counts pieces of a tensor, or takes one out of them, whose lengths the data decides; "
        "compute with tensors instead."
    )


class _Lengths(list[Any]):
    """The lengths as numbers, of which there may be any number; only a loop may ask for them."""

    __len__ = __getitem__ = __bool__ = __contains__ = __reversed__ = _refuse

    def __init__(self, loop: _Loop) -> None:
        super().__init__(places.shape[0] for places in loop.places)
        self.loop = loop


class _Pieces(tuple[Any, ...]):
    """The pieces, of which there may be any number; only a loop may ask for them."""

    __len__ = __getitem__ = __bool__ = __contains__ = _refuse


_Parts = tuple[list[torch.Tensor], _Loop, list[torch.Tensor], list[torch.Tensor]]


class PieceLoops(TorchFunctionMode):
    """Records what is done to pieces while it is active.

    Args:
        is_within: Tells whether a loop of another kind is being recorded, whose body takes nothing apart.
        listed: Returns the list of a tensor that holds no lengths, if it is known that it does not; or else None.
    """

    def __init__(self, is_within: Callable[[], bool], listed: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self._is_within, self._others = is_within, listed
        self._known: dict[tuple[int, int], _Lengths] = {}
        # Those of pieces of one size, by that size and what is split.
        self._even: dict[tuple[str, int, str], _Lengths] = {}
        # What was computed of a piece: of which loop, and of which of its pieces. Kept, as other objects may have the
        # identity of one that is gone.
        self._computed: dict[int, tuple[torch.Tensor, _Loop, int]] = {}

    @property
    def count(self) -> int:
        """How many tensors of lengths were met."""
        return len(self._known)

    @property
    def replacements(self) -> list[tuple[Any, str, Any]]:
        """What has to stand in place of methods while it is active."""
        return [(FakeTensor, "tolist", self._listed)]

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Take tensors apart and join them; note what is computed of a piece."""
        kwargs = kwargs or {}
        if func in _SPLITS and isinstance(sizes := _second(args, kwargs), _Lengths):
            return self._pieces(args[0], sizes.loop, _dim(args, kwargs, 2))
        if (lengths := self._of_one_size(func, args, kwargs)) is not None:
            return self._pieces(args[0], lengths.loop, _dim(args, kwargs, 2))
        if func in _JOINS and (parts := self._parts(args, kwargs)) is not None:
            before, loop, of_pieces, after = parts
            joined = self._joined(func, loop, of_pieces, _dim(args, kwargs, 1))
            if joined is not None and not before and not after:
                return joined
            if joined is not None:
                dim = _dim(args, kwargs, 1)
                others = [
                    [torch.stack(each, dim)] if func is torch.stack and each else each for each in (before, after)
                ]
                return torch.cat([*others[0], joined, *others[1]], dim)
        result = func(*args, **kwargs)
        self._note((args, kwargs), result)
        return result

    def _listed(self, tensor: torch.Tensor) -> Any:
        """Return a tensor as a list; of integers of which there may be any number, those of pieces."""
        if not _is_open(tensor) or self._is_within():
            return original(FakeTensor, "tolist")(tensor)
        others = self._others(tensor)
        return self._lengths(tensor) if others is None else others

    def _lengths(self, lengths: torch.Tensor) -> _Lengths:
        key = (id(lengths), lengths._version)
        if key not in self._known:
            number, mark = len(self._known), piece_marks().places.default
            loop = _Loop(number, lengths, [mark(lengths, number, copy) for copy in range(COPIES)])
            self._known[key] = _Lengths(loop)
        return self._known[key]

    def _of_one_size(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Lengths | None:
        """Return the lengths of the pieces into which ``split`` and ``chunk`` take a dynamic size; None for others."""
        known = _second(args, kwargs)
        if func not in (*_SPLITS, *_CHUNKS) or type(known) is not int or not args or self._is_within():
            return None
        total = args[0].shape[_dim(args, kwargs, 2)]
        if not isinstance(total, torch.SymInt):
            return None
        key = str(func in _CHUNKS), known, str(total)
        if key not in self._even:
            size = torch.sym_max((total + known - 1) // known, 1) if func in _CHUNKS else known
            self._even[key] = self._lengths(_even_lengths(total, size, known if func in _CHUNKS else 1))
        return self._even[key]

    def _pieces(self, whole: torch.Tensor, loop: _Loop, dim: int) -> _Pieces:
        loop.total, found = whole.shape[dim], []
        for copy, places in enumerate(loop.places):
            piece = torch.ops.aten.index_select.default(whole, dim, places)
            self._computed[id(piece)] = (piece, loop, copy)
            found.append(piece)
        return _Pieces(found)

    def _note(self, arguments: Any, result: Any) -> None:
        """Note that a result was computed of a piece."""
        if not self._known:
            return
        leaves = [leaf for leaf in pytree.tree_leaves(arguments) if id(leaf) in self._computed]
        for tensor in pytree.tree_leaves(result) if leaves else ():
            if isinstance(tensor, torch.Tensor):
                _, loop, copy = self._computed[id(leaves[0])]
                self._computed[id(tensor)] = (tensor, loop, copy)

    def _parts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Parts | None:
        """Return what is joined: what comes first, the loop, what was computed of each of its pieces, and what is last.

        None if that is not joined.
        """
        given = args[0] if args else kwargs.get("tensors")
        if not self._known or not isinstance(given, list | tuple):
            return None
        parts = [*given]
        found = [self._computed.get(id(part)) for part in parts]
        places = [place for place, each in enumerate(found) if each is not None]
        if len(places) != COPIES or places != [*range(places[0], places[0] + COPIES)]:
            return None
        of_pieces, known = [parts[place] for place in places], [each for each in found if each is not None]
        loops = [loop for _, loop, _ in known]
        alike = len({loop.number for loop in loops}) == 1 and len({(x.dtype, x.dim()) for x in of_pieces}) == 1
        if not alike or [copy for _, _, copy in known] != [*range(COPIES)]:
            return None
        return parts[: places[0]], loops[0], of_pieces, parts[places[-1] + 1 :]

    def _joined(self, func: Any, loop: _Loop, parts: list[torch.Tensor], dim: int) -> torch.Tensor | None:
        """Return all parts in one tensor; None if it is not known what size that has."""
        first = parts[0]
        axis = dim % (first.dim() + (func is torch.stack)) if first.dim() or func is torch.stack else 0
        shapes, mark = [_expressions(part) for part in parts], piece_marks()
        if all(shape == shapes[0] for shape in shapes):
            rows: torch.Tensor = mark.rows.default(parts, [loop.lengths.shape[0], *first.shape], loop.number)
            moved = rows.movedim(0, axis)
            return moved if func is torch.stack else moved.flatten(axis, axis + 1)
        lengths = [str(places.shape[0]) for places in loop.places]
        others = [shape[:axis] + shape[axis + 1 :] for shape in shapes]
        if (
            loop.total is None
            or func is torch.stack
            or [shape[axis] for shape in shapes] != lengths
            or others[0] != others[1]
        ):
            return None
        shape = [*first.shape[:axis], loop.total, *first.shape[axis + 1 :]]
        joined: torch.Tensor = mark.join.default(parts, shape, loop.number, axis)
        return joined


def _even_lengths(total: torch.SymInt, size: int | torch.SymInt, of_nothing: int) -> torch.Tensor:
    """Return the lengths of pieces of one size, of which the last has what is left; so many where there is nothing."""
    whole = torch.ops.aten.full.default([1], total, dtype=torch.int64)
    # A number that data decides: of one computed from a size torch would assume that it is 2 or more.
    count = torch.where(whole == 0, of_nothing, (whole + size - 1) // size).item()
    torch._check(count >= 0)
    lengths: torch.Tensor = (whole - torch.arange(count) * size).clamp(min=0, max=size)
    return lengths


def _is_open(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor holds integers of which there may be any number."""
    integers = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype != torch.bool
    return integers and tensor.dim() == 1 and isinstance(tensor.shape[0], torch.SymInt)


def _second(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the sizes that a tensor is split into."""
    names = ("split_size_or_sections", "split_size", "split_sizes", "chunks")
    return args[1] if len(args) > 1 else next((kwargs[name] for name in names if name in kwargs), None)


def _dim(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> int:
    return int(args[place] if len(args) > place else kwargs.get("dim", kwargs.get("axis", 0)))


def _expressions(tensor: torch.Tensor) -> list[str]:
    return [str(size) for size in tensor.shape]


def _places_fake(lengths: torch.Tensor, loop: int, copy: int) -> torch.Tensor:
    return lengths.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def _shaped_fake(parts: Sequence[torch.Tensor], shape: Sequence[int], loop: int, dim: int = 0) -> torch.Tensor:
    return parts[0].new_empty(shape)


@functools.cache
def piece_marks() -> Any:
    """Define the operators on first use: places of a piece, and what is computed of pieces, in one tensor."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    fakes: dict[str, Callable[..., Any]] = {
        "places(Tensor lengths, int loop, int copy) -> Tensor": _places_fake,
        "join(Tensor[] parts, SymInt[] shape, int loop, int dim) -> Tensor": _shaped_fake,
        "rows(Tensor[] parts, SymInt[] shape, int loop) -> Tensor": _shaped_fake,
    }
    for schema, fake in fakes.items():
        name = library.define(schema)
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=library)
    _LIBRARIES.append(library)
    return getattr(torch.ops, _NAMESPACE)


_LIBRARIES: list[torch.library.Library] = []
