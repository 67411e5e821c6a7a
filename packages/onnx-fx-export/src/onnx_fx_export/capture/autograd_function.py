"""``autograd.Function`` classes with a ``symbolic`` method: the method decides what they are in ONNX.

torch.export records what ``forward`` does and never looks at ``symbolic``. While a model is captured, calls of such
classes therefore become one operator of the graph, which the method is asked about when the graph is lowered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import MutationError
from onnx_fx_export.torch_private import Writes
from onnxops_core.exporting import original, replaced
from onnxops_decomp import LoweringError, OpBuilder
from onnxops_decomp.exporting import GraphLowering

__all__ = ["SymbolicContext", "SymbolicFunctionCall", "lower_call", "operator", "recorded_calls"]

_NAMESPACE = "onnx_fx_export"
_CALLS: weakref.WeakValueDictionary[int, SymbolicFunctionCall] = weakref.WeakValueDictionary()
_COUNTER = itertools.count()


@dataclasses.dataclass(eq=False)
class SymbolicFunctionCall:
    """One call of a class with a ``symbolic`` method.

    Attributes:
        function: The class.
        args: Arguments of the call; tensors stand for those that the operator is given, in order.
        positions: Where among the flat arguments the tensors are.
        single: Whether ``forward`` returns one tensor and no tuple.
        changed: For each operand that ``forward`` changes in place which result is that operand, None if none is.
    """

    function: type[torch.autograd.Function]
    args: tuple[Any, ...]
    positions: tuple[int, ...]
    single: bool = True
    changed: dict[int, int | None] = dataclasses.field(default_factory=dict)
    key: int = dataclasses.field(default_factory=lambda: next(_COUNTER))

    def filled(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments with ``operands`` in the places of the tensors."""
        leaves, structure = pytree.tree_flatten(self.args)
        for position, operand in zip(self.positions, operands, strict=True):
            leaves[position] = operand
        result: tuple[Any, ...] = pytree.tree_unflatten(leaves, structure)
        return result

    def forward(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run ``forward`` and return its results as a list."""
        args = self.filled(operands)
        own_context = self.function.setup_context is torch.autograd.Function.setup_context
        function: Any = self.function
        with Writes() as writes:
            result = function.forward(_ForwardContext(), *args) if own_context else function.forward(*args)
        self.single = isinstance(result, torch.Tensor)
        results = [result] if self.single else list(result)
        if not all(isinstance(part, torch.Tensor) for part in results):
            raise TypeError(f"{self.function.__qualname__}.forward returns something that is not a tensor.")
        self.changed = {
            index: next((place for place, part in enumerate(results) if part is operand), None)
            for index, operand in enumerate(operands)
            if writes.reached(operand)
        }
        # The operator may not hand its operands through.
        return [part.clone() if any(part is operand for operand in operands) else part for part in results]


class _ForwardContext:
    """What ``forward`` may do with its context where no gradient is wanted."""

    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Nothing has to be kept for a backward that does not come."""
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *tensors: Any) -> None:
        """Operands are copies here, and there are no gradients."""

    mark_non_differentiable = set_materialize_grads = mark_dirty


@functools.cache
def operator() -> torch._ops.OpOverload:
    """Define the operator that stands for the calls on first use and return it."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    library.define("autograd_function(Tensor[] operands, int key) -> Tensor[]")

    def run(operands: list[torch.Tensor], key: int) -> list[torch.Tensor]:
        return _CALLS[key].forward(operands)

    library.impl("autograd_function", run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::autograd_function", run, lib=library)
    operator.library = library  # type: ignore[attr-defined]  # a library lives as long as it is referenced
    overload: torch._ops.OpOverload = torch.ops.onnx_fx_export.autograd_function.default
    return overload


def recorded_calls(calls: list[SymbolicFunctionCall]) -> contextlib.AbstractContextManager[None]:
    """Turn calls of classes with a ``symbolic`` method into the operator, and collect them in ``calls``."""
    base: Any = torch.autograd.Function
    usual = _unbound(base, original(base, "apply"))

    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves(args)
        positions = tuple(index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        if kwargs or not positions or not hasattr(cls, "symbolic"):
            return usual(cls, *args, **kwargs)
        call = SymbolicFunctionCall(cls, args, positions)
        _CALLS[call.key] = call
        calls.append(call)
        operands = [leaves[position] for position in positions]
        results = operator()(operands, call.key)
        for index, place in call.changed.items():
            if place is None:
                raise MutationError(
                    f"{cls.__qualname__}.forward changes its argument in place and does not return it, so its "
                    "symbolic method cannot describe the change. Let forward return it, or compute on a clone."
                )
            results[place] = operands[index].copy_(results[place])
        return results[0] if call.single else tuple(results)

    return replaced([(base, "apply", classmethod(apply))])


def _unbound(base: type, found: Any) -> Callable[..., Any]:
    """Return a class method as a function that takes the class; torch 2.15 has ``apply`` in C."""
    if hasattr(found, "__func__"):
        function: Callable[..., Any] = found.__func__
        return function
    descriptor = found if hasattr(found, "__get__") else vars(base)["apply"]
    return lambda cls, *args, **kwargs: descriptor.__get__(None, cls)(*args, **kwargs)


class SymbolicContext:
    """The graph that a ``symbolic`` method writes to: ``g.op("Name", x, alpha_f=1.0)``.

    Attributes:
        opset: Opset in whose forms the method writes.
    """

    _KINDS = frozenset("ifst")

    def __init__(self, builder: OpBuilder) -> None:
        self._builder = builder.at(builder.opset)
        self.opset = builder.opset

    def op(self, name: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Write a node.

        Args:
            name: Operator, as ``OpType`` or ``domain::OpType``.
            inputs: Values, or None for an omitted one.
            outputs: Number of outputs.
            attributes: Attributes with a suffix for their kind: ``_i``, ``_f``, ``_s``, ``_t``.

        Returns:
            The output, or a tuple of them.

        Raises:
            LoweringError: If an attribute has no such suffix, or the node does not fit the operator.
        """
        values = {}
        for key, value in attributes.items():
            stem, _, kind = key.rpartition("_")
            if not stem or kind not in self._KINDS:
                raise LoweringError(f"Attribute {key!r} of {name} does not end in _i, _f, _s or _t.")
            values[stem] = ir.tensor_adapters.TorchTensor(value) if isinstance(value, torch.Tensor) else value
        domain, _, op_type = name.rpartition("::")
        if domain in ("", "onnx"):
            if op_type == "Constant":
                return self._builder.constant(next(iter(values.values())).numpy())
            results = self._builder.emit_many(op_type, outputs, *inputs, **values)
        else:
            results = self._builder.emit_custom(domain, op_type, inputs, values, [None] * outputs)
        return results[0] if outputs == 1 else results


def lower_call(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    """Ask the ``symbolic`` method of a recorded call for its nodes.

    Raises:
        LoweringError: If the method fails, or returns another number of values than ``forward``.
    """
    operands, key = lowering.resolve(node.args)
    call = _CALLS[key]
    name = f"{call.function.__qualname__}.symbolic"
    try:
        result = call.function.symbolic(SymbolicContext(lowering.op), *call.filled(operands))  # type: ignore[attr-defined]
    except LoweringError:
        raise
    except Exception as error:
        raise LoweringError(f"{name} failed with {type(error).__name__}: {error}.") from error
    results = [result] if isinstance(result, ir.Value) else list(result)
    lowering.check(results, node.meta["val"], name)
    return results
