"""Where in the user's program a node comes from."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

__all__ = ["source_line"]

_TRACED = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# Scripted programs may come from another machine, whose torch lies elsewhere.
_LIBRARY = re.compile(r"[/\\]site-packages[/\\]torch[/\\]|" + re.escape(os.path.dirname(torch.__file__) + os.sep))


def source_line(node: Any) -> str:
    """Return ``file:line`` of a node, the innermost that is the user's own; an empty string if it is not known."""
    text = str(node.sourceRange())
    if not text:
        return ""
    found = list(_TRACED.finditer(text)) or list(_SCRIPTED.finditer(text))
    if not found:
        return ""
    own = next((match for match in found if not _LIBRARY.search(match["file"])), found[0])
    return f"{own['file']}:{own['line']}"
