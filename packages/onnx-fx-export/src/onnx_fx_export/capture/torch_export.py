"""One run of torch.export, with what surrounds it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch

from onnx_fx_export.capture.autocast import autocast_inside
from onnx_fx_export.capture.autograd_function import SymbolicFunctionCall, recorded_calls
from onnx_fx_export.capture.conditions.assertions import without_raising
from onnx_fx_export.capture.request import CaptureRequest
from onnx_fx_export.capture.reshaped_arguments import ReshapedArgumentError, views_of_arguments, watched_shapes
from onnx_fx_export.capture.stand_ins.all import stand_ins
from onnx_fx_export.capture.state import StateNotes, watched_state
from onnx_fx_export.capture.storage_sizes import refused_storage_sizes
from onnx_fx_export.capture.torch_private import (
    code_written_late,
    equations_left_unsolved,
    noted_refusals,
    shared_memory_formats,
    shared_stack_frames,
    values_noted_without_modes,
    without_cache_of_calls,
)
from onnx_fx_export.inputs.examples import named_keywords, unmarked, variable_numbers
from onnx_fx_export.repeats.blocks import LEAST_WITHHELD, RepeatedBlocks, has_stacks
from onnx_fx_export.repeats.withheld import ParametersNeededError
from onnx_fx_export.sizes.decisions import noted_decisions
from onnx_fx_export.sizes.in_tensors import SizesInTensors
from onnx_fx_export.sizes.numbers.built_ins import built_ins_of_sizes
from onnx_fx_export.sizes.numbers.math_functions import math_of_sizes
from onnx_fx_export.sizes.numbers.new_tensors import new_tensors_of_sizes
from onnx_fx_export.sizes.numbers.number_classes import classes_of_numbers
from onnx_fx_export.sizes.numbers.numpy_functions import numpy_of_sizes
from onnx_fx_export.sizes.questions import SizeQuestion, noted_questions, warn_of_squeezed_data
from onnx_fx_export.sizes.texts import texts_of_numbers
from onnx_fx_export.torch_private import (
    dynamic_associative_scan,
    exported,
    is_users_code,
    possibly_empty_results,
    sizes_unlike_0_and_1,
    transforms_left,
    without_partial_graphs,
)
from onnx_fx_export.weights.unallocated import allocated_on_paper
from onnxops_core import onnx_export
from onnxops_decomp.exporting import Example, WholeCalls, helpers_of, homes_of, registered_results

__all__ = ["BLOCK_COPIES", "Recorded", "Run", "record"]

#: The stage in which blocks that were captured once are copied.
BLOCK_COPIES = "copies of blocks"


@dataclasses.dataclass
class Run:
    """How torch.export runs, and what it meets on the way.

    Attributes:
        request: What is to be captured.
        example: The example to capture with.
        declared: The dynamic dimensions in torch's form.
        strict: Whether Dynamo reads the code of the model, instead of running it.
        blocks: Whether equal blocks are captured once.
        below_autograd: Whether gradients and ``vmap`` are captured as what they compute.
        around: Entered around the run.
        entered: Modules of Python whose functions calls of the model enter, beside those that its code names.
        calls: The calls of Functions with a ``symbolic`` method, once it has run.
        repetitions: The number of calls of blocks that were copied instead of captured, once it has run.
        watched: Whether blocks were watched for that.
    """

    request: CaptureRequest
    example: Example
    declared: Any
    strict: bool = False
    blocks: bool = False
    below_autograd: bool = False
    around: contextlib.AbstractContextManager[Any] = dataclasses.field(default_factory=contextlib.nullcontext)
    entered: Sequence[ModuleType] = ()
    calls: list[SymbolicFunctionCall] = dataclasses.field(default_factory=list)
    repetitions: int = 0
    watched: bool = False

    @functools.cached_property
    def homes(self) -> Sequence[ModuleType]:
        """The modules of Python that hold the code of the model: its classes, and functions that their files import."""
        named = homes_of(self.request.model)
        return [*dict.fromkeys((*named, *helpers_of(named), *self.entered))]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a run of torch.export gave.

    Attributes:
        program: The program, with stand-ins for some calls.
        state: What is known of its state.
        questions: What the model's code asked of sizes; None if that was not noted.
        doubts: Lines of the model's code that may do something else when they are captured.
        strategy: The name of the strategy that it amounts to; None for the one that was taken.
        remembered: What the call left in Python objects, by path, to be compared with that of other calls.
        raising: Lines at which the model raises for some inputs, which the program does not check.
    """

    program: torch.export.ExportedProgram
    state: StateNotes
    questions: list[SizeQuestion] | None
    doubts: Sequence[str] = ()
    strategy: str | None = None
    remembered: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    raising: dict[str, None] = dataclasses.field(default_factory=dict)


def record(run: Run) -> Recorded:
    """Run torch.export once.

    Raises:
        Exception: Whatever torch.export or the model raises.
    """
    if not run.strict:
        with contextlib.suppress(ReshapedArgumentError), watched_shapes(run.request.model):
            return _recorded(run)
        with views_of_arguments(run.request.model):
            return _recorded(run)
    return _recorded(run)


