"""Public names that the API reference leaves out: `python -m tools.doc_coverage docs/_build/html onnx_verify ...`."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


def described(inventory: bytes) -> set[str]:
    """Return the full names of the Python objects in a Sphinx inventory (`objects.inv`)."""
    lines = inventory.split(b"\n", 4)
    entries = zlib.decompress(lines[4]).decode().splitlines()
    return {entry.split(" ")[0] for entry in entries if " py:" in entry}


def missing(package: ModuleType, known: set[str]) -> Iterator[str]:
    """Return the functions and classes of a package's own `__all__` that are not in `known`."""
    distribution = package.__name__.partition(".")[0]
    for name in package.__all__:
        home = getattr(getattr(package, name), "__module__", None)
        if home and home.partition(".")[0] == distribution and f"{package.__name__}.{name}" not in known:
            yield f"{package.__name__}.{name} is public and not in the reference"


def main(html: Path, packages: list[str]) -> int:
    known = described((html / "objects.inv").read_bytes())
    lines = [line for package in packages for line in missing(importlib.import_module(package), known)]
    print("\n".join(lines) or f"{len(known)} names described")
    return 1 if lines or not known else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
