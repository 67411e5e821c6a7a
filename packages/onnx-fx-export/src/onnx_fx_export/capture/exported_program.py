"""From a model and its example arguments to an ExportedProgram."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.autocast import autocast_inside, cast_inside_calls
from onnx_fx_export.capture.autograd_function import SymbolicFunctionCall, recorded_calls
from onnx_fx_export.capture.errors import capture_error, is_dimension_error
from onnx_fx_export.capture.state import StateNotes, watched_state
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
from onnx_fx_export.sizes.facts import SizeFacts
from onnx_fx_export.sizes.fixed import equations_that_fix
from onnx_fx_export.sizes.questions import SizeQuestion, holds_for_example, noted_questions, warn_of_squeezed_data
from onnx_fx_export.sizes.size_one import excludes_one, same_operations
from onnx_fx_export.sizes.small import as_hints, takes_declared_sizes
from onnx_fx_export.sizes.trial_runs import TrialRuns
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

__all__ = ["CaptureRequest", "CapturedProgram", "Stage", "capture"]

Stage = Callable[[str], contextlib.AbstractContextManager[None]]

# The stage in which a model and what was captured of it are compared at other sizes than the example's.
TRIAL_RUNS = "trial runs"
_ENLARGED = (
    "The example was captured in larger sizes, as dynamic dimensions of size 0 or 1 are constants for torch.export. If "
    "the model fails for these, declare static what is always 0 or 1, and give an example whose other dynamic "
    "dimensions are 2 or more and fit each other."
)


@dataclasses.dataclass(frozen=True)
class CapturedProgram:
    """A captured program, and what is known of it beside what it says itself.

    Attributes:
        program: The program.
        sizes: What is known of the sizes that it is right for.
        state: What is known of its state.
    """

    program: torch.export.ExportedProgram
    sizes: SizeFacts = dataclasses.field(default_factory=SizeFacts)
    state: StateNotes = dataclasses.field(default_factory=StateNotes)


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
        repeated_blocks: Classes of modules of which equal ones are captured once; True for the members of lists.
        trial_runs: Whether the model and what is captured of it are compared at other sizes.
        stage: Times a part of the capture under a name.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: Mapping[str, Any]
    dynamic_shapes: Mapping[str, Any] | None
    output_axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    state: str = "error"
    repeated_blocks: ModuleClasses = False
    trial_runs: bool = True
    stage: Stage = lambda name: contextlib.nullcontext()

    @property
    def example(self) -> Example:
        """The example arguments as they are passed."""
        return self.args, self.kwargs

    @property
    def has_dynamic_numbers(self) -> bool:
        """Whether numbers are declared dynamic."""
        return any(DYNAMIC_NUMBER in spec for spec in self.specs)

    @cached_property
    def specs(self) -> list[dict[int, Any]]:
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
        **others: Any,
    ) -> CaptureRequest:
        """Check the example arguments and bring the declared dimensions to one form.

        Args:
            model: The module.
            args: Positional example arguments.
            kwargs: Keyword example arguments.
            dynamic_shapes: Declared dimensions, as torch.export takes them.
            dynamic_axes: Declared dimensions, as the TorchScript exporter takes them.
            input_names: Names that the user gives the inputs, by which both may refer to them.
            others: Further attributes of the request.

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
        return cls(model, args, kwargs, arguments, declared, output_axes, **others)


def capture(request: CaptureRequest) -> CapturedProgram:
    """Capture a model with torch.export: first without, then with Dynamo.

    torch.export takes sizes 0 and 1 for constants; where a dynamic dimension has such a size, the model is captured
    with an example of other sizes.

    Raises:
        DynamicShapeError: If a declared dimension turned out to be fixed by the model.
        CaptureError: If the model cannot be captured for another reason.
    """
    enlarge = has_special_sizes(request.example, request.specs)
    examples = list(enlarged(request.example, request.specs)) if enlarge else [request.example]
    errors: list[CaptureError | DynamicShapeError] = []
    others: list[CapturedProgram] = []
    for example in examples:
        try:
            captured = _captured(request, example)
            if request.trial_runs and captured.sizes.conditions is None and excludes_one(captured.program):
                captured = _tried_at_one(request, captured)
            if not enlarge or holds_for_example(captured.program, request.example, request.specs):
                return captured
            others.append(captured)
        except (CaptureError, DynamicShapeError) as error:
            errors.append(error)
    if others:
        return others[0]
    first = errors[0]
    if isinstance(first, DynamicShapeError):
        with specializations() as fixed, contextlib.suppress(OnnxExporterError):
            _captured(request, examples[0])
        raise first.at(fixed) from first.__cause__
    if enlarge:
        raise CaptureError(f"{first}\n{_ENLARGED}") from first.__cause__
    raise first


