"""From a model and its example arguments to an ExportedProgram."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.autocast import autocast_inside, cast_inside_calls
from onnx_fx_export.capture.autograd_function import SymbolicFunctionCall, recorded_calls
from onnx_fx_export.capture.errors import capture_error, is_dimension_error
from onnx_fx_export.capture.state import watched_state
from onnx_fx_export.capture.torchvision_boxes import any_number_of_boxes
from onnx_fx_export.errors import (
    CaptureError,
    DynamicShapeError,
    InvalidArgumentError,
    MutationError,
    OnnxExporterError,
)
from onnx_fx_export.inputs.examples import (
    enlarged,
    has_special_sizes,
    named_keywords,
    of_size_one,
    separated,
    unmarked,
    variable_numbers,
)
from onnx_fx_export.repeats.block_expansion import NotRepeatableError, expand
from onnx_fx_export.repeats.blocks import RepeatedBlocks
from onnx_fx_export.repeats.regions import ModuleClasses
from onnx_fx_export.sizes.fixed import equations_that_fix
from onnx_fx_export.sizes.questions import (
    CONDITIONS,
    LAYOUT,
    SizeQuestion,
    conditions_for_small_sizes,
    conditions_on_layout,
    holds_for_example,
    noted_questions,
    warn_of_squeezed_data,
)
from onnx_fx_export.sizes.size_one import RIGHT_FOR_ONE, excludes_one, same_operations
from onnx_fx_export.sizes.small import (
    LEAST_SIZES,
    TRIED_SIZES,
    as_hints,
    least_sizes,
    sizes_tried,
    takes_declared_sizes,
)
from onnx_fx_export.torch_private import dynamic_associative_scan, sizes_unlike_0_and_1, specializations
from onnx_fx_export.weights.unallocated import allocated_on_paper
from onnxops_core import onnx_export
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import (
    DYNAMIC_NUMBER,
    Example,
    WholeCalls,
    bound_arguments,
    for_torch,
    from_dynamic_axes,
    leaf_specs,
    normalized_shapes,
    register_containers,
    registered_results,
    restore_calls,
)

__all__ = ["CaptureRequest", "capture"]


_ENLARGED = (
    "The example was captured in larger sizes, as dynamic dimensions of size 0 or 1 are constants for torch.export. If "
    "the model fails for these, declare static what is always 0 or 1, and give an example whose other dynamic "
    "dimensions are 2 or more and fit each other."
)


@dataclasses.dataclass(frozen=True)
class CaptureRequest:
    """What is to be captured.

    Attributes:
        model: The module.
        args: Positional example arguments.
        kwargs: Keyword example arguments.
        arguments: Both, by parameter name.
        dynamic_shapes: Declared dynamic dimensions by parameter name, or None.
        output_axes: What ``dynamic_axes`` says of outputs.
        state: What becomes of changes that are no tensors: ``"ignore"`` warns of them, else they are refused.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: Mapping[str, Any]
    dynamic_shapes: Mapping[str, Any] | None
    output_axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    state: str = "error"

    @property
    def example(self) -> Example:
        """The example arguments as they are passed."""
        return self.args, self.kwargs

    @property
    def has_dynamic_numbers(self) -> bool:
        """Whether numbers are declared dynamic."""
        return any(DYNAMIC_NUMBER in spec for spec in self.call_specs)

    @property
    def call_specs(self) -> list[dict[int, Any]]:
        """Declared dimensions of each leaf of the call; parameters may stand in another order."""
        declared = self.dynamic_shapes or {}
        specs = {name: leaf_specs(value, declared.get(name)) for name, value in self.arguments.items()}
        positional = len(pytree.tree_leaves(self.args))
        in_order = [spec for parts in specs.values() for spec in parts]
        return in_order[:positional] + [spec for name in self.kwargs for spec in specs[name]]

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
        state: str = "error",
    ) -> CaptureRequest:
        """Check the example arguments and bring the declared dimensions to one form.

        Raises:
            InvalidArgumentError: If the arguments do not fit the model or the declarations contradict each other.
        """
        if dynamic_shapes is not None and dynamic_axes is not None:
            raise InvalidArgumentError("Give dynamic_shapes or dynamic_axes, not both.")
        register_containers(bound_arguments(model.forward, args, kwargs or {}).values())
        args, kwargs = separated(args, kwargs or {})
        arguments = bound_arguments(model.forward, args, kwargs)
        in_call = {**{name: arguments[name] for name in arguments if name not in kwargs}, **kwargs}
        output_axes: dict[str, Any] = {}
        if dynamic_axes is not None:
            dynamic_shapes, output_axes = from_dynamic_axes(dynamic_axes, in_call, input_names)
        declared = normalized_shapes(dynamic_shapes, arguments, input_names, in_call)
        return cls(model, args, kwargs, arguments, declared, output_axes, state)


