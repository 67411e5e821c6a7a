"""Compares an exported program with PyTorch through onnx-verify, which is loaded only here."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from onnxops_core import OnnxExporterError
from onnxops_core.exporting import active_autocasts, unfused_layers, warn_user, without_autocast
from onnxops_decomp.dtypes import real_contents
from onnxops_decomp.exporting.errors import VerificationError
from onnxops_decomp.exporting.sizes.other_sizes import Example, other_sizes
from onnxops_decomp.exporting.state.contents import restored_contents
from onnxops_decomp.exporting.state.gradients import gradient_mode
from onnxops_decomp.exporting.state.inventory import kept_inventory

if TYPE_CHECKING:
    from onnxops_decomp.exporting.program.callable_program import CallableProgram

__all__ = ["Reference", "Verified", "verify_program"]


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


@dataclasses.dataclass(frozen=True)
class Reference:
    """What an exported program is compared with.

    Attributes:
        model: The model, or a captured program.
        modes: For each of its modules, by name, whether it was in training mode at the export.
        autocasts: The kinds of device that the export ran under autocast for, each with the dtype.
        by_definition: Whether the capture followed the definition of transformer layers at padded positions, where
            the model leaves zeros when it runs without gradients.
    """

    model: Callable[..., Any]
    modes: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    autocasts: Sequence[tuple[str, torch.dtype]] = ()
    by_definition: bool = False

    @classmethod
    def of(cls, model: Callable[..., Any], *, by_definition: bool = False) -> Reference:
        """Return a model with the modes that its modules are in now, and the autocast that is on."""
        modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        return cls(model, {name: module.training for name, module in modules}, active_autocasts(), by_definition)

    @contextlib.contextmanager
    def at_export(self) -> Iterator[None]:
        """Let the model run under what torch was set to at the export."""
        with contextlib.ExitStack() as entered:
            entered.enter_context(gradient_mode(self.model))
            if self.by_definition:
                entered.enter_context(unfused_layers())
            entered.enter_context(without_autocast())
            for device, dtype in self.autocasts:
                entered.enter_context(torch.autocast(device, dtype=dtype))
            yield


def verify_program(
    program: CallableProgram,
    reference: Reference,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    smallest_size: int | None = None,
) -> list[Verified]:
    """Run both on the example arguments and compare every output, and the buffers that the model changes.

    Args:
        program: The exported program.
        reference: What was exported, so that a mistake of the capture shows as well.
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
    _check_names(program, reference.model, example)
    verified = [_compare(program, example, _run_model(program, reference, example), "")]
    if smallest_size is None:
        return verified
    for group in other_sizes(program, *example, smallest_size):
        refusals = []
        for sizes, call in group:
            where = " at " + ", ".join(f"{name} = {size}" for name, size in sizes.items())
            try:
                expected = _run_model(program, reference, call)
            except Exception as error:  # whatever a model raises at sizes that it is not made for
                refusals.append(f"{where} ({type(error).__name__}: {error})")
                continue
            verified.append(_compare(program, call, expected, where))
            break
        else:
            if refusals:
                warn_user(f"Not verified{';'.join(refusals)}: the model itself fails there.")
    return verified


def _check_names(program: CallableProgram, model: Callable[..., Any], call: Example) -> None:
    """Make sure that the inputs that are called as parameters of the model are those.

    Raises:
        VerificationError: If one is another argument.
    """
    args, kwargs = call
    try:
        function = model.forward if isinstance(model, torch.nn.Module) else model
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # it has no signature
        return
    inputs = program.flat_inputs(*args, **kwargs)
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and isinstance(inputs.get(name), torch.Tensor) and inputs[name] is not value:
            raise VerificationError(f"The input {name} of the exported model is not the argument {name} of the model.")


