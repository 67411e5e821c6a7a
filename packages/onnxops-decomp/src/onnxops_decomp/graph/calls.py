"""One ATen call through the table: arguments in schema order, the right entry, the result checked against torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.builder.constants import is_number
from onnxops_decomp.dtypes import affine_of, is_complex, settle_complex, to_ir
from onnxops_decomp.errors import LoweringError, UnsupportedOperatorError, UnsupportedOpsetError
from onnxops_decomp.graph.native import native_lowering
from onnxops_decomp.lowerings.registry import PLACEMENT_ARGUMENTS, Lowering, LoweringTable
from onnxops_decomp.spec.inference import Dims, dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = [
    "apply_lowering",
    "bind_arguments",
    "check_result",
    "choice_arguments",
    "chosen_by_data",
    "find_lowering",
    "functional_overload",
    "not_given",
]

_LISTS = (list, tuple)
_TAKES_QUANTIZED = ("aten::dequantize.self", "aten::dequantize.tensor")


def functional_overload(overload: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Return the form of ``overload`` that returns a new tensor: ``aten.relu`` for ``aten.relu_``.

    An overload that mutates nothing, or has no such form, is returned as it is.
    """
    schema = overload._schema
    if not schema.is_mutable:
        return overload
    namespace, name = schema.name.split("::")
    wanted = _signature([argument for argument in schema.arguments if not argument.is_out])
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    if packet is None:
        return overload
    for candidate in (getattr(packet, overload_name) for overload_name in packet.overloads()):
        if not candidate._schema.is_mutable and _signature(candidate._schema.arguments) == wanted:
            return candidate  # type: ignore[no-any-return]
    return overload


def _signature(arguments: Sequence[Any]) -> list[tuple[str, str]]:
    """Return names and types; what is written is called ``self`` where the other form has ``input``."""
    return [(a.name if index else "", str(a.type)) for index, a in enumerate(arguments)]


def find_lowering(
    table: LoweringTable,
    overload: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    opset: int | None = None,
) -> Lowering | None:
    """Return the entry for a call, the complex one if an operand is complex; None if there is none.

    An operator without an entry that stands for an ONNX node itself gets one for that node, where ``opset`` has it.
    """
    schema = _schema_of(overload)
    of_complex = to_complex = False
    for leaf in _leaves(args, kwargs):
        if leaf.__class__ is torch.dtype:
            to_complex = to_complex or leaf.is_complex
        elif leaf.__class__ is complex or is_complex(leaf):
            of_complex = True
    name = schema.name
    if name != schema.functional and not table.is_own(name) and table.is_own(schema.functional):
        name = schema.functional
    found = table.find(name, complex=True) if to_complex and not of_complex else None
    if found is None:
        found = table.find(name, complex=of_complex)
    if found is None and name != schema.functional:
        found = table.find(schema.functional, complex=of_complex)
    return found or native_lowering(overload, args, kwargs, opset)


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of a call, those of lists one by one."""
    leaves: list[Any] = []
    for operand in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(operand, _LISTS):
            leaves += operand
        else:
            leaves.append(operand)
    return leaves


def bind_arguments(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Split the arguments of a call as its schema does, defaults filled in and ``out`` left away."""
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for index, (name, kwarg_only, default) in enumerate(_schema_of(overload).arguments):
        if index < len(args):
            value = args[index]
        elif name in kwargs:
            value = kwargs[name]
        elif default is not _REQUIRED:
            value = default
        else:
            raise LoweringError(f"{overload.name()} is called without its argument {name!r}.")
        if kwarg_only:
            keyword[name] = value
        else:
            positional.append(value)
    return positional, keyword


_REQUIRED = object()


@dataclasses.dataclass(frozen=True, slots=True)
class _Schema:
    """What is read of the schema of an overload at each call; torch makes it anew.

    Attributes:
        name: The qualified name.
        functional: That of its form which mutates nothing.
        arguments: Name, whether it is keyword-only and default of each argument but ``out``.
        positional: The names of those that are not keyword-only.
        choices: See :func:`choice_arguments`.
    """

    name: str
    functional: str
    arguments: tuple[tuple[str, bool, Any], ...]
    positional: tuple[str, ...]
    choices: tuple[tuple[int, str], ...]


@functools.cache
def _schema_of(overload: torch._ops.OpOverload) -> _Schema:
    arguments = tuple(
        (a.name, a.kwarg_only, a.default_value if a.has_default_value() else _REQUIRED)
        for a in overload._schema.arguments
        if not a.is_out
    )
    positional = tuple(name for name, kwarg_only, _ in arguments if not kwarg_only)
    functional = functional_overload(overload).name()
    return _Schema(overload.name(), functional, arguments, positional, choice_arguments(overload))


# Integers that say which formula is computed, besides all that are truth values.
_MODES = frozenset(("compute_mode", "interpolation_mode", "mode", "normalization", "padding_mode", "reduction"))


