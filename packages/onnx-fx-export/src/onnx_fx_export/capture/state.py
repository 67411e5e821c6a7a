"""What a model changes outside of its buffers while torch.export captures it: captured as buffers, or refused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.torch_private import unassigned_buffers
from onnx_fx_export.errors import MutationError
from onnx_fx_export.origin import source_line
from onnx_fx_export.sizes.numbers.number_classes import kind_of_number
from onnx_fx_export.weights.unallocated import allocated_on_paper
from onnxops_decomp.exporting import (
    Inventory,
    KeptContents,
    Rebound,
    Registries,
    StatePlace,
    StateWatch,
    identities_of_numbers,
    is_without_data,
    kept_inventory,
    state_refusal,
    type_tests,
    written_inputs,
)

__all__ = ["CapturedState", "StateNotes", "watched_state"]

_MOST_CAPTURES = 4


@dataclasses.dataclass(frozen=True)
class StateNotes:
    """What is known of the state of a captured program.

    Attributes:
        paths: For buffers that stand for tensors elsewhere in the model, the paths of those.
        lines: Where the code changes a buffer, by its name in the program.
        ignored: Other things that the model changes and a later call depends on, with the lines that change them.
    """

    paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)


class CapturedState:
    """The state of a model while it is captured.

    Args:
        model: The module.
        inventory: What it can reach.

    Attributes:
        remembered: What the captured call left in Python objects, by path, to be compared with that of other calls.
    """

    remembered: Mapping[str, Any]

    def __init__(self, model: torch.nn.Module, inventory: Inventory) -> None:
        self._model, self._inventory = model, inventory
        self._watch = StateWatch(inventory)
        self._others: list[Rebound] = []

    def capture(
        self,
        run: Callable[[], torch.export.ExportedProgram],
        example: Any,
        strict: bool,
        beside: contextlib.AbstractContextManager[Any],
    ) -> torch.export.ExportedProgram:
        """Capture until all tensors that the model changes are buffers of the program.

        Args:
            run: Captures the model once.
            example: Positional and keyword arguments of the model.
            strict: Whether Dynamo captures it, which does not run the model itself.
            beside: Entered around the call of the model that takes the place of that.

        Raises:
            MutationError: If there are changes that cannot be captured.
        """
        inventory = self._inventory
        kept = [] if strict else [*inventory.tensors.values(), *inventory.under_other_names()]
        contents = KeptContents(kept)
        watched = contents if kept else contextlib.nullcontext()
        for _ in range(_MOST_CAPTURES):
            try:
                # torch.export runs calls that involve no inputs on the real tensors.
                with self._inputs(hooked=not strict), watched, self._identities(strict):
                    program = run()
            finally:
                contents.restore()
            if strict:
                with beside:
                    self._call(example)
            others = {each.target: _comparable(each.after) for each in self._others}
            self.remembered = others | {change.path: _comparable(change.after) for change in self._watch.changes}
            written = self._written(program)
            constants = {_place(x) for x in program.constants.values() if isinstance(x, torch.Tensor)}
            self._watch.check_memory(written, MutationError)
            self._watch.check_arrays(constants, MutationError)
            if not self._watch.find_places(_reader(constants), written):
                return program
            if strict:
                break
        lines = {place.path: place.line for place in self._watch.places}
        raise MutationError(state_refusal(lines))

    def _identities(self, strict: bool) -> contextlib.AbstractContextManager[None]:
        return identities_of_numbers(self._inventory.functions, None if strict else kind_of_number)

    def type_tests(self) -> list[str]:
        """Return the lines of the model's code that ask of what class a number or tensor is."""
        return type_tests(self._inventory.running_functions())

    def notes(self, program: torch.export.ExportedProgram, example: Any, state: str) -> StateNotes:
        """Return what is known of the state of a captured program, when the model is again as the user gave it.

        Raises:
            MutationError: If a later call depends on what is not a tensor, and ``state`` is not ``"ignore"``.
        """
        if state == "io":
            self._watch.check_parted(MutationError)
        self._watch.changes.extend(each.change() for each in self._others)
        leaves, structure = pytree.tree_flatten(example)

        def call(given: Sequence[Any]) -> Any:
            args, kwargs = pytree.tree_unflatten(list(given), structure)
            return self._model(*args, **kwargs)

        with self._inventory.replayed(), allocated_on_paper(self._model):
            self._inventory.accept()
            if state == "io":
                self._watch.check_met(call, leaves, MutationError)
            found = self._watch.lasting(call, leaves)
        if found and state != "ignore":
            raise MutationError(state_refusal(found))
        names = {_name(index): place for index, place in enumerate(self._watch.places)}
        lines = {name: place.line for name, place in names.items()}
        specs = {getattr(spec.arg, "name", ""): spec for spec in program.graph_signature.input_specs}
        for node, write in written_inputs(program.graph).items():
            target = specs[node.name].target
            if target is not None and target not in lines:
                lines[target] = source_line(write) or self._line(target)
        return StateNotes({n: place.path for n, place in names.items()}, lines, found)

    def _call(self, example: Any) -> None:
        """Find out what the model changes by calling it, unless it has no data."""
        leaves = pytree.tree_leaves(example)
        tensors = [*self._inventory.weights.values(), *self._inventory.tensors.values(), *leaves]
        if any(isinstance(tensor, torch.Tensor) and is_without_data(tensor) for tensor in tensors):
            return
        contents = KeptContents(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
        registries = Registries(self._model)
        args, kwargs = example
        try:
            with contents, torch.random.fork_rng(devices=[]):
                self._model(*args, **kwargs)
            # Dynamo loses what is bound anew.
            self._others = registries.rebound()
            self._watch.leave(each.target for each in self._others)
        finally:
            registries.restore()
            contents.restore()

    def _line(self, target: str) -> str:
        owner = dict(self._model.named_modules()).get(target.rpartition(".")[0])
        return self._inventory.line(target, owner)

    def _written(self, program: torch.export.ExportedProgram) -> dict[str, str]:
        """Return the paths of the tensors that a program holds as constants and writes to, with the lines."""
        specs = {getattr(spec.arg, "name", ""): spec for spec in program.graph_signature.input_specs}
        found: dict[str, str] = {}
        for node, write in written_inputs(program.graph).items():
            spec = specs[node.name]
            if spec.kind is InputKind.CONSTANT_TENSOR:
                constant = program.constants[str(spec.target)]
                for path, tensor in self._inventory.tensors.items():
                    if _place(tensor) == _place(constant):
                        # torch notes lines of functions called forward only.
                        record, _ = self._inventory.holding(tensor)[0]
                        found[path] = self._inventory.line(path, record.owner) or source_line(write)
        return found

    @contextlib.contextmanager
    def _inputs(self, *, hooked: bool) -> Iterator[None]:
        """Register a buffer for each tensor that is to be an input, and let each call use and update it."""
        if not hooked:
            yield
            return
        model, places = self._model, self._watch.places
        names = [_name(index) for index, _ in enumerate(places)]
        registries = Registries(model)

        def enter(*_: Any) -> None:
            nonlocal registries
            registries = Registries(model)
            # Results of the call may be what a place held before it.
            self._watch.enter([self._found(name, place) for name, place in zip(names, places, strict=True)])

        def leave(_module: Any, _args: Any, result: Any) -> Any:
            rebound = registries.rebound()
            values = self._watch.leave(each.target for each in rebound)
            self._others = [each for each in rebound if not each.fits]
            registries.check_tied(rebound, self._line, MutationError)
            written = [(each.before, each.after) for each in rebound if each.fits]
            buffers = [model._buffers[name] for name in names]
            pairs = [*written, *zip(buffers, values, strict=True)]
            result = _write_at_the_end(pairs, result, self._buffers())
            registries.restore()
            return result

        for name, place in zip(names, places, strict=True):
            # torch.export captures no buffers that share memory and are written to.
            own = place.tensor.detach()
            model.register_buffer(name, own.clone() if self._path(place) else own, persistent=False)
        hooks = [model.register_forward_pre_hook(enter, prepend=True), model.register_forward_hook(leave)]
        try:
            with unassigned_buffers():
                yield
        finally:
            for hook in hooks:
                hook.remove()
            for name in names:
                del model._buffers[name]
                model._non_persistent_buffers_set.discard(name)

    def _found(self, name: str, place: StatePlace) -> torch.Tensor:
        """Return what the model is to find in a place: a parameter or buffer if it is that one by another name."""
        if path := self._path(place):
            owner, _, attribute = path.rpartition(".")
            return getattr(self._model.get_submodule(owner), attribute)  # type: ignore[no-any-return]
        return self._model._buffers[name].clone()  # type: ignore[union-attr]

    def _buffers(self) -> Iterator[torch.Tensor]:
        """Yield what the buffers are while the model is captured."""
        return (buffer for module in self._model.modules() for buffer in module._buffers.values() if buffer is not None)

    def _path(self, place: StatePlace) -> str | None:
        """Return the path of the parameter or buffer that a place holds as well."""
        return next((path for path, weight in self._inventory.weights.items() if weight is place.tensor), None)


@contextlib.contextmanager
def watched_state(model: torch.nn.Module) -> Iterator[CapturedState]:
    """Watch what captures of a model change, and give it back what it had in the end, whatever happens."""
    with kept_inventory(model) as inventory:
        yield CapturedState(model, inventory)


def _write_at_the_end(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], result: Any, others: Iterable[torch.Tensor]
) -> Any:
    """Write values to tensors, all of which are read before.

    Args:
        pairs: The tensors and the values.
        result: What the model returns.
        others: What else may be written to: torch.export takes no value that is another's, too.

    Returns:
        The same, with copies of what shows the memory of the tensors.
    """
    if not pairs:
        return result
    tensors = (*(tensor for tensor, _ in pairs), *others)
    memory = {id(tensor.untyped_storage()) for tensor in tensors if tensor.layout is torch.strided}

    def kept(value: torch.Tensor) -> torch.Tensor:
        shows = value.layout is torch.strided and id(value.untyped_storage()) in memory
        return value.clone() if shows else value

    values = [kept(value) for _, value in pairs]
    result = pytree.tree_map_only(torch.Tensor, kept, result)
    for (tensor, _), value in zip(pairs, values, strict=True):
        tensor.copy_(value)
    return result


def _name(index: int) -> str:
    return f"onnx_state_{index}"


def _comparable(value: Any) -> Any:
    """Return what equals that of another value if both are the same; nothing equals that of objects of unknown kind."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, list | tuple | set):
        return type(value), [_comparable(each) for each in value]
    if isinstance(value, dict):
        return dict, [(key, _comparable(each)) for key, each in value.items()]
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | type):
        return type(value), value
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return type(value), value.node.expr
    return object()


def _reader(constants: Collection[Any]) -> Callable[[torch.Tensor], bool]:
    """Return a function that tells whether a tensor is one of the constants."""
    return lambda tensor: _place(tensor) in constants


def _place(tensor: torch.Tensor) -> Any:
    has_memory = tensor.layout is torch.strided and not is_without_data(tensor) and tensor.numel() > 0
    return tensor.untyped_storage().data_ptr() if has_memory else id(tensor)
