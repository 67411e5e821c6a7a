"""Compares an exported program with PyTorch through onnx-verify, which is loaded only here."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from onnxops_core.errors import OnnxExporterError
from onnxops_core.export_state import unfused_layers
from onnxops_decomp.exporting.errors import VerificationError
from onnxops_decomp.exporting.other_sizes import Example, other_sizes

if TYPE_CHECKING:
    from onnxops_decomp.exporting.program import ONNXProgram

__all__ = ["Verified", "verify_program"]


@dataclasses.dataclass(frozen=True)
class Verified:
    """A comparison that found no difference.

    Attributes:
        sizes: Sizes of the dynamic dimensions, or "the example".
        outputs: How many outputs were compared.
        max_abs: Largest absolute difference.
    """

    sizes: str
    outputs: int
    max_abs: float


def verify_program(
    program: ONNXProgram,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    smallest_size: int | None = None,
) -> list[Verified]:
    """Run both on the example arguments and compare every output, and the buffers that the model changes.

    Args:
        program: The exported program.
        model: What was exported, so that a mistake of the capture shows as well.
        args: Positional arguments; they are not changed.
        kwargs: Keyword arguments; they are not changed.
        smallest_size: If given, both also run at larger sizes of the dynamic dimensions and at this one, unless the
            model itself fails there, of which a warning tells.

    Returns:
        What was compared: the example first.

    Raises:
        VerificationError: If they disagree; the message says where.
        OnnxExporterError: If onnx-verify is not installed.
    """
    example = copy.deepcopy((args, kwargs))
    verified = [_compare(program, example, _run_model(program, model, example), "")]
    if smallest_size is None:
        return verified
    for group in other_sizes(program, *example, smallest_size):
        refusals = []
        for sizes, call in group:
            where = " at " + ", ".join(f"{name} = {size}" for name, size in sizes.items())
            try:
                expected = _run_model(program, model, call)
            except Exception as error:  # whatever a model raises at sizes that it is not made for
                refusals.append(f"{where} ({type(error).__name__}: {error})")
                continue
            verified.append(_compare(program, call, expected, where))
            break
        else:
            if refusals:
                warnings.warn(f"Not verified{';'.join(refusals)}: the model itself fails there.", stacklevel=3)
    return verified


def _run_model(program: ONNXProgram, model: Callable[..., Any], call: Example) -> list[torch.Tensor]:
    """Return what the model gives, and the buffers that it changes."""
    buffers = list(program.initial_state)
    args, kwargs = copy.deepcopy(call)
    # A model with state is run as a copy: the user's own stays where it is.
    own: Any = copy.deepcopy(model) if buffers else model
    with torch.no_grad(), unfused_layers():
        outputs = own(*args, **kwargs)
    return _tensors([outputs, [dict(own.named_buffers(remove_duplicate=False))[name] for name in buffers]])


def _compare(program: ONNXProgram, call: Example, expected: list[torch.Tensor], where: str) -> Verified:
    try:
        import onnx_verify
    except ImportError as error:
        raise OnnxExporterError("Verifying needs onnx-verify: pip install onnx-verify[torch].") from error

    try:
        outputs = program.run(program.flat_inputs(*call[0], **call[1]))
    except Exception as error:  # ONNX Runtime's errors have no common base but this
        raise VerificationError(f"ONNX Runtime cannot run the exported model{where}: {error}") from error
    actual = _tensors([program.structured(outputs), [outputs[program.state[name]] for name in program.initial_state]])
    verdict = onnx_verify.compare(lambda *_: expected, lambda *_: actual, [tuple(_tensors(call))])
    if not verdict:
        _, _, differences = str(verdict).partition("\n")
        raise VerificationError(f"The exported model does not agree with PyTorch{where}:\n{differences}")
    errors = [output.metrics.max_abs for case in verdict.cases for output in case.outputs if output.metrics is not None]
    return Verified(where.removeprefix(" at ") or "the example", len(actual), max(errors, default=0.0))


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in leaves]
