"""The parameters of a native operator, written once: a class whose objects are its calls.

The fields of the class are the ONNX inputs in order, then, behind ``_: dataclasses.KW_ONLY``, the attributes under
ONNX's names. The torch schema of the operator, the signature of its public function and that function's docstring are
read from it, and its checks, reference, kernels and backends take one object of it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, dataclass_transform, get_args

import torch

__all__ = [
    "Call",
    "Integer",
    "Integers",
    "Number",
    "OptionalNumber",
    "OptionalSize",
    "Parameters",
    "Size",
    "Sizes",
    "inputs_of",
    "operator_call",
    "public",
]

Result = TypeVar("Result", covariant=True)
Class = TypeVar("Class")
Held = TypeVar("Held")
Taken = TypeVar("Taken", contravariant=True)
P = ParamSpec("P")


class Call(Generic[Result]):
    """One call of a native operator, which returns a result of the given type."""

    __slots__ = ()


@dataclass_transform(frozen_default=True, kw_only_default=False)
def operator_call(cls: type[Class]) -> type[Class]:
    """Make a class the calls of an operator: a dataclass that type checkers know as frozen.

    At run time nothing keeps a field from being assigned: an object that did would take eight times as long to make,
    4 us with 17 fields, which is as much as a small operator.
    """
    return dataclasses.dataclass(slots=True)(cls)


class _Given(Generic[Held, Taken]):
    """The type of a field that may be given in more forms than the one in which a call holds it.

    Type checkers take the forms from ``__set__``; ``dataclasses`` asks ``__get__`` of the class for the default.
    """

    def __init__(self, default: Held) -> None:
        self._default = default

    def __get__(self, instance: object, owner: object = None) -> Held:
        return self._default

    def __set__(self, instance: object, value: Taken) -> None:
        raise NotImplementedError("the dataclass has put a slot in this place")


Integer = _Given[int, int | torch.Tensor]
Integers = _Given[Sequence[int], Sequence[int] | torch.Tensor]
Number = _Given[float, float | torch.Tensor]
OptionalNumber = _Given[float | None, float | torch.Tensor | None]
Size = _Given[int, int | torch.SymInt | torch.Tensor]
OptionalSize = _Given[int | None, int | torch.SymInt | torch.Tensor | None]
Sizes = _Given[Sequence[int], Sequence[int | torch.SymInt] | torch.Tensor]


class _Type(NamedTuple):
    """What the annotation of a field is in a torch schema, and in the signature of the public function."""

    schema: str
    taken: str


_PLAIN = {"torch.Tensor": "Tensor", "bool": "bool", "int": "int", "float": "float", "str": "str"}
_TYPES = {name: _Type(schema, name) for name, schema in _PLAIN.items()}
_TYPES |= {f"{name} | None": _Type(f"{schema}?", f"{name} | None") for name, schema in _PLAIN.items()}
_TYPES |= {
    "Integer": _Type("int", "int | torch.Tensor"),
    "Integers": _Type("int[]", "Sequence[int] | torch.Tensor"),
    "Number": _Type("float", "float | torch.Tensor"),
    "OptionalNumber": _Type("float?", "float | torch.Tensor | None"),
    "Size": _Type("SymInt", "int | torch.SymInt | torch.Tensor"),
    "OptionalSize": _Type("SymInt?", "int | torch.SymInt | torch.Tensor | None"),
    "Sizes": _Type("SymInt[]", "Sequence[int | torch.SymInt] | torch.Tensor"),
}


def _type_of(parameter: inspect.Parameter, owner: type) -> _Type:
    found = _TYPES.get(str(parameter.annotation))
    if found is None:
        raise TypeError(
            f"{owner.__name__}.{parameter.name} is annotated {parameter.annotation!r}; expected one of "
            f"{', '.join(_TYPES)}, in a module with `from __future__ import annotations`"
        )
    return found


class Parameters:
    """The parameters of one version of an operator.

    Attributes:
        call: the class of its calls.
        names: the parameters in the order of the schema.
        inputs: how many of them are inputs; the others are attributes.
        values: takes a call and returns the values of the parameters as a tuple.
    """

    def __init__(self, call: type[Call[Any]], left_out: tuple[str, ...] = ()) -> None:
        found = inspect.signature(call).parameters.values()
        self._parameters = [parameter for parameter in found if parameter.name not in left_out]
        self.call = call
        self.names = tuple(parameter.name for parameter in self._parameters)
        self.inputs = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in self._parameters)
        getter = operator.attrgetter(*self.names)
        self.values: Callable[[Any], tuple[Any, ...]]
        self.values = getter if len(self.names) > 1 else lambda call: (getter(call),)

    def traced_values(self, call: Any) -> tuple[Any, ...]:
        """Return what ``values`` does in a way that Dynamo can trace."""
        return tuple([getattr(call, name) for name in self.names])

    def schema(self) -> str:
        """Return the arguments of the torch schema, in parentheses."""
        parts = []
        for place, parameter in enumerate(self._parameters):
            if place == self.inputs:
                parts.append("*")
            default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
            default = "=[]" if parameter.default == () else default
            parts.append(f"{_type_of(parameter, self.call).schema} {parameter.name}{default}")
        return f"({', '.join(parts)})"

    def arguments(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the keyword arguments of a call with these values."""
        return values[: self.inputs], dict(zip(self.names[self.inputs :], values[self.inputs :], strict=True))

    def made_of(self, values: tuple[Any, ...]) -> Any:
        """Return a call with these values."""
        args, kwargs = self.arguments(values)
        return self.call(*args, **kwargs)

    def taking(self, function: Callable[[Any], Any]) -> Callable[..., Any]:
        """Give a function of a call the parameters of the operator."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return function(self.call(*args, **kwargs))

        return run


@functools.cache
def _of(call: Any) -> Parameters:
    return Parameters(call)


def inputs_of(call: Call[Any]) -> tuple[Any, ...]:
    """Return the inputs of a call in order, None for those left out."""
    cls: Any = type(call)
    parameters = _of(cls)
    return parameters.values(call)[: parameters.inputs]


def public(name: str, call: Callable[P, Call[Result]], op: Callable[..., Any]) -> Callable[P, Result]:
    """Return the public function of an operator, with the parameters and the docstring of the class of its calls.

    An operator that says with ``num_outputs`` how many outputs are wanted returns so many, and one by itself.
    """
    cls: Any = call
    parameters = inspect.signature(cls).parameters
    most = parameters["num_outputs"].default if "num_outputs" in parameters else None

    def function(*args: P.args, **kwargs: P.kwargs) -> Any:
        return op(*args, **kwargs)

    def first_outputs(*args: P.args, **kwargs: P.kwargs) -> Any:
        outputs = op(*args, **kwargs)
        count: Any = kwargs.get("num_outputs", most)
        return outputs[0] if count == 1 else outputs[:count]

    result: Any = function if most is None else first_outputs
    result.__name__ = result.__qualname__ = name
    result.__module__, result.__doc__ = cls.__module__, cls.__doc__
    taken = [found.replace(annotation=_type_of(found, cls).taken) for found in parameters.values()]
    returned = get_args(cls.__orig_bases__[0])[0]
    result.__signature__ = inspect.Signature(taken, return_annotation=returned)
    result.__annotations__ = {found.name: found.annotation for found in taken} | {"return": returned}
    return result  # type: ignore[no-any-return]
