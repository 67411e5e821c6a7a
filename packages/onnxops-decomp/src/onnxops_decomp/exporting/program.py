"""The result of an export, whichever exporter made it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import onnx
import onnx_ir as ir
import torch

from onnxops_core.errors import OnnxExporterError
from onnxops_decomp.exporting.constraints import SizeConstraints
from onnxops_decomp.exporting.dimensions import rename_dimensions
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.finish import finish
from onnxops_decomp.exporting.finish.functions import inline_functions
from onnxops_decomp.exporting.finish.weights import restore_duplicates
from onnxops_decomp.exporting.interface import Interface
from onnxops_decomp.exporting.running import Session, run_proto, run_reference
from onnxops_decomp.exporting.saving import check_data, save_model
from onnxops_decomp.exporting.verification import verify_program
from onnxops_decomp.exporting.weight_loading import apply_weights, load_state_dict

__all__ = ["ONNXProgram"]


class ONNXProgram:
    """An exported model that can be saved, run and verified.

    Attributes:
        model: The model as onnx_ir sees it; its weights are views of the torch tensors.
        exported_program: What torch.export captured, or None once released.
        lowered_program: What the nodes' metadata refers to: the captured program, functionalized where that was
            needed; None once released.
        initial_state: First value of each state input (see ``state="io"`` of :func:`onnx_fx_export.export`).
        state: Name of the output that holds the next value of each state input.
        constraints: Sizes that the model is right for; calls outside them are refused.
        timings: Seconds spent in each stage of the export.
    """

    def __init__(
        self,
        model: ir.Model,
        interface: Interface,
        *,
        state: Mapping[str, str] | None = None,
        initial_state: Mapping[str, torch.Tensor] | None = None,
        constraints: SizeConstraints | None = None,
        exported_program: torch.export.ExportedProgram | None = None,
        lowered_program: torch.export.ExportedProgram | None = None,
        target: str | None = None,
    ) -> None:
        self.model = model
        self.exported_program = exported_program
        self.initial_state = dict(initial_state or {})
        self.state = dict(state or {})
        self.constraints = constraints or SizeConstraints(())
        self.timings: dict[str, float] = {}
        self.lowered_program = lowered_program
        self._interface = interface
        self._target = target
        self._session: Session | None = None

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message; this copies the weights, which have to have contents."""
        check_data(self.model)
        return ir.to_proto(self.model)

    @property
    def input_names(self) -> list[str]:
        """Names of the model's inputs, in order."""
        return [str(value.name) for value in self.model.graph.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs, in order."""
        return [str(value.name) for value in self.model.graph.outputs]

    def __repr__(self) -> str:
        graph = self.model.graph
        return (
            f"ONNXProgram(opset {graph.opset_imports['']}, {len(graph)} nodes, "
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
        finish(self.model, self._target)
        self._session = None

    def inline_functions(self) -> None:
        """Replace the calls of functions by what the functions compute, and drop the functions.

        The finishing passes run again, as they see more then. The module paths of nodes are complete afterwards.
        """
        restore_duplicates(self.model)
        inline_functions(self.model)
        finish(self.model, self._target)
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
            args: What the torch model takes.
            kwargs: What the torch model takes by keyword. Each parameter may be given by position or by keyword, as
                in torch, whichever way the example gave it.

        Returns:
            What the torch model returns, in the same structure. With ``state="io"``, state inputs start from
            :attr:`initial_state`, and :attr:`initial_state` is left as it is: use :meth:`run` to carry state along.

        Raises:
            InvalidArgumentError: If the arguments have another structure than the exported ones.
        """
        return self.structured(self.run(self.flat_inputs(*args, **kwargs)))

    def structured(self, outputs: Mapping[str, torch.Tensor]) -> Any:
        """Return named outputs in the structure that the torch model returns."""
        return self._interface.structured(outputs)

    def flat_inputs(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the model's inputs by name for a call in torch's form; state inputs get their initial values."""
        return {**self._interface.feeds(self._user_inputs(), args, kwargs), **self.initial_state}

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
        return self._interface.call_with(self._user_inputs(), inputs, args, kwargs)

    def _user_inputs(self) -> list[str]:
        return [name for name in self.input_names if name not in self.initial_state]

    def run(self, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Run the model on named inputs and return its outputs by name, state outputs included.

        Raises:
            InvalidArgumentError: If the sizes are none that the model is right for, or the dtypes others.
        """
        self.check_sizes(inputs)
        if self._session is None:
            self.initialize_inference_session()
        assert self._session is not None
        values = self._session.run(self.model.graph.inputs, inputs)
        return self._with_complex(dict(zip(self.output_names, values, strict=True)))

    def _with_complex(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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

        Raises:
            VerificationError: If an output differs.
            InvalidArgumentError: If the sizes are none that the model is right for.
            OnnxExporterError: If onnx-verify is not installed, or the captured program was released.
        """
        if self.exported_program is None:
            raise OnnxExporterError("The captured program was released; there is nothing to compare with.")
        self.check_sizes(self.flat_inputs(*args, **kwargs))
        verify_program(self, self.exported_program.module(), *self.call_with({}, args, kwargs))

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
        return self.structured(self._with_complex(outputs))

    def release(self) -> None:
        """Give the session and the captured program back to memory."""
        self._session = None
        self.exported_program = self.lowered_program = None
