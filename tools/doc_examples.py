"""A pytest plugin that runs the Python examples in Markdown pages: `pytest -p tools.doc_examples docs README.md`.

The examples of one page share a namespace, as for a reader who follows it from the top, and run in a folder that is
thrown away. An example that begins with the line `# name.py` is a file of that name, which later ones can import.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser, PythonCodeBlockParser

FILE = re.compile(r"# (\w+)\.py\n")


class FileOrExample(PythonEvaluator):
    """Writes and imports an example that is a file, and runs any other."""

    def __call__(self, example: Example) -> None:
        named = FILE.match(example.parsed)
        if named is None:
            super().__call__(example)
            return
        Path(f"{named[1]}.py").write_text(example.parsed, encoding="utf-8")
        importlib.invalidate_caches()
        sys.modules.pop(named[1], None)
        importlib.import_module(named[1])


class Examples(PythonCodeBlockParser):
    """The Python examples of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.codeblock_parser = CodeBlockParser("python", FileOrExample())


def enter_scratch_folder(namespace: dict[str, Any]) -> None:
    namespace["__scratch__"] = (os.getcwd(), tempfile.TemporaryDirectory())
    os.chdir(namespace["__scratch__"][1].name)
    sys.path.insert(0, namespace["__scratch__"][1].name)


def leave_scratch_folder(namespace: dict[str, Any]) -> None:
    home, folder = namespace["__scratch__"]
    os.chdir(home)
    sys.path.remove(folder.name)
    folder.cleanup()


pytest_collect_file = Sybil(
    parsers=[Examples()],
    path=str(Path(__file__).parents[1]),
    patterns=["*.md"],
    setup=enter_scratch_folder,
    teardown=leave_scratch_folder,
).pytest()
