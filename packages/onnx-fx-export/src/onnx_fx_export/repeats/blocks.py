"""Captures a block that a model repeats once: the other calls are stand-ins until the graph is complete.

The first call of a block runs under torch.export as any other; two operators without results mark its operands and
results in the graph. A later call of a block that certainly computes the same from its own parameters becomes one
operator, and :func:`onnx_fx_export.repeats.block_expansion.expand` puts a copy of the marked nodes in its place.

A block computes the same if its class, the shapes of its parameters, the metadata of its arguments, and all attributes
that the first call read are equal, and the first call assigned none. What a forward does besides, such as
appending to a global list, is not seen by that. Where nobody vouches for it, two calls are captured, and others are
not if :mod:`onnx_fx_export.repeats.purity` is certain that there is nothing else that they depend on or change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.repeats.attribute_reads import AttributeReads, equal, structure
from onnx_fx_export.repeats.block_expansion import NotRepeatableError, expand
from onnx_fx_export.repeats.markers import RESULTS, FreshResult, marker_operators
from onnx_fx_export.repeats.purity import Purity
from onnx_fx_export.repeats.regions import ModuleClasses
from onnx_fx_export.repeats.withheld import WithheldParameters

__all__ = ["LEAST_EQUAL", "LEAST_WITHHELD", "RepeatedBlocks", "has_stacks"]

#: Two are captured as a proof.
LEAST_EQUAL = 8
#: A capture that starts anew, because the proof fails, costs as much as two or three more.
LEAST_WITHHELD = 16

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
        purity: What is known of other effects; None where the user vouches that there are none.
        results: For each leaf of the result its position among the operands, its metadata, or its value.
        result_spec: Structure of the result.
        usable: Whether others may be repetitions of this call, as far as it shows.
        twin: The number of a second call that was captured as a proof.
    """

    number: int
    structure: Any
    reads: AttributeReads
    call: Any
    purity: Purity | None = None
    results: list[Any] = dataclasses.field(default_factory=list)
    result_spec: pytree.TreeSpec | None = None
    usable: bool = False
    twin: int | None = None

    def has_results_of(self, other: _Recorded) -> bool:
        """Tell whether two calls gave results of one structure and metadata."""
        mine, theirs = ([_shown(entry) for entry in one.results] for one in (self, other))
        return self.result_spec == other.result_spec and _same(mine, theirs)


@dataclasses.dataclass(frozen=True)
class _Operand:
    index: int