def capture(request: CaptureRequest, *, repeated_blocks: ModuleClasses = False) -> torch.export.ExportedProgram:
    """Capture a model with torch.export: first without, then with Dynamo.

    torch.export takes sizes 0 and 1 for constants; where a dynamic dimension has such a size, the model is captured
    with an example of other sizes.

    Args:
        request: What is captured.
        repeated_blocks: Classes of modules of which equal ones are captured once; True for the members of lists.

    Raises:
        DynamicShapeError: If a declared dimension turned out to be fixed by the model.
        CaptureError: If the model cannot be captured for another reason.
    """
    specs = request.call_specs
    enlarge = has_special_sizes(request.example, specs)
    examples = list(enlarged(request.example, specs)) if enlarge else [request.example]
    errors: list[CaptureError | DynamicShapeError] = []
    others: list[torch.export.ExportedProgram] = []
    for example in examples:
        try:
            program = _captured(request, example, specs, repeated_blocks)
            if CONDITIONS not in program.graph_module.meta and excludes_one(program):
                right = _is_right_for_one(request, program, specs, repeated_blocks)
                program.graph_module.meta[RIGHT_FOR_ONE] = right
            if not enlarge or holds_for_example(program, request.example, specs):
                return program
            others.append(program)
        except (CaptureError, DynamicShapeError) as error:
            errors.append(error)
    if others:
        return others[0]
    first = errors[0]
    if isinstance(first, DynamicShapeError):
        with specializations() as fixed, contextlib.suppress(OnnxExporterError):
            _captured(request, examples[0], specs, repeated_blocks)
        raise first.at(fixed) from first.__cause__
    if enlarge:
        raise CaptureError(f"{first}\n{_ENLARGED}") from first.__cause__
    raise first


def _is_right_for_one(
    request: CaptureRequest,
    program: torch.export.ExportedProgram,
    specs: Sequence[Mapping[int, Any]],
    repeated_blocks: ModuleClasses,
) -> bool:
    """Tell whether the model does the same where its dynamic sizes are one."""
    with contextlib.suppress(OnnxExporterError):
        return same_operations(program, _captured(request, of_size_one(request.example, specs), specs, repeated_blocks))
    return False


def _captured(
    request: CaptureRequest, example: Example, specs: Sequence[Mapping[int, Any]], repeated_blocks: ModuleClasses
) -> torch.export.ExportedProgram:
    """Capture with one example."""
    declared = None
    if request.dynamic_shapes is not None:
        declared = {
            name: for_torch(value, iter(leaf_specs(value, request.dynamic_shapes.get(name))))
            for name, value in request.arguments.items()
        }
    try:
        return _tried(request, example, specs, declared, repeated_blocks)
    except DynamicShapeError as error:
        hints = as_hints(declared)
        if hints is None:
            raise
        # torch wants to prove that the model takes each size of a Dim; what it takes for granted can be tried as well.
        with contextlib.suppress(CaptureError, DynamicShapeError):
            program = _tried(request, example, specs, hints, repeated_blocks)
            if takes_declared_sizes(program, specs):
                return program
        raise error from error.__cause__