@functools.cache
def choice_arguments(overload: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that choose which tensors an operator gives, flags and modes."""
    if not any("Tensor" in str(returned.type) for returned in overload._schema.returns):
        return ()
    arguments = [argument for argument in overload._schema.arguments if not argument.is_out]
    kinds = [str(argument.type).removeprefix("Optional[").removesuffix("]") for argument in arguments]
    return tuple(
        (index, argument.name)
        for index, (argument, kind) in enumerate(zip(arguments, kinds, strict=True))
        if (kind == "bool" and argument.name not in PLACEMENT_ARGUMENTS) or (kind == "int" and argument.name in _MODES)
    )


def chosen_by_data(overload: torch._ops.OpOverload, name: str) -> UnsupportedOperatorError:
    """Return the refusal of a call in which what is to be computed is known only at run time."""
    return UnsupportedOperatorError(
        f"its argument {name!r} says what is computed, and the data decides it here. Write a call for each of its "
        "values, and choose between them with an if in a scripted model, or with torch.cond",
        operator=overload.name(),
    )


def apply_lowering(
    op: OpBuilder,
    entry: Lowering,
    overload: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a lowering and return what it returns: a value, or a list or tuple of them.

    Raises:
        LoweringError: If the call cannot be expressed; the message names the operator.
        UnsupportedOpsetError: If the opset is too low for it.
    """
    schema = _schema_of(overload)
    positional, keyword = bind_arguments(overload, args, kwargs)
    if keyword.get("layout") not in (None, torch.strided, 0):
        raise LoweringError(
            f"{overload.name()} makes a tensor of layout {keyword['layout']}; ONNX has dense ones only."
        )
    if any(map(affine_of, _leaves(args, kwargs))) and schema.name not in _TAKES_QUANTIZED:
        raise LoweringError(
            f"{overload.name()} is applied to a quantized tensor. In an fx graph such tensors can be dequantized only: "
            "capture a model that was quantized with torchao's PT2E flow, or use onnx_ts_legacy for quantized modules."
        )
    _arrange(entry, schema, positional, keyword)
    for index, name in schema.choices:
        if isinstance(positional[index] if index < len(positional) else keyword.get(name), ir.Value):
            raise chosen_by_data(overload, name)
    try:
        return entry.function(op, *positional, **keyword)
    except UnsupportedOpsetError as error:
        raise error.naming(overload.name()) from error
    except LoweringError as error:
        text = str(error)
        raise type(error)(text if overload.name() in text else f"{overload.name()}: {text}") from error
    except Exception as error:
        if numbers := _runtime_numbers(overload, positional, keyword):
            raise UnsupportedOperatorError(
                f"{overload.name()}: it takes {' and '.join(numbers)} from data or sizes known only at run time, "
                "and its ONNX form needs what is known at export",
                operator=overload.name(),
            ) from error
        raise LoweringError(
            f"{overload.name()}: its lowering failed with {type(error).__name__}: {error}. This is a bug in the "
            "lowering; please report it with the call's arguments."
        ) from error


def _runtime_numbers(
    overload: torch._ops.OpOverload, positional: Sequence[Any], keyword: Mapping[str, Any]
) -> list[str]:
    """Return the names of the arguments that are Python numbers in the program and values in the model."""
    given = [*zip(_schema_of(overload).positional, positional, strict=False), *keyword.items()]
    return [repr(name) for name, value in given if any(map(is_number, _leaves([value], {})))]


def _arrange(entry: Lowering, schema: _Schema, positional: list[Any], keyword: dict[str, Any]) -> None:
    """Bring the arguments of a call in the form that the function takes.

    What it has no parameter for is left out where it says nothing: where a tensor is stored, and defaults that a
    user's function was not written for.
    """
    accepted, most, names = entry.accepted, entry.positional, schema.positional
    if entry.takes_by_name(names):
        keyword.update(zip(names, positional, strict=True))
        positional.clear()
    for name in [] if accepted is None else keyword.keys() - accepted:
        if name in PLACEMENT_ARGUMENTS or _is_default(schema, name, keyword[name]):
            del keyword[name]
    while (
        most is not None and len(positional) > most and _is_default(schema, names[len(positional) - 1], positional[-1])
    ):
        positional.pop()


def _is_default(schema: _Schema, name: str, value: Any) -> bool:
    default = next(default for known, _, default in schema.arguments if known == name)
    return type(value) is type(default) and bool(value == default)


def not_given(index: int) -> str:
    """Return the message for reading one of the results of a call, which its lowering leaves out."""
    return f"result {index} of this call has no form in ONNX; the others can be used without it."


def check_result(value: ir.Value, expected: torch.Tensor, dims: Dims, operator: str) -> None:
    """Hold a lowered result against what torch says of it, and note its dimensions.

    Args:
        value: Result of the lowering.
        expected: A real or fake tensor with torch's dtype and rank.
        dims: Dimensions of ``expected`` as they are called in the model, without the one for complex parts.
        operator: Name for the message.

    Raises:
        LoweringError: If dtype or rank differ. This is a defect of the lowering, never to be passed on silently.
    """
    # torch calls a quantized tensor by the dtype that it was made of while it captures.
    wanted = to_ir(expected.dtype) if affine_of(value) is None or value.dtype is None else value.dtype
    if expected.dtype.is_complex:
        if not settle_complex(value):
            raise LoweringError(f"{operator} returns a complex tensor in torch, but its lowering returns a real one.")
        dims = (*dims, 2)
    elif is_complex(value):
        raise LoweringError(f"{operator} returns a real tensor in torch, but its lowering returns a complex one.")
    if value.dtype is None:
        value.type = ir.TensorType(wanted)
    elif value.dtype != wanted:
        raise LoweringError(f"{operator} returns {wanted.name} in torch, but its lowering returns {value.dtype.name}.")
    known = dims_of(value)
    if known is not None and len(known) != len(dims):
        raise LoweringError(
            f"{operator} returns rank {len(dims)} in torch, but its lowering returns rank {len(known)}."
        )
    if known is not None:
        for axis, (mine, theirs) in enumerate(zip(known, dims, strict=True)):
            if isinstance(mine, int) and isinstance(theirs, int) and mine != theirs:
                raise LoweringError(
                    f"{operator} returns size {theirs} along axis {axis} in torch, but its lowering returns {mine}."
                )
    # An input is as it was declared; what an operator hands through may be called otherwise here.
    if known is None or (value.producer() is not None and known != dims):
        value.shape = ir.Shape(dims)
