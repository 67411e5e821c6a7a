"""What the commands print: progress, warnings, errors."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import time
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["Progress", "failed", "without_graphs_of_torch"]


class Progress:
    """Reports the stages as they begin and, with their times, as they end."""

    def __init__(self, console: Console) -> None:
        self._console, self._stage, self._start = console, "", 0.0
        self._status = console.status("") if console.is_terminal else None

    def __call__(self, stage: str) -> None:
        """Begin a stage, which ends the one before."""
        self.end()
        self._stage, self._start = stage, time.perf_counter()
        if self._status is not None:
            self._status.update(stage)
            self._status.start()

    def end(self) -> None:
        """Report the stage that ended."""
        if self._status is not None:
            self._status.stop()
        if self._stage:
            self._console.print(f"{self._stage:>8}  {time.perf_counter() - self._start:.2f} s", highlight=False)
        self._stage = ""


@contextlib.contextmanager
def without_graphs_of_torch() -> Iterator[None]:
    """Keep back what torch prints to stderr, which is shown only if nothing fails: its graphs where a capture does."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as held:
            yield
    finally:
        logging.disable(logging.NOTSET)
    print(held.getvalue(), end="", file=sys.stderr)


def failed(progress: Progress, error: Exception, code: int) -> typer.Exit:
    """Print an error; return the end of the command with an exit code."""
    progress.end()
    Console(stderr=True).print("[red]error:[/red]", Text(str(error)), soft_wrap=True)
    return typer.Exit(code)
