"""The function that users call, with the signature that they know."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal

import torch

from onnx_ts_legacy.capture import Captured, capture
from onnx_ts_legacy.errors import ArgumentsError, VerificationError
from onnx_ts_legacy.exporter import Options, convert
from onnx_ts_legacy.program import TSProgram

__all__ = ["export"]

DEFAULT_OPSET = 17


def export(
    model: Any,
    args: Any,
    f: str | os.PathLike[str] | IO[bytes] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
    state: Literal["error", "io"] = "error",
    verify: bool = False,
) -> TSProgram:
    """Export a model through TorchScript.

    Args:
        model: A scripted or traced program, which is taken as it is, or a module or function, which is traced.
        args: Example arguments.
        f: Where to save the model; None to keep it in memory only.
        kwargs: Keyword arguments.
        input_names: Names of the tensor inputs, in order.
        output_names: Names of the outputs, in order.
        opset_version: Opset to write, 7 to 28; 17 if left out.
        dynamic_axes: For inputs by name, the axes whose size may change, with or without names for them. One name is
            one size.
        state: What to do if the model changes its attributes or inputs: ``"error"``, or ``"io"`` to make the state
            inputs and outputs of the model.
        verify: Whether to compare the model with the original on the example inputs; needs ``onnx-verify``.

    Raises:
        OnnxExporterError: If the export fails; nothing is written then.
    """
    if state not in ("error", "io"):
        raise ArgumentsError(f"state is 'error' or 'io', got {state!r}.")
    captured = capture(model, args, kwargs)
    options = Options(
        opset_version or DEFAULT_OPSET,
        tuple(input_names or ()),
        tuple(output_names or ()),
        dict(dynamic_axes or {}),
        state,
    )
    with torch.no_grad():
        program = convert(captured, options)
    if verify:
        _verify(captured, model, program)
    if f is not None:
        program.save(f)
    return program


def _verify(captured: Captured, model: Any, program: TSProgram) -> None:
    """Compare with a copy of the model, so that the state of the user's own stays as it is.

    Raises:
        VerificationError: If they disagree.
    """
    from onnx_verify import compare

    reference = copy.deepcopy(model) if program.state_outputs else model
    count = len(program.output_names) - len(program.state_outputs)
    verdict = compare(
        lambda *tensors: captured.reference(reference, *(torch.as_tensor(tensor) for tensor in tensors)),
        lambda *tensors: program(*tensors)[:count],
        tuple(captured.tensors()),
    )
    if not verdict:
        raise VerificationError(f"The exported model does not compute what the original does.\n{verdict}")
