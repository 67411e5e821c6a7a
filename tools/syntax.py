"""The syntax of one file after another, parsed and walked once for all the rules that read it."""

from __future__ import annotations

import ast
from functools import lru_cache


# The rules go over a repository file by file, and all the trees at once would fill hundreds of MiB.
@lru_cache(maxsize=4)
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Return all syntax nodes of a Python file, the module first."""
    return tuple(ast.walk(ast.parse(text)))
