"""Any ONNX node as a torch operator that computes nothing: :func:`symbolic` and :func:`symbolic_multi_out`.

A call becomes one node ``onnxops_symbolic::call`` or ``onnxops_symbolic::call_multi_out`` in a captured
graph. :func:`decode_symbolic_call` reads such a node back.

Encoding
    Both operators take ``(inputs, domain, op_type, version, ...)``. Attributes are flattened, because a graph
    node holds lists but no dictionaries: ``attr_names[i]`` is an attribute's name, ``attr_kinds[i]`` its kind
    (``"i"``, ``"f"``, ``"s"``, ``"t"`` for an integer, float, string, tensor; ``"is"``, ``"fs"``, ``"ss"``
    for lists) and ``attr_lengths[i]`` the number of values that it takes, in order, from ``attr_ints``,
    ``attr_floats``, ``attr_strings`` or ``attr_tensors``. ``dtypes`` are ONNX integers. The shapes of several
    outputs are concatenated in ``shapes``, with ``ranks`` to split them. ``metadata_keys`` and
    ``metadata_values`` hold the metadata properties.

    ``torch.jit.trace`` records neither optional tensors nor strings in a list. A call that it sees is the overload
    ``traced``: it takes the inputs that are given, a tensor of each output's dtype and shape (whose sizes the trace
    follows), and the rest as one JSON text.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from onnxops_core._library import OperatorLibrary
from onnxops_core.dtypes import onnx_dtype, torch_dtype

__all__ = [
    "AttributeValue",
    "SymbolicCall",
    "decode_symbolic_call",
    "is_symbolic_overload",
    "symbolic",
    "symbolic_multi_out",
]

AttributeValue: TypeAlias = (
    int | float | str | bool | torch.Tensor | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
)
"""What an attribute may be. A boolean is stored as an integer; an empty sequence as an empty list of
integers."""

Dim: TypeAlias = int | torch.SymInt

_ATTRIBUTES = (
    "str[] attr_names, str[] attr_kinds, int[] attr_lengths, int[] attr_ints, float[] attr_floats, "
    "str[] attr_strings, Tensor[] attr_tensors"
)
_METADATA = "str[] metadata_keys, str[] metadata_values"
_LIBRARY = OperatorLibrary("onnxops_symbolic")
_LIBRARY.define(
    "call(Tensor?[] inputs, str domain, str op_type, int? version, int dtype, SymInt[] shape, "
    f"{_ATTRIBUTES}, {_METADATA}) -> Tensor"
)
_LIBRARY.define(
    "call_multi_out(Tensor?[] inputs, str domain, str op_type, int? version, int[] dtypes, SymInt[] shapes, "
    f"int[] ranks, {_ATTRIBUTES}, {_METADATA}) -> Tensor[]"
)
_LIBRARY.define("call.traced(Tensor[] inputs, Tensor[] attr_tensors, Tensor[] like, str encoded) -> Tensor")
_LIBRARY.define("call_multi_out.traced(Tensor[] inputs, Tensor[] attr_tensors, Tensor[] like, str encoded) -> Tensor[]")


@dataclasses.dataclass(frozen=True)
class SymbolicCall:
    """One :func:`symbolic` or :func:`symbolic_multi_out` call, as an exporter needs it.

    Attributes:
        domain: the operator's domain; ``""`` is ONNX's own.
        op_type: the operator's name.
        version: the opset version that the caller asked for, or None.
        inputs: the inputs in order: what the call held (tensors, graph nodes), None where absent.
        attributes: attribute values by name: int, float, str, lists of them, or for a tensor attribute what
            the call held (a tensor, or a graph node whose constant the exporter looks up).
        dtypes: the ONNX dtype integer of each output.
        shapes: the shape of each output: integers, symbolic integers, or graph nodes that compute them. None of a
            call that ``torch.jit.trace`` recorded, where tensors show them.
        metadata_props: metadata for the ONNX node.
        multi_out: whether the call returns a list of tensors rather than one tensor.
    """

    domain: str
    op_type: str
    version: int | None
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    dtypes: tuple[int, ...]
    shapes: tuple[tuple[Any, ...], ...] | None
    metadata_props: dict[str, str]
    multi_out: bool


def symbolic(
    domain_op: str,
    /,
    inputs: Sequence[torch.Tensor | None],
    attrs: Mapping[str, AttributeValue] | None = None,
    *,
    dtype: torch.dtype | int,
    shape: Sequence[Dim],
    version: int | None = None,
    metadata_props: Mapping[str, str] | None = None,
) -> torch.Tensor:
    """Stand for an ONNX node with one output; in eager mode it returns zeros.

    Args:
        domain_op: ``"domain::OpType"``, or ``"OpType"`` for ONNX's own domain.
        inputs: the node's inputs; None for an optional input that is left out.
        attrs: the node's attributes (see :data:`AttributeValue`).
        dtype: the output's dtype, as a ``torch.dtype`` or an ONNX integer.
        shape: the output's shape; symbolic integers are allowed.
        version: the opset version of the operator.
        metadata_props: metadata properties of the ONNX node.

    Returns:
        A tensor of zeros of the given dtype and shape, on the device of the first tensor input.

    Raises:
        ValueError: a malformed name, an unsupported attribute, a dtype that torch lacks.

    Example:
        >>> x = torch.ones(2, 3)
        >>> symbolic("com.example::Scale", (x,), {"factor": 2.0}, dtype=x.dtype, shape=x.shape).shape
        torch.Size([2, 3])
    """
    domain, op_type = _split_name(domain_op)
    result: torch.Tensor = _run(
        torch.ops.onnxops_symbolic.call,
        _checked_inputs(domain_op, inputs),
        domain,
        op_type,
        version,
        onnx_dtype(dtype),
        list(shape),
        *_encode_attributes(domain_op, attrs or {}),
        *_encode_metadata(domain_op, metadata_props or {}),
    )
    return result


def symbolic_multi_out(
    domain_op: str,
    /,
    inputs: Sequence[torch.Tensor | None],
    attrs: Mapping[str, AttributeValue] | None = None,
    *,
    dtypes: Sequence[torch.dtype | int],
    shapes: Sequence[Sequence[Dim]],
    version: int | None = None,
    metadata_props: Mapping[str, str] | None = None,
) -> list[torch.Tensor]:
    """Stand for an ONNX node with several outputs; in eager mode it returns zeros.

    Args:
        domain_op: ``"domain::OpType"``, or ``"OpType"`` for ONNX's own domain.
        inputs: the node's inputs; None for an optional input that is left out.
        attrs: the node's attributes (see :data:`AttributeValue`).
        dtypes: one dtype per output, as ``torch.dtype`` or ONNX integers.
        shapes: one shape per output.
        version: the opset version of the operator.
        metadata_props: metadata properties of the ONNX node.

    Returns:
        One tensor of zeros per output, on the device of the first tensor input.

    Raises:
        ValueError: as :func:`symbolic`, or ``dtypes`` and ``shapes`` of different lengths.
    """
    domain, op_type = _split_name(domain_op)
    if len(dtypes) != len(shapes):
        raise ValueError(f"{domain_op}: {len(dtypes)} dtypes but {len(shapes)} shapes; expected one of each per output")
    result: list[torch.Tensor] = _run(
        torch.ops.onnxops_symbolic.call_multi_out,
        _checked_inputs(domain_op, inputs),
        domain,
        op_type,
        version,
        [onnx_dtype(dtype) for dtype in dtypes],
        [dim for shape in shapes for dim in shape],
        [len(shape) for shape in shapes],
        *_encode_attributes(domain_op, attrs or {}),
        *_encode_metadata(domain_op, metadata_props or {}),
    )
    return result


def _run(packet: torch._ops.OpOverloadPacket, *args: Any) -> Any:
    """Call a symbolic operator in the form that whatever records the call can hold."""
    if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return packet.default(*args)
    call = dict(zip((argument.name for argument in packet.default._schema.arguments), args, strict=True))
    inputs, tensors = call.pop("inputs"), call.pop("attr_tensors")
    device = _device(inputs)
    if "shapes" in call:
        shapes, dtypes = _split(call.pop("shapes"), call.pop("ranks")), call["dtypes"]
    else:
        shapes, dtypes = (call.pop("shape"),), [call["dtype"]]
    like = [torch.zeros(s, dtype=torch_dtype(d), device=device) for s, d in zip(shapes, dtypes, strict=True)]
    call["given"] = [tensor is not None for tensor in inputs]
    return packet.traced([tensor for tensor in inputs if tensor is not None], tensors, like, json.dumps(call))


def _decode_traced(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the default overload, but for the shapes, for those of the traced one."""
    decoded = {**call, **json.loads(call["encoded"])}
    inputs = iter(call["inputs"])
    decoded["inputs"] = [next(inputs) if given else None for given in decoded.pop("given")]
    return decoded


