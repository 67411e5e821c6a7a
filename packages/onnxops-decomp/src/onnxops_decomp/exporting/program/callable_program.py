"""An exported model that runs: what a call of it takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.calls.interface import Interface
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.program.running import Session, run_reference
from onnxops_decomp.exporting.program.saving import check_data
from onnxops_decomp.exporting.sizes.constraints import SizeConstraints

__all__ = ["CallableProgram"]


class CallableProgram:
    """The part of an exported program that runs it.

    Attributes:
        model: The model as onnx_ir sees it.
        initial_state: First value of each state input.
        state: For each input that has a next value, the name of the output that holds it.
        answer: What a call returns: ``"structure"``, ``"list"`` or ``"tuple"``.
        constraints: Sizes that the model is right for; calls outside them are refused.
    """

    answer: Literal["structure", "list", "tuple"] = "structure"

    def __init__(
        self,
        model: ir.Model,
        interface: Interface,
        state: Mapping[str, str] | None,
        initial_state: Mapping[str, torch.Tensor] | None,
        constraints: SizeConstraints | None,
    ) -> None:
        self.model = model
        self.initial_state = dict(initial_state or {})
        self.state = dict(state or {})
        self.constraints = constraints or SizeConstraints(())
        self._interface = interface
        self._session: Session | None = None

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message; this copies the weights, which have to have contents."""
        check_data(self.model)
        return ir.to_proto(self.model)

    @property
    def input_names(self) -> list[str]:
        """Names of the model's inputs, in order: those of the state last, and no weights."""
        return [str(v.name) for v in self.model.graph.inputs if v.name not in self.model.graph.initializers]

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs, in order: those of the state last."""
        return [str(value.name) for value in self.model.graph.outputs]

    def __repr__(self) -> str:
        graph = self.model.graph
        return (
            f"{type(self).__name__}(opset {graph.opset_imports['']}, {len(graph)} nodes, "
            f"inputs {self.input_names}, outputs {self.output_names})"
        )

    def initialize_inference_session(
        self, initializer: Callable[[str | bytes], Any] | None = None, **session_arguments: Any
    ) -> None:
        """Create the ONNX Runtime session that calls use.

        Args:
            initializer: Makes the session from the model's bytes, or from its path if its weights exceed 1 GiB; by
                default ``onnxruntime.InferenceSession`` on the CPU.
            session_arguments: Passed on to it.

        Raises:
            MissingRuntimeError: If ONNX Runtime is not installed.
            RuntimeSupportError: If it has no kernel for some node.
        """
        self._session = Session(self.model, initializer, session_arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model in ONNX Runtime.

        Args:
            args: What the torch model takes. Unless :attr:`answer` is ``"structure"``, the inputs of the model in
                order will do as well, those of the state included.
            kwargs: What the torch model takes by keyword. Each parameter may be given by position or by keyword, as
                in torch, whichever way the example gave it. What is not a parameter may be an input of the model by its
                name: state, or all inputs.

        Returns:
            What :attr:`answer` says. State inputs that the call leaves out start from :attr:`initial_state`, which is
            left as it is.

        Raises:
            InvalidArgumentError: If the arguments have another structure than the exported ones.
        """
        return self._answered(self.run(self.flat_inputs(*args, **kwargs)))

    def _answered(self, outputs: Mapping[str, Any]) -> Any:
        """Return named outputs in the form of a call's answer."""
        if self.answer == "structure":
            return self.structured(outputs)
        values = [outputs[name] for name in self.output_names]
        return values if self.answer == "list" else tuple(values)

    def structured(self, outputs: Mapping[str, Any]) -> Any:
        """Return named outputs in the structure that the torch model returns."""
        return self._interface.structured(outputs)

    def flat_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the model's inputs by name for a call, as the program itself takes it.

        Raises:
            InvalidArgumentError: If the arguments have another structure than the exported ones.
        """
        user, structure = self._user_inputs(), self._interface.structure
        own = structure.keywords()
        named = {name: value for name, value in kwargs.items() if name in self.input_names and name not in own}
        rest = {name: value for name, value in kwargs.items() if name not in named}
        try:
            leaves = structure.leaves(args, rest)
            if clash := named.keys() & set(user):
                raise InvalidArgumentError(f"The input {min(clash)} is also given as an argument.")
        except InvalidArgumentError:
            feeds = self._by_input(args, kwargs)
            if feeds is None:
                raise
            return {**self.initial_state, **feeds}
        return {**self._interface.feeds(user, leaves), **self.initial_state, **named}

    def _by_input(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a call gives for inputs of the model, by name or in their order; None for another call."""
        names = self.input_names
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        leaves = all(value is not None and pytree.tree_structure(value).is_leaf() for value in given.values())
        fits = set(self._user_inputs()) <= given.keys() <= set(names) and len(given) == len(args) + len(kwargs)
        return given if leaves and fits and not (args and self.answer == "structure") else None

    def call_with(
        self, inputs: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of a call in which some inputs of the model are others.

        Args:
            inputs: The new values by input name.
            args: Positional arguments of the call that is changed.
            kwargs: Its keyword arguments.

        Raises:
            InvalidArgumentError: If the call has another structure than the exported one.
        """
        return self._interface.call(self._user_inputs(), {**self.flat_inputs(*args, **kwargs), **inputs})

    def _user_inputs(self) -> list[str]:
        names = [name for name in self.input_names if name not in self.initial_state]
        return names[: len(self._interface.input_positions)]  # weights may follow

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model on named inputs and return its outputs by name, state outputs included.

        Args:
            inputs: Inputs by name; those of the state may be left out.

        Returns:
            Tensors; a list of them for an output that is a sequence, None for an optional one that is absent.

        Raises:
            InvalidArgumentError: If the sizes are none that the model is right for, the dtypes others, or inputs are
                missing or unknown.
        """
        inputs = {**self.initial_state, **inputs}
        known = {*self.input_names, *(str(value.name) for value in self.model.graph.inputs)}
        if wrong := (inputs.keys() - known) | (set(self.input_names) - inputs.keys()):
            raise InvalidArgumentError(f"The model takes the inputs {self.input_names}; check {sorted(wrong)}.")
        self.check_sizes(inputs)
        if self._session is None:
            self.initialize_inference_session()
        assert self._session is not None
        values = self._session.run(self.model.graph.inputs, inputs)
        return self._with_complex(dict(zip(self.output_names, values, strict=True)))

    def _with_complex(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs with those complex that hold pairs."""
        pairs = self._interface.complex_outputs
        return {name: _as_complex(value) if name in pairs else value for name, value in outputs.items()}

    def check_sizes(self, inputs: Mapping[str, Any]) -> None:
        """Tell whether the model is right for inputs of such sizes.

        Raises:
            InvalidArgumentError: If it is not.
        """
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        shapes = {name: (*t.shape, 2) if t.is_complex() else tuple(t.shape) for name, t in tensors.items()}
        numbers = {symbol: inputs[name] for name, symbol in self._interface.numbers.items() if name in inputs}
        self.constraints.check(self.model.graph, shapes, {s: int(n) for s, n in numbers.items() if type(n) is int})

    def call_reference(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model by ONNX's own evaluator instead of ONNX Runtime: slow, and independent of it.

        Args:
            args: What the torch model takes.
            kwargs: What the torch model takes by keyword.

        Returns:
            What a call of the program returns.

        Raises:
            InvalidArgumentError: If the arguments do not fit the exported ones.
        """
        feeds = self.flat_inputs(*args, **kwargs)
        self.check_sizes(feeds)
        outputs = dict(zip(self.output_names, run_reference(self.model_proto, feeds), strict=True))
        return self._answered(self._with_complex(outputs))


def _as_complex(pairs: torch.Tensor) -> torch.Tensor:
    # A tensor of no elements may come with strides that are no pairs'.
    return torch.view_as_complex(pairs if pairs.numel() else pairs.new_empty(pairs.shape))
