"""A pytest plugin that runs the Python examples in Markdown pages: `pytest -p tools.doc_examples docs README.md`.

The examples of one page share a namespace, as for a reader who follows it from the top, and run in a folder that is
thrown away.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser


def enter_scratch_folder(namespace: dict[str, Any]) -> None:
    namespace["__scratch__"] = (os.getcwd(), tempfile.TemporaryDirectory())
    os.chdir(namespace["__scratch__"][1].name)


def leave_scratch_folder(namespace: dict[str, Any]) -> None:
    home, folder = namespace["__scratch__"]
    os.chdir(home)
    folder.cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    path=str(Path(__file__).parents[1]),
    patterns=["*.md"],
    setup=enter_scratch_folder,
    teardown=leave_scratch_folder,
).pytest()
