"""What a traced model changes: made inputs and outputs of the trace, or refused; the model gets everything back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from onnx_ts_legacy.capture.number_classes import kind_of_number
from onnx_ts_legacy.errors import CaptureError, OnnxExporterWarning, StateError
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import (
    Inventory,
    KeptContents,
    Rebound,
    Registries,
    StatePlace,
    StateWatch,
    are_close,
    identities_of_numbers,
    ignored_state,
    is_without_data,
    kept_inventory,
    results_of,
    state_refusal,
    type_tests,
    with_lines,
)

__all__ = ["TracedState", "kept_state"]

_MOST_TRACES = 4
_OTHER_CLASSES = (
    "The trace does not give the model's values: during the trace, a size is a tensor, not an int. Use "
    "isinstance() instead of type() and hasattr(), or script the model. These lines may be the cause:"
)


class TracedState:
    """The state of a model while it is traced.

    Args:
        model: The module or function.
        inventory: What it can reach.
        contents: What keeps the contents of its tensors.

    Attributes:
        keep: Keeps what a call of torch may write to; to be called with the function and its arguments before it runs.
        changed: Names of the tensors that a call of the model changes, once it was traced.
    """

    def __init__(self, model: Any, inventory: Inventory, contents: KeptContents) -> None:
        self._watch = StateWatch(inventory, resizable=True)
        self._inventory, self._contents, self.keep = inventory, contents, contents.keep
        self._registries = Registries(model)
        self._values: list[Any] = []
        self._rebound: list[Rebound] = []
        self._entered: list[torch.Tensor] = []
        self.changed: set[str] = set()

    @property
    def places(self) -> list[StatePlace]:
        """The tensors outside of the buffers that are inputs of the trace."""
        return self._watch.places

    def enter(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let the model find copies of the inputs of the trace that stand for :attr:`places`."""
        self._entered = [tensor.clone() for tensor in tensors]
        self._watch.enter(self._entered, is_restored=True)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the model finds during the trace, and may keep from one call to the next."""
        entered = {place.path: tensor for place, tensor in zip(self.places, self._entered, strict=True)}
        return {**self._inventory.weights, **entered}

    def leave(self) -> None:
        """Take note of what the call left behind; to be called while the trace still runs.

        Raises:
            StateError: If something else than a tensor took the place of one, or nothing.
        """
        self._rebound = self._registries.rebound()
        # Tensors that the trace does not know become constants of it.
        rebound = [each.target for each in self._rebound]
        values = self._watch.leave(rebound)
        pairs = zip(self.places, values, strict=True)
        if lost := {place.path: place.line for place, value in pairs if not isinstance(value, torch.Tensor)}:
            raise StateError(
                f"The model changes {with_lines(lost)} when it runs: it writes to the tensor there, and then lets "
                "something else than a tensor, or nothing, take its place, which no ONNX model does. Keep the tensor "
                "in a buffer, and write to that with copy_()."
            )
        self._values = [value.clone() for value in values]

    def rebound(self) -> dict[str, torch.Tensor]:
        """Return what takes the place of weights, and stands in :attr:`places`, by qualified name."""
        weights = {each.target: each.after for each in self._rebound if each.of_tensors}
        return {**weights, **{place.path: value for place, value in zip(self.places, self._values, strict=True)}}

    def line(self, path: str) -> str:
        """Return ``file:line`` of what changes something."""
        known = next((place.line for place in self.places if place.path == path), "")
        return known or self._inventory.line(path, self._registries.owner(path))

    def note_changes(self) -> None:
        """Add what the trace changed to :attr:`changed`."""
        weights = self._inventory.weights.items()
        self.changed.update(path for path, weight in weights if self._contents.written(weight))
        self.changed.update(self.rebound())

    def settle(self, trace: Callable[[], Any]) -> Any:
        """Trace until all tensors that the model changes are inputs; return the graph of the last trace.

        Raises:
            StateError: If some change of the model cannot be expressed.
        """
        for _ in range(_MOST_TRACES):
            graph = trace()
            tensors = self._inventory.tensors.items()
            written = {path: "" for path, tensor in tensors if self._contents.written(tensor)}
            self.note_changes()
            self._contents.restore()
            self._registries.check_tied(self._rebound, self.line, StateError)
            self._registries.restore()
            self._watch.check_memory(written, StateError)
            constants = _constants(graph)
            self._watch.check_constants(self.changed, _reader(constants), StateError)
            self._watch.check_arrays(constants, StateError)
            if not self._watch.find_places(_reader(constants), written):
                self._watch.changes.extend(each.change() for each in self._rebound if not each.of_tensors)
                return graph
        raise StateError("The tensors that the model changes do not settle from one trace to the next.")

    def refuse_tensors(self) -> None:
        """Refuse a trace that cannot have the tensors that the model changes as inputs.

        Raises:
            CaptureError: If there are any.
        """
        self.note_changes()
        if names := [*self.rebound(), *self._watch.tensor_changes()]:
            raise CaptureError(
                f"The model rebinds {min(names)}, which tracing does not record in models that hold scripted "
                "modules; keep it in a buffer and write to that with copy_(), or script the whole model."
            )

    def check(
        self,
        call: Callable[[Sequence[Any]], Any],
        tensors: Sequence[torch.Tensor],
        traced: tuple[Sequence[torch.Tensor], torch.Tensor],
        state: str,
    ) -> None:
        """Compare what a trace computed with the model, and refuse changes that make a difference to a later call.

        Args:
            call: Calls the model on the tensors of the example.
            tensors: Those.
            traced: The tensors that it returned while it was traced, and the state of the random numbers before.
            state: What becomes of changes.

        Raises:
            CaptureError: If the code asks of what class a number or tensor is, and the values differ.
            StateError: If there are changes of other things than tensors, and ``state`` is not ``"ignore"``.
        """
        if state == "io":
            self._watch.check_parted(StateError)
            self._watch.check_met(call, tensors, StateError)
        self._check_values(call, tensors, *traced)
        self._check_lasting(call, tensors, state)

    def results(
        self, call: Callable[[Sequence[Any]], Any], tensors: Sequence[torch.Tensor], random_state: torch.Tensor
    ) -> list[Any]:
        """Return the leaves of what a call of the model returns outside of traces."""
        return results_of(self._inventory, call, tensors, random_state)

    def _check_values(
        self,
        call: Callable[[Sequence[Any]], Any],
        tensors: Sequence[torch.Tensor],
        returned: Sequence[torch.Tensor],
        random_state: torch.Tensor,
    ) -> None:
        lines = type_tests(self._inventory.running_functions(), attributes=True)
        if not lines or any(map(is_without_data, [*tensors, *self._inventory.weights.values()])):
            return
        results = self.results(call, tensors, random_state)
        expected = [result for result in results if isinstance(result, torch.Tensor)]
        actual = [tensor.detach() for tensor in returned]
        if len(actual) != len(expected) or not all(map(are_close, actual, expected)):
            raise CaptureError("\n  ".join((_OTHER_CLASSES, *lines)))

    def _check_lasting(self, call: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], state: str) -> None:
        found = self._watch.lasting(call, tensors)
        if found and state != "ignore":
            raise StateError(state_refusal(found))
        if found:
            warn_user(ignored_state(found), OnnxExporterWarning)


@contextmanager
def kept_state(model: Any) -> Iterator[TracedState]:
    """Undo what runs of the model do to it and to what it reaches, as far as :attr:`TracedState.keep` hears of it."""
    with kept_inventory(model) as inventory:
        contents = KeptContents([*inventory.weights.values(), *inventory.tensors.values()])
        try:
            with identities_of_numbers(inventory.functions, kind_of_number):
                yield TracedState(model, inventory, contents)
        finally:
            contents.restore()


def _reader(constants: Collection[Any]) -> Callable[[torch.Tensor], bool]:
    """Return a function that tells whether a tensor is one of the constants."""
    return lambda tensor: _place(tensor) in constants


def _place(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


def _constants(graph: Any) -> set[Any]:
    """Return where the memory of the tensors begins that a trace reads as constants."""
    nodes = (n for n in graph.findAllNodes("prim::Constant") if n.hasAttribute("value") and n.kindOf("value") == "t")
    return {_place(node.t("value")) for node in nodes}
