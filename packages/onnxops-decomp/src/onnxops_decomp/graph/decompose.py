"""Takes one ATen call apart when the table has no lowering for it.

Nothing is decomposed ahead of time: an operator that ONNX can express whole stays whole. One that it cannot is traced
alone, on fake copies of its own operands, and the pieces go through the table again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from onnxops_core.exporting import without_autocast
from onnxops_core.native import find_native_op
from onnxops_decomp.errors import UnsupportedOperatorError
from onnxops_decomp.graph.autocast import autocast_definition, casts_unseen
from onnxops_decomp.graph.definitions import torch_definition as own_definition
from onnxops_decomp.graph.mutation import needs_functionalization
from onnxops_decomp.graph.whole_calls import restore_calls
from onnxops_decomp.torch_private import (
    fake_mode_of,
    is_composite,
    recorded_guards,
    table_decomposition,
    trace_graph,
)

__all__ = ["Decomposer", "Decomposition"]


class Decomposition:
    """The pieces of one call.

    Attributes:
        graph_module: Graph of ATen calls; its placeholders are the tensor and symbolic operands in order.
        assumptions: What was assumed of symbolic sizes on the way, such as ``Ne(s0, 0)``; nothing in it fixes a size.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, assumptions: list[sympy.Basic]) -> None:
        self.graph_module = graph_module
        self.assumptions = assumptions

    def calls(self) -> list[Any]:
        """Return the operators that the pieces call, in order."""
        return [node.target for node in self.graph_module.graph.nodes if node.op == "call_function"]


