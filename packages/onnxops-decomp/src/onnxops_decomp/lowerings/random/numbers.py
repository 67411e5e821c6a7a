"""Random numbers. Dtype, shape and distribution equal torch's; the numbers are the runtime's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.sizes import INT64_MAX
from onnxops_decomp.dtypes import to_ir, to_torch
from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.layout.creation import scalar
from onnxops_decomp.lowerings.layout.joining import torch_broadcast_sizes
from onnxops_decomp.lowerings.layout.shapes import flattened
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.significands import SIGNIFICAND_BITS

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size
    from onnxops_decomp.dtypes import Operand

__all__ = ["standard_normal", "uniform_numbers"]

aten = torch.ops.aten

_DOUBLE, _INT64 = ir.DataType.DOUBLE, ir.DataType.INT64
_TINY = torch.finfo(torch.float64).tiny
# The dtypes that every runtime generates; all others are rounded from FLOAT.
_GENERATED = (ir.DataType.FLOAT, _DOUBLE)


def _generated(op: OpBuilder, kind: str, sizes: Sequence[Size], dtype: ir.DataType) -> ir.Value:
    made = dtype if dtype in _GENERATED else ir.DataType.FLOAT
    if sizes and all(isinstance(size, int) for size in sizes):
        return op.cast(op.emit(kind, shape=list(sizes), dtype=made), dtype)
    return op.cast(op.emit(f"{kind}Like", op.expand(op.constant(0.0), sizes), dtype=made), dtype)


def uniform_numbers(op: OpBuilder, sizes: Sequence[Size], dtype: ir.DataType) -> ir.Value:
    """Return numbers that are uniform in [0, 1)."""
    return _generated(op, "RandomUniform", sizes, dtype)


def standard_normal(op: OpBuilder, sizes: Sequence[Size], dtype: ir.DataType) -> ir.Value:
    """Return numbers of mean 0 and standard deviation 1."""
    return _generated(op, "RandomNormal", sizes, dtype)


def _float_or(dtype: torch.dtype | None) -> ir.DataType:
    return to_ir(dtype or torch.get_default_dtype())


@lowering(aten.rand.default, aten.rand.generator)
def rand(op: OpBuilder, size: Sequence[Size], *, dtype: torch.dtype | None = None) -> ir.Value:
    return uniform_numbers(op, size, _float_or(dtype))


@lowering(aten.randn.default, aten.randn.generator)
def randn(op: OpBuilder, size: Sequence[Size], *, dtype: torch.dtype | None = None) -> ir.Value:
    return standard_normal(op, size, _float_or(dtype))


def _like(op: OpBuilder, kind: str, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    made = dtype if dtype in _GENERATED else ir.DataType.FLOAT
    return op.cast(op.emit(kind, value, dtype=made), dtype)


@lowering(aten.rand_like.default, aten.rand_like.generator)
def rand_like(op: OpBuilder, self: ir.Value, *, dtype: torch.dtype | None = None) -> ir.Value:
    return _like(op, "RandomUniformLike", self, op.dtype(self) if dtype is None else to_ir(dtype))


@lowering(aten.randn_like.default, aten.randn_like.generator)
def randn_like(op: OpBuilder, self: ir.Value, *, dtype: torch.dtype | None = None) -> ir.Value:
    return _like(op, "RandomNormalLike", self, op.dtype(self) if dtype is None else to_ir(dtype))


# ---- integers


def _integers(op: OpBuilder, uniform: ir.Value, low: Operand, high: Operand, dtype: ir.DataType) -> ir.Value:
    """Spread DOUBLE numbers from [0, 1) over the integers from ``low`` to ``high - 1``."""
    lowest, beyond = scalar(op, low, _DOUBLE), scalar(op, high, _DOUBLE)
    return op.cast(op.Floor(op.Add(op.Mul(uniform, op.Sub(beyond, lowest)), lowest)), dtype)


def _integer_dtype(dtype: object) -> ir.DataType:
    # The default of the schema arrives as the number of torch's ScalarType.
    return to_ir(dtype) if isinstance(dtype, torch.dtype) else _INT64


@lowering(aten.randint.default, aten.randint.generator, aten.randint.low, aten.randint.low_generator)
def randint(
    op: OpBuilder, high: Size, size: Sequence[Size], low: Size = 0, *, dtype: torch.dtype | None = None
) -> ir.Value:
    return _integers(op, uniform_numbers(op, size, _DOUBLE), low, high, _integer_dtype(dtype))


@lowering(
    *(aten.randint_like.default, aten.randint_like.generator, aten.randint_like.Tensor),
    *(aten.randint_like.Tensor_generator, aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype),
)
def randint_like(
    op: OpBuilder, self: ir.Value, high: Operand, low: Operand = 0, *, dtype: torch.dtype | None = None
) -> ir.Value:
    uniform = op.RandomUniformLike(self, dtype=_DOUBLE)
    return _integers(op, uniform, low, high, op.dtype(self) if dtype is None else to_ir(dtype))


@lowering("aten::random.from")
def random_from(op: OpBuilder, self: ir.Value, start: int, to: int | None) -> ir.Value:
    return randint_like(op, self, _beyond(op, self) if to is None else to, start)


@lowering(aten.random.default, aten.random.to)
def random(op: OpBuilder, self: ir.Value, to: int | None = None) -> ir.Value:
    return randint_like(op, self, _beyond(op, self) if to is None else to)


def _beyond(op: OpBuilder, value: ir.Value) -> int:
    """Return the first integer that the dtype cannot hold, or no longer exactly where it is a float."""
    dtype = op.dtype(value)
    if dtype.is_floating_point():
        return (1 << SIGNIFICAND_BITS[dtype]) + 1
    return 2 if dtype == ir.DataType.BOOL else 1 << (dtype.bitwidth - (0 if dtype.name.startswith("U") else 1))


@lowering(aten.randperm.default, aten.randperm.generator)
def randperm(op: OpBuilder, n: Size, *, dtype: torch.dtype | None = None) -> ir.Value:
    """Return the order of random numbers, which is a random permutation."""
    if isinstance(n, int) and n == 0:
        return op.constant([], _integer_dtype(dtype))
    keys = uniform_numbers(op, [n], _DOUBLE)
    _, order = op.emit_many("TopK", 2, keys, op.vector([n]), axis=0)
    return op.cast(order, _integer_dtype(dtype))


# ---- distributions


@lowering(aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor)
def bernoulli(op: OpBuilder, self: ir.Value, p: Operand | None = None) -> ir.Value:
    if p is None:
        return op.cast(op.Less(rand_like(op, self), self), op.dtype(self))
    probability = op.cast(p, ir.DataType.FLOAT) if isinstance(p, ir.Value) else p
    return op.cast(op.Less(op.RandomUniformLike(self, dtype=ir.DataType.FLOAT), probability), op.dtype(self))


@lowering(aten.normal.Tensor_Tensor)
def normal(op: OpBuilder, mean: ir.Value, std: ir.Value) -> ir.Value:
    numbers = standard_normal(op, torch_broadcast_sizes(op, [mean, std]), op.dtype(mean))
    return op.Add(op.Mul(numbers, op.cast(std, op.dtype(mean))), mean)


@lowering(aten.normal.Tensor_float)
def normal_with_std(op: OpBuilder, mean: ir.Value, std: float = 1.0) -> ir.Value:
    return op.Add(op.Mul(randn_like(op, mean), std), mean)


@lowering(aten.normal.float_Tensor)
def normal_with_mean(op: OpBuilder, mean: float, std: ir.Value) -> ir.Value:
    return op.Add(op.Mul(randn_like(op, std), std), mean)


@lowering(aten.normal.float_float)
def normal_of_size(
    op: OpBuilder, mean: float, std: float, size: Sequence[Size], *, dtype: torch.dtype | None = None
) -> ir.Value:
    return op.Add(op.Mul(standard_normal(op, size, _float_or(dtype)), std), mean)


@lowering(aten.normal_functional.default)
def normal_like(op: OpBuilder, self: ir.Value, mean: float = 0.0, std: float = 1.0) -> ir.Value:
    return op.Add(op.Mul(randn_like(op, self), std), mean)


lowering("aten::normal_")(normal_like)


@lowering(aten.log_normal.default)
def log_normal(op: OpBuilder, self: ir.Value, mean: float = 1.0, std: float = 2.0) -> ir.Value:
    return op.Exp(normal_like(op, self, mean, std))


@lowering(aten.uniform.default)
def uniform(op: OpBuilder, self: ir.Value, start: float = 0.0, end: float = 1.0) -> ir.Value:
    return op.Add(op.Mul(rand_like(op, self), end - start), start)


def _above_zero(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return numbers that are uniform in (0, 1], in FLOAT at least, so that their logarithm is finite."""
    made = op.dtype(value) if value.dtype in _GENERATED else ir.DataType.FLOAT
    return op.Sub(op.constant(1, made), op.RandomUniformLike(value, dtype=made))


