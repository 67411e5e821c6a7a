"""Handing built files to a package index."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.commands import run
from tools.release import index


def upload(project: str, files: list[Path], url: str) -> None:
    """Upload `files` to the index at `url`; credentials come from twine's own environment variables.

    Raises:
        ToolError: The index refuses a file, for example because it holds another of that name.
    """
    address = urlsplit(url)
    if address.scheme == "file":
        index.add(Path(unquote(address.path)), project, files)
        return
    command = [sys.executable, "-m", "twine", "upload", "--non-interactive", "--disable-progress-bar"]
    run([*command, "--repository-url", url, *files], cwd=files[0].parent)