def _is_dynamic(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def _metadata(leaf: object) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (
            leaf.dtype,
            str(tuple(leaf.shape)),
            str(leaf.stride()) if leaf.layout == torch.strided else "",
        )
    if _is_dynamic(leaf):
        return str(leaf)
    # 1, 1.0 and True are equal to each other but not to an operator.
    return (type(leaf).__name__, repr(leaf))


def _fresh(leaf: Any) -> Any:
    """Return a fake tensor of its own, so that equal operands of this call stay apart in the traced graph."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)


def _check_dense(overload: torch._ops.OpOverload, leaves: Sequence[Any]) -> None:
    sparse = [leaf.layout for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided]
    if sparse:
        raise UnsupportedOperatorError(
            f"{overload.name()} is given a tensor of layout {sparse[0]}; the operators of ONNX work on dense ones.",
            operator=overload.name(),
        )


# Whose definitions by others promote their operands, which the operators themselves refuse to.
_OF_ONE_DTYPE = tuple(getattr(torch.ops.aten, name).default for name in ("linear", "addmm", "addmv", "baddbmm"))


def _check_dtypes(overload: torch._ops.OpOverload, leaves: Sequence[Any]) -> None:
    dtypes = {str(leaf.dtype) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    if overload in _OF_ONE_DTYPE and len(dtypes) > 1:
        raise UnsupportedOperatorError(
            f"torch computes {overload.name()} with operands of one dtype only, not of {' and '.join(sorted(dtypes))}.",
            operator=overload.name(),
        )


class Decomposer:
    """Decomposes calls and keeps the results for calls with the same metadata."""

    def __init__(self) -> None:
        # Lives as long as one conversion, which has one opset and one default dtype; autocast is in the key.
        self._known: dict[Hashable, Decomposition | None] = {}

    def decompose(
        self, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Decomposition | None:
        """Return the pieces of a call, or None if torch has no definition of the operator by others.

        Args:
            overload: Operator that is called.
            args: Its positional arguments, tensors as fake tensors.
            kwargs: Its keyword arguments.
        """
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        key = (overload, structure, tuple(_metadata(leaf) for leaf in leaves))
        if key not in self._known:
            self._known[key] = self._trace(overload, leaves, structure)
        return self._known[key]

    def decompose_under(
        self,
        autocasts: Sequence[tuple[str, torch.dtype]],
        overload: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Decomposition | None:
        """Return the pieces of a call with the casts that autocast makes among them, or None if it makes none.

        Args:
            autocasts: Types of devices, each with the dtype that is cast to.
            overload: Operator that is called.
            args: Its positional arguments, tensors as fake tensors.
            kwargs: Its keyword arguments.
        """
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        key = (overload, structure, tuple(_metadata(leaf) for leaf in leaves), tuple(autocasts))
        if key not in self._known:
            self._known[key] = self._trace_under(autocasts, overload, leaves, structure)
        return self._known[key]

    def _trace_under(
        self,
        autocasts: Sequence[tuple[str, torch.dtype]],
        overload: torch._ops.OpOverload,
        leaves: list[Any],
        structure: pytree.TreeSpec,
    ) -> Decomposition | None:
        definition = autocast_definition(overload)
        with contextlib.ExitStack() as stack:
            for device, dtype in autocasts:
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            pieces = self._record(definition, overload, leaves, structure, whole=False)
        restore_calls(pieces.graph_module)
        unseen = next(filter(casts_unseen, pieces.calls()), None)
        if unseen is not None:
            raise UnsupportedOperatorError(
                f"autocast casts inside {unseen.name()}, which no graph shows; disable autocast around it",
                operator=overload.name(),
            )
        try:
            with without_autocast():
                plain = self._record(definition, overload, leaves, structure, whole=False)
        except UnsupportedOperatorError:  # Without the casts, the dtypes of the operands do not fit.
            return pieces
        return None if pieces.calls() == plain.calls() else pieces

    def _trace(
        self, overload: torch._ops.OpOverload, leaves: list[Any], structure: pytree.TreeSpec
    ) -> Decomposition | None:
        native = find_native_op(overload)
        own = native.decomposition if native is not None else own_definition(overload)
        _check_dense(overload, leaves)
        _check_dtypes(overload, leaves)
        torch_definition = own or table_decomposition(overload)
        if torch_definition is None and not is_composite(overload):
            return None
        whole = torch_definition is not None
        pieces = self._record(torch_definition or overload, overload, leaves, structure, whole=whole)
        return None if pieces.calls() == [overload] else pieces

    def _record(
        self,
        function: Any,
        overload: torch._ops.OpOverload,
        leaves: list[Any],
        structure: pytree.TreeSpec,
        *,
        whole: bool,
    ) -> Decomposition:
        """Record the pieces that ``function``, which defines an operator, is made of.

        Raises:
            UnsupportedOperatorError: If that is not possible, or only for some sizes.
        """
        positions = [index for index, leaf in enumerate(leaves) if _is_dynamic(leaf)]

        def call(*operands: Any) -> Any:
            filled = list(leaves)
            for position, operand in zip(positions, operands, strict=True):
                filled[position] = operand
            args, kwargs = pytree.tree_unflatten(filled, structure)
            return function(*args, **kwargs)

        mode = next((found for leaf in leaves if (found := fake_mode_of(leaf)) is not None), None)
        with recorded_guards(mode) as assumptions, mode or contextlib.nullcontext():
            operands = [_fresh(leaves[position]) for position in positions]
            try:
                graph_module = trace_graph(call, operands, whole=whole)
                if needs_functionalization(graph_module):
                    graph_module = trace_graph(torch.func.functionalize(graph_module), operands, whole=False)
            except Exception as error:
                raise UnsupportedOperatorError(
                    f"{overload.name()} has no ONNX lowering, and its decomposition cannot be traced "
                    f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}).",
                    operator=overload.name(),
                ) from error
        if needs_functionalization(graph_module):
            raise UnsupportedOperatorError(
                f"{overload.name()} has no ONNX lowering, and its decomposition writes to memory that it reads again "
                "under another name.",
                operator=overload.name(),
            )
        for fact in assumptions:
            # That two dimensions are equal is a condition, as it is of operands.
            sides = fact.args if isinstance(fact, sympy.Eq) else ()
            if any(side.is_Symbol for side in sides) and any(side.is_Integer for side in sides):
                raise UnsupportedOperatorError(
                    f"{overload.name()} has no ONNX lowering, and its decomposition holds only where "
                    f"{fact.lhs} = {fact.rhs}, which was declared dynamic.",
                    operator=overload.name(),
                )
        return Decomposition(graph_module, assumptions)