_MULTI_OUT = {"onnxops_symbolic::call": False, "onnxops_symbolic::call_multi_out": True}
_TORCH_MULTI_OUT = {"onnx_symbolic::_symbolic": False, "onnx_symbolic::_symbolic_multi_out": True}


def is_symbolic_overload(op: object) -> bool:
    """Tell whether a graph node's target is a symbolic operator, of this package or of ``torch.onnx.ops``."""
    return isinstance(op, torch._ops.OpOverload) and op._schema.name in _MULTI_OUT | _TORCH_MULTI_OUT


def decode_symbolic_call(op: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> SymbolicCall:
    """Read back the arguments of a symbolic operator, as they stand in a captured graph.

    Args:
        op: the overload that is called; see :func:`is_symbolic_overload`.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        ValueError: ``op`` is not a symbolic operator.
    """
    if not is_symbolic_overload(op):
        raise ValueError(f"{op} is not a symbolic ONNX operator; expected an overload of torch.ops.onnxops_symbolic")
    assert isinstance(op, torch._ops.OpOverload)
    schema = op._schema
    call: dict[str, Any] = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    call.update(zip((argument.name for argument in schema.arguments), args, strict=False))
    call.update(kwargs or {})
    if schema.name in _TORCH_MULTI_OUT:
        return _decode_torch_call(call, _TORCH_MULTI_OUT[schema.name])
    multi_out = _MULTI_OUT[schema.name]
    shapes = None
    if op._overloadname == "traced":
        call = _decode_traced(call)
    else:
        shapes = _split(call["shapes"], call["ranks"]) if multi_out else (tuple(call["shape"]),)
    return SymbolicCall(
        domain=call["domain"],
        op_type=call["op_type"],
        version=call["version"],
        inputs=tuple(call["inputs"]),
        attributes=_decode_attributes(call),
        dtypes=tuple(call["dtypes"]) if multi_out else (call["dtype"],),
        shapes=shapes,
        metadata_props=dict(zip(call["metadata_keys"], call["metadata_values"], strict=True)),
        multi_out=multi_out,
    )


def _decode_torch_call(call: Mapping[str, Any], multi_out: bool) -> SymbolicCall:
    """Read the encoding of ``torch.onnx.ops``: attributes are ranges of the pools."""
    pools = {"i": call["attr_ints"], "f": call["attr_floats"], "s": call["attr_strs"]}
    attributes = {}
    for name, kind, (start, stop) in zip(call["attr_keys"], call["attr_types"], call["attr_pos"], strict=True):
        values = list(pools[kind[0]][start:stop])
        attributes[name] = values if len(kind) == 2 else values[0]
    shapes = call["shapes"] if multi_out else (call["shape"],)
    return SymbolicCall(
        domain=call["domain"],
        op_type=call["op_type"],
        version=call["version"],
        inputs=tuple(call["inputs"]),
        attributes=attributes,
        dtypes=tuple(call["onnx_dtypes"]) if multi_out else (call["onnx_dtype"],),
        shapes=tuple(tuple(shape) for shape in shapes),
        metadata_props=dict(zip(call["metadata_props_keys"], call["metadata_props_values"], strict=True)),
        multi_out=multi_out,
    )


def _split_name(domain_op: str) -> tuple[str, str]:
    domain, separator, op_type = domain_op.rpartition("::")
    if not op_type.isidentifier() or (separator and not domain) or "::" in domain or " " in domain:
        raise ValueError(f"domain_op {domain_op!r} is malformed; expected 'domain::OpType' or 'OpType'")
    return ("" if domain == "ai.onnx" else domain), op_type


def _checked_inputs(name: str, inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    for position, value in enumerate(inputs):
        if value is not None and not isinstance(value, torch.Tensor):
            raise ValueError(f"{name}: input {position} is a {type(value).__name__}; expected a tensor or None")
    return list(inputs)


def _kind(name: str, attribute: str, value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "t"
    if isinstance(value, int):
        return "i"
    if isinstance(value, float):
        return "f"
    if isinstance(value, str):
        return "s"
    if not isinstance(value, (list, tuple, torch.Size)):
        raise ValueError(
            f"{name}: attribute {attribute!r} is a {type(value).__name__}; expected an int, float, str, bool "
            "or tensor, or a list of int, float, str or bool. An attribute is part of the model: "
            "a value known only at run time must be an input"
        )
    if all(isinstance(item, int) for item in value):
        return "is"
    if all(isinstance(item, (int, float)) for item in value):
        return "fs"
    if all(isinstance(item, str) for item in value):
        return "ss"
    raise ValueError(
        f"{name}: attribute {attribute!r} is a list of {sorted({type(item).__name__ for item in value})}; "
        "expected a list of int, float, str or bool, without mixing strings and numbers"
    )


def _encode_attributes(name: str, attrs: Mapping[str, AttributeValue]) -> tuple[list[Any], ...]:
    kinds: list[str] = []
    lengths: list[int] = []
    pools: dict[str, list[Any]] = {"i": [], "f": [], "s": [], "t": []}
    for attribute, value in attrs.items():
        if not isinstance(attribute, str) or not attribute:
            raise ValueError(f"{name}: attribute name {attribute!r} is not a non-empty string")
        kind = _kind(name, attribute, value)
        values: list[Any] = list(value) if len(kind) == 2 else [value]  # type: ignore[arg-type]
        if kind[0] == "i":
            values = [int(item) for item in values]
        elif kind[0] == "f":
            values = [float(item) for item in values]
        kinds.append(kind)
        lengths.append(len(values))
        pools[kind[0]].extend(values)
    return list(attrs), kinds, lengths, pools["i"], pools["f"], pools["s"], pools["t"]


def _encode_metadata(name: str, metadata: Mapping[str, str]) -> tuple[list[str], list[str]]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"{name}: metadata_props[{key!r}] is {value!r}; expected strings on both sides")
    return list(metadata), list(metadata.values())


def _decode_attributes(call: Mapping[str, Any]) -> dict[str, Any]:
    pools = {
        "i": iter(call["attr_ints"]),
        "f": iter(call["attr_floats"]),
        "s": iter(call["attr_strings"]),
        "t": iter(call["attr_tensors"]),
    }
    attributes = {}
    for name, kind, length in zip(call["attr_names"], call["attr_kinds"], call["attr_lengths"], strict=True):
        values = [next(pools[kind[0]]) for _ in range(length)]
        attributes[name] = values if len(kind) == 2 else values[0]
    return attributes


def _split(values: Sequence[Any], lengths: Sequence[int]) -> tuple[tuple[Any, ...], ...]:
    pieces = []
    start = 0
    for length in lengths:
        pieces.append(tuple(values[start : start + length]))
        start += length
    return tuple(pieces)


def _device(inputs: Sequence[torch.Tensor | None]) -> torch.device | None:
    return next((tensor.device for tensor in inputs if tensor is not None), None)


def _call(
    inputs: Sequence[torch.Tensor | None],
    domain: str,
    op_type: str,
    version: int | None,
    dtype: int,
    shape: Sequence[Dim],
    *encoded: object,
) -> torch.Tensor:
    return torch.zeros(list(shape), dtype=torch_dtype(dtype), device=_device(inputs))


def _call_multi_out(
    inputs: Sequence[torch.Tensor | None],
    domain: str,
    op_type: str,
    version: int | None,
    dtypes: Sequence[int],
    shapes: Sequence[Dim],
    ranks: Sequence[int],
    *encoded: object,
) -> list[torch.Tensor]:
    device = _device(inputs)
    return [
        torch.zeros(list(shape), dtype=torch_dtype(dtype), device=device)
        for dtype, shape in zip(dtypes, _split(shapes, ranks), strict=True)
    ]


def _call_traced(
    inputs: Sequence[torch.Tensor], attr_tensors: Sequence[torch.Tensor], like: Sequence[torch.Tensor], encoded: str
) -> torch.Tensor:
    return torch.zeros_like(like[0])


def _call_multi_out_traced(
    inputs: Sequence[torch.Tensor], attr_tensors: Sequence[torch.Tensor], like: Sequence[torch.Tensor], encoded: str
) -> list[torch.Tensor]:
    return [torch.zeros_like(tensor) for tensor in like]


for _name, _kernel in (
    ("call", _call),
    ("call_multi_out", _call_multi_out),
    ("call.traced", _call_traced),
    ("call_multi_out.traced", _call_multi_out_traced),
):
    _LIBRARY.kernel(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.fake(_name, _kernel)
