"""What capture found out about the sizes that a model is right for.

A model that branches on a size, or divides one, is captured for one side of the branch only. torch.export notes such
facts; here they become conditions on the dimensions of the model's inputs, are written into the model's metadata, and
are checked whenever the program runs itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from onnx_fx_export.sizes.facts import SizeFacts
from onnx_fx_export.sizes.size_one import is_about_one
from onnx_fx_export.sizes.small import larger_sizes
from onnx_fx_export.torch_private import guard_texts, is_decided_by_data
from onnxops_decomp.exporting import (
    CONSTRAINTS_KEY,
    Dims,
    SizeConstraints,
    SymbolNames,
    condition_holds,
    dimension_symbol,
    names_in_size,
    parsed_size,
    renamed_text,
    symbolic_size,
    value_of_size,
)

__all__ = ["CONSTRAINTS_KEY", "size_constraints"]

_SIZE = re.compile(r"(L(?:\[(?:'[^']*'|\d+)\]|\.\w+)+?)\.size\(\)\[(\d+)\]")
_ARGUMENT = re.compile(r"L(?:\[(?:'[^']*'|\d+)\]|\.\w+)+")
_COUNTED = "flat_args"
_OF_VIEWS = "._base."
# Comparisons as differences that are at most 0: the sign of left less right, and what is added.
_ORDERS = {ast.LtE: (1, 0), ast.Lt: (1, 1), ast.GtE: (-1, 0), ast.Gt: (-1, 1)}
# A difference of more operations stays a condition.
_MOST_EXPANDED = 100
_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")


def size_constraints(
    program: torch.export.ExportedProgram,
    facts: SizeFacts,
    symbols: SymbolNames,
    inputs: Mapping[str, Dims],
    assumptions: Iterable[Any],
    numbers: Collection[str] = (),
    declared: Iterable[str] = (),
    leaves: Sequence[str] = (),
) -> SizeConstraints:
    """Collect the conditions of a captured program.

    Args:
        program: The program.
        facts: What is known of its sizes besides the guards that torch noted in it.
        symbols: Names of its symbols.
        inputs: For each input by its structural name, what its dimensions are called.
        assumptions: Further facts, as SymPy relations in the model's symbols.
        numbers: Symbols that are numbers themselves and not sizes.
        declared: Conditions that the user states.
        leaves: What the arguments are called by the structure, in order; Dynamo only counts them.
    """
    # An example that is a view of a larger tensor does not bring that along.
    texts = [text for text in dict.fromkeys(guard_texts(program)) if _OF_VIEWS not in text]
    texts = [text for text in texts if not (facts.right_for_one and is_about_one(text))]
    called = _number_inputs(program, symbols)
    translated = {text: _translated(text, inputs, leaves, called) for text in texts}
    guards = [guard for guard in translated.values() if guard is not None and parsed_size(guard) is not None]
    unread = [text for text, guard in translated.items() if guard is None or parsed_size(guard) is None]
    names = {str(symbol): str(symbols.renamed(symbol)) for symbol in program.range_constraints}
    least = {names[symbol]: size for symbol, size in facts.least.items()}
    near, far = (
        [{names[symbol]: size for symbol, size in point.items() if symbol in names} for point in points]
        for points in (facts.tried.near, facts.tried.far)
    )
    meaningless = {_normal(renamed_text(text, names)) for text in facts.layout}
    kept = [
        each
        for text in guards
        if not _is_about_small_sizes(text, least) and _normal(text) not in meaningless
        for each in _without_refuted(text, near, far)
    ]
    conditions = [*declared, *_ranges(program, symbols, numbers, kept, least), *kept]
    for fact in facts.conditions or ():
        conditions.append(renamed_text(f"{fact.lhs} {fact.rel_op} {fact.rhs}", names))
    conditions.extend(map(_relation, assumptions))
    return SizeConstraints([*(text for text in conditions if _says_something(text)), *unread])


def _normal(text: str) -> str | None:
    """Return a condition as Python writes it, what may stand in any order sorted; None if it is not only arithmetic."""
    tree = parsed_size(text)
    return None if tree is None else _sorted(tree)


def _sorted(tree: ast.AST) -> str:
    match tree:
        case ast.BinOp(op=ast.Add() | ast.Mult() as op):
            sign = " + " if isinstance(op, ast.Add) else " * "
            return f"({sign.join(sorted(map(_sorted, _operands(tree, type(op)))))})"
        case ast.BinOp(left, op, right):
            return f"({_sorted(left)} {type(op).__name__} {_sorted(right)})"
        case ast.Call(ast.Name(("min" | "max") as name), args):
            return f"{name}({', '.join(sorted(map(_sorted, args)))})"
        case ast.Compare(left, [ast.Eq() | ast.NotEq() as op], [right]):
            return f" {type(op).__name__} ".join(sorted((_sorted(left), _sorted(right))))
        case ast.Compare(left, [op], [right]):
            return f"{_sorted(left)} {type(op).__name__} {_sorted(right)}"
    return ast.unparse(tree)


def _operands(tree: ast.AST, op: type[ast.operator]) -> list[ast.AST]:
    """Return what a sum or a product has in it, however it is put in parentheses."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, op):
        return [*_operands(tree.left, op), *_operands(tree.right, op)]
    return [tree]


