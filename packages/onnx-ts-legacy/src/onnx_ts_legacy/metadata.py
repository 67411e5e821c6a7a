"""Dtypes, ranks and sizes: every call is made on tensors without data, whose dynamic sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError
from onnxops_decomp.builder import OpBuilder
from onnxops_decomp.graph_lowering import SymbolNames

__all__ = ["Metadata"]

# Sizes that stand in for symbols without an example when an operator has no symbolic form; only rank and dtype of
# the result are taken from such a call.
_STAND_INS = (2, 1, 0, 4, 8)


class Metadata:
    """Works out what calls return, and names the symbolic sizes on the way.

    Args:
        op: Builder of the main graph.
    """

    def __init__(self, op: OpBuilder) -> None:
        self.mode = private.fake_mode()
        self.shape_env: Any = self.mode.shape_env
        self.symbols = SymbolNames(op)
        self._op = op
        self._declared: dict[str, tuple[torch.SymInt, int]] = {}
        self._hints: dict[str, int] = {}
        self._stand_in_mode = private.FakeTensorMode(allow_non_fake_inputs=True)

    # ---- tensors

    def declared_size(self, name: str, example: int) -> torch.SymInt:
        """Return the symbolic size that is called ``name``; one name is one size.

        Raises:
            DynamicDimensionError: If the examples contradict each other.
        """
        known = self._declared.get(name)
        if known is not None:
            if known[1] != example:
                raise DynamicDimensionError(
                    f"Dimension {name!r} is {known[1]} in one example input and {example} in another; "
                    "give dimensions that differ different names."
                )
            return known[0]
        size = private.new_dimension(self.shape_env, name, _generic(example))
        symbol = size.node.expr
        if not isinstance(symbol, sympy.Symbol):
            raise DynamicDimensionError(f"Dimension {name!r} cannot be made dynamic for size {example}.")
        self.symbols.rename(symbol, name)
        self._declared[name] = (size, example)
        return size

    def input(self, example: torch.Tensor, names: dict[int, str]) -> torch.Tensor:
        """Return a fake tensor for an input whose dimensions ``names`` are dynamic."""
        if not names:
            return self.constant(example)
        sizes: list[int | torch.SymInt] = list(example.shape)
        for axis, name in names.items():
            sizes[axis] = self.declared_size(name, example.shape[axis])
        last = torch.channels_last
        channels_last = example.dim() == 4 and not example.is_contiguous() and example.is_contiguous(memory_format=last)
        with self.mode:
            return torch.empty(
                sizes,
                dtype=example.dtype,
                memory_format=last if channels_last else torch.contiguous_format,
            )

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor of the same dtype, sizes and strides."""
        with self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def empty(self, dtype: torch.dtype, sizes: Sequence[int | torch.SymInt]) -> torch.Tensor:
        """Return a new fake tensor."""
        with self.mode:
            return torch.empty(list(sizes), dtype=dtype)

    # ---- numbers

    def unknown_size(self, hint: int | None = None) -> torch.SymInt:
        """Return a new symbol for an integer of which nothing is known."""
        with self.shape_env.ignore_fresh_unbacked_symbols():
            size: torch.SymInt = self.shape_env.create_unbacked_symint()
        if hint is not None:
            self._hints[str(size.node.expr)] = hint
        return size

    def runtime_int(self, value: ir.Value) -> torch.SymInt:
        """Return a symbol for the integer that ``value``, of one element, holds at run time."""
        size = self.unknown_size()
        self._op.context.symbols[str(size.node.expr)] = lambda op: op.Reshape(op.cast(value, ir.DataType.INT64), [1])
        return size

    def known_true(self, condition: Any) -> bool:
        """Tell whether a relation between sizes holds whatever the sizes are."""
        return condition if isinstance(condition, bool) else private.statically_known_true(condition)

    def unknown_float(self) -> torch.SymFloat:
        """Return a new symbol for a float of which nothing is known."""
        with self.shape_env.ignore_fresh_unbacked_symbols():
            created: torch.SymFloat = self.shape_env.create_unbacked_symfloat()
        return created

    def symbol_count(self) -> int:
        """Return how many symbols without an example there are; later ones have higher numbers."""
        return int(str(self.unknown_size().node.expr).removeprefix("u"))

    def is_older(self, size: int | torch.SymInt, count: int) -> bool:
        """Tell whether a size is made of symbols that existed when :meth:`symbol_count` returned ``count``."""
        if isinstance(size, int):
            return True
        names = (str(symbol) for symbol in size.node.expr.free_symbols)
        return all(not name.startswith("u") or int(name[1:]) < count for name in names)

    # ---- calls

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an operator on fake tensors.

        Raises:
            ScriptValueError: If torch refuses the call.
        """
        guards = len(self.shape_env.replacements)
        try:
            with self.mode, torch.no_grad(), self.shape_env.ignore_fresh_unbacked_symbols():
                result = function(*args, **kwargs)
        except Exception as error:
            result = self._run_on_stand_ins(function, args, kwargs, error)
        if len(self.shape_env.replacements) != guards:
            self._check_declared()
        return result

    def _check_declared(self) -> None:
        for name, (size, _) in self._declared.items():
            expression = size.node.expr
            if expression.is_Integer:
                raise DynamicDimensionError(
                    f"Dimension {name!r} was declared dynamic, but the program fixes it to {expression}."
                )

    def _run_on_stand_ins(self, function: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> Any:
        """Find rank and dtype with example sizes; every size of the result that is not settled gets a symbol."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        symbolic = any(_is_symbolic(leaf) for leaf in leaves)
        if symbolic and not self._needs_size(error):
            symbolic = False
        for unknown in _STAND_INS if symbolic else ():
            try:
                plain = [self._stand_in(leaf, unknown) for leaf in leaves]
                stand_in_args, stand_in_kwargs = pytree.tree_unflatten(plain, structure)
                with self._stand_in_mode, torch.no_grad():
                    result = function(*stand_in_args, **stand_in_kwargs)
            except Exception:
                continue
            return pytree.tree_map(self._widened, result)
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if any(isinstance(leaf, torch.Tensor) and _is_symbolic(leaf) for leaf in leaves) and self._declared:
            raise DynamicDimensionError(
                f"The program does not work for other sizes of {', '.join(sorted(self._declared))}: {text}"
            ) from error
        raise ScriptValueError(f"torch refuses this call: {text}") from error

    def _needs_size(self, error: Exception) -> bool:
        """Tell whether a call failed because a size has no example, not because it is wrong."""
        return "DataDependent" in type(error).__name__ or isinstance(error, NotImplementedError | TypeError)

    def _stand_in(self, leaf: Any, unknown: int) -> Any:
        if isinstance(leaf, torch.Tensor):
            sizes = [self._hint(size, unknown) for size in leaf.shape]
            with self._stand_in_mode:
                return torch.empty(sizes, dtype=leaf.dtype)
        if isinstance(leaf, torch.SymInt):
            return self._hint(leaf, unknown)
        return 1.0 if isinstance(leaf, torch.SymFloat) else leaf

    def _hint(self, size: int | torch.SymInt, unknown: int) -> int:
        if isinstance(size, int):
            return size
        values: dict[Any, int] = {}
        for symbol in size.node.expr.free_symbols:
            name = str(symbol)
            known = next((int(s.node.hint) for s, _ in self._declared.values() if str(s.node.expr) == name), None)
            values[symbol] = self._hints.get(name, unknown) if known is None else known
        return int(size.node.expr.xreplace(values))

    def _widened(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return self.empty(leaf.dtype, [self.unknown_size(hint=size) for size in leaf.shape])


def _is_symbolic(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in leaf.shape)
    return isinstance(leaf, torch.SymInt | torch.SymFloat)


def _generic(example: int) -> int:
    """Return an example for a dynamic size that is no special case as 0 and 1 are."""
    return example if example > 1 else 5
