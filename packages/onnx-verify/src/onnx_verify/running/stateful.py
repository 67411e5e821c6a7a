"""Models that carry state: an ONNXProgram whose buffers are inputs and outputs of the graph.

Such a program has ``state``, the output that holds the next value of each state input, and ``initial_state``, the
first value of each. A call in torch's form gives no state; it is filled in here, and the next state is compared with
the buffers that the reference leaves behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx_verify.inputs.sets import InputSet, bind_feeds
from onnx_verify.models.model import LoadedModel, ValueSpec, is_model_like
from onnx_verify.running.runtimes import CallableRuntime, Outputs, Runtime


@dataclass(frozen=True)
class ProgramState:
    """The state of a program.

    Attributes:
        outputs: the output that holds the next value, by state input.
        values: the value that each state input gets.
        changed: the outputs that hold what the model made of inputs that it changes in place; a reference returns no
            such output.
    """

    outputs: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Tell whether the program has outputs besides those that it returns in torch."""
        return bool(self.outputs or self.changed)

    def bind(self, inputs: InputSet, specs: tuple[ValueSpec, ...]) -> dict[str, Any]:
        """Assign an input set to the other inputs, and the values to the state inputs that it does not name."""
        if inputs.feeds is not None or self.outputs.keys() <= inputs.kwargs.keys():
            return bind_feeds(inputs, specs)
        feeds = bind_feeds(inputs, self.without(specs))
        held = {spec.name: self.values[spec.name] for spec in specs if spec.name in self.outputs}
        return bind_feeds(InputSet(feeds={**feeds, **held}), specs)

    def without(self, specs: tuple[ValueSpec, ...]) -> tuple[ValueSpec, ...]:
        """Return the inputs that are not state."""
        return tuple(spec for spec in specs if spec.name not in self.outputs)


def state_of(model: Any, reference: Runtime | None = None) -> ProgramState:
    """Return the state of an ONNXProgram, with the values that the reference's buffers have now.

    The reference is told to return those buffers after its outputs. A model without state gives an empty one.
    """
    if is_model_like(model) or isinstance(model, LoadedModel):
        return ProgramState()
    outputs, initial = getattr(model, "state", None), getattr(model, "initial_state", None)
    if not (isinstance(outputs, Mapping) and isinstance(initial, Mapping) and outputs):
        return ProgramState()
    kept = {name: output for name, output in outputs.items() if name in initial}
    held = reference.watch(tuple(kept)) if isinstance(reference, CallableRuntime) else {}
    changed = frozenset(output for name, output in outputs.items() if name not in initial)
    return ProgramState(kept, {**initial, **held}, changed)


class StatefulRuntime:
    """A runtime that is given its state, and returns the next state after its other outputs."""

    def __init__(self, inner: Runtime, state: ProgramState) -> None:
        """Wrap the runtime of the whole model."""
        self.inner = inner
        self.state = state
        self.name = inner.name
        self._specs = inner.inputs or ()
        self.inputs: tuple[ValueSpec, ...] | None = state.without(self._specs)

    def run(self, inputs: InputSet) -> Outputs:
        """Run once from the same state."""
        values = self.inner.run(InputSet(feeds=self.state.bind(inputs, self._specs)))
        order = {name: index for index, name in enumerate(self.state.outputs.values())}
        kept = [output for output in values if output[0] not in self.state.changed]
        return sorted(kept, key=lambda output: order.get(output[0], -1))