def _tried(
    request: CaptureRequest,
    example: Example,
    specs: Sequence[Mapping[int, Any]],
    declared: Any,
    repeated_blocks: ModuleClasses,
) -> torch.export.ExportedProgram:
    """Run torch.export until one way of capturing serves."""
    first: Exception | None = None
    for strict, blocks in [*([(False, repeated_blocks)] if repeated_blocks else ()), (False, False), (True, False)]:
        calls: list[SymbolicFunctionCall] = []
        try:
            program = _exported(request, example, specs, declared, strict, blocks, calls)
            # Dynamo keeps sizes that int() makes of others variable.
            if not any(specs) or not (equations := equations_that_fix(program, specs)):
                return program
            first = first or DynamicShapeError.fixed(equations)
            if calls:
                break
        except NotRepeatableError as error:
            warn_user(f"Repeated blocks are captured one by one: {error}.")
        except Exception as error:
            first = first or error
            # Dynamo would record the forward of a Function and lose what its symbolic method says, and forget state.
            if is_dimension_error(error) or calls or isinstance(error, MutationError):
                break
    assert first is not None
    if isinstance(first, OnnxExporterError):
        raise first
    raise capture_error(first) from first


def _exported(
    request: CaptureRequest,
    example: Example,
    specs: Sequence[Mapping[int, Any]],
    declared: Any,
    strict: bool,
    repeated_blocks: ModuleClasses,
    calls: list[SymbolicFunctionCall],
) -> torch.export.ExportedProgram:
    """Run torch.export once; ``calls`` receives the calls of Functions with a symbolic method."""
    questions: list[SizeQuestion] = []
    with onnx_export(), torch.no_grad(), allocated_on_paper(request.model), contextlib.ExitStack() as stack:
        stack.enter_context(any_number_of_boxes())
        if request.has_dynamic_numbers or strict:
            # A number may be 0 or 1, and Dynamo compares sizes for the model: only guards tell what was asked.
            stack.enter_context(sizes_unlike_0_and_1())
        elif any(specs):
            questions = stack.enter_context(noted_questions())
        if not strict:
            stack.enter_context(registered_results(request.model))
            stack.enter_context(WholeCalls())
            stack.enter_context(dynamic_associative_scan())
            stack.enter_context(recorded_calls(calls))
            if repeated_blocks:
                stack.enter_context(RepeatedBlocks(request.model, repeated_blocks))
        args, kwargs = stack.enter_context(variable_numbers(request.model, example, specs))
        stack.enter_context(named_keywords(request.model, kwargs))
        stack.enter_context(unmarked((args, kwargs)))
        stack.enter_context(autocast_inside(request.model))
        found = stack.enter_context(watched_state(request.model))
        export = partial(torch.export.export, request.model, args, kwargs, dynamic_shapes=declared, strict=strict)
        program = found.capture(export, (args, kwargs), strict)
    if repeated_blocks:
        expand(program)
    found.note(program, example, request.state)
    # The calls live as long as the graph that refers to them.
    program.graph_module.meta["onnx_fx_export.calls"] = calls
    warn_of_squeezed_data(program)
    if not request.has_dynamic_numbers and not strict and any(specs):
        conditions = conditions_for_small_sizes(program, request.model, example, specs, questions)
        program.graph_module.meta[CONDITIONS] = conditions
        program.graph_module.meta[LAYOUT] = conditions_on_layout(program, questions)
        program.graph_module.meta[LEAST_SIZES] = least_sizes(program, request.model, example, specs)
    if any(specs) and not request.has_dynamic_numbers:
        program.graph_module.meta[TRIED_SIZES] = sizes_tried(program, request.model, example, specs)
    restore_calls(program.graph_module)
    cast_inside_calls(program.graph_module)
    return program