@lowering(aten.exponential.default)
def exponential(op: OpBuilder, self: ir.Value, lambd: float = 1.0) -> ir.Value:
    return op.cast(op.Div(op.Neg(op.Log(_above_zero(op, self))), lambd), op.dtype(self))


@lowering(aten.cauchy.default)
def cauchy(op: OpBuilder, self: ir.Value, median: float = 0.0, sigma: float = 1.0) -> ir.Value:
    made = op.dtype(self) if self.dtype in _GENERATED else ir.DataType.FLOAT
    angle = op.Mul(op.Sub(op.RandomUniformLike(self, dtype=made), 0.5), torch.pi)
    return op.cast(op.Add(op.Mul(op.Tan(angle), sigma), median), op.dtype(self))


@lowering(aten.geometric.default)
def geometric(op: OpBuilder, self: ir.Value, p: float) -> ir.Value:
    """Return the number of trials up to the first success; ``ceil(log(u) / log(1 - p))``."""
    uniform = op.cast(_above_zero(op, self), _DOUBLE)
    trials = op.Ceil(op.Div(op.Log(uniform), op.Log(op.constant(1 - p, _DOUBLE))))
    return op.cast(op.Max(trials, op.constant(1.0, _DOUBLE)), op.dtype(self))


# ---- distributions that take a number of draws which only the data decides

