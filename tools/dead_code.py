"""Functions, methods and classes that nothing uses; `python -m tools.dead_code` prints them.

A test counts as a use. What a framework calls by name or a decorator enters in a table is no finding, and neither are
parameters: their names are given by PyTorch's and ONNX's signatures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from vulture.core import Vulture

from tools.house import python_files

KINDS = {"class", "function", "method", "property", "unreachable_code"}
# Called by torch, pytest, Sphinx or the standard library, not by us.
HOOKS = ["_", "__*__", "backward", "forward", "jvp", "setup_context", "symbolic", "vmap"]
HOOKS += ["_name_template", "guard_source"]
HOOKS += ["pytest_*", "test_*", "visit_*"]
REGISTERING = ["@pytest.fixture", "@nox.session", "@*register*", "@lowering*", "@adapter*"]


def unused(root: Path, files: Iterable[str]) -> list[str]:
    """One line per definition in `files` that none of them uses."""
    search = Vulture(ignore_names=HOOKS, ignore_decorators=REGISTERING)
    search.scavenge([str(root / name) for name in files])
    found = [item for item in search.get_unused_code(min_confidence=60) if item.typ in KINDS]
    return [
        f"{Path(item.filename).relative_to(root)}:{item.first_lineno}: nothing uses the {item.typ} {item.name}"
        for item in found
    ]


def main(root: Path) -> int:
    lines = unused(root, python_files(root))
    print("\n".join(lines) or "no dead code")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd().resolve()))