def _run_model(program: CallableProgram, reference: Reference, call: Example) -> list[Any]:
    """Return what the model gives, and what it keeps or changes by the name of the state output."""
    args, kwargs = copy.deepcopy(call)
    with _borrowed(reference.model) as own, reference.at_export(), _in_modes(own, reference.modes):
        for name, value in program.initial_state.items():
            _set_state(own, name, value)
        outputs = own(*args, **kwargs)
        inputs = program.flat_inputs(*args, **kwargs) if program.state else {}
        kept = {
            output: _state(own, name, program.initial_state[name]) if name in program.initial_state else inputs[name]
            for name, output in program.state.items()
        }
        found = [outputs, {output: value for output, value in kept.items() if value is not None}]
        # They may show memory that the model gets back.
        copies: list[Any] = pytree.tree_map_only(torch.Tensor, _copied, found)
        return copies


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


@contextlib.contextmanager
def _borrowed(model: Any) -> Iterator[Any]:
    """Hand out a model to be run, which holds what it held again in the end."""
    if isinstance(model, torch.nn.Module) and any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        # What scripts write to is not seen before they run.
        yield copy.deepcopy(model)
        return
    with kept_inventory(model) as held, restored_contents([*held.weights.values(), *held.tensors.values()]):
        yield model


@contextlib.contextmanager
def _in_modes(model: Any, modes: Mapping[str, bool]) -> Iterator[None]:
    """Put the modules of a model in other modes, and back again."""
    modules = dict(model.named_modules()) if modes else {}
    before = {name: module.training for name, module in modules.items()}
    try:
        for name, mode in modes.items():
            modules[name].training = mode
        yield
    finally:
        for name, mode in before.items():
            modules[name].training = mode


def _owner(model: Any, name: str) -> tuple[Any, str]:
    path, _, attribute = name.rpartition(".")
    parts = path.split(".") if path else []
    return functools.reduce(lambda owner, part: getattr(owner, part, None), parts, model), attribute


def _state(model: Any, name: str, initial: torch.Tensor) -> torch.Tensor | None:
    """Return what a model keeps under the name of a state input; None if that is not to be found there, or empty."""
    owner, attribute = _owner(model, name)
    value = getattr(owner, attribute, None)
    if isinstance(value, bool | int | float):
        return torch.tensor(value, dtype=initial.dtype, device="cpu")
    return value if isinstance(value, torch.Tensor) and value.numel() else None


def _set_state(model: Any, name: str, initial: torch.Tensor) -> None:
    """Put a model back to where the export found it."""
    owner, attribute = _owner(model, name)
    present = getattr(owner, attribute, None)
    if isinstance(present, torch.Tensor) and present.shape == initial.shape:
        present.data.copy_(initial)
    elif isinstance(present, bool | int | float):
        setattr(owner, attribute, type(present)(initial.item()))


def _compare(program: CallableProgram, call: Example, expected: list[Any], where: str) -> Verified:
    try:
        import onnx_verify
    except ImportError as error:
        raise OnnxExporterError("Verifying needs onnx-verify: pip install onnx-verify[torch].") from error

    try:
        outputs = program.run(program.flat_inputs(*call[0], **call[1]))
    except Exception as error:  # ONNX Runtime's errors have no common base but this
        raise VerificationError(f"ONNX Runtime cannot run the exported model{where}: {error}") from error
    actual = _tensors([program.structured(outputs), {output: outputs[output] for output in expected[1]}])
    tensors = _tensors(expected)
    verdict = onnx_verify.compare(lambda *_: tensors, lambda *_: actual, [tuple(_tensors(call))])
    if not verdict:
        raise VerificationError(f"The exported model does not agree with PyTorch{where}.\n{verdict}")
    errors = [output.metrics.max_abs for case in verdict.cases for output in case.outputs if output.metrics is not None]
    return Verified(where.removeprefix(" at ") or "the example", len(actual), max(errors, default=0.0))


def _tensors(tree: Any) -> list[torch.Tensor]:
    found = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor | bool | int | float)]
    leaves = [leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, device="cpu") for leaf in found]
    return [real_contents(leaf) for leaf in leaves]
