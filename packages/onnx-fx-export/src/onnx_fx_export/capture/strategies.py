"""The strategies of capture, in the order in which they are tried.

Each says why it is not for a model, before it runs or after it, and the next one is tried. What none of them captures
is refused for the reason of the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from onnx_fx_export.capture.autograd_function import SymbolicFunctionCall
from onnx_fx_export.capture.comparison import agree_at_each_size, agree_at_other_sizes, compare_at_other_sizes
from onnx_fx_export.capture.errors import capture_error, scripted_part_error
from onnx_fx_export.capture.known_weights import has_small_weights, record_with_known_weights, warn_of_known_weights
from onnx_fx_export.capture.loops.strategy import Looped, compare_loops
from onnx_fx_export.capture.measured_kernels import lacks_kernel, record_measured
from onnx_fx_export.capture.open_sizes import compare_open, record_open
from onnx_fx_export.capture.request import CaptureRequest
from onnx_fx_export.capture.size_loops.functions import has_loops, scanned_loops
from onnx_fx_export.capture.torch_export import Recorded, Run, record
from onnx_fx_export.capture.torch_private import formats_without_conditions
from onnx_fx_export.capture.transforms import has_transforms, without_further_gradients
from onnx_fx_export.capture.ways.both_ways import record_both_ways
from onnx_fx_export.errors import CaptureError, DynamicShapeError, MutationError, OnnxExporterError
from onnx_fx_export.repeats.block_expansion import NotRepeatableError
from onnx_fx_export.repeats.blocks import has_stacks
from onnx_fx_export.sizes.eager_runs import entered_by
from onnx_fx_export.sizes.fixed import equations_that_fix, numbers_of_the_example
from onnx_fx_export.sizes.numbers.numpy_functions import computes_with_numpy
from onnx_fx_export.sizes.questions import Sizes
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnx_fx_export.torch_private import is_dimension_error, undecided_condition
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import Example, asks_for_gradients, is_without_data, note_gradients

__all__ = [
    "MEASURED_KERNELS",
    "NON_STRICT",
    "SIZE_WAYS",
    "STRATEGIES",
    "TRIAL_RUNS",
    "Strategy",
    "captured_by_strategies",
]

# The stage in which a model and what was captured of it are compared.
TRIAL_RUNS = "trial runs"
#: The strategy that measures what operators of torch would fix.
MEASURED_KERNELS = "measured-kernels"
_OTHER_VALUES = (
    "The program that Dynamo captured does not give the model's values: the model's Python code depends on a size "
    "or number in a way that the capture loses, such as text that is made from one."
)
_OTHER_CLASSES = (
    "The program that torch.export captured does not give the model's values: during the capture, a dynamic size "
    "is not an int, and a tensor is not a plain torch.Tensor. Use isinstance() instead of type(), "
    "torch.compiler.is_exporting() instead of torch.SymInt, do not use sizes as keys, and use functions of math "
    "instead of NumPy's, whose results, and what is computed of them, make tensors of doubles. These lines may be the "
    "cause:"
)
_OTHER_TRANSFORMS = (
    "The program that torch.export captured below autograd does not give the model's values: its gradients, or "
    "what it maps over, depend on something that the capture loses."
)


@dataclasses.dataclass
class Attempts:
    """What is to be captured, and what became of the strategies that were tried.

    Attributes:
        request: What is to be captured.
        example: The example to capture with.
        declared: The dynamic dimensions in torch's form.
        failures: Why strategies failed, by name.
        restricted: The first program that is right for some sizes only, as the code made numbers of others, and the
            name of its strategy.
        calls: The calls of Functions with a ``symbolic`` method that were met.
        opened: What a capture with sizes kept open gave, or raised; None before there was one.
    """

    request: CaptureRequest
    example: Example
    declared: Any
    failures: dict[str, Exception] = dataclasses.field(default_factory=dict)
    restricted: tuple[Recorded, str] | None = None
    calls: list[SymbolicFunctionCall] = dataclasses.field(default_factory=list)
    opened: Looped | Exception | None = None

    def run(self, **how: Any) -> Run:
        """Return a run of torch.export with this example, which collects its calls here."""
        return Run(self.request, self.example, self.declared, calls=self.calls, **how)

    def run_open(self) -> Looped:
        """Capture with sizes kept open and the bodies of loops recorded, once for all strategies that do so."""
        if self.opened is None:
            failure = self.failures.get(NON_STRICT.name)
            by_data = failure is not None and undecided_condition(failure) is not None
            try:
                with formats_without_conditions() if by_data else contextlib.nullcontext():
                    self.opened = record_open(functools.partial(self.run, entered=self._entered()))
            except Exception as error:
                self.opened = error
        if isinstance(self.opened, Exception):
            raise self.opened
        return self.opened

    def _entered(self) -> Sequence[ModuleType]:
        """Return the modules of Python that a call enters, which may make numbers of sizes for the model's code."""
        return entered_by(self.request.model, self.example) if self.has_data else ()

    @property
    def has_data(self) -> bool:
        """Whether the model can be run."""
        model = self.request.model
        return not any(map(is_without_data, (*model.parameters(), *model.buffers())))


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A way to capture a model.

    Attributes:
        name: What ``strategy=`` and ``program.capture_strategy`` call it.
        refusal: Returns why it is not tried, or an empty string.
        record: Captures.
    """

    name: str
    refusal: Callable[[Attempts], str]
    record: Callable[[Attempts], Recorded]


# ---- reasons


def _no_blocks(attempts: Attempts) -> str:
    asked = attempts.request.repeated_blocks
    if asked is None:
        return "" if has_stacks(attempts.request.model) else "no list of the model has enough equal members"
    return "" if asked else "capture_repeated_blocks asks for no blocks"


def _never(attempts: Attempts) -> str:
    return ""


def _not_asked_for(attempts: Attempts) -> str:
    return "" if attempts.request.strategy is not None else "strategy= does not ask for it"


def _uncompared(attempts: Attempts) -> str:
    if attempts.request.trial_runs and attempts.has_data and not attempts.request.has_dynamic_numbers:
        return ""
    return "its result would not be compared with the model, which needs trial runs, weights and no dynamic numbers"


def _refused_state(attempts: Attempts) -> str:
    failure = attempts.failures.get(NON_STRICT.name)
    return "the state of the model is refused" if isinstance(failure, MutationError) else ""


def _lost_calls(attempts: Attempts) -> str:
    return "the symbolic method of an autograd.Function would be lost" if attempts.calls else ""


def _not_comparable(attempts: Attempts) -> str:
    """Require that what is captured can be compared with the model at other sizes."""
    if not any(attempts.request.specs):
        return "no dimension is dynamic"
    if not attempts.request.trial_runs or not attempts.has_data:
        return "its result would not be compared with the model, which needs trial runs and weights"
    if attempts.request.has_dynamic_numbers:
        return "a number is dynamic"
    return _refused_state(attempts)


def _no_scans(attempts: Attempts) -> str:
    """Require loops over sizes in the code of a model that seems to fix one, or asks for what data decides."""
    failure = attempts.failures.get(NON_STRICT.name)
    if reason := _not_comparable(attempts):
        return reason
    if failure is not None and not _fixes_a_size(failure) and undecided_condition(failure) is None:
        return "no dimension was fixed"
    return "" if has_loops(attempts.request.model) else "the model has no loop that can be a scan"


def _not_measured(attempts: Attempts) -> str:
    """Require that a kernel of torch failed, and that what is measured can be compared with the model."""
    failure = attempts.failures.get(NON_STRICT.name)
    if reason := _not_comparable(attempts):
        return reason
    if failure is None or lacks_kernel(failure) or _fixes_a_size(failure):
        return ""
    return "it was no kernel of torch that failed"


def _no_loops(attempts: Attempts) -> str:
    """Require that data left something open, and that the result can be compared with the model."""
    failure = attempts.failures.get(NON_STRICT.name)
    is_open = failure is None or undecided_condition(failure) is not None
    return _uncompared(attempts) or ("" if is_open else "no loop was left open by data")


def _not_both_ways(attempts: Attempts) -> str:
    """Require that data left a condition open, and that the result can be compared with the model."""
    failure = attempts.failures.get(NON_STRICT.name)
    is_open = failure is None or undecided_condition(failure) is not None
    lost = _lost_calls(attempts) or _uncompared(attempts)
    return lost or ("" if is_open else "no condition was left open by data")


def _not_open(attempts: Attempts) -> str:
    """Require that the code of the model fixes a size, or asks for what data decides, and that it can be compared."""
    failure = attempts.failures.get(NON_STRICT.name)
    fixed = failure is not None and _fixes_a_size(failure)
    open_to_data = failure is not None and undecided_condition(failure) is not None
    refused = _uncompared(attempts) or _refused_state(attempts)
    return refused or ("" if failure is None or fixed or open_to_data else "no size was fixed or left open by data")


def _no_weights_asked(attempts: Attempts) -> str:
    """Require that data left a condition open which may be one of weights, and that the result can be compared."""
    failure = attempts.failures.get(NON_STRICT.name)
    is_open = failure is None or undecided_condition(failure) is not None
    refused = _lost_calls(attempts) or _uncompared(attempts)
    if refused or not is_open:
        return refused or "no condition was left open by data"
    return "" if has_small_weights(attempts.request.model) else "the model has no small weights"


def _no_transforms(attempts: Attempts) -> str:
    """Require that a model that failed transforms functions or asks for gradients, and that it can be compared."""
    refused = _lost_calls(attempts) or _uncompared(attempts) or _refused_state(attempts)
    if refused or has_transforms(attempts.request.model) or _needs_gradients(attempts):
        return refused
    return "the model calls no function of torch.func, and asks for no gradients"


def _needs_gradients(attempts: Attempts) -> bool:
    failure = attempts.failures.get(NON_STRICT.name)
    return failure is not None and asks_for_gradients(failure)


def _not_for_dynamo(attempts: Attempts) -> str:
    """Dynamo would record the forward of a Function and lose what its symbolic method says, and forget state."""
    if attempts.calls:
        return "the symbolic method of an autograd.Function would be lost"
    if attempts.request.strategy == STRICT.name and not attempts.has_data:
        return "a model without data cannot be watched for what Dynamo would lose"
    failure = attempts.failures.get(NON_STRICT.name)
    if isinstance(failure, MutationError):
        return "the state of the model would be lost"
    if attempts.restricted is not None:
        return "it makes numbers of the same sizes"
    is_fixed = failure is not None and is_dimension_error(failure)
    # Arrays of NumPy have sizes that are numbers, and for Dynamo they are tensors.
    is_fixed = is_fixed and not computes_with_numpy(attempts.request.model)
    return "the model's own operations fix a dimension" if is_fixed else ""


# ---- strategies


def _record_non_strict(attempts: Attempts) -> Recorded:
    return _checked(attempts, record(attempts.run()))


def _checked(attempts: Attempts, recorded: Recorded) -> Recorded:
    """Refuse what may be different from the model and is.

    Raises:
        CaptureError: If it is.
    """
    if recorded.doubts and not _agrees(attempts, recorded):
        lines = "\n".join(f"  {line}" for line in recorded.doubts)
        raise CaptureError(f"{_OTHER_CLASSES}\n{lines}")
    return recorded


def _record_blocks(attempts: Attempts) -> Recorded:
    run = attempts.run(blocks=True)
    try:
        recorded = _checked(attempts, record(run))
    except NotRepeatableError:
        raise
    except Exception as error:
        if not run.watched:
            attempts.failures[NON_STRICT.name] = error
        raise
    if run.repetitions:
        return recorded
    if attempts.request.repeated_blocks is None and attempts.request.strategy is not None:
        raise CaptureError(f"The strategy {BLOCKS.name!r} is refused: no two blocks are certain to compute the same.")
    return recorded if attempts.request.repeated_blocks else dataclasses.replace(recorded, strategy=NON_STRICT.name)


def _record_strict(attempts: Attempts) -> Recorded:
    recorded = record(attempts.run(strict=True))
    if attempts.calls:
        raise CaptureError(
            f"The strategy {STRICT.name!r} is refused: the symbolic method of an autograd.Function would be lost."
        )
    # Dynamo computes by itself what Python would, and answers by itself what the code asks about sizes.
    if not _agrees(attempts, recorded, at_each_size=True):
        raise CaptureError(_OTHER_VALUES)
    return recorded


def _record_transforms(attempts: Attempts) -> Recorded:
    model = attempts.request.model
    try:
        recorded = record(attempts.run(below_autograd=True, around=without_further_gradients(model)))
    except Exception as error:
        if not asks_for_gradients(error):
            raise
        note_gradients(model)
        recorded = record(attempts.run(below_autograd=True, around=without_further_gradients(model)))
    if not _agrees(attempts, recorded):
        raise CaptureError(_OTHER_TRANSFORMS)
    return recorded


def _agrees(attempts: Attempts, recorded: Recorded, *, at_each_size: bool = False) -> bool:
    """Tell whether what was captured gives the same as the model on the example and at other sizes.

    Also where that cannot be tried.
    """
    request = attempts.request
    trials = TrialRuns(recorded.program, request.model, attempts.example, request.trial_runs)
    if not trials.possible or request.has_dynamic_numbers:
        return True
    with request.stage(TRIAL_RUNS):
        on_example = trials.agree_on_example() is not False
        sizes = Sizes.of(recorded.program, request.specs)
        return (
            on_example
            and agree_at_other_sizes(trials, sizes)
            and (not at_each_size or agree_at_each_size(trials, sizes))
        )


def _record_scanned(attempts: Attempts) -> Recorded:
    run = attempts.run(around=scanned_loops(attempts.request.model))
    recorded = record(run)
    compare_at_other_sizes(recorded, run)
    return recorded


def _record_known_weights(attempts: Attempts) -> Recorded:
    model = attempts.request.model
    recorded = record_with_known_weights(model, attempts.run)
    if not _agrees(attempts, recorded):
        raise CaptureError("The program that was captured for the weights of the model does not give its values.")
    warn_of_known_weights(model, recorded.program)
    return recorded


BLOCKS = Strategy("repeated-blocks", _no_blocks, _record_blocks)
NON_STRICT = Strategy("non-strict", _never, _record_non_strict)
LOOPS = Strategy("row-loops", _no_loops, lambda attempts: compare_loops(attempts.run_open()))
SCANNED = Strategy("size-loops", _no_scans, _record_scanned)
OPEN = Strategy("open-sizes", _not_open, lambda attempts: compare_open(attempts.run_open()))
BOTH_WAYS = Strategy("both-ways", _not_both_ways, lambda attempts: record_both_ways(attempts.run))
KNOWN_WEIGHTS = Strategy("known-weights", _no_weights_asked, _record_known_weights)
MEASURED = Strategy(MEASURED_KERNELS, _not_measured, lambda attempts: record_measured(attempts.run))
TRANSFORMS = Strategy("transforms", _no_transforms, _record_transforms)
STRICT = Strategy("strict", _not_for_dynamo, _record_strict)
# The sizes of the example's answers; those of the others are looked for when it is converted.
SIZE_WAYS = Strategy("size-ways", _not_asked_for, _record_non_strict)

STRATEGIES: Mapping[str, Strategy] = {
    one.name: one
    for one in (
        BLOCKS,
        NON_STRICT,
        LOOPS,
        SCANNED,
        MEASURED,
        OPEN,
        BOTH_WAYS,
        KNOWN_WEIGHTS,
        TRANSFORMS,
        STRICT,
        SIZE_WAYS,
    )
}


def captured_by_strategies(request: CaptureRequest, example: Example, declared: Any) -> tuple[Recorded, str]:
    """Run the strategies until one of them serves.

    Args:
        request: What is to be captured.
        example: The example to capture with.
        declared: The dynamic dimensions in torch's form.

    Returns:
        What was recorded, and the name of the strategy.

    Raises:
        OnnxExporterError: If none serves, not even for some sizes: the first failure.
    """
    attempts = Attempts(request, example, declared)
    waiting = [*STRATEGIES.values()] if request.strategy is None else [STRATEGIES[request.strategy]]
    while waiting:
        if attempts.restricted is not None:
            # The others make numbers of the same sizes: they come into question if those cannot stay open.
            waiting.sort(key=lambda strategy: strategy.name != OPEN.name)
        strategy = waiting.pop(0)
        if strategy.name in attempts.failures:
            continue
        if reason := strategy.refusal(attempts):
            if request.strategy is not None:
                raise CaptureError(f"The strategy {strategy.name!r} is refused: {reason}.")
            continue
        try:
            recorded = strategy.record(attempts)
            if _is_for_all_sizes(attempts, recorded, strategy):
                return recorded, recorded.strategy or strategy.name
        except NotRepeatableError as error:
            if request.repeated_blocks is not None:
                warn_user(f"Repeated blocks are captured one by one: {error}.")
            if request.strategy is not None:
                raise CaptureError(f"The strategy {strategy.name!r} is refused: {error}.") from error
        except Exception as error:
            attempts.failures[strategy.name] = error
    if attempts.restricted is not None:
        return attempts.restricted
    first = attempts.failures.get(NON_STRICT.name) or next(iter(attempts.failures.values()))
    own = isinstance(first, OnnxExporterError)
    reported = first if own else scripted_part_error(request.model) or capture_error(first)
    if isinstance(reported, CaptureError):
        reported.fixed_a_size = any(map(_fixes_a_size, attempts.failures.values()))
    raise reported from first.__cause__ if own else first


def _fixes_a_size(failure: Exception) -> bool:
    return isinstance(failure, DynamicShapeError) or is_dimension_error(failure)


def _is_for_all_sizes(attempts: Attempts, recorded: Recorded, strategy: Strategy) -> bool:
    """Tell whether the code made no numbers of dynamic sizes, and note as a failure where it did."""
    specs = attempts.request.specs
    # Dynamo keeps sizes that int() makes of others variable.
    if equations := equations_that_fix(recorded.program, specs) if any(specs) else []:
        attempts.failures[strategy.name] = DynamicShapeError.fixed(equations)
        return False
    numbers = numbers_of_the_example(recorded.program, specs) if any(specs) else []
    if not numbers or attempts.request.strategy is not None:
        return True
    attempts.restricted = attempts.restricted or (recorded, recorded.strategy or strategy.name)
    # A capture of all blocks would meet the same numbers.
    for name in {strategy.name, NON_STRICT.name}:
        attempts.failures.setdefault(name, DynamicShapeError.fixed(numbers))
    return False
