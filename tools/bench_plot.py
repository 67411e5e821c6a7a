"""Plots of benchmark figures as SVG, by the standard library alone: bars for rows, lines over a numeric column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

COLORS = ("#6366f1", "#9ca3af", "#f59e0b", "#10b981", "#ef4444", "#0ea5e9")
WIDTH = 400
Figure = Mapping[str, Any]


def plot(figure: Figure) -> str:
    """Return the plot that a figure asks for: `figure["plot"]` as in `benchmarks/figures.py`."""
    return (_bars if figure["plot"]["kind"] == "bars" else _lines)(figure)


def _values(figure: Figure) -> list[float]:
    return [row[key] for row in figure["rows"] for key in figure["plot"]["y"] if row[key] is not None]


def _scale(values: Sequence[float], length: float, log: bool) -> Callable[[float], float]:
    """Return where a value is on an axis of that length; a logarithmic axis begins just below the least value."""
    if not log:
        largest = max([0.0, *values]) or 1.0
        return lambda value: length * value / largest
    low = math.log10(min((v for v in values if v > 0), default=1.0)) - 0.2
    span = max(math.log10(max([1e-12, *values])) - low, 1e-9)
    return lambda value: length * max(0.0, (math.log10(max(value, 1e-12)) - low) / span)


def _short(value: float | None) -> str:
    return "fails" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _legend(figure: Figure) -> list[str]:
    parts = [f'<text x="12" y="20" font-size="13">{escape(figure["plot"]["label"])}</text>']
    at = 12
    for color, name in zip(cycle(COLORS), figure["plot"]["y"].values(), strict=False):
        parts.append(f'<circle cx="{at + 5}" cy="36" r="5" fill="{color}"/>')
        parts.append(f'<text x="{at + 15}" y="40" font-size="12">{escape(name)}</text>')
        at += 34 + 7 * len(name)
    return parts


def _document(parts: Sequence[str], width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#64748b">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bars(figure: Figure) -> str:
    asked = figure["plot"]
    scale = _scale(_values(figure), WIDTH, asked["log"])
    parts, top = _legend(figure), 54
    left = 24 + 7 * max(len(str(row[asked["x"]])) for row in figure["rows"])
    for row in figure["rows"]:
        middle = top + 8 * len(asked["y"]) + 4
        parts.append(f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(str(row[asked["x"]]))}</text>')
        for color, key in zip(cycle(COLORS), asked["y"], strict=False):
            width = 0.0 if row[key] is None else scale(row[key])
            parts.append(f'<rect x="{left}" y="{top}" width="{width:.1f}" height="14" fill="{color}"/>')
            parts.append(f'<text x="{left + width + 6:.1f}" y="{top + 12}" font-size="12">{_short(row[key])}</text>')
            top += 16
        top += 12
    return _document(parts, left + WIDTH + 60, top)


def _lines(figure: Figure) -> str:
    asked, rows, height = figure["plot"], figure["rows"], 260
    across = _scale([row[asked["x"]] for row in rows], WIDTH, False)
    up = _scale(_values(figure), height, asked["log"])
    bottom = 60 + height
    parts = [*_legend(figure), f'<path d="M70 60 V{bottom} H{80 + WIDTH}" fill="none" stroke="#94a3b8"/>']
    for row in rows:
        x = 70 + across(row[asked["x"]])
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_short(row[asked["x"]])}</text>')
    for color, key in zip(cycle(COLORS), asked["y"], strict=False):
        points = [
            (70 + across(row[asked["x"]]), bottom - up(row[key]), row[key]) for row in rows if row[key] is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, y, value in points:
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>')
            parts.append(f'<text x="{x + 6:.1f}" y="{y - 6:.1f}" font-size="11">{_short(value)}</text>')
    parts.append(f'<text x="{70 + WIDTH / 2}" y="{bottom + 38}" text-anchor="middle">{escape(_title(figure))}</text>')
    return _document(parts, WIDTH + 150, bottom + 50)


def _title(figure: Figure) -> str:
    """Return the heading of the column that the lines run over."""
    return str(figure["columns"].get(figure["plot"]["x"], figure["plot"]["x"]))
