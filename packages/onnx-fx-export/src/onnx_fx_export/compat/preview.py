"""The names of the preview exporter that torch 2.1 to 2.6 had, for code that was written with them.

``dynamo_export`` takes the model's arguments as its own and everything else from :class:`ExportOptions`; its result
is an :class:`~onnx_fx_export.ONNXProgram` with a few methods more.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from onnx_fx_export.api import DEFAULT_OPSET, export
from onnx_fx_export.weights.unallocated import FakeContext
from onnxops_decomp import LoweringTable, builtin_table
from onnxops_decomp.exporting import ONNXProgram, Output, bound_arguments, replaced_file

__all__ = ["ExportOptions", "ExportOutput", "ExportOutputSerializer", "OnnxRegistry", "dynamo_export"]


class OnnxRegistry:
    """The opset of an export and the functions that convert operators.

    Attributes:
        opset_version: Opset of the model, 7 to 28.
    """

    def __init__(self, opset_version: int = DEFAULT_OPSET) -> None:
        self.opset_version = opset_version
        self._own: dict[bool, dict[Any, Callable[..., Any]]] = {False: {}, True: {}}

    def register_op(
        self,
        function: Callable[..., Any],
        namespace: str,
        op_name: str,
        overload: str | None = None,
        is_complex: bool = False,
    ) -> None:
        """Convert an operator by a function of one's own, or of onnxscript.

        Args:
            function: Called as ``function(op, *args, **kwargs)``; a function of onnxscript without ``op``.
            namespace: Such as ``aten``.
            op_name: Such as ``relu``.
            overload: Such as ``Tensor``; by default the overload ``default``.
            is_complex: Whether the function is for complex operands, which it sees as real ones with a further
                dimension of 2, or for real ones.
        """
        self._own[is_complex][_name(namespace, op_name, overload)] = function

    def is_registered_op(self, namespace: str, op_name: str, overload: str | None = None) -> bool:
        """Tell whether an operator can be converted by a function."""
        return bool(self.get_op_functions(namespace, op_name, overload))

    def get_op_functions(
        self, namespace: str, op_name: str, overload: str | None = None
    ) -> list[Callable[..., Any]] | None:
        """Return the functions for an operator, the built-in ones first; None if there are none."""
        name = _name(namespace, op_name, overload)
        builtin = [entry for kind in (False, True) if (entry := builtin_table().find(name, complex=kind)) is not None]
        own = [self._own[kind][name] for kind in (False, True) if name in self._own[kind]]
        return [*dict.fromkeys(entry.function for entry in builtin), *own] or None

    def table(self) -> LoweringTable:
        """Return the built-in table with the functions that were registered."""
        table = builtin_table()
        for is_complex, functions in self._own.items():
            table = table.extended(functions, complex=is_complex)
        return table


def _name(namespace: str, op_name: str, overload: str | None) -> str:
    return f"{namespace}::{op_name}" + (f".{overload}" if overload and overload != "default" else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What :func:`dynamo_export` is told besides the model and its arguments.

    Attributes:
        dynamic_shapes: Whether every dimension that the model allows is dynamic; by default none is.
        fake_context: What :func:`~onnx_fx_export.enable_fake_mode` gave, if the model was made there.
        onnx_registry: Opset and functions of one's own.
    """

    dynamic_shapes: bool | None = None
    fake_context: FakeContext | None = None
    onnx_registry: OnnxRegistry | None = None


class ExportOutputSerializer(Protocol):
    """Writes an exported program in a way of its own."""

    def serialize(self, export_output: ExportOutput, destination: IO[bytes]) -> None:
        """Write the program to an open binary file."""


class ExportOutput(ONNXProgram):
    """An exported program with the methods that the preview exporter's result had.

    Attributes:
        fake_context: Where the model was made if its weights were never allocated.
    """

    fake_context: FakeContext | None = None

    @classmethod
    def of(cls, program: ONNXProgram) -> ExportOutput:
        """Return the same program with these methods."""
        output = cls.__new__(cls)
        vars(output).update(vars(program))
        return output

    def save(
        self,
        destination: str | os.PathLike[str] | IO[bytes],
        *,
        model_state: Mapping[str, torch.Tensor] | str | os.PathLike[str] | None = None,
        serializer: ExportOutputSerializer | None = None,
        **arguments: Any,
    ) -> None:
        """Write the model to a file, whole or not at all.

        Args:
            destination: Path of the file.
            model_state: Weights to apply before, as for :meth:`ONNXProgram.apply_weights`.
            serializer: Writes the file instead.
            arguments: As for :meth:`ONNXProgram.save`.

        Raises:
            SaveError: If the file cannot be written; nothing is left behind.
        """
        if model_state is not None:
            self.apply_weights(model_state)
        if serializer is None:
            super().save(destination, **arguments)
            return
        if not isinstance(destination, str | os.PathLike):
            serializer.serialize(self, destination)
            return
        with replaced_file(Path(destination)) as beside, beside.open("wb") as file:
            serializer.serialize(self, file)

    def adapt_torch_inputs_to_onnx(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the model's inputs, in order, for a call in torch's form."""
        feeds = self.flat_inputs(*args, **kwargs)
        return [feeds[name] for name in self.input_names]

    def adapt_torch_outputs_to_onnx(self, outputs: Any) -> list[torch.Tensor]:
        """Return what the torch model returned as the model's outputs, in order."""
        leaves = pytree.tree_leaves(outputs)
        named = dict(zip(self._interface.outputs, leaves, strict=True))
        return [named[Output(name)] for name in self.output_names if Output(name) in named]


def dynamo_export(
    model: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    *model_args: Any,
    export_options: ExportOptions | None = None,
    **model_kwargs: Any,
) -> ExportOutput:
    """Export a model; its arguments follow as in a call.

    Args:
        model: As for :func:`onnx_fx_export.export`.
        model_args: Positional example arguments.
        export_options: Everything else.
        model_kwargs: Keyword example arguments.

    Raises:
        OnnxExporterError: Some subclass of it, whatever fails.

    Example:
        >>> options = ExportOptions(dynamic_shapes=True, onnx_registry=OnnxRegistry(18))
        >>> output = dynamo_export(torch.nn.ReLU(), torch.ones(2, 3), export_options=options)
        >>> output(-torch.ones(5, 4)).sum()
        tensor(0.)
    """
    options = export_options or ExportOptions()
    registry = options.onnx_registry or OnnxRegistry()
    program = export(
        model,
        model_args,
        kwargs=model_kwargs,
        opset_version=registry.opset_version,
        custom_translation_table=registry.table(),
        dynamic_shapes=_every_dimension(model, model_args, model_kwargs) if options.dynamic_shapes else None,
    )
    output = ExportOutput.of(program)
    output.fake_context = options.fake_context
    return output


def _every_dimension(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    forward = model.forward if isinstance(model, torch.nn.Module) else model
    arguments = bound_arguments(forward, args, kwargs)
    return {name: pytree.tree_map(_dimensions, value) for name, value in arguments.items()}


def _dimensions(leaf: Any) -> dict[int, Any] | None:
    return dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, torch.Tensor) else None
