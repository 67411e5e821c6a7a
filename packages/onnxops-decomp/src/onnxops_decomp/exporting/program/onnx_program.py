"""The result of an export, whichever exporter made it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import onnx
import onnx_ir as ir
import torch

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.calls.interface import Interface
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.finish import finish_model
from onnxops_decomp.exporting.finish.functions import inline_functions
from onnxops_decomp.exporting.finish.weights import restore_duplicates
from onnxops_decomp.exporting.program.callable_program import CallableProgram
from onnxops_decomp.exporting.program.running import run_proto
from onnxops_decomp.exporting.program.saving import Saving, save_model
from onnxops_decomp.exporting.program.verification import Reference, Verified, verify_program
from onnxops_decomp.exporting.sizes.constraints import SizeConstraints
from onnxops_decomp.exporting.sizes.dimensions import rename_dimensions
from onnxops_decomp.exporting.weights.checkpoints import load_state_dict
from onnxops_decomp.exporting.weights.loading import apply_weights

__all__ = ["ONNXProgram"]


class ONNXProgram(CallableProgram):
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
        saving: How :meth:`save` writes files unless it is told otherwise: what the export was asked with
            ``export_params``, ``keep_initializers_as_inputs`` and ``external_data``. The model itself has its weights.
        folds_weights: Whether :meth:`optimize` may compute other weights from those of the torch model.
        timings: Seconds spent in each stage of the export.
        capture_strategy: The name of the strategy that captured the torch model (see ``strategy`` of
            ``onnx_fx_export.export``); None where TorchScript did, or the program came captured.
        verified: What the export compared with PyTorch (see ``verify=True``).
    """

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
        super().__init__(model, interface, state, initial_state, constraints)
        self.written_inputs = tuple(written_inputs)
        self.exported_program = exported_program
        self.saving, self.folds_weights = Saving(), True
        self.timings: dict[str, float] = {}
        self.capture_strategy: str | None = None
        self.verified: Sequence[Verified] = ()
        self.lowered_program = lowered_program
        self._reference, self._target = reference, target

    @property
    def state_outputs(self) -> dict[str, str]:
        """The same as :attr:`state`."""
        return self.state

    def save(
        self,
        destination: str | os.PathLike[str] | IO[bytes],
        *,
        include_initializers: bool | None = None,
        keep_initializers_as_inputs: bool | None = None,
        external_data: bool | None = None,
    ) -> None:
        """Write the model to a file, whole or not at all.

        What is left out is as the export was asked (see :attr:`saving`), also by one that wrote no file.

        Args:
            destination: Path of the file, or an open binary file, which takes a model without external data.
            include_initializers: Whether the weights are written; without them the model is a skeleton.
            keep_initializers_as_inputs: Whether weights are listed as inputs too, as IR version 3 wanted it.
            external_data: Whether weights go to ``<destination>.data``; by default above 1 GiB.

        Raises:
            SaveError: If the file cannot be written; nothing is left behind.
        """
        how = self.saving.with_given(
            include_initializers=include_initializers,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
            external_data=external_data,
        )
        save_model(self.model, destination, how)

    # ---- changing the model

    def optimize(self) -> None:
        """Run the finishing passes again, after a change of the model; an export has run them already."""
        finish_model(self.model, self._target, folds_weights=self.folds_weights)
        self._session = None

    def inline_functions(self) -> None:
        """Replace the calls of functions by what the functions compute, and drop the functions.

        The finishing passes run again, as they see more then. The module paths of nodes are complete afterwards.
        """
        restore_duplicates(self.model)
        inline_functions(self.model)
        finish_model(self.model, self._target, folds_weights=self.folds_weights)
        self._session = None

    def rename_axes(self, rename_mapping: Mapping[str | ir.SymbolicDim, str]) -> None:
        """Call symbolic dimensions otherwise.

        Args:
            rename_mapping: New name of each dimension. A dimension that is an expression is renamed inside.

        Raises:
            InvalidArgumentError: If a name is not a dimension of the model, or a new one is not an identifier.
        """
        names = {str(old.value if isinstance(old, ir.SymbolicDim) else old): new for old, new in rename_mapping.items()}
        rename_dimensions(self.model, names)
        self.constraints = self.constraints.renamed(names)
        self.constraints.record(self.model)
        self._session = None

    def apply_weights(
        self, weights: Mapping[str, torch.Tensor] | str | os.PathLike[str], *, cast: bool = False
    ) -> list[str]:
        """Replace weights by tensors of the same names, without a copy.

        Files are mapped: a weight is read when the model is saved or run, and saving holds no more than a part of one
        at a time, so that a model may be larger than memory.

        Args:
            weights: A state dict, or the path of a checkpoint: a ``.safetensors`` file, a file of ``torch.save``, or a
                folder of such files with their index.
            cast: Whether weights of another floating dtype are converted while they are read; otherwise they are
                refused.

        Returns:
            Names that the model has no weight for.

        Raises:
            InvalidArgumentError: If a tensor does not fit; then none is replaced.
        """
        self._session = None
        return apply_weights(self.model, load_state_dict(weights), cast=cast)

    # ---- comparing with PyTorch

    def verify(self, *args: Any, **kwargs: Any) -> None:
        """Compare with PyTorch on the given arguments, or on others than those of the export.

        The model that was exported is held until :meth:`release`. It is run in the mode, under the autocast and from
        the state that the export found, and has afterwards what it had before. Weights that were changed in place
        since the export show as a difference.

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

    def release(self) -> None:
        """Give the session, the model that was exported and what was captured of it back to memory."""
        self._session = self._reference = None
        self.exported_program = self.lowered_program = None
