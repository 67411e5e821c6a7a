"""Compares an exported program with PyTorch through onnx-verify, which is loaded only here."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import OnnxExporterError, VerificationError

if TYPE_CHECKING:
    from onnx_fx_export.program import ONNXProgram

__all__ = ["verify_program"]


def verify_program(
    program: ONNXProgram, exported: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Run both on the example arguments and compare every output.

    Raises:
        VerificationError: If they disagree; the message says where.
        OnnxExporterError: If onnx-verify is not installed.
    """
    try:
        import onnx_verify
    except ImportError as error:
        raise OnnxExporterError("verify=True needs onnx-verify: pip install onnx-fx-export[verify].") from error
    example = copy.deepcopy((args, kwargs))

    def reference(*_: Any) -> list[torch.Tensor]:
        call_args, call_kwargs = copy.deepcopy(example)
        with torch.no_grad():
            return _tensors(exported.module()(*call_args, **call_kwargs))

    def candidate(*_: Any) -> list[torch.Tensor]:
        return _tensors(program(*example[0], **example[1]))

    verdict = onnx_verify.compare(reference, candidate, [tuple(_tensors(example))])
    if not verdict:
        raise VerificationError(f"The exported model does not agree with PyTorch:\n{verdict}")


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in leaves]
