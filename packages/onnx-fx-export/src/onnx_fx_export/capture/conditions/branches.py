"""The ``torch.cond`` that takes the place of an ``if`` in the user's code, written out."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Span", "answer_without_raising", "cond_for", "decides", "may_catch", "raises"]

_Statements = Sequence[ast.stmt]
#: The first line and column of a part of a source, and the last line and the column behind it.
Span = tuple[tuple[int, int], tuple[int, int]]


def cond_for(file: str, line: int) -> str:
    """Return what to write instead of the ``if`` at a line.

    Args:
        file: Path of the source file.
        line: Number of a line of its condition.

    Returns:
        Code with one ``torch.cond``; empty if there is no ``if`` at the line, or its branches do more than compute one
        result, or something that is not a tensor.
    """
    functions = [node for node in _nodes(file) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    # The innermost one comes last.
    for function in sorted(functions, key=lambda node: -node.lineno):
        for node, following in _branches(function):
            if node.test.lineno <= line <= (node.test.end_lineno or line):
                return _rewritten(node, following, function)
    return ""


def decides(file: str, line: int) -> bool:
    """Tell whether the code at a line asks whether something is true, or how often to repeat something."""
    tests: list[ast.expr] = []
    for node in _nodes(file):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            tests.append(node.test)
        elif isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            tests.append(node)
        elif isinstance(node, ast.comprehension):
            tests.extend([node.iter, *node.ifs])
        elif isinstance(node, ast.For):
            tests.append(node.iter)
    return any(test.lineno <= line <= (test.end_lineno or line) for test in tests)


def raises(file: str, line: int) -> bool:
    """Tell whether the code at a line raises by itself, or asserts something."""
    statements = (node for node in _nodes(file) if isinstance(node, ast.Raise | ast.Assert))
    return any(node.lineno <= line <= (node.end_lineno or line) for node in statements)


def answer_without_raising(file: str, span: Span) -> bool | None:
    """Return the truth of an operand of a condition with which a statement does not raise.

    Args:
        file: Path of the source file.
        span: What asks: a part of the condition, or the statement itself.

    Returns:
        The truth; None if no condition is asked whose only purpose is to raise, or its operands need different ones.
    """
    found: list[tuple[ast.expr, bool]] = []
    for node in _nodes(file):
        if isinstance(node, ast.Assert | ast.If) and (_covers(node.test, span) or _begin(node) == span[0]):
            # The innermost one comes last.
            found = [(node.test, wanted)] if (wanted := _truth_that_passes(node)) is not None else []
    # What they hold outlives the condition.
    if not found or any(isinstance(part, ast.NamedExpr | ast.Lambda) for part in ast.walk(found[0][0])):
        return None
    answers = {*_answers(*found[0], span)}
    return answers.pop() if len(answers) == 1 else None


def may_catch(file: str, line: int) -> bool:
    """Tell whether code goes on after an exception at a line, as far as its source shows it.

    Args:
        file: Path of the source file; where it cannot be read, the answer is yes.
        line: Number of the line.
    """
    nodes = _nodes(file)
    guards = (
        node for node in nodes if isinstance(node, ast.Try | ast.TryStar | ast.With) and _lies_in(node.body, line)
    )
    return not nodes or any(map(_catches, guards))


def _lies_in(block: _Statements, line: int) -> bool:
    return block[0].lineno <= line <= (block[-1].end_lineno or line)


def _catches(guard: ast.Try | ast.TryStar | ast.With) -> bool:
    if isinstance(guard, ast.With):
        return not all(_lets_through(item.context_expr) for item in guard.items)
    leaving = (ast.Return, ast.Break, ast.Continue)
    last = (part for statement in guard.finalbody for part in ast.walk(statement))
    return bool(guard.handlers) or any(isinstance(part, leaving) for part in last)


def _lets_through(manager: ast.expr) -> bool:
    """Tell whether a context manager is known to catch nothing: those of torch, and ``nullcontext``."""
    if isinstance(manager, ast.Call):
        manager = manager.func
    parts = ast.unparse(manager).split(".")
    return parts[0] == "torch" or parts[-1] in _LETTING_THROUGH


_LETTING_THROUGH = ("autocast", "enable_grad", "inference_mode", "no_grad", "nullcontext", "set_grad_enabled")


def _truth_that_passes(statement: ast.Assert | ast.If) -> bool | None:
    """Return the truth of its condition with which a statement does not raise; None if it does more than that."""
    if isinstance(statement, ast.Assert):
        return True
    if _only_raises(statement.body):
        return False
    return True if _only_raises(statement.orelse) else None


def _only_raises(block: _Statements) -> bool:
    """Tell whether a block ends in an exception, whatever it does before."""
    leaving = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await)
    inner = (part for statement in block for part in ast.walk(statement))
    return bool(block) and isinstance(block[-1], ast.Raise) and not any(isinstance(part, leaving) for part in inner)


def _answers(test: ast.expr, wanted: bool, span: Span) -> Iterator[bool]:
    """Yield what the operands of a condition have to be, in which a span lies; all where it lies in none."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _answers(test.operand, not wanted, span)
    elif isinstance(test, ast.BoolOp):
        covering = [value for value in test.values if _covers(value, span)]
        for value in covering or test.values:
            yield from _answers(value, wanted, span)
    else:
        yield wanted


