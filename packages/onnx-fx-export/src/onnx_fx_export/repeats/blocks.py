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

from onnx_fx_export.repeats.attribute_reads import AttributeReads, equal, structure
from onnx_fx_export.repeats.block_expansion import expand
from onnx_fx_export.repeats.markers import RESULTS, FreshResult, marker_operators
from onnx_fx_export.repeats.regions import ModuleClasses
from onnx_fx_export.repeats.withheld import WithheldParameters

__all__ = ["RepeatedBlocks"]

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


class RepeatedBlocks:
    """While active, calls of repeated blocks of a model are captured once.

    Args:
        model: The model.
        classes: Classes of the blocks, or True for the members of module lists that have an equal in the model.
        withhold: Whether torch.export is spared the parameters of what seems to be repeated.
    """

    def __init__(self, model: torch.nn.Module, classes: ModuleClasses, *, withhold: bool = True) -> None:
        self._blocks, self._structures = _candidates(model, classes)
        self._withheld = WithheldParameters(model, self._blocks if withhold else {}, self._structures)
        self._owed: dict[int, Sequence[str]] = {}
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
        RESULTS.clear()

    def capture(self, run: Callable[[], torch.export.ExportedProgram]) -> torch.export.ExportedProgram:
        """Run torch.export.

        Raises:
            ParametersNeededError: If parameters were withheld that have to be there.
        """
        # What another run recorded is not in the graph of this one.
        self._recorded.clear()
        self._owed.clear()
        return self._withheld.capture(run)

    def complete(self, program: torch.export.ExportedProgram) -> None:
        """Put copies of the recorded blocks where a captured program repeats them, in place.

        Raises:
            NotRepeatableError: If a repeated block uses or gives more than its call shows.
        """
        parameters = self._withheld.add_to(program)
        expand(program, {call: [parameters[name] for name in names] for call, names in self._owed.items()})

    def _call(self, path: str, block: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        own = self._structures[path]
        if self._recording or own is None or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            return forward(*args, **kwargs)
        call = (spec, [_metadata(leaf) for leaf in leaves], _modes())
        number, owed = next(self._numbers), self._withheld.names.get(path, ())
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        own_parameters = () if owed else (tensor for _, tensor in block.named_parameters(remove_duplicate=False))
        operands = [*tensors, *(tensor for _, tensor in block.named_buffers(remove_duplicate=False)), *own_parameters]
        for recorded in self._recorded:
            if recorded.structure == own and _same(recorded.call, call) and recorded.reads.agree(block):
                self._owed[number] = owed
                if any(isinstance(entry, _Operand) and entry.index >= len(operands) for entry in recorded.results):
                    self._withheld.refuse()
                return _repeated(recorded, number, operands)
        if owed:
            self._withheld.refuse()
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
                recorded.results.append(FreshResult(len(fresh), metadata))
                fresh.append(leaf)
            else:
                recorded.results.append(leaf)
        end(fresh, recorded.number)
        if all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            recorded.result_spec = spec
        RESULTS[recorded.number] = [entry for entry in recorded.results if isinstance(entry, FreshResult)]
        return result


def _repeated(recorded: _Recorded, number: int, operands: list[torch.Tensor]) -> Any:
    """Return results like those of the recorded call, made by one operator in its place."""
    repeat = marker_operators()[2]
    fresh = repeat(operands, recorded.number, number)
    leaves = [
        operands[entry.index]
        if isinstance(entry, _Operand)
        else fresh[entry.index]
        if isinstance(entry, FreshResult)
        else entry
        for entry in recorded.results
    ]
    assert recorded.result_spec is not None
    return pytree.tree_unflatten(leaves, recorded.result_spec)


def _candidates(model: torch.nn.Module, classes: ModuleClasses) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
    """Return the modules that may be repeated, by path, and what two of them need in common."""
    if classes is True:
        found = {
            f"{parent}.{name}".strip("."): module
            for parent, container in model.named_modules()
            if isinstance(container, torch.nn.ModuleList | torch.nn.Sequential)
            for name, module in container.named_children()
            if next(module.parameters(), None) is not None
        }
    else:
        kinds = tuple(classes) if classes else ()
        found = {path: module for path, module in model.named_modules() if path and type(module) in kinds}
    structures = {path: structure(module) for path, module in found.items()}
    counts = Counter(structures.values())
    # A forward of its own tells an instance from its class.
    chosen = {
        path: module
        for path, module in found.items()
        if "forward" not in vars(module) and (classes is not True or counts[structures[path]] > 1)
    }
    return chosen, structures


def _metadata(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        sizes = [*leaf.shape, *leaf.stride(), leaf.storage_offset()]
        return [leaf.dim(), sizes, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_conj(), leaf.is_neg()]
    return leaf


def _same(first: Any, second: Any) -> bool:
    """Tell whether the metadata of two calls are equal; of sizes the first call may have found that they are."""
    return equal(_with_texts(first), _with_texts(second))


def _with_texts(metadata: Any) -> Any:
    if isinstance(metadata, list | tuple):
        return [_with_texts(entry) for entry in metadata]
    return str(metadata.node.expr) if isinstance(metadata, _NUMBERS) else metadata


def _modes() -> list[Any]:
    """Return the switches of torch that change what a call computes."""
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast, torch.get_default_dtype()]
