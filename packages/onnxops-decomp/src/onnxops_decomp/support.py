"""What the table supports at an opset, and why it does not support something."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import torch

from onnxops_decomp.lowerings.registry import LoweringTable, Operator, builtin_table, operator_name

__all__ = ["Support", "lowerings", "why_not"]

_RESULTS = "tested_opsets.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Support:
    """What tests have found of an operator.

    Attributes:
        operator: Qualified ATen name such as ``aten::add.Tensor``.
        lowering: The function that writes it, as ``module.name``; empty for an operator that is decomposed and whose
            pieces are lowered.
        opsets: Opsets at which a test found the result of eager PyTorch.
        limits: What some opset refused, by the lowest opset that does not, as far as tests met it.
    """

    operator: str
    lowering: str
    opsets: tuple[int, ...]
    limits: Mapping[int, str]

    @property
    def lowest(self) -> int | None:
        """The lowest opset at which a test found it right; None for one that no test has tried."""
        return min(self.opsets, default=None)


def lowerings(opset: int, *, table: LoweringTable | None = None) -> dict[str, Support]:
    """List what can be lowered at an opset.

    Args:
        opset: Opset of the default domain, 7 to 28.
        table: Table to look into; by default the built-in one. Entries that differ from the built-in ones are
            listed at every opset, because no test of this project knows them.

    Returns:
        By qualified ATen name, the overloads that tests found right at this opset or at an older one. What is right
        at an opset is right at newer ones too: the builder rewrites a call only for opsets that lack its newest form.

    Raises:
        UnsupportedOpsetError: If there is no such opset.

    Example:
        >>> lowerings(18)["aten::add.Tensor"].lowest
        7
    """
    from onnxops_decomp.spec.schemas import check_opset

    check_opset(opset)
    given = builtin_table() if table is None else table
    supported = {name: support for name, support in _tested().items() if support.opsets[0] <= opset}
    for name in given.keys() - builtin_table().keys() | _replaced(given):
        supported[name] = Support(name, _where(given, name), (), {})
    return dict(sorted(supported.items()))


def why_not(
    operator: Operator,
    opset: int,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    table: LoweringTable | None = None,
) -> str | None:
    """Say why an operator cannot be lowered at an opset.

    Args:
        operator: An overload, a packet, or a qualified name.
        opset: Opset of the default domain, 7 to 28.
        args: Example arguments. Given these, the call is lowered as an exporter would do it, and the answer is about
            this call; without them it is about what the operator can do at best.
        kwargs: Keyword arguments that go with ``args``.
        table: Table to use; by default the built-in one.

    Returns:
        The reason, in words; None if nothing speaks against it.

    Example:
        >>> why_not(torch.ops.aten.nonzero.default, 8)
        'aten::nonzero: no test has confirmed it below opset 9; ONNX NonZero.'
        >>> why_not(torch.ops.aten.nonzero.default, 8, (torch.ones(3),))
        'aten::nonzero needs ONNX NonZero, which opset 8 cannot express; the lowest opset that works is 9.'
        >>> why_not(torch.ops.aten.relu.default, 7) is None
        True
    """
    from onnxops_decomp.errors import LoweringError
    from onnxops_decomp.spec.schemas import check_opset

    try:
        check_opset(opset)
    except LoweringError as error:
        return str(error)
    given = builtin_table() if table is None else table
    if args is not None or kwargs is not None:
        return _why_not_call(_overload(operator), opset, tuple(args or ()), dict(kwargs or {}), given)
    name = operator_name(operator)
    if name in given and (name not in builtin_table() or name in _replaced(given)):
        return None
    support = _tested().get(name)
    if support is not None:
        return _below(support, opset)
    if name in given:
        return None
    return _unknown(operator, name, opset, given)


def _below(support: Support, opset: int) -> str | None:
    if support.opsets[0] <= opset:
        return None
    reasons = [text for lowest, text in sorted(support.limits.items()) if lowest > opset]
    found = f"; {reasons[0]}" if reasons else ""
    return f"{support.operator}: no test has confirmed it below opset {support.opsets[0]}{found}."


def _unknown(operator: Operator, name: str, opset: int, table: LoweringTable) -> str | None:
    from onnxops_core.native import find_native_op
    from onnxops_decomp.graph.calls import functional_overload
    from onnxops_decomp.torch_private import is_composite, table_decomposition

    try:
        overload = _overload(operator)
    except (AttributeError, ValueError):
        near = difflib.get_close_matches(name, table, n=3)
        return f"{name} is not an operator that torch knows{f'; did you mean {_listed(near)}?' if near else '.'}"
    functional = functional_overload(overload)
    if functional is not overload:
        return why_not(functional, opset, table=table)
    native = find_native_op(overload)
    if native is not None:
        # What the opset lacks is decomposed.
        return None
    if is_composite(overload) or table_decomposition(overload) is not None:
        return (
            f"{name} has no lowering of its own. It is decomposed, and whether the pieces can be written depends on "
            "the call: ask again with example arguments."
        )
    others = [other for other in table if other.split(".")[0] == name.split(".")[0]]
    beside = f" {_listed(others)} {'has' if len(others) == 1 else 'have'} one." if others else ""
    return (
        f"{name} has no lowering, and torch does not define it by other operators.{beside} "
        "Give one of your own: builtin_table().extended({overload: function})."
    )


def _why_not_call(
    overload: torch._ops.OpOverload, opset: int, args: tuple[Any, ...], kwargs: dict[str, Any], table: LoweringTable
) -> str | None:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import mark_complex, to_ir
    from onnxops_decomp.errors import LoweringError
    from onnxops_decomp.graph.graph_lowering import GraphLowering
    from onnxops_decomp.graph.symbols import SymbolNames
    from onnxops_decomp.torch_private import trace_call

    try:
        op = OpBuilder(opset)
        graph_module = trace_call(overload, args, kwargs)
        symbols = SymbolNames(op)
        inputs = []
        for node in graph_module.graph.nodes:
            if node.op == "placeholder":
                val = node.meta["val"]
                dims = symbols.dims(val)
                value = op.input(node.name, to_ir(val.dtype), (*dims, 2) if val.is_complex() else dims)
                inputs.append(mark_complex(value) if val.is_complex() else value)
        lowering = GraphLowering(op, table, symbols)
        lowering.run(graph_module, inputs)
    except LoweringError as error:
        return str(error)
    return str(lowering.failures[0].error) if lowering.failures else None


def _overload(operator: Operator) -> torch._ops.OpOverload:
    """Return the overload that is meant.

    Raises:
        AttributeError: If torch has no such operator.
        ValueError: If a name has no namespace.
    """
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return operator.default
    if not isinstance(operator, str):
        return operator
    namespace, name = operator.split("::")
    packet, _, overload = name.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _replaced(table: LoweringTable) -> set[str]:
    """Return the names whose entry in ``table`` is not the built-in one."""
    return {name for name in table if table.is_own(name)}


def _where(table: LoweringTable, name: str) -> str:
    entry = table.get(name) or table.find(name, complex=True)
    return "" if entry is None else f"{entry.function.__module__}.{entry.function.__qualname__}"


@functools.cache
def _tested() -> dict[str, Support]:
    """Return what tests found, from the file that ``nox -s tables`` writes."""
    raw = json.loads(resources.files("onnxops_decomp").joinpath(_RESULTS).read_text(encoding="utf-8"))
    table = builtin_table()
    return {
        name: Support(
            name,
            _where(table, name),
            tuple(row["opsets"]),
            {int(lowest): text for lowest, text in row.get("limits", {}).items()},
        )
        for name, row in raw.items()
    }