class RepeatedBlocks:
    """While active, calls of repeated blocks of a model are captured once.

    Args:
        model: The model.
        classes: Classes of the blocks, or True for the members of module lists that have an equal in the model. None
            for those of which that is certain: of lists with eight equal members or more, and after two calls that
            agree.
        withhold: Whether torch.export is spared the parameters of what seems to be repeated.

    Attributes:
        repetitions: The number of calls that were not captured.
        watched: Whether a call was captured while the block was watched.
    """

    def __init__(self, model: torch.nn.Module, classes: ModuleClasses | None, *, withhold: bool = True) -> None:
        self.repetitions, self.watched = 0, False
        self._proves = classes is None
        self._blocks, self._structures = _candidates(model, classes)
        withheld = self._blocks if withhold else {}
        self._withheld = WithheldParameters(model, withheld, self._structures, 2 if self._proves else 1)
        self._owed: dict[int, Sequence[str]] = {}
        self._recorded: list[_Recorded] = []
        self._unusable: set[Any] = set()
        self._recording = self._active = False
        self._numbers = itertools.count()
        self._paths = {id(block): path for path, block in self._blocks.items()}

    def __enter__(self) -> RepeatedBlocks:
        for path, block in self._blocks.items():
            block.forward = functools.partial(self._call, path, block, block.forward)
        self._active = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._active = False
        for block in self._blocks.values():
            block.__dict__.pop("forward", None)
        RESULTS.clear()

    def capture(self, run: Callable[[], torch.export.ExportedProgram]) -> torch.export.ExportedProgram:
        """Run torch.export.

        Raises:
            ParametersNeededError: If parameters were withheld that have to be there.
        """
        # What another run recorded is not in the graph of this one.
        self._recorded.clear()
        self._unusable.clear()
        self._owed.clear()
        self.repetitions, self.watched = 0, False
        return self._withheld.capture(run)

    def complete(self, program: torch.export.ExportedProgram) -> None:
        """Put copies of the recorded blocks where a captured program repeats them, in place.

        Raises:
            NotRepeatableError: If a repeated block uses or gives more than its call shows.
        """
        parameters = self._withheld.add_to(program)
        if any(one.purity is not None and one.purity.shows_marks for one in self._recorded):
            raise NotRepeatableError("the code reads all attributes of a block")
        owed = {call: [parameters[name] for name in names] for call, names in self._owed.items()}
        expand(program, owed, {one.number: one.twin for one in self._recorded if one.twin is not None})

    def _call(self, path: str, block: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        own = self._structures[path]
        if (
            not self._active
            or self._recording
            or own is None
            or own in self._unusable
            or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves)
        ):
            return forward(*args, **kwargs)
        call = (spec, [_metadata(leaf) for leaf in leaves], _modes())
        number, owed = next(self._numbers), self._withheld.names.get(path, ())
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        own_parameters = () if owed else (tensor for _, tensor in block.named_parameters(remove_duplicate=False))
        operands = [*tensors, *(tensor for _, tensor in block.named_buffers(remove_duplicate=False)), *own_parameters]
        run = functools.partial(self._record, forward, args, kwargs, operands)
        for recorded in self._recorded:
            if recorded.structure == own and _same(recorded.call, call) and recorded.reads.agree(block):
                again = _Recorded(number, own, AttributeReads(block, watches_identity=self._proves), call)
                return self._again(recorded, again, block, run, operands)
        if owed:
            self._withheld.refuse()
        reads = AttributeReads(block, watches_identity=self._proves)
        recorded = _Recorded(number, own, reads, call, Purity() if self._proves else None)
        with recorded.purity.code_noted() if recorded.purity is not None else contextlib.nullcontext():
            result = run(recorded)
        if recorded.usable:
            self._recorded.append(recorded)
        elif self._proves:
            # A block that writes to a cache is followed by others that do; watching them all costs as much as they do.
            self._unusable.add(own)
            if any(self._structures[path] == own for path in self._withheld.names):
                self._withheld.refuse()
        return result

    def _again(
        self,
        recorded: _Recorded,
        own: _Recorded,
        block: torch.nn.Module,
        run: Callable[[_Recorded], Any],
        operands: list[torch.Tensor],
    ) -> Any:
        """Return the results of a call that does what a recorded one did, as far as the two show it."""
        purity, owed = recorded.purity, self._withheld.names.get(self._paths[id(block)], ())
        if owed and purity is not None and (recorded.twin is None or not purity.holds()):
            self._withheld.refuse()
        if purity is not None and recorded.twin is None:
            purity.take_stock(block)
            result = run(own)
            purity.confirm(recorded.reads, own.reads)
            purity.doubtful |= not own.usable or not recorded.has_results_of(own)
            recorded.twin = own.number
            return result
        if purity is not None and not owed and not purity.holds():
            return run(own)
        self._owed[own.number] = owed
        if any(isinstance(entry, _Operand) and entry.index >= len(operands) for entry in recorded.results):
            self._withheld.refuse()
        self.repetitions += 1
        return _repeated(recorded, own.number, operands)

    def _record(
        self,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[torch.Tensor],
        recorded: _Recorded,
    ) -> Any:
        """Run a block between marks, and note what it gave."""
        begin, end, _ = marker_operators()
        leaves, spec = pytree.tree_flatten((args, kwargs))
        self._recording = self.watched = True
        try:
            begin(operands, recorded.number)
            with recorded.reads.recorded():
                result = forward(*args, **kwargs)
            results, result_spec = pytree.tree_flatten(result)
            fresh = _described(results, operands, recorded.results)
            end(fresh, recorded.number)
        finally:
            self._recording = False
        if all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in results):
            recorded.result_spec = result_spec
        RESULTS[recorded.number] = [entry for entry in recorded.results if isinstance(entry, FreshResult)]
        after, spec_after = pytree.tree_flatten((args, kwargs))
        unchanged = spec_after == spec and all(a is b for a, b in zip(leaves, after, strict=True))
        recorded.usable = recorded.reads.pure and recorded.result_spec is not None and unchanged
        return result


def _described(leaves: Sequence[Any], operands: Sequence[torch.Tensor], results: list[Any]) -> list[torch.Tensor]:
    """Add to ``results`` what each leaf of a result is, and return those that are tensors of their own."""
    fresh: list[torch.Tensor] = []
    for leaf in leaves:
        position = next((i for i, operand in enumerate(operands) if operand is leaf), None)
        if position is not None:
            results.append(_Operand(position))
        elif isinstance(leaf, torch.Tensor):
            metadata = (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)
            results.append(FreshResult(len(fresh), metadata))
            fresh.append(leaf)
        else:
            results.append(leaf)
    return fresh


def _shown(entry: Any) -> Any:
    """Return an entry of the results as something that can be compared."""
    if isinstance(entry, FreshResult):
        return [entry.index, *entry.metadata]
    return ["operand", entry.index] if isinstance(entry, _Operand) else entry


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


def has_stacks(model: torch.nn.Module, least: int = LEAST_EQUAL) -> bool:
    """Tell whether a module list of a model has enough members for some to be repeated unasked."""
    return any(
        isinstance(module, torch.nn.ModuleList | torch.nn.Sequential) and len(module) >= least
        for module in model.modules()
    )


def _candidates(
    model: torch.nn.Module, classes: ModuleClasses | None
) -> tuple[dict[str, torch.nn.Module], dict[str, Any]]:
    """Return the modules that may be repeated, by path, and what two of them need in common."""
    least = LEAST_EQUAL if classes is None else 2 if classes is True else 1
    if least > 1:
        found = {
            f"{parent}.{name}".strip("."): module
            for parent, container in model.named_modules()
            if isinstance(container, torch.nn.ModuleList | torch.nn.Sequential)
            and (least == 2 or len(container) >= least)
            for name, module in container.named_children()
            if next(module.parameters(), None) is not None
        }
    else:
        kinds = tuple(classes) if isinstance(classes, Collection) else ()
        found = {path: module for path, module in model.named_modules() if path and type(module) in kinds}
    structures = {path: structure(module) for path, module in found.items()}
    counts = Counter(structures.values())
    # A forward of its own tells an instance from its class.
    chosen = {
        path: module
        for path, module in found.items()
        if "forward" not in vars(module) and counts[structures[path]] >= least
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
