"""From a model and its example arguments to an ExportedProgram."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import onnxops_decomp
from onnx_fx_export import dynamic_shapes as shapes
from onnx_fx_export.autograd_function import SymbolicFunctionCall, recorded_calls
from onnx_fx_export.block_expansion import NotRepeatableError, expand
from onnx_fx_export.containers import register_containers
from onnx_fx_export.errors import CaptureError, DynamicShapeError, InvalidArgumentError
from onnx_fx_export.regions import ModuleClasses
from onnx_fx_export.repeated_blocks import RepeatedBlocks
from onnx_fx_export.torch_private import dynamic_associative_scan
from onnxops_core.export_state import onnx_export
from onnxops_decomp.whole_calls import WholeCalls, restore

__all__ = ["CaptureRequest", "capture"]


@dataclasses.dataclass(frozen=True)
class CaptureRequest:
    """What is to be captured.

    Attributes:
        model: The module.
        args: Positional example arguments.
        kwargs: Keyword example arguments.
        arguments: Both, by parameter name.
        dynamic_shapes: Declared dynamic dimensions by parameter name, or None.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: Mapping[str, Any]
    dynamic_shapes: Mapping[str, Any] | None

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        *,
        dynamic_shapes: Any,
        dynamic_axes: Any,
        input_names: Sequence[str] | None,
    ) -> CaptureRequest:
        """Check the example arguments and bring the declared dimensions to one form.

        Raises:
            InvalidArgumentError: If the arguments do not fit the model or the declarations contradict each other.
        """
        if dynamic_shapes is not None and dynamic_axes is not None:
            raise InvalidArgumentError("Give dynamic_shapes or dynamic_axes, not both.")
        arguments = shapes.bound_arguments(model.forward, args, kwargs or {})
        register_containers(arguments.values())
        if dynamic_axes is not None:
            dynamic_shapes = shapes.from_dynamic_axes(dynamic_axes, arguments, input_names)
        declared = shapes.normalized(dynamic_shapes, arguments, input_names)
        return cls(model, tuple(args), dict(kwargs or {}), arguments, declared)


def capture(request: CaptureRequest, *, repeated_blocks: ModuleClasses = False) -> torch.export.ExportedProgram:
    """Capture a model with torch.export: first without, then with Dynamo.

    Args:
        request: What is captured.
        repeated_blocks: Classes of modules of which equal ones are captured once; True for the members of lists.

    Raises:
        DynamicShapeError: If a declared dimension turned out to be fixed by the model.
        CaptureError: If the model cannot be captured for another reason.
    """
    declared = None
    if request.dynamic_shapes is not None:
        declared = {
            name: shapes.for_torch(value, iter(shapes.leaf_specs(value, request.dynamic_shapes.get(name))))
            for name, value in request.arguments.items()
        }
    first: Exception | None = None
    for strict, blocks in [*([(False, repeated_blocks)] if repeated_blocks else ()), (False, False), (True, False)]:
        calls: list[SymbolicFunctionCall] = []
        try:
            return _exported(request, declared, strict, blocks, calls)
        except NotRepeatableError as error:
            warnings.warn(f"Repeated blocks are captured one by one: {error}.", stacklevel=2)
        except Exception as error:
            first = first or error
            # Dynamo would record the forward of a Function and lose what its symbolic method says.
            if _is_dimension_error(error) or calls:
                break
    assert first is not None
    raise _translated(first) from first


def _exported(
    request: CaptureRequest,
    declared: Any,
    strict: bool,
    repeated_blocks: ModuleClasses,
    calls: list[SymbolicFunctionCall],
) -> torch.export.ExportedProgram:
    """Run torch.export once; ``calls`` receives the calls of Functions with a symbolic method."""
    with onnx_export(), torch.no_grad(), contextlib.ExitStack() as stack:
        if not strict:
            stack.enter_context(WholeCalls())
            stack.enter_context(dynamic_associative_scan())
            stack.enter_context(recorded_calls(calls))
            if repeated_blocks:
                stack.enter_context(RepeatedBlocks(request.model, repeated_blocks))
        program = torch.export.export(
            request.model, request.args, request.kwargs, dynamic_shapes=declared, strict=strict
        )
    if repeated_blocks:
        expand(program)
    # The calls live as long as the graph that refers to them.
    program.graph_module.meta["onnx_fx_export.calls"] = calls
    restore(program.graph_module)
    return program


def _is_dimension_error(error: Exception) -> bool:
    text = str(error)
    return "Constraints violated" in text or ("marked" in text and "dynamic" in text)


def _translated(error: Exception) -> CaptureError | DynamicShapeError:
    text = str(error)
    if _is_dimension_error(error):
        facts = [line.strip(" -") for line in text.splitlines() if re.search(r"L\[|marked|inferred|constant", line)]
        return DynamicShapeError(
            "A dimension declared dynamic is fixed by the model.\n"
            + "\n".join(f"  {fact}" for fact in facts[:8])
            + "\nDeclare it static, or change the code that needs the fixed size (TORCH_LOGS=dynamic shows the line)."
        )
    place = _user_line(error)
    where = f" at {place}" if place else ""
    if "data-dependent" in text:
        return CaptureError(
            f"The model decides by the values of a tensor{where}. One graph holds both ways only if the code says so:\n"
            "  torch.cond(condition, when_true, when_false, (x,))   instead of   if condition: ... else: ...\n"
            "and a size read from data needs torch._check(...) for its bounds. onnx_ts_legacy.export takes a scripted "
            f"model with such ifs as it is.\ntorch.export says: {text.splitlines()[0]}"
        )
    head = "\n".join(text.splitlines()[:12])
    return CaptureError(f"torch.export cannot capture the model{where} ({type(error).__name__}):\n{head}")


def _user_line(error: Exception) -> str:
    """Return ``file:line`` of the innermost frame that belongs to the user, or an empty string."""
    own = (
        str(Path(torch.__file__).parent),
        str(Path(__file__).parent),
        str(Path(onnxops_decomp.__file__).parent),
        str(Path(contextlib.__file__).parent / "contextlib"),
    )
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((*own, "<"))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
