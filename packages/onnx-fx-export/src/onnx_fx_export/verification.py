"""Compares an exported program with PyTorch through onnx-verify, which is loaded only here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import OnnxExporterError, VerificationError

if TYPE_CHECKING:
    from onnx_fx_export.program import ONNXProgram

__all__ = ["verify_program"]


def verify_program(
    program: ONNXProgram,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Run both on the example arguments and compare every output, and the buffers that the model changes.

    Args:
        program: The exported program.
        model: What was exported, so that a mistake of the capture shows as well.
        args: Positional arguments; they are not changed.
        kwargs: Keyword arguments; they are not changed.

    Raises:
        VerificationError: If they disagree; the message says where.
        OnnxExporterError: If onnx-verify is not installed.
    """
    try:
        import onnx_verify
    except ImportError as error:
        raise OnnxExporterError("verify=True needs onnx-verify: pip install onnx-fx-export[verify].") from error
    example = copy.deepcopy((args, kwargs))
    buffers = list(program.initial_state)

    def reference(*_: Any) -> list[torch.Tensor]:
        call_args, call_kwargs = copy.deepcopy(example)
        # A model with state is run as a copy: the user's own stays where it is.
        own: Any = copy.deepcopy(model) if buffers else model
        with torch.no_grad():
            outputs = own(*call_args, **call_kwargs)
        return _tensors([outputs, [dict(own.named_buffers(remove_duplicate=False))[name] for name in buffers]])

    def candidate(*_: Any) -> list[torch.Tensor]:
        outputs = program.run(program.flat_inputs(*example[0], **example[1]))
        return _tensors([program.structured(outputs), [outputs[program.state[name]] for name in buffers]])

    verdict = onnx_verify.compare(reference, candidate, [tuple(_tensors(example))])
    if not verdict:
        raise VerificationError(f"The exported model does not agree with PyTorch:\n{verdict}")


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in leaves]
