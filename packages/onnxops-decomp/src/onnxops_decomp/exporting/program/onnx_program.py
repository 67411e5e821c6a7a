"""The result of an export, whichever exporter made it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Literal

import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.calls.interface import Interface
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.finish import finish_model
from onnxops_decomp.exporting.finish.functions import inline_functions
from onnxops_decomp.exporting.finish.weights import restore_duplicates
from onnxops_decomp.exporting.program.running import Session, run_proto, run_reference
from onnxops_decomp.exporting.program.saving import check_data, save_model
from onnxops_decomp.exporting.program.verification import Reference, Verified, verify_program
from onnxops_decomp.exporting.sizes.constraints import SizeConstraints
from onnxops_decomp.exporting.sizes.dimensions import rename_dimensions
from onnxops_decomp.exporting.weights.loading import apply_weights, load_state_dict

__all__ = ["ONNXProgram"]


class ONNXProgram:
    """An exported model that can be saved, run and verified.

    Attributes:
        model: The model as onnx_ir sees it; its weights are views of the torch tensors.
        exported_program: What torch.export captured, or None once released.
        lowered_program: What the nodes' metadata refers to: the captured program, functionalized where that was
            needed; None once released.
        initial_state: First value of each state input (see ``state="io"`` of the exporters).
        state: For each state input, and each input that the model changes in place, the name of the output that holds
            its next value: ``<name>.next``. These outputs come last, in the order of the inputs.
        written_inputs: Names of the user inputs that the torch model changes in place.
        answer: What a call returns: ``"structure"`` for the structure in which the torch model returns it, without
            the state; ``"list"`` or ``"tuple"`` for all outputs in order.
        constraints: Sizes that the model is right for; calls outside them are refused.
        timings: Seconds spent in each stage of the export.
        verified: What the export compared with PyTorch (see ``verify=True``).
    """

    answer: Literal["structure", "list", "tuple"] = "structure"

    def __init__(
        self,
        model: ir.Model,
        interface: Interface,
        *,
        state: Mapping[str, str] | None = None,
        initial_state: Mapping[str, torch.Tensor] | None = None,
        constraints: SizeConstraints | None = None,
        reference: Callable[[], Reference] | None = None,
        exported_program: torch.export.ExportedProgram | None = None,
        lowered_program: torch.export.ExportedProgram | None = None,
        target: str | None = None,
        written_inputs: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.written_inputs = tuple(written_inputs)
        self.exported_program = exported_program
        self.initial_state = dict(initial_state or {})
        self.state = dict(state or {})
        self.constraints = constraints or SizeConstraints(())
        self.timings: dict[str, float] = {}
        self.verified: Sequence[Verified] = ()
        self.lowered_program = lowered_program
        self._interface, self._reference = interface, reference
        self._target = target
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

    @property
    def state_outputs(self) -> dict[str, str]:
        """The same as :attr:`state`."""
        return self.state

    def __repr__(self) -> str:
        graph = self.model.graph
        return (
            f"{type(self).__name__}(opset {graph.opset_imports['']}, {len(graph)} nodes, "
            f"inputs {self.input_names}, outputs {self.output_names})"
        )

    def save(
        self,
        destination: str | os.PathLike[str] | IO[bytes],
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: bool | None = None,
    ) -> None:
        """Write the model to a file, whole or not at all.

        Args:
            destination: Path of the file, or an open binary file, which takes a model without external data.
            include_initializers: Whether the weights are written; without them the model is a skeleton.
            keep_initializers_as_inputs: Whether weights are listed as inputs too, as IR version 3 wanted it.
            external_data: Whether weights go to ``<destination>.data``; by default above 1 GiB.

        Raises:
            SaveError: If the file cannot be written; nothing is left behind.
        """
        save_model(
            self.model,
            destination,
            include_initializers=include_initializers,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
            external_data=external_data,
        )

    # ---- changing the model

    def optimize(self) -> None:
        """Run the finishing passes again, after a change of the model; an export has run them already."""
        finish_model(self.model, self._target)
        self._session = None

    def inline_functions(self) -> None:
        """Replace the calls of functions by what the functions compute, and drop the functions.

        The finishing passes run again, as they see more then. The module paths of nodes are complete afterwards.
        """
        restore_duplicates(self.model)
        inline_functions(self.model)
        finish_model(self.model, self._target)
        self._session = None

    def rename_axes(self, rename_mapping: Mapping[str | ir.SymbolicDim, str]) -> None:
        """Call symbolic dimensions otherwise.

        Args:
            rename_mapping: New name of each dimension. A dimension that is an expression is renamed inside.

        Raises:
            InvalidArgumentError: If a name is no dimension of the model, or a new one is no identifier.
        """
        names = {str(old.value if isinstance(old, ir.SymbolicDim) else old): new for old, new in rename_mapping.items()}
        rename_dimensions(self.model, names)
        self.constraints = self.constraints.renamed(names)
        self.constraints.record(self.model)
        self._session = None

    def apply_weights(self, weights: Mapping[str, torch.Tensor] | str | os.PathLike[str]) -> list[str]:
        """Replace weights by tensors of the same names, without a copy.

        Args:
            weights: A state dict, or the path of a checkpoint or ``.safetensors`` file.

        Returns:
            Names that the model has no weight for.

        Raises:
            InvalidArgumentError: If a tensor does not fit; then none is replaced.
        """
        self._session = None
        return apply_weights(self.model, load_state_dict(weights))

    # ---- running

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
                in torch, whichever way the example gave it. What is no parameter may be an input of the model by its
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
                raise InvalidArgumentError(f"The input {min(clash)} is given by its argument as well.")
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
        return {name: torch.view_as_complex(value) if name in pairs else value for name, value in outputs.items()}

    def check_sizes(self, inputs: Mapping[str, Any]) -> None:
        """Tell whether the model is right for inputs of such sizes.

        Raises:
            InvalidArgumentError: If it is not.
        """
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        shapes = {name: (*t.shape, 2) if t.is_complex() else tuple(t.shape) for name, t in tensors.items()}
        numbers = {symbol: inputs[name] for name, symbol in self._interface.numbers.items() if name in inputs}
        self.constraints.check(self.model.graph, shapes, {s: int(n) for s, n in numbers.items() if type(n) is int})

    def verify(self, *args: Any, **kwargs: Any) -> None:
        """Compare with PyTorch on the given arguments, or on others than those of the export.

        What the FX exporter captured is held until :meth:`release`, and so is the model that TorchScript exported: it
        is run in the mode of the export, from the state that it had then, and as a copy if it has any.

        Raises:
            VerificationError: If an output differs.
            InvalidArgumentError: If the sizes are none that the model is right for.
            OnnxExporterError: If onnx-verify is not installed, or the original was released.
        """
        if self._reference is None:
            raise OnnxExporterError("The original was released; there is nothing to compare with.")
        feeds = self.flat_inputs(*args, **kwargs)
        if given := [name for name, value in self.initial_state.items() if feeds[name] is not value]:
            raise InvalidArgumentError(f"The comparison starts from the state of the export: leave out {given}.")
        self.check_sizes(feeds)
        verify_program(self, self._reference(), *self.call_with({}, args, kwargs))

    def compute_values(
        self, value_names: Sequence[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[torch.Tensor]:
        """Run the model and return values inside it, in the order of their names.

        Args:
            value_names: Names of values of the main graph, of inputs and outputs too.
            args: Positional arguments of the model.
            kwargs: Keyword arguments of the model.

        Raises:
            InvalidArgumentError: If the main graph has no value of a name, or the sizes are none that the model is
                right for.
        """
        proto = self.model_proto
        values = {**{i.name: i for i in proto.graph.input}, **{o.name: o for o in proto.graph.output}}
        values.update({name: onnx.ValueInfoProto(name=name) for node in proto.graph.node for name in node.output})
        for name in value_names:
            if name not in values:
                raise InvalidArgumentError(f"The model has no value {name!r}.")
        feeds = self.flat_inputs(*args, **(kwargs or {}))
        self.check_sizes(feeds)
        inputs = {name: feeds[name] for name in value_names if name in feeds}
        inside = list(dict.fromkeys(name for name in value_names if name not in feeds))
        del proto.graph.output[:]
        proto.graph.output.extend(values[name] for name in inside)
        found = dict(inputs)
        if inside:
            found.update(zip(inside, run_proto(proto, feeds), strict=True))
        return [found[name] for name in value_names]

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

    def release(self) -> None:
        """Give the session and the original back to memory: the captured program, or the user's model."""
        self._session = self._reference = None
        self.exported_program = self.lowered_program = None
