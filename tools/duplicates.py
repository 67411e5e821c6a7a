"""Functions that do the same under two names; `python -m tools.house` prints them among its faults.

Two functions are the same if they differ in nothing but docstrings, annotations and the names of their own variables.
Only what could be shared is compared: the packages that may import each other, the tests of one package, the tools.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

# Below this many syntax nodes a body says too little to be given a name of its own elsewhere.
MIN_NODES = 14
# What a node says beside what it does.
SILENT = {"annotation", "returns", "ctx", "type_comment", "type_params"}
# onnx-verify must not import the other packages, nor they it (the import contracts in pyproject.toml).
ALONE = "packages/onnx-verify/"
# Written out because torch calls them, or to keep a model of a test in one piece.
PROTOCOLS = {"__init__", "forward"}


class Place(NamedTuple):
    """Where a function stands."""

    file: str
    line: int
    name: str
    decorated: bool


def repeated(texts: Mapping[str, str]) -> Iterator[str]:
    """One line per function of these Python files, given by name, that another one repeats."""
    same: defaultdict[tuple[str, Hashable], list[Place]] = defaultdict(list)
    for file, text in texts.items():
        tree = ast.parse(text)
        meanings = {node.name: f"{file}:{node.name}" for node in tree.body if isinstance(node, Function)}
        for node in outer_functions(tree):
            if is_helper(node) and size(node) >= MIN_NODES:
                place = Place(file, node.lineno, node.name, bool(node.decorator_list))
                same[scope(file), Form(node, meanings | {node.name: "itself"}).key].append(place)
    for first, *others in same.values():
        for other in others:
            # What is entered in tables by decorators has the arguments that its entry must have.
            if not (first.decorated and other.decorated):
                yield f"{other.file}:{other.line}: {other.name} does what {first.name} does, {first.file}:{first.line}"


def scope(file: str) -> str:
    """Return a name for the files that can use each other's helpers."""
    if file.startswith("packages/"):
        root, package, kind, *_ = file.split("/")
        if kind == "src" and not file.startswith(ALONE):
            return root
        return f"{root}/{package}/{kind}"
    return file.partition("/")[0]


def outer_functions(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods; what stands inside one depends on its variables."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node
        else:
            yield from outer_functions(node)


def is_helper(node: Function) -> bool:
    """Whether its author could have called another function instead of writing it."""
    is_property = any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)
    return not (is_property or node.name.startswith(("test_", "__")) or node.name in PROTOCOLS)


def body_of(node: Function) -> list[ast.stmt]:
    """Return the statements without the docstring."""
    return node.body[ast.get_docstring(node, clean=False) is not None :]


def size(node: Function) -> int:
    return sum(1 for statement in body_of(node) for _ in ast.walk(statement))


def own_names(node: Function) -> set[str]:
    """Return the names of its parameters and variables."""
    inner = list(ast.walk(node))
    stored = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return stored | {each.arg for each in inner if isinstance(each, ast.arg)}


class Form:
    """What a function does, equal for those that differ only in names of their own.

    Attributes:
        key: The form, which can be compared and hashed.
    """

    def __init__(self, function: Function, meanings: Mapping[str, str]) -> None:
        """Take a function and what names mean in its module that mean something else in another one."""
        self.meanings = meanings
        self.own = own_names(function)
        self.numbers: dict[str, int] = {}
        self.key = (self.of(function.args), self.of(body_of(function)))

    def of(self, part: object) -> Hashable:
        """Return a syntax node, a list of nodes or a plain value as a tuple, its own names numbered as they occur."""
        match part:
            case list():
                return tuple(self.of(each) for each in part)
            case ast.Name(id=name) | ast.arg(arg=name) if name in self.own:
                return self.numbers.setdefault(name, len(self.numbers))
            case ast.Name(id=name) if name in self.meanings:
                return self.meanings[name]
            case ast.AnnAssign(value=ast.expr()):
                return ("Assign", (self.of(part.target),), self.of(part.value))
            case ast.AST():
                fields = [getattr(part, field) for field in part._fields if field not in SILENT]
                return (type(part).__name__, *(self.of(field) for field in fields))
            case _:
                return repr(part)