# Knuth's MMIX generator, modulo 2**64 by the overflow of the integers.
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407


def _streams(op: OpBuilder, like: ir.Value) -> ir.Value:
    """Return the state of a generator for each element of ``like``.

    A loop must not draw by itself: runtimes seed an operator by its place in its graph, so that two loops would draw
    the same numbers, and some seed it anew in each iteration.
    """
    return op.cast(op.Mul(op.Sub(op.RandomUniformLike(like, dtype=_DOUBLE), 0.5), 2.0**63), _INT64)


def _drawn(op: OpBuilder, stream: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the next state of the generators, and numbers that are uniform in (0, 1)."""
    after = op.Add(op.Mul(stream, _MULTIPLIER), _INCREMENT)
    number = op.Add(op.Mul(op.cast(after, _DOUBLE), 2.0**-64), 0.5)
    return after, op.Min(op.Max(number, 2.0**-64), 1 - 2.0**-53)


@lowering(aten.poisson.default)
def poisson(op: OpBuilder, self: ir.Value, generator: object = None) -> ir.Value:
    """Count how many arrivals of a process of rate 1 fall into the time ``self``."""
    time = op.cast(self, _DOUBLE)
    start = op.Mul(time, 0.0)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        stream, number = _drawn(body, state[2])
        arrival = body.Sub(state[0], body.Log(number))
        return [arrival, body.Add(state[1], body.cast(body.LessOrEqual(arrival, time), _DOUBLE)), stream], []

    def is_over(body: OpBuilder, state: list[ir.Value]) -> ir.Value:
        waiting = body.cast(body.LessOrEqual(state[0], time), ir.DataType.INT32)
        return body.Equal(body.ReduceSum(waiting, keepdims=0), 0)

    (_, counts, _), _ = repeat(op, INT64_MAX, [start, start, _streams(op, time)], step, unless=is_over)
    return op.cast(counts, op.dtype(self))


@lowering(aten.binomial.default)
def binomial(op: OpBuilder, count: ir.Value, prob: ir.Value, generator: object = None) -> ir.Value:
    """Count the successes of as many trials."""
    sizes = torch_broadcast_sizes(op, [count, prob])
    trials, chance = (op.expand(op.cast(value, _DOUBLE), sizes) for value in (count, prob))

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        stream, number = _drawn(body, state[1])
        success = body.And(body.Less(body.cast(i, _DOUBLE), trials), body.Less(number, chance))
        return [body.Add(state[0], body.cast(success, _DOUBLE)), stream], []

    most = op.cast(op.ReduceMax(op.Concat(flattened(op, trials), [0.0], axis=0), keepdims=0), _INT64)
    (successes, _), _ = repeat(op, most, [op.Mul(trials, 0.0), _streams(op, trials)], step)
    return op.cast(successes, op.dtype(count))


@lowering(aten._standard_gamma.default)
def standard_gamma(op: OpBuilder, self: ir.Value, generator: object = None) -> ir.Value:
    least = torch.finfo(to_torch(op.dtype(self))).tiny
    return op.cast(op.Max(_gamma(op, op.cast(self, _DOUBLE)), least), op.dtype(self))


def _gamma(op: OpBuilder, alpha: ir.Value) -> ir.Value:
    """Draw from gamma distributions until every element has an accepted number.

    Source: Marsaglia and Tsang, A Simple Method for Generating Gamma Variables (2000).
    """
    # The method needs alpha >= 1; below, a power of a uniform number makes up for the 1 that is added.
    small = op.Less(alpha, 1.0)
    d = op.Sub(op.Where(small, op.Add(alpha, 1.0), alpha), 1 / 3)
    c = op.Reciprocal(op.Sqrt(op.Mul(d, 9.0)))

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        found, waiting, stream = state
        stream, first = _drawn(body, stream)
        stream, second = _drawn(body, stream)
        stream, uniform = _drawn(body, stream)
        normal = body.Mul(body.Sqrt(body.Mul(body.Log(first), -2.0)), body.Cos(body.Mul(second, 2 * math.pi)))
        root = body.Add(body.Mul(normal, c), 1.0)
        v = body.Mul(body.Mul(root, root), root)
        bound = body.Add(body.Mul(body.Mul(normal, normal), 0.5), d)
        bound = body.Add(body.Sub(bound, body.Mul(d, v)), body.Mul(d, body.Log(body.Max(v, _TINY))))
        accepted = body.And(body.Greater(v, 0.0), body.Less(body.Log(uniform), bound))
        found = body.Where(body.And(waiting, accepted), body.Mul(d, v), found)
        return [found, body.And(waiting, body.Not(accepted)), stream], []

    def is_over(body: OpBuilder, state: list[ir.Value]) -> ir.Value:
        return body.Equal(body.ReduceSum(body.cast(state[1], ir.DataType.INT32), keepdims=0), 0)

    # Nothing is drawn for what is not a shape of a distribution.
    valid = op.And(op.Greater(alpha, 0.0), op.Less(alpha, math.inf))
    start = op.Where(op.GreaterOrEqual(alpha, 0.0), alpha, math.nan)
    (drawn, _, stream), _ = repeat(op, INT64_MAX, [start, valid, _streams(op, alpha)], step, unless=is_over)
    boost = op.Pow(_drawn(op, stream)[1], op.Reciprocal(op.Where(valid, alpha, 1.0)))
    return op.Mul(drawn, op.Where(op.And(small, valid), boost, 1.0))


# ---- choices by weight


@lowering(aten.multinomial.default)
def multinomial(op: OpBuilder, self: ir.Value, num_samples: Size, replacement: bool = False) -> ir.Value:
    rank = op.rank(self)
    logits = op.Log(op.cast(self, ir.DataType.FLOAT) if self.dtype != _DOUBLE else self)
    if replacement and isinstance(num_samples, int):
        batched = logits if rank == 2 else op.Unsqueeze(logits, [0])
        drawn = op.Multinomial(op.cast(batched, ir.DataType.FLOAT), sample_size=num_samples, dtype=_INT64)
        return drawn if rank == 2 else op.Squeeze(drawn, [0])
    if replacement:
        return _with_replacement(op, self, num_samples)
    # The largest of logits with independent Gumbel noise are a sample without replacement (Gumbel top-k).
    noise = op.Neg(op.Log(op.Neg(op.Log(_above_zero(op, logits)))))
    _, drawn = op.emit_many("TopK", 2, op.Add(logits, noise), op.vector([num_samples]), axis=-1)
    return drawn


def _with_replacement(op: OpBuilder, weights: ir.Value, count: Size) -> ir.Value:
    """Draw a number of samples known only at run time: how many running totals lie below each random number."""
    rank = op.rank(weights)
    totals = op.CumSum(op.cast(weights, _DOUBLE), op.constant(rank - 1))
    whole = op.ReduceMax(totals, [-1], keepdims=1)
    draws = op.Mul(uniform_numbers(op, [*op.sizes(weights)[:-1], count], _DOUBLE), whole)
    below = op.LessOrEqual(op.Unsqueeze(totals, [rank - 1]), op.Unsqueeze(draws, [rank]))
    return op.ReduceSum(op.cast(below, _INT64), [-1], keepdims=0)
