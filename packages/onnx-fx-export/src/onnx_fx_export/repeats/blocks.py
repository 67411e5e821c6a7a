"""Captures a block that a model repeats once: the other calls are stand-ins until the graph is complete.

The first call of a block runs under torch.export as any other; two operators without results mark its operands and
results in the graph. A later call of a block that certainly computes the same from its own parameters becomes one
operator, and :func:`onnx_fx_export.repeats.block_expansion.expand` puts a copy of the marked nodes in its place.

A block computes the same if its class, the shapes of its parameters, the metadata of its arguments, and all attributes
that the first call read are equal, and the first call assigned none. What a forward does besides, such as
appending to a global list, is not seen.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.repeats.attribute_reads import AttributeReads, equal, parameters_of, structure
from onnx_fx_export.repeats.regions import ModuleClasses

__all__ = ["RepeatedBlocks", "marker_operators"]

_NAMESPACE = "onnx_fx_export_blocks"
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, *_NUMBERS)


@dataclasses.dataclass
class _Recorded:
    """A block whose call was captured.

    Attributes:
        number: What its marks in the graph are called.
        structure: Of the module.
        reads: Attributes that the call read.
        call: Metadata of the call's arguments.
        results: For each leaf of the result its position among the operands, its metadata, or its value.
        result_spec: Structure of the result.
    """

    number: int
    structure: Any
    reads: AttributeReads
    call: Any
    results: list[Any] = dataclasses.field(default_factory=list)
    result_spec: pytree.TreeSpec | None = None


@dataclasses.dataclass(frozen=True)
class _Operand:
    index: int


@dataclasses.dataclass(frozen=True)
class _Fresh:
    """Position, shape, stride, dtype and device of a result."""

    index: int
    metadata: tuple[Any, ...]

    def like(self) -> torch.Tensor:
        shape, stride, dtype, device = self.metadata
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


class RepeatedBlocks:
    """While active, calls of repeated blocks of a model are captured once.

    Args:
        model: The model.
        classes: Classes of the blocks, or True for the members of module lists that have an equal in the model.
    """

    def __init__(self, model: torch.nn.Module, classes: ModuleClasses) -> None:
        self._blocks = _candidates(model, classes)
        self._structures = {path: structure(block) for path, block in self._blocks.items()}
        self._recorded: list[_Recorded] = []
        self._recording = False
        self._numbers = itertools.count()

    def __enter__(self) -> RepeatedBlocks:
        for path, block in self._blocks.items():
            block.forward = functools.partial(self._call, path, block, block.forward)
        return self

    def __exit__(self, *exception: object) -> None:
        for block in self._blocks.values():
            del block.__dict__["forward"]
        _RESULTS.clear()

    def _call(self, path: str, block: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        own = self._structures[path]
        if self._recording or own is None or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            return forward(*args, **kwargs)
        call = (spec, [_metadata(leaf) for leaf in leaves], _modes())
        operands = [*(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), *parameters_of(block).values()]
        number = next(self._numbers)
        for recorded in self._recorded:
            if recorded.structure == own and equal(recorded.call, call) and recorded.reads.agree(block):
                return _repeated(recorded, number, operands)
        recorded = _Recorded(number, own, AttributeReads(block), call)
        self._recording = True
        try:
            result = self._record(recorded, functools.partial(forward, *args, **kwargs), operands)
        finally:
            self._recording = False
        after, spec_after = pytree.tree_flatten((args, kwargs))
        unchanged = spec_after == spec and all(a is b for a, b in zip(leaves, after, strict=True))
        if recorded.reads.pure and recorded.result_spec is not None and unchanged:
            self._recorded.append(recorded)
        return result

    def _record(self, recorded: _Recorded, forward: Callable[[], Any], operands: list[torch.Tensor]) -> Any:
        begin, end, _ = marker_operators()
        begin(operands, recorded.number)
        with recorded.reads.recorded():
            result = forward()
        leaves, spec = pytree.tree_flatten(result)
        fresh: list[torch.Tensor] = []
        for leaf in leaves:
            position = next((i for i, operand in enumerate(operands) if operand is leaf), None)
            if position is not None:
                recorded.results.append(_Operand(position))
            elif isinstance(leaf, torch.Tensor):
                metadata = (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)
                recorded.results.append(_Fresh(len(fresh), metadata))
                fresh.append(leaf)
            else:
                recorded.results.append(leaf)
        end(fresh, recorded.number)
        if all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            recorded.result_spec = spec
        _RESULTS[recorded.number] = [entry for entry in recorded.results if isinstance(entry, _Fresh)]
        return result


def _repeated(recorded: _Recorded, number: int, operands: list[torch.Tensor]) -> Any:
    """Return results like those of the recorded call, made by one operator in its place."""
    repeat = marker_operators()[2]
    fresh = repeat(operands, recorded.number, number)
    leaves = [
        operands[entry.index]
        if isinstance(entry, _Operand)
        else fresh[entry.index]
        if isinstance(entry, _Fresh)
        else entry
        for entry in recorded.results
    ]
    assert recorded.result_spec is not None
    return pytree.tree_unflatten(leaves, recorded.result_spec)


def _candidates(model: torch.nn.Module, classes: ModuleClasses) -> dict[str, torch.nn.Module]:
    """Return the modules that may be repeated, by path."""
    if classes is True:
        listed = {
            path: module
            for parent, container in model.named_modules()
            if isinstance(container, torch.nn.ModuleList | torch.nn.Sequential)
            for path, module in ((f"{parent}.{name}".strip("."), m) for name, m in container.named_children())
            if next(module.parameters(), None) is not None
        }
        structures = {path: structure(module) for path, module in listed.items()}
        counts = Counter(map(repr, structures.values()))
        chosen = {path: module for path, module in listed.items() if counts[repr(structures[path])] > 1}
    else:
        kinds = tuple(classes) if classes else ()
        chosen = {path: module for path, module in model.named_modules() if path and type(module) in kinds}
    # A forward of its own tells an instance from its class.
    return {path: module for path, module in chosen.items() if "forward" not in vars(module)}


def _metadata(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        sizes = [_number(size) for size in (*leaf.shape, *leaf.stride(), leaf.storage_offset())]
        return [leaf.dim(), sizes, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_conj(), leaf.is_neg()]
    return _number(leaf)


def _number(value: Any) -> Any:
    return str(value.node.expr) if isinstance(value, _NUMBERS) else value


def _modes() -> list[Any]:
    """Return the switches of torch that change what a call computes."""
    return [torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype()]


# Result metadata by the number of the recorded call, for the operator that stands in for its repetitions.
_RESULTS: dict[int, list[_Fresh]] = {}


def _repeat_fake(operands: Sequence[torch.Tensor], recorded: int, call: int) -> list[torch.Tensor]:
    return [entry.like() for entry in _RESULTS[recorded]]


@functools.cache
def marker_operators() -> tuple[Any, Any, Any]:
    """Define the operators on first use: begin and end of a recorded call, and what stands for a repeated one."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    library.define("begin(Tensor[] operands, int call) -> ()")
    library.define("end(Tensor[] results, int call) -> ()")
    library.define("repeat(Tensor[] operands, int recorded, int call) -> Tensor[]")
    for name in ("begin", "end"):
        library.impl(name, lambda tensors, call: None, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", lambda tensors, call: None, lib=library)
    torch.library.register_fake(f"{_NAMESPACE}::repeat", _repeat_fake, lib=library)
    _LIBRARIES.append(library)
    operators = getattr(torch.ops, _NAMESPACE)
    for operator in (operators.begin.default, operators.end.default):
        torch.fx.node.has_side_effect(operator)
    return operators.begin.default, operators.end.default, operators.repeat.default


_LIBRARIES: list[torch.library.Library] = []
