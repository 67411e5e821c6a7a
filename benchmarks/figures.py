"""What benchmarks share: the figure they hand over, their command line, clock and memory gauge. See README.md here."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import io
import json
import logging
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Cell = str | int | float | None


@dataclasses.dataclass(frozen=True)
class Plot:
    """How a figure is drawn.

    Args:
        kind: `bars`, one group per row, or `lines` over a numeric column.
        x: The column that names the groups, or that the lines run over.
        y: The columns to draw, each with its name in the legend; ours first.
        label: What the length of a bar or the height of a point means.
        log: Whether the figures are of such different magnitudes that only a logarithmic axis shows them.
    """

    kind: Literal["bars", "lines"]
    x: str
    y: Mapping[str, str]
    label: str
    log: bool = False


@dataclasses.dataclass(frozen=True)
class Figure:
    """A table of measurements.

    Args:
        title: The heading in the report.
        caption: What was measured, and which direction is better.
        columns: The columns in order, by key, with their headings; the first is the name of the row.
        rows: A value for every key; more keys than columns are kept in the file and not shown. None: it fails.
        plot: How to draw it, if a picture says more than the table.
    """

    title: str
    caption: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Cell]]
    plot: Plot | None = None

    def finish(self, path: Path | None) -> None:
        """Print the table, and write the figure to a JSON file if one is named."""
        lines = [list(self.columns.values()), *([_text(row[key]) for key in self.columns] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print(self.title)
        for first, *others in lines:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            print(first.ljust(widths[0]), *cells, sep="  ", flush=True)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")


def _text(cell: Cell) -> str:
    return "fails" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def command(
    description: str | None, names: Iterable[str] = (), default: Sequence[str] | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line.

    Args:
        description: What `--help` shows.
        names: What is measured one by one, if the command line can choose with `--only NAME ...`.
        default: Those measured without `--only`. Default: all.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figure here")
    if choices := list(names):
        parser.add_argument(
            "--only", nargs="*", choices=choices, default=default or choices, help="measure these alone"
        )
    return parser


def quiet() -> None:
    """Keep away from the table what exporters warn of and log, and compute on one thread."""
    import torch  # not every benchmark needs it

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def by_torch(model: Any, args: tuple[Any, ...], file: Any = None, **options: Any) -> Any:
    """Call `torch.onnx.export` without what it prints, and return what it returns."""
    import torch

    with contextlib.redirect_stdout(io.StringIO()):
        return torch.onnx.export(model, args, file, verbose=False, **options)


class Peak:
    """Samples the memory of this process while it is entered, on Linux.

    Attributes:
        own: By how many bytes its own memory (RssAnon) grew at most.
        resident: By how many all resident pages did (VmRSS), mapped files included, which the system can drop.
    """

    def __enter__(self) -> Peak:
        self.own = self.resident = 0
        self._start, self._stop = self._read(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    @staticmethod
    def _read() -> tuple[int, int]:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        own, resident = (int(fields[key].split()[0]) << 10 for key in ("RssAnon", "VmRSS"))
        return own, resident

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            own, resident = self._read()
            self.own = max(self.own, own - self._start[0])
            self.resident = max(self.resident, resident - self._start[1])


def take_turns(
    actions: Sequence[Callable[[], object]], rounds: int, *, warm_up: int = 1, clock: Callable[[], float] | None = None
) -> list[float | None]:
    """Return the median seconds of each action, called in turn, so that a slow moment of the machine hits them all.

    Args:
        actions: What to time; one that raises has no time, and is not called again.
        rounds: How often each is timed.
        warm_up: Rounds before that, which do not count.
        clock: Default: wall-clock time. `time.process_time` leaves out what other processes do.
    """
    clock = clock or time.perf_counter
    times: list[list[float] | None] = [[] for _ in actions]
    for turn in range(warm_up + rounds):
        for index, action in enumerate(actions):
            if (seconds := times[index]) is None:
                continue
            gc.collect()
            start = clock()
            try:
                action()
            except Exception:
                times[index] = None
                continue
            if turn >= warm_up:
                seconds.append(clock() - start)
    return [statistics.median(entry) if entry else None for entry in times]


def over(ours: float | None, theirs: float | None) -> float | None:
    """Return the ratio of two figures; None where one of them fails."""
    return None if ours is None or theirs is None else ours / theirs