def _tried_at_one(request: CaptureRequest, captured: CapturedProgram) -> CapturedProgram:
    """Find out whether the model does the same where its dynamic sizes are one, by another capture."""
    right = False
    with request.stage(TRIAL_RUNS), contextlib.suppress(OnnxExporterError):
        at_one = _captured(request, of_size_one(request.example, request.specs))
        right = same_operations(captured.program, at_one.program)
    return dataclasses.replace(captured, sizes=dataclasses.replace(captured.sizes, right_for_one=right))


def _captured(request: CaptureRequest, example: Example) -> CapturedProgram:
    """Capture with one example."""
    declared = None
    if request.dynamic_shapes is not None:
        declared = {
            name: for_torch(value, iter(leaf_specs(value, request.dynamic_shapes.get(name))))
            for name, value in request.arguments.items()
        }
    try:
        return _tried(request, example, declared)
    except DynamicShapeError as error:
        hints = as_hints(declared)
        if hints is None:
            raise
        # torch wants to prove that the model takes each size of a Dim; what it takes for granted can be tried as well.
        with contextlib.suppress(CaptureError, DynamicShapeError):
            captured = _tried(request, example, hints)
            if takes_declared_sizes(captured.program, request.specs, captured.sizes.least, captured.sizes.tried):
                return captured
        raise error from error.__cause__


def _tried(request: CaptureRequest, example: Example, declared: Any) -> CapturedProgram:
    """Run torch.export until one way of capturing serves."""
    first: Exception | None = None
    blocks = request.repeated_blocks
    for strict, repeated in [*([(False, blocks)] if blocks else ()), (False, False), (True, False)]:
        calls: list[SymbolicFunctionCall] = []
        try:
            found = _exported(request, example, declared, strict, repeated, calls)
            # Dynamo keeps sizes that int() makes of others variable.
            if not any(request.specs) or not (equations := equations_that_fix(found.program, request.specs)):
                return _finished(request, example, found)
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


class _Found(NamedTuple):
    """What one run of torch.export found; ``questions`` is None if what the model asks of sizes was not noted."""

    program: torch.export.ExportedProgram
    state: StateNotes
    questions: list[SizeQuestion] | None


def _exported(
    request: CaptureRequest,
    example: Example,
    declared: Any,
    strict: bool,
    repeated_blocks: ModuleClasses,
    calls: list[SymbolicFunctionCall],
) -> _Found:
    """Run torch.export once; ``calls`` receives the calls of Functions with a symbolic method."""
    model, questions = request.model, None
    with onnx_export(), torch.no_grad(), allocated_on_paper(model), contextlib.ExitStack() as stack:
        stack.enter_context(any_number_of_boxes())
        if request.has_dynamic_numbers or strict:
            # A number may be 0 or 1, and Dynamo compares sizes for the model: only guards tell what was asked.
            stack.enter_context(sizes_unlike_0_and_1())
        elif any(request.specs):
            questions = stack.enter_context(noted_questions())
        if not strict:
            for kept in (registered_results(model), WholeCalls(), dynamic_associative_scan(), recorded_calls(calls)):
                stack.enter_context(kept)
            if repeated_blocks:
                stack.enter_context(RepeatedBlocks(model, repeated_blocks))
        args, kwargs = stack.enter_context(variable_numbers(model, example, request.specs))
        for prepared in (named_keywords(model, kwargs), unmarked((args, kwargs)), autocast_inside(model)):
            stack.enter_context(prepared)
        state = stack.enter_context(watched_state(model))
        export = partial(torch.export.export, model, args, kwargs, dynamic_shapes=declared, strict=strict)
        program = state.capture(export, (args, kwargs), strict)
    if repeated_blocks:
        expand(program)
    notes = state.notes(program, example, request.state)
    # The calls live as long as the graph that refers to them.
    program.graph_module.meta["onnx_fx_export.calls"] = calls
    warn_of_squeezed_data(program)
    return _Found(program, notes, questions)


def _finished(request: CaptureRequest, example: Example, found: _Found) -> CapturedProgram:
    """Find out what sizes a captured program is right for, and turn its stand-ins into what they stand for."""
    program, facts = found.program, SizeFacts()
    if any(request.specs) and not request.has_dynamic_numbers:
        trials = TrialRuns(program, request.model, example, request.trial_runs)
        with request.stage(TRIAL_RUNS) if trials.possible else contextlib.nullcontext():
            facts = SizeFacts.found(trials, request.specs, found.questions)
    restore_calls(program.graph_module)
    cast_inside_calls(program.graph_module)
    return CapturedProgram(program, facts, found.state)
