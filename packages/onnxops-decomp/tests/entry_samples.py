"""Calls of the table's entries by name: samples of OpInfo fitted to the schema of the overload."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import torch
from entry_cases import cases
from opinfo_samples import Call, infos
from torch.utils import _pytree as pytree

__all__ = ["entry_calls", "is_drawn"]


def overload_of(name: str) -> torch._ops.OpOverload:
    """Return the overload that a qualified name such as ``aten::add.Tensor`` stands for."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return found


# How names of overloads differ from the name of the function that has the samples.
_AFFIXES = re.compile(r"^(special_|native_|_unsafe_|_)|(_copy|_functional|_forward|_)$")
# Their results are drawn, or never written.
_DRAWN = re.compile(
    r"^(_|native_|feature_|alpha_|feature_alpha_)*(rand.*|normal.*|log_normal|uniform|bernoulli|multinomial|dropout|rrelu|"
    r"exponential|cauchy|geometric|poisson|binomial|standard_gamma|sample_dirichlet|(new_)?empty.*)$"
)


def is_drawn(name: str) -> bool:
    """Tell whether dtype and shape are all that can be compared of an entry's results."""
    return bool(_DRAWN.match(name.partition("::")[2].partition(".")[0].strip("_")))


def _base(name: str) -> str:
    name = name.replace("nn.functional.", "").replace(".", "_")
    return name.strip("_")


@functools.cache
def _by_base() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for info in infos().values():
        names = {_base(info.name), _base(info.aten_name or info.name), *(_base(alias.name) for alias in info.aliases)}
        for name in names:
            found.setdefault(name, []).append(info)
    return found


def _infos_for(overload: torch._ops.OpOverload) -> list[Any]:
    name = overload._schema.name.partition("::")[2].strip("_")
    tried = [name]
    while (shorter := _AFFIXES.sub("", tried[-1])) != tried[-1]:
        tried.append(shorter)
    return [info for each in tried for info in _by_base().get(each.strip("_"), [])]


def _fit_leaf(value: Any, kind: str) -> Any:
    if kind in ("number", "int", "float", "bool", "Scalar") and isinstance(value, torch.Tensor):
        return value.flatten()[0].item() if value.numel() else value
    if kind == "Tensor" and isinstance(value, bool | int | float | complex):
        return torch.tensor(value)
    return value


def _fitted(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return the arguments of a function as the overload takes them; None if they do not fit."""
    schema = [a for a in overload._schema.arguments if not a.is_out]
    known = {a.name: a for a in schema}
    positional = [a for a in schema if not a.kwarg_only]
    if len(args) > len(positional) or not kwargs.keys() <= known.keys():
        return None
    given = {a.name: value for a, value in zip(positional, args, strict=False)} | kwargs
    for argument in schema:
        name = argument.name
        if name in given:
            given[name] = _fit_leaf(given[name], str(argument.type).removeprefix("Optional[").removesuffix("]"))
        elif not argument.has_default_value():
            if name in _FILLED:
                given[name] = _FILLED[name]
            else:
                return None
    names = [a.name for a in positional if a.name in given]
    return tuple(given.pop(name) for name in names), given


DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
_FILLED: dict[str, Any] = {"dtype": torch.float32}


def entry_calls(name: str) -> Iterator[Call]:
    """Yield calls of an entry: its own case, or the samples of OpInfo that it takes, fitted to its schema."""
    overload = overload_of(name)
    own = cases().get(name)
    if own is not None:
        yield Call(name, overload, *pytree.tree_flatten(own))
        return
    for dtype in DTYPES:
        yield from _fitted_calls(name, overload, dtype)


def _fitted_calls(name: str, overload: torch._ops.OpOverload, dtype: torch.dtype) -> Iterator[Call]:
    for info in _infos_for(overload):
        if dtype not in info.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
            fitted = _fitted(overload, (sample.input, *sample.args), sample.kwargs)
            if fitted is None:
                continue
            leaves, structure = pytree.tree_flatten(fitted)
            call = Call(name, overload, leaves, structure)
            torch.manual_seed(0)
            try:
                call(*call.tensors)
            except Exception:
                continue
            yield call
