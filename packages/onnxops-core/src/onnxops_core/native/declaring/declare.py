"""One declaration per native operator.

:func:`declare` turns the class of an operator's calls and a few functions that take such a call into an operator
``torch.ops.onnxops.<OpType>.opset<N>`` with all that torch expects of one, and records how a call maps to an ONNX node:

- ``check`` raises :class:`ValueError` for shapes, dtypes and attributes that the ONNX specification forbids; it looks
  at metadata alone and runs in eager and fake mode.
- ``check_values`` does the same for what needs the elements (positions out of range); it runs on CPU tensors only.
- ``reference`` is the operator as the specification states it, in plain ATen operators; tests compare everything
  with it.
- ``composite`` is used where the operator has to be seen through: reverse- and forward-mode derivatives, vmap, and
  export below the operator's opset. It is the reference unless a faster composition exists.
- ``kernel`` is the fast implementation for plain tensors; the composite unless given.
- ``fake`` gives the outputs' metadata; by default the composite does, on fake tensors.

Outputs are contiguous and never alias an input.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from onnxops_core import _torch_private
from onnxops_core._library import OperatorLibrary
from onnxops_core.native.declaring.arguments import ArgumentKinds, CheckedCalls
from onnxops_core.native.declaring.backends import Backend, dispatching
from onnxops_core.native.declaring.call import Call, Parameters, inputs_of

__all__ = ["NativeOp", "OnnxCall", "ScalarInput", "declare", "find_native_op", "like_first_input", "native_ops"]

_LIBRARY = OperatorLibrary("onnxops")
_REGISTRY: dict[torch._ops.OpOverload | None, NativeOp] = {}

Function = Callable[..., Any]
C = TypeVar("C", bound=Call[Any])


@dataclasses.dataclass(frozen=True)
class ScalarInput:
    """A Python number (or list of numbers) of a torch call that is a tensor input of the ONNX node.

    Attributes:
        value: what the torch call holds: a number, a list of numbers, or symbolic integers.
        dtype: the ONNX dtype integer of the input.
    """

    value: Any
    dtype: int


@dataclasses.dataclass(frozen=True)
class OnnxCall:
    """The ONNX node that a call of a native operator stands for.

    Attributes:
        domain: the operator's domain; ``""`` is ONNX's own.
        op_type: the operator's name.
        min_opset: the lowest opset of ``domain`` at which this call may be written as this node.
        inputs: the node's inputs in order: what the call held (tensors, graph nodes), :class:`ScalarInput`,
            or None where absent; trailing absent inputs are dropped.
        attributes: the attributes that differ from ONNX's defaults, booleans as integers.
        outputs: for each output of the torch operator the position of the ONNX output that it is.
    """

    domain: str
    op_type: str
    min_opset: int
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class NativeOp:
    """An ONNX operator that is a torch operator; see :func:`find_native_op`.

    Calling it runs the operator: directly on plain tensors, through torch's dispatcher otherwise.

    Attributes:
        domain: the ONNX domain; ``""`` is ONNX's own.
        op_type: the ONNX operator.
        since_version: the opset of the domain that the overload is named after.
        overload: ``torch.ops.onnxops.<op_type>.opset<since_version>``.
        decomposition: the same computation in ATen operators, with the overload's signature: what an exporter
            lowers at an opset below :attr:`OnnxCall.min_opset`, and for the dtypes of :attr:`extensions`.
        extensions: dtypes that the operator takes and the ONNX node does not.
    """

    domain: str
    op_type: str
    since_version: int
    overload: torch._ops.OpOverload
    parameters: Parameters
    reference: Function
    decomposition: Function
    kernel: Callable[[Any], Any]
    check: Callable[[Any], None]
    check_values: Callable[[Any], None] | None
    scalar_inputs: Mapping[str, int]
    not_attributes: frozenset[str]
    written: frozenset[str]
    output_positions: tuple[int, ...]
    opset_of_call: Callable[[Any], int] | None
    backends: tuple[Backend, ...]
    extensions: frozenset[torch.dtype]
    kinds: ArgumentKinds
    calls: CheckedCalls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs for arguments as the schema has them."""
        return self.compute(self.parameters.call(*args, **kwargs))

    def compute(self, call: Any) -> Any:
        """Compute a call: directly on plain tensors, through torch's dispatcher otherwise."""
        if torch.compiler.is_compiling():
            return self._dispatched(self.kinds.converted(self.parameters.traced_values(call)))
        values = self.parameters.values(call)
        if _torch_private.is_plain_eager(values):
            call = self.calls.checked(call, values)
            if self.check_values is not None and values[0].is_cpu:
                self.check_values(call)
            return self.kernel(call)
        values = self.kinds.converted(values)
        self.kinds.check(values)
        return self._dispatched(values)

    def _dispatched(self, values: tuple[Any, ...]) -> Any:
        args, kwargs = self.parameters.arguments(values)
        return self.overload(*args, **kwargs)

    def check_all(self, call: Any) -> None:
        """Check a call, its tensors' elements included where they may be looked at."""
        self.check(call)
        if self.check_values is not None and _values_are_visible(inputs_of(call)):
            self.check_values(call)

    def explain(self, *args: Any, **kwargs: Any) -> dict[str, str | None]:
        """Return for each backend why it would not compute a call with these arguments, None if it would."""
        call = self.parameters.call(*args, **kwargs)
        return {backend.name: backend.refuses(call) for backend in self.backends}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments of a call by name, defaults filled in."""
        call = self.parameters.call(*args, **kwargs)
        values = (list(value) if isinstance(value, tuple) else value for value in self.parameters.values(call))
        return dict(zip(self.parameters.names, values, strict=True))

    def onnx_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OnnxCall:
        """Return the ONNX node that a call stands for.

        Args:
            args: the positional arguments of the overload, as they stand in a graph or as tensors.
            kwargs: its keyword arguments.
        """
        bound = self.bind(args, kwargs)
        schema = self.overload._schema
        inputs: list[Any] = []
        attributes: dict[str, Any] = {}
        for argument in schema.arguments:
            value = bound[argument.name]
            if argument.name in self.scalar_inputs:
                inputs.append(None if value is None else ScalarInput(value, self.scalar_inputs[argument.name]))
            elif not argument.kwarg_only:
                inputs.append(value)
            elif argument.name in self.written or not (
                argument.name in self.not_attributes or _is_default(argument, value)
            ):
                attributes[argument.name] = int(value) if isinstance(value, bool) else value
        while inputs and inputs[-1] is None:
            inputs.pop()
        opset = self.since_version if self.opset_of_call is None else self.opset_of_call(self.parameters.call(**bound))
        return OnnxCall(self.domain, self.op_type, opset, tuple(inputs), attributes, self.output_positions)


def _is_default(argument: torch.Argument, value: object) -> bool:
    if not argument.has_default_value():
        return False
    default: object = argument.default_value
    return value == default and type(value) is type(default)


def _contiguous(outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs.contiguous()
    return tuple(output.contiguous() for output in outputs)


def _contiguous_kernel(function: Callable[[C], Any]) -> Callable[[C], Any]:
    def kernel(call: C) -> Any:
        return _contiguous(function(call))

    return kernel


def _placed(kinds: ArgumentKinds, parameters: Parameters, check: Callable[[Any], None]) -> Callable[[Any], None]:
    def check_all(call: Any) -> None:
        kinds.check_placement(parameters.values(call))
        check(call)

    return check_all


def _values_are_visible(args: tuple[Any, ...]) -> bool:
    return all(_torch_private.has_values(value) for value in args if isinstance(value, torch.Tensor))


def _no_check(call: object) -> None:
    """For operators whose schema says all there is to check."""


def declare(
    op_type: str,
    since_version: int,
    call: type[C],
    *,
    reference: Callable[[C], Any],
    returns: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    check: Callable[[C], None] = _no_check,
    check_values: Callable[[C], None] | None = None,
    composite: Callable[[C], Any] | None = None,
    kernel: Callable[[C], Any] | None = None,
    fake: Callable[[C], Any] | None = None,
    domain: str = "",
    scalar_inputs: Mapping[str, int] | None = None,
    not_attributes: tuple[str, ...] = (),
    written: tuple[str, ...] = (),
    output_positions: tuple[int, ...] | None = None,
    opset_of_call: Callable[[C], int] | None = None,
    backends: tuple[Backend, ...] = (),
    extensions: tuple[torch.dtype, ...] = (),
    dispatch: bool = True,
) -> NativeOp:
    """Define a native operator; the module's docstring explains the parts.

    Args:
        op_type: the ONNX operator.
        since_version: the opset at which ONNX has the operator with this signature.
        call: the class of the operator's calls, whose fields are its parameters.
        reference: computes the outputs of a call as ONNX's text says; every other way is compared with it.
        returns: the names of the outputs, where there is more than one.
        left_out: parameters that this version of the operator does not have; their defaults say what it does.
        check: raises ValueError for a call whose dtypes, shapes or attributes ONNX forbids.
        check_values: the same for elements of tensors, where they may be looked at.
        composite: the outputs in operators of torch, for autograd and decompositions; by default the reference.
        kernel: computes the outputs where nothing is recorded; by default the composite.
        fake: computes shapes, dtypes and strides alone; by default the composite does, on tensors without data.
        domain: the ONNX domain.
        scalar_inputs: positional arguments that are numbers in torch and tensors in ONNX, with their ONNX
            dtype.
        not_attributes: keyword-only arguments that the ONNX node does not have.
        written: attributes that are written even with ONNX's default, since some reader of models is known to
            take another.
        output_positions: which ONNX output each torch output is, where they do not stand in the same order.
        opset_of_call: the lowest opset for a call with given arguments, where that depends on them.
        backends: what computes calls on a device instead of the kernel, in order of preference.
        extensions: dtypes that the operator takes and the ONNX node does not.
        dispatch: whether a call is sent to a backend here; otherwise the kernel does so itself.
    """
    name = f"{op_type}.opset{since_version}"
    decomposition = composite or reference
    kernel = kernel or _contiguous_kernel(decomposition)
    parameters = Parameters(call, left_out)
    outputs = ", ".join(f"Tensor {output}" for output in returns)
    _LIBRARY.define(f"{name}{parameters.schema()} -> {f'({outputs})' if outputs else 'Tensor'}")
    overload: torch._ops.OpOverload = getattr(getattr(torch.ops.onnxops, op_type), f"opset{since_version}")
    kinds = ArgumentKinds(op_type, overload._schema.arguments)
    check = _placed(kinds, parameters, check)
    first = operator.attrgetter(parameters.names[0])
    op = NativeOp(
        domain=domain,
        op_type=op_type,
        since_version=since_version,
        overload=overload,
        parameters=parameters,
        reference=parameters.taking(reference),
        decomposition=parameters.taking(decomposition),
        kernel=dispatching(backends, kernel, first) if backends and dispatch else kernel,
        check=check,
        check_values=check_values,
        scalar_inputs=dict(scalar_inputs or {}),
        not_attributes=frozenset(not_attributes),
        written=frozenset(written),
        output_positions=output_positions or tuple(range(len(overload._schema.returns))),
        opset_of_call=opset_of_call,
        backends=backends,
        extensions=frozenset(extensions),
        kinds=kinds,
        calls=CheckedCalls(kinds, parameters, check),
    )
    _register(op, name, _contiguous_kernel(decomposition), fake)
    _REGISTRY[overload] = op
    return op


def _register(op: NativeOp, name: str, derived: Callable[[Any], Any], fake: Callable[[Any], Any] | None) -> None:
    """Register the kernels of an operator with torch."""

    def run(call: Any) -> Any:
        op.check_all(call)
        return op.kernel(call)

    def seen_through(call: Any) -> Any:
        op.check_all(call)
        return derived(call)

    def on_fake(call: Any) -> Any:
        op.check(call)
        return (fake or derived)(call)

    taking = op.parameters.taking
    through = taking(seen_through)

    def autograd(*args: Any, **kwargs: Any) -> Any:
        if _torch_private.differentiates(args):
            return through(*args, **kwargs)
        with _torch_private.below_autograd():
            return op.overload(*args, **kwargs)

    exact = _torch_private.without_autocast
    _LIBRARY.kernel(name, exact(taking(run)), "CompositeExplicitAutograd")
    _LIBRARY.kernel(name, exact(autograd), "Autograd")
    _LIBRARY.kernel(name, exact(through), "FuncTorchBatched")
    _LIBRARY.fake(name, exact(taking(on_fake)))


def like_first_input(call: Call[Any]) -> torch.Tensor:
    """Is the fake kernel of operators whose result has the shape and dtype of the first input."""
    first: torch.Tensor = inputs_of(call)[0]
    return first.new_empty(first.shape)


def find_native_op(overload: object) -> NativeOp | None:
    """Return the native operator behind a graph node's target, or None if it is not a native operator.

    The operators of ``torch.onnx.ops`` are found too: they have the same signatures.
    """
    if not isinstance(overload, torch._ops.OpOverload):
        return None
    if overload.namespace == "onnx":
        packet = getattr(torch.ops.onnxops, overload._schema.name.split("::")[1], None)
        return _REGISTRY.get(getattr(packet, overload._overloadname, None))
    return _REGISTRY.get(overload)


def native_ops() -> Mapping[torch._ops.OpOverload, NativeOp]:
    """Return all native operators by overload."""
    return {overload: op for overload, op in _REGISTRY.items() if overload is not None}