def _recorded(run: Run) -> Recorded:
    # Where repetition is still to be proven, a capture that starts anew may cost more than it saves.
    asked = run.request.repeated_blocks is not None
    if run.blocks and (asked or has_stacks(run.request.model, LEAST_WITHHELD)):
        with contextlib.suppress(ParametersNeededError):
            return _record(run, withhold=True)
    return _record(run)


def _record(run: Run, *, withhold: bool = False) -> Recorded:
    request, model, strict = run.request, run.request.model, run.strict
    numbers, repeated = SizesInTensors(model), None
    if run.blocks and not strict:
        repeated = RepeatedBlocks(model, request.repeated_blocks, withhold=withhold)
    with transforms_left(), onnx_export(), torch.no_grad(), allocated_on_paper(model), contextlib.ExitStack() as stack:
        stack.enter_context(without_partial_graphs())
        # Dynamo runs the code of its graphs at once, and needs what writing it leaves.
        late = () if strict else (code_written_late,)
        cheaper = (shared_stack_frames, shared_memory_formats, values_noted_without_modes)
        for changed in (equations_left_unsolved, *cheaper, *late):
            stack.enter_context(changed())
        if _has_few_equal_calls(request, repeated is not None):
            stack.enter_context(without_cache_of_calls())
        raising = {} if strict else stack.enter_context(without_raising())
        questions, keys, arrays = _watch_sizes(run, numbers, stack)
        stack.enter_context(repeated or contextlib.nullcontext())
        args, kwargs = stack.enter_context(variable_numbers(model, run.example, request.specs))
        for prepared in (named_keywords(model, kwargs), unmarked((args, kwargs)), autocast_inside(model), run.around):
            stack.enter_context(prepared)
        state = stack.enter_context(watched_state(model))
        how: dict[str, Any] = {"strict": strict, "below_autograd": run.below_autograd}
        export = partial(exported, model, args, kwargs, dynamic_shapes=run.declared, **how)
        if repeated is not None:
            export = partial(repeated.capture, export)
        beside = recorded_calls(run.calls) if strict else contextlib.nullcontext()
        try:
            program = state.capture(export, (args, kwargs), strict, beside)
        finally:
            if repeated is not None:
                run.repetitions, run.watched = repeated.repetitions, repeated.watched
        doubts = [*dict.fromkeys((*keys, *arrays)), *state.type_tests()]
    numbers.check(program)
    if repeated is not None:
        with request.stage(BLOCK_COPIES) if repeated.repetitions else contextlib.nullcontext():
            repeated.complete(program)
    notes = state.notes(program, run.example, request.state)
    # The calls live as long as the graph that refers to them.
    program.graph_module.meta["onnx_fx_export.calls"] = run.calls
    warn_of_squeezed_data(program)
    return Recorded(program, notes, questions, doubts, remembered=state.remembered, raising=raising)


@contextlib.contextmanager
def _refusals_not_caught() -> Iterator[None]:
    """Raise in the end what torch refused, if the code of the model caught it and went on as eager code would not.

    Raises:
        Exception: The first refusal of which that is so.
    """
    with noted_refusals() as refusals:
        yield
    for refusal in refusals:
        # A traceback begins where the exception was caught.
        reached = refusal.__traceback__
        if reached is not None and is_users_code(reached.tb_frame.f_code.co_filename, reached.tb_frame.f_code.co_name):
            raise refusal


def _has_few_equal_calls(request: CaptureRequest, repeats: bool) -> bool:
    """Tell whether the cache of torch costs more than it saves: with several dynamic sizes and few layers.

    Args:
        request: What is to be captured.
        repeats: Whether equal layers are captured once.
    """
    names = {getattr(dim, "__name__", str(dim)) for spec in request.specs for dim in spec.values()}
    return len(names) > 1 and (repeats or not has_stacks(request.model))


def _watch_sizes(
    run: Run, numbers: SizesInTensors, stack: contextlib.ExitStack
) -> tuple[list[SizeQuestion] | None, list[str], list[str]]:
    """Enter what notes how the code uses sizes, and what stands in for calls; return where questions and doubts go."""
    request, model, strict = run.request, run.request.model, run.strict
    questions, keys, arrays = None, list[str](), list[str]()
    stack.enter_context(stand_ins())
    stack.enter_context(possibly_empty_results())
    if request.has_dynamic_numbers or strict:
        # A number may be 0 or 1, and Dynamo compares sizes for the model: only guards tell what was asked.
        stack.enter_context(sizes_unlike_0_and_1())
    elif any(request.specs):
        questions = stack.enter_context(noted_questions())
        stack.enter_context(noted_decisions(questions))
    if not strict:
        keys = stack.enter_context(classes_of_numbers())
        if any(request.specs):
            stack.enter_context(refused_storage_sizes())
            stack.enter_context(numbers)
        for kept in (
            *(registered_results(model), WholeCalls(), dynamic_associative_scan(), recorded_calls(run.calls)),
            *(texts_of_numbers(), math_of_sizes(run.homes, numbers.note), built_ins_of_sizes(run.homes)),
            *(numpy_of_sizes(run.homes), _refusals_not_caught()),
        ):
            stack.enter_context(kept)
        arrays = stack.enter_context(new_tensors_of_sizes()).places
    return questions, keys, arrays
