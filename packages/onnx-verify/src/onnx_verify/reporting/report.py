"""One self-contained HTML page about a comparison or a search."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_verify._version import __version__
from onnx_verify.comparing.verdict import OutputReport, Verdict
from onnx_verify.errors import MissingDependencyError, OnnxVerifyError
from onnx_verify.search.findings import MismatchReport, NodeError

if TYPE_CHECKING:
    from jinja2 import Environment

_WIDTH, _HEIGHT = 960.0, 180.0
_LOWEST, _HIGHEST = -8.0, 8.0


@dataclass(frozen=True)
class Bar:
    """A bar of a chart in pixels, with the text that is shown on and under it."""

    x: float
    y: float
    width: float
    height: float
    title: str
    ok: bool
    label: str = ""


def write_report(
    result: Verdict | MismatchReport, path: str | Path, *, title: str = "onnx-verify", commands: Sequence[str] = ()
) -> Path:
    """Write the report; the page needs no network and runs no script.

    Args:
        result: what :func:`onnx_verify.compare` or :func:`onnx_verify.find_mismatch` returned.
        path: the page; written whole or not at all.
        title: its heading.
        commands: what reproduces it, shown at the end.

    Raises:
        MissingDependencyError: if jinja2 is not installed.
        OnnxVerifyError: if the page cannot be written.
    """
    target = Path(path)
    text = render_report(result, title=title, commands=commands)
    partial = target.with_name(target.name + ".part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OnnxVerifyError(f"{target} cannot be written: {error}") from error
    return target


def render_report(result: Verdict | MismatchReport, *, title: str = "onnx-verify", commands: Sequence[str] = ()) -> str:
    """Return the page as text; every name from a model is escaped.

    Raises:
        MissingDependencyError: if jinja2 is not installed.
    """
    search = result if isinstance(result, MismatchReport) else None
    verdict = result.verdict if isinstance(result, MismatchReport) else result
    template = _environment().get_template("report.html.j2")
    return template.render(
        title=title,
        version=__version__,
        ok=result.ok,
        verdict=verdict,
        search=search,
        bars=profile_bars(search.profile) if search is not None else [],
        limit=_level(1.0),
        width=_WIDTH,
        height=_HEIGHT,
        charts=[
            (case.label, output.name, histogram_bars(output))
            for case in verdict.cases
            for output in case.outputs
            if output.metrics is not None and output.metrics.max_abs > 0
        ],
        commands=list(commands),
    )


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError(
            "the report needs jinja2; install it with: pip install 'onnx-verify[report]'"
        ) from error
    source = files("onnx_verify.reporting").joinpath("templates", "report.html.j2").read_text(encoding="utf-8")
    return jinja2.Environment(
        loader=jinja2.DictLoader({"report.html.j2": source}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _level(score: float) -> float:
    """Return the height in pixels of an error, in units of its tolerance, on a logarithmic scale."""
    if score <= 0:
        return 0.0
    power = _HIGHEST if math.isinf(score) else math.log10(score)
    return (min(max(power, _LOWEST), _HIGHEST) - _LOWEST) / (_HIGHEST - _LOWEST) * _HEIGHT


def profile_bars(profile: Sequence[NodeError]) -> list[Bar]:
    """Return one bar per node in the order of the graph; its height is the error in units of the tolerance."""
    if not profile:
        return []
    step = _WIDTH / len(profile)
    bars = []
    for index, entry in enumerate(profile):
        height = max(_level(entry.score), 1.0)
        errors = "" if entry.max_abs is None else f", max abs {entry.max_abs:.3g}, max rel {entry.max_rel:.3g}"
        title = f"{entry.op_type} {entry.name}: {entry.score:.3g} of the tolerance{errors}"
        bars.append(Bar(index * step, _HEIGHT - height, max(step * 0.9, 0.5), height, title, entry.ok))
    return bars


def histogram_bars(output: OutputReport) -> list[Bar]:
    """Return one bar per decade of the absolute error; its height is the share of the elements, square-rooted."""
    if output.metrics is None:
        return []
    counts = output.metrics.histogram
    keys = sorted(counts, key=float)
    total, step = sum(counts.values()), _WIDTH / 2 / max(len(keys), 1)
    bars = []
    for index, key in enumerate(keys):
        height = math.sqrt(counts[key] / total) * _HEIGHT / 2
        label = "exact" if key == "0" else f"from {key}"
        bars.append(
            Bar(index * step, _HEIGHT / 2 - height, step * 0.9, height, f"{label}: {counts[key]} elements", True, key)
        )
    return bars