def _is_about_small_sizes(text: str, least: Mapping[str, int]) -> bool:
    """Tell whether a condition on a dimension whose least size is known holds for all but the smallest."""
    tree = parsed_size(text)
    names = set() if tree is None else set(names_in_size(tree))
    return (
        tree is not None
        and len(names) == 1
        and names <= least.keys()
        and all(condition_holds(tree, dict.fromkeys(names, size)) for size in larger_sizes())
    )


def _without_refuted(text: str, near: Sequence[Mapping[str, int]], far: Sequence[Mapping[str, int]]) -> list[str]:
    """Return what is left of a condition where the program was seen to be right although it does not hold.

    What says that sizes differ is dropped, and what has functions in it where larger sizes contradict it; that a
    computed size is 2 or more becomes that it is not 0.
    """
    tree = parsed_size(text)
    if tree is None or all(condition_holds(tree, sizes) for sizes in (*near, *far)):
        return [text]
    if any(isinstance(node, ast.Call) for node in ast.walk(tree)) and not all(
        condition_holds(tree, sizes) for sizes in far
    ):
        return []
    match tree:
        case ast.Compare(ops=[ast.NotEq()]):
            return []
        case ast.Compare(left=left, ops=[ast.GtE()], comparators=[ast.Constant(value=2)]):
            return [f"{ast.unparse(left)} >= 1"]
        case ast.Compare(left=left, ops=[ast.Gt()], comparators=[ast.Constant(value=1)]):
            return [f"{ast.unparse(left)} >= 1"]
        case ast.Compare(left=ast.Constant(value=2), ops=[ast.LtE()], comparators=[right]):
            return [f"{ast.unparse(right)} >= 1"]
    return [text]


def _ranges(
    program: torch.export.ExportedProgram,
    symbols: SymbolNames,
    numbers: Collection[str],
    guards: Iterable[str],
    known: Mapping[str, int],
) -> list[str]:
    """Return the bounds of sizes as conditions, those of named dimensions before those of expressions in them.

    Args:
        program: The program.
        symbols: Names of its symbols.
        numbers: Symbols that are numbers themselves and not sizes.
        guards: Conditions that capture found and that are kept.
        known: Least sizes of dimensions by name, where these are not torch's.
    """
    ranges = program.range_constraints
    of_inputs = [(key, found) for key, found in ranges.items() if not is_decided_by_data(key)]
    bounds = [(symbols.renamed(key), found) for key, found in of_inputs if not _follows(key, ranges)]
    named = {expression: found.lower for expression, found in bounds if expression.is_Symbol}
    least, most = ([bound for text in guards for bound in _bounds(text, slope)] for slope in (-1, 1))
    conditions = []
    for expression, found in bounds:
        if expression not in named and expression.free_symbols <= named.keys():
            continue
        # torch gives a dimension without a declared bound the range from 2, and still takes sizes 0 and 1. What guards
        # make of that range is no condition of its own.
        follows = any(symbol == expression and lowest.xreplace(named) == found.lower for symbol, lowest in least)
        if str(expression) in known and not follows:
            conditions.append(f"{expression} >= {known[str(expression)]}")
        elif found.lower.is_Integer and not follows and (int(found.lower) > 2 or str(expression) in numbers):
            conditions.append(f"{expression} >= {int(found.lower)}")
        follows = any(symbol == expression and highest.xreplace(named) == found.upper for symbol, highest in most)
        if found.upper.is_Integer and int(found.upper) < 1 << 62 and not follows:
            conditions.append(f"{expression} <= {int(found.upper)}")
    return conditions


