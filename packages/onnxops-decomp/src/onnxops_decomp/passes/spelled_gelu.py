"""The approximation of Gelu by tanh where models spell it out."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxops_decomp.passes.matching import constant, dims, operand, producer

__all__ = ["CUBIC", "SLOPE", "spelled_gelu"]

# Powers of x and of the tanh, and the factor of their product.
Polynomial = dict[tuple[int, int], float]

SLOPE, CUBIC = math.sqrt(2 / math.pi), 0.044715
_INSIDE: Polynomial = {(1, 0): SLOPE, (3, 0): SLOPE * CUBIC}
_WHOLE: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
_MOST_STEPS, _MOST_VALUES = 8, 16


def spelled_gelu(bend: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Return x and the node that gives ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``, or None.

    Models write the same polynomial in several orders; it is read as one.

    Args:
        bend: A Tanh.
    """
    inside, t = bend.inputs[0], bend.outputs[0]
    fitting = [each for each in _variables(inside) if _same(_polynomial(inside, each, t), _INSIDE)]
    if not fitting or dims(fitting[0]) is None:
        return None
    x, last = fitting[0], bend
    for _ in range(3):
        users = {usage.node for usage in last.outputs[0].uses()}
        if len(users) != 1 or last.outputs[0].is_graph_output():
            return None
        (last,) = users
        if dims(last.outputs[0]) == dims(x) and _same(_polynomial(last.outputs[0], x, t), _WHOLE):
            return x, last
    return None


def _variables(value: ir.Value | None) -> list[ir.Value]:
    """Return what a value is a sum or product of, and what that is of: it may be a polynomial in each of them."""
    found: dict[ir.Value, None] = {}
    level = [value]
    for _ in range(_MOST_STEPS):
        nodes = [producer(each, "Mul") or producer(each, "Add") or producer(each, "Pow") for each in level]
        level = [each for node in nodes if node for each in node.inputs if each not in found and constant(each) is None]
        found.update(dict.fromkeys(each for each in level if each is not None))
        if len(found) > _MOST_VALUES:
            break
    return list(found)


def _polynomial(value: ir.Value | None, x: ir.Value, t: ir.Value, steps: int = _MOST_STEPS) -> Polynomial | None:
    """Return what a value is in powers of x and t, or None if it is not."""
    if value is x or value is t:
        return {(1, 0): 1.0} if value is x else {(0, 1): 1.0}
    number = constant(value)
    if number is not None:
        return {(0, 0): float(number.item())} if number.size == 1 else None
    cube = producer(value, "Pow")
    if cube is not None:
        exponent = constant(operand(cube, 1))
        if operand(cube, 0) is not x or exponent is None or exponent.size != 1 or exponent.item() not in (2, 3):
            return None
        return {(int(exponent.item()), 0): 1.0}
    node = producer(value, "Mul") or producer(value, "Add")
    if node is None or not steps:
        return None
    left, right = (_polynomial(operand(node, place), x, t, steps - 1) for place in (0, 1))
    if left is None or right is None:
        return None
    result: Polynomial = {} if node.op_type == "Mul" else dict(left)
    terms = (
        [((a[0] + b[0], a[1] + b[1]), left[a] * right[b]) for a in left for b in right]
        if node.op_type == "Mul"
        else list(right.items())
    )
    for powers, factor in terms:
        result[powers] = result.get(powers, 0.0) + factor
    return result


def _same(found: Polynomial | None, wanted: Polynomial) -> bool:
    return (
        found is not None
        and found.keys() == wanted.keys()
        and all(np.isclose(found[powers], wanted[powers], rtol=1e-4) for powers in wanted)
    )
