"""What happens during one export, for the user who watches it and for the page about it."""

from __future__ import annotations

import contextlib
import cProfile
import io
import pstats
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.errors import SaveError
from onnxops_decomp.exporting.program.onnx_program import ONNXProgram
from onnxops_decomp.exporting.program.saving import replaced_file, write_text
from onnxops_decomp.exporting.program.verification import Verified
from onnxops_decomp.exporting.reporting.page import Page, ReportedCall, write_report

__all__ = ["ExportRecord", "recorded"]


class ExportRecord:
    """The outcome of an export.

    Args:
        exporter: Name and version of the exporter.
        progress: Called with the name of each stage as it begins.
        verbose: Whether the times of stages are printed.
        profile: Whether it is measured where the time goes.
        calls: Given a captured program, returns its calls for the page.

    Attributes:
        seconds: Time of each stage, also of one that failed.
        profiler: Measures the conversion, if that is wanted.
        captured: What torch.export captured, once that is done.
        program: The result of the conversion, once that is done.
        verified: What was compared with PyTorch.
        replaced: Why another exporter than the one that was asked made the program.
        warnings: Texts of the warnings.
    """

    def __init__(
        self,
        exporter: str,
        progress: Callable[[str], None] | None = None,
        *,
        verbose: bool = False,
        profile: bool = False,
        calls: Callable[[torch.export.ExportedProgram], Sequence[ReportedCall]] = lambda program: (),
    ) -> None:
        self.seconds: dict[str, float] = {}
        self.profiler = cProfile.Profile() if profile else None
        self.captured: torch.export.ExportedProgram | None = None
        self.program: ONNXProgram | None = None
        self.verified: Sequence[Verified] = ()
        self.warnings: list[str] = []
        self.replaced: OnnxExporterError | None = None
        self.exporter, self.calls = exporter, calls
        self._verbose, self._progress = verbose, progress
        self._inside = 0.0

    def profiled(self) -> contextlib.AbstractContextManager[Any]:
        """Measure where the time of what follows goes, if that is wanted."""
        return self.profiler or contextlib.nullcontext()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, without the stages inside it and together with its earlier parts, and report it."""
        start, outside = time.perf_counter(), self._inside
        self._inside = 0.0
        if self._progress is not None:
            self._progress(name)
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds - self._inside
            self._inside = outside + seconds
        if self._verbose:
            print(f"{name:>8}  {self.seconds[name]:.2f} s", flush=True)


@contextmanager
def recorded(record: ExportRecord, folder: Path, *, page: bool, captured: bool) -> Iterator[None]:
    """Write what is asked for besides the model, whether the export succeeds or fails.

    Args:
        record: What happens.
        folder: Where the files go; it is made if it is missing.
        page: Whether a page about the export is written.
        captured: Whether the captured program is written.

    Raises:
        SaveError: If a file cannot be written.
    """
    with _noted_warnings(record.warnings) if page else contextlib.nullcontext():
        try:
            if page or captured or record.profiler is not None:
                _make(folder)
            yield
        except OnnxExporterError as error:
            # The failure is what the user is to hear of, whatever becomes of these files.
            with contextlib.suppress(SaveError):
                _write(record, folder, page, captured, error)
            raise
    _write(record, folder, page, captured, None)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"The folder {folder} cannot be created: {error.strerror or error}.") from error


def _write(record: ExportRecord, folder: Path, page: bool, captured: bool, failure: OnnxExporterError | None) -> None:
    if captured and record.captured is not None:
        _save(record.captured, folder / "exported_program.pt2")
    profile = _profile_text(record.profiler)
    if profile is not None:
        write_text(folder / "onnx_export_profile.txt", profile)
    if page:
        lowered = (record.program.lowered_program if record.program is not None else None) or record.captured
        calls = record.calls(lowered) if lowered is not None else ()
        page_of = Page(
            record.exporter, record.seconds, record.warnings, record.verified, calls, record.program, failure, profile,
            record.replaced,
        )  # fmt: skip
        write_report(page_of, folder)


def _save(program: torch.export.ExportedProgram, file: Path) -> None:
    try:
        with replaced_file(file) as beside:
            torch.export.save(program, beside)
    except NotImplementedError as error:
        # torch names the class of a container, and a function of its own to call for it.
        raise SaveError(
            f"The captured program cannot be written to {file}: {error} For a dataclass call "
            "torch.export.register_dataclass with serialized_type_name=, or leave dump_exported_program out."
        ) from error


@contextmanager
def _noted_warnings(texts: list[str]) -> Iterator[None]:
    """Note the warnings that are shown."""
    shown: Any = warnings.showwarning

    def note(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
        texts.append(f"{category.__name__}: {message}")
        shown(message, category, *place, **options)

    warnings.showwarning = note
    try:
        yield
    finally:
        warnings.showwarning = shown


def _profile_text(profiler: cProfile.Profile | None) -> str | None:
    """Return the functions that took most of the time; None if nothing was measured."""
    if profiler is None:
        return None
    text = io.StringIO()
    try:
        pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(40)
    except TypeError:  # the conversion was never reached
        return None
    return text.getvalue()