def _bounds(text: str, slope: int) -> list[tuple[sympy.Symbol, sympy.Expr]]:
    """Return the dimensions of which a condition says how they are bounded by others, and these bounds.

    Args:
        text: The condition.
        slope: -1 for the least size of a dimension, which is a sum of others (``a >= b + 1``), or 1 for the most, which
            is what others leave of a number (``a + b <= 8``).
    """
    tree = parsed_size(text)
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in _ORDERS:
        return []
    if any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        return []
    sign, less = _ORDERS[type(tree.ops[0])]
    left, right = (symbolic_size(part) for part in (tree.left, tree.comparators[0]))
    difference = sympy.expand(sign * (left - right)) + less  # at most 0
    slopes = {symbol: difference.diff(symbol) for symbol in difference.free_symbols}
    bounded = [symbol for symbol, own in slopes.items() if own == slope]
    rising = [symbol for symbol, own in slopes.items() if own.is_positive]
    if len(rising) + (slope < 0) != len(slopes):
        return []
    return [(symbol, symbol - slope * difference) for symbol in bounded]


def _follows(key: sympy.Expr, ranges: Mapping[sympy.Expr, Any]) -> bool:
    """Tell whether the bounds of an expression are those of its symbols and say nothing more.

    The bounds of a symbol may be torch's own, of which no size of the expression follows.
    """
    symbols = key.free_symbols
    if key.is_Symbol or not symbols <= ranges.keys() or not all(key.diff(symbol).is_positive for symbol in symbols):
        return False
    lower, upper = (key.xreplace({s: getattr(ranges[s], end) for s in symbols}) for end in ("lower", "upper"))
    return bool(ranges[key].lower == lower and ranges[key].upper == upper)


def _number_inputs(program: torch.export.ExportedProgram, symbols: SymbolNames) -> dict[str, str]:
    """Return what the conditions call the arguments that are whole numbers, by the names of their placeholders."""
    placeholders = program.graph.find_nodes(op="placeholder")
    numbers = {node.name: node.meta.get("val") for node in placeholders}
    return {name: f"{symbols.expression(n)}" for name, n in numbers.items() if isinstance(n, torch.SymInt)}


def _translated(text: str, inputs: Mapping[str, Dims], leaves: Sequence[str], numbers: Mapping[str, str]) -> str | None:
    """Write a guard over sizes of arguments in the names of dimensions; None if an argument is not an input."""
    unknown = False

    def replaced(match: re.Match[str]) -> str:
        nonlocal unknown
        keys = [next(part for part in found if part) for found in _KEY.findall(match[1])]
        if keys[0] == _COUNTED:
            keys = [leaves[int(keys[1])]]
        # What a parameter collects is called ``more_0`` in a captured program.
        dims = inputs.get(".".join(keys)) or inputs.get(".".join(["_".join(keys[:2]), *keys[2:]])) or ()
        dim = dims[int(match[2])] if int(match[2]) < len(dims) else None
        text = str(dim) if isinstance(dim, int) else dim.value if dim is not None else None
        unknown = unknown or text is None
        return f"({text})"

    def number(match: re.Match[str]) -> str:
        keys = [next(part for part in found if part) for found in _KEY.findall(match[0])]
        return numbers.get(leaves[int(keys[1])] if keys[0] == _COUNTED else "_".join(keys), match[0])

    translated = _ARGUMENT.sub(number, _SIZE.sub(replaced, text))
    return None if unknown or "L[" in translated else translated


def _relation(fact: Any) -> str:
    """Return a fact as a condition of Python's, or as SymPy writes it."""
    if isinstance(fact, sympy.Or | sympy.And):
        joint = " or " if isinstance(fact, sympy.Or) else " and "
        return joint.join(f"({_relation(part)})" for part in fact.args)
    signs = {"Ne": "!=", "Unequality": "!=", "Eq": "==", "Equality": "=="}
    sign = getattr(fact, "rel_op", None) or signs.get(type(fact).__name__)
    return str(fact) if sign is None else f"{fact.lhs} {sign} {fact.rhs}"


def _says_something(text: str) -> bool:
    """Tell whether a text is a condition, and not one that holds for all sizes."""
    tree = parsed_size(text)
    if not isinstance(tree, ast.Compare):
        return not isinstance(tree, ast.Constant) and text != "True"
    if not isinstance(tree.ops[0], ast.Eq) or len(tree.ops) > 1:
        return True
    symbols = {name: dimension_symbol(name) for name in names_in_size(tree)}
    try:
        left, right = (value_of_size(part, symbols) for part in (tree.left, tree.comparators[0]))
    except (TypeError, ZeroDivisionError, ValueError):
        return True
    difference = sympy.sympify(left - right)
    # Products of many sums take minutes to expand.
    return bool(difference.count_ops() > _MOST_EXPANDED or sympy.expand(difference) != 0)