def _covers(node: ast.expr, span: Span) -> bool:
    return _begin(node) <= span[0] and span[1] <= (node.end_lineno or 0, node.end_col_offset or 0)


def _begin(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _nodes(file: str) -> list[ast.AST]:
    """Return all nodes of a source file; none where it cannot be read."""
    try:
        return [*ast.walk(ast.parse("".join(linecache.getlines(file))))]
    except SyntaxError:
        return []


def _branches(function: ast.FunctionDef | ast.Lambda) -> Iterator[tuple[ast.If | ast.IfExp, _Statements]]:
    """Yield each ``if`` with the statements that follow it in its block."""
    for parent in ast.walk(function):
        for field in ("body", "orelse"):
            block: Any = getattr(parent, field, None)
            if isinstance(block, list):
                yield from ((node, block[index + 1 :]) for index, node in enumerate(block) if isinstance(node, ast.If))
        if isinstance(parent, ast.IfExp):
            yield parent, ()


def _rewritten(node: ast.If | ast.IfExp, following: _Statements, function: ast.FunctionDef | ast.Lambda) -> str:
    if isinstance(node, ast.IfExp):
        return _call(node.test, node.body, node.orelse, function)
    target, when_true = _result(node.body)
    other, when_false = _result(node.orelse or following[:1])
    if when_true is None:
        return ""
    if target and not node.orelse:
        # Without an else the name keeps its value; a branch must not hand on what it was given.
        kept = ast.parse(f"{target}.clone()", mode="eval").body
        return f"{target} = {_call(node.test, when_true, kept, function)}"
    if when_false is None or target != other:
        return ""
    call = _call(node.test, when_true, when_false, function)
    return f"{target} = {call}" if target else f"return {call}"


def _result(block: _Statements) -> tuple[str, ast.expr | None]:
    """Return the name that a block of one statement assigns (empty if it returns), and the expression."""
    if len(block) != 1:
        return "", None
    (statement,) = block
    if isinstance(statement, ast.Return):
        return "", _tensor(statement.value)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, _tensor(statement.value)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        left = ast.Name(statement.target.id, ast.Load())
        return statement.target.id, ast.BinOp(left, statement.op, statement.value)
    return "", None


def _tensor(value: ast.expr | None) -> ast.expr | None:
    """Return an expression that may be a tensor, as branches have to give; None for a constant."""
    return None if isinstance(value, ast.Constant) else value


def _call(test: ast.expr, when_true: ast.expr, when_false: ast.expr, function: ast.FunctionDef | ast.Lambda) -> str:
    """Return the call; the operands are the local names that a branch reads, but the module itself."""
    arguments = function.args
    local = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    local |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = [n.id for part in (when_true, when_false) for n in ast.walk(part) if isinstance(n, ast.Name)]
    names = [name for name in dict.fromkeys(read) if name in local and name != "self"]
    parameters = ", ".join(names)
    head = f"lambda {parameters}:" if names else "lambda:"
    branches = [f"{head} {_fresh(part, names)}" for part in (when_true, when_false)]
    operands = f"({parameters},)" if len(names) == 1 else f"({parameters})"
    return f"torch.cond({_condition(test)}, {branches[0]}, {branches[1]}, {operands})"


def _condition(test: ast.expr) -> str:
    """Return a condition as a tensor; ``not`` and ``bool`` ask for the truth at once."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"torch.logical_not({ast.unparse(operand)})"
        case ast.Call(func=ast.Name(id="bool"), args=[argument]):
            return ast.unparse(argument)
        case _:
            return ast.unparse(test)


def _fresh(result: ast.expr, names: Sequence[str]) -> str:
    """Return an expression; what is an operand as it stands has to be a copy."""
    text = ast.unparse(result)
    return f"{text}.clone()" if text in names else text
