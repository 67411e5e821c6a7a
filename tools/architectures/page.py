"""The page about model classes, written from the results that are kept."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "page_text", "write_page"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "architectures.md"

_JUDGED = ("right", "static", "refused", "wrong")
_HEAD = """# Model classes

What becomes of published model classes with small random weights: exported with dynamic batch and length, and compared
with eager PyTorch at the sizes of the example and at two others, with masks that leave out padding.

| verdict | meaning |
| --- | --- |
| right | the dynamic export agrees at all sizes |
| static | only an export with static sizes is possible, and agrees |
| refused | no export, or the program refuses a size; the reason is given |
| wrong | a value differs by more than rounding: also from what the class gives in double precision |
| no end | not judged within the limit of processor time; it is tried again |

Classes of which no small configuration could be built, or that eager PyTorch does not run on plain inputs, are counted
and not listed. "Over torch.export" is the time of the export over that of `torch.export.export` alone, in one run.
"Imported" says whether the exported model, as a module of PyTorch again, agrees with its class at the same sizes.

Written by `python -m tools.architectures --imported`, or `nox -s architectures -- --imported`, which goes on where it
was stopped.
"""


def write_page(rows: Sequence[dict[str, Any]]) -> None:
    """Write the page."""
    PAGE.write_text(page_text(rows))


def page_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page for results."""
    parts = [_HEAD]
    for library in dict.fromkeys(row["library"] for row in sorted(rows, key=lambda row: str(row["library"]))):
        parts.append(_section(library, [row for row in rows if row["library"] == library]))
    return "\n".join(parts)


def _section(library: str, rows: Sequence[dict[str, Any]]) -> str:
    counts = collections.Counter(row["verdict"] for row in rows)
    built = [row for row in rows if row["verdict"] != "not built"]
    ratios = [ratio for row in built if (ratio := _ratio(row)) is not None]
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _JUDGED)
    judged = sum(counts[verdict] for verdict in _JUDGED)
    left = f"{counts['not built']} could not be built, and {counts['no end']} did not end"
    lines = [f"## {library}", "", f"Of {len(rows)} classes tried, {left}. Of the other {judged}: {told}."]
    beside = [row for row in built if row["torch_onnx"]]
    if beside:
        theirs = sum(row["torch_onnx"] == "right" for row in beside)
        ours = sum(row["verdict"] == "right" for row in beside)
        lines.append(f"On a sample of {len(beside)}, torch.onnx is right for {theirs}, and this exporter for {ours}.")
    if ratios:
        lines.append(f"The median export takes {statistics.median(ratios):.1f} x the time of torch.export.")
    back = collections.Counter(_word(row.get("imported")) for row in built if row.get("imported"))
    if back:
        lines.append(f"Of {back.total()} that were imported again, {back['right']} agree with their class.")
    lines += [
        "",
        "| class | verdict | imported | nodes | over torch.export | torch.onnx | reason |",
        "| --- | --- | --- | --: | --: | --- | --- |",
    ]
    for row in sorted(built, key=lambda row: str(row["name"])):
        ratio = _ratio(row)
        cells = [
            row["name"],
            row["verdict"] + (f" ({row['strategy']})" if row["strategy"] not in (None, "non-strict") else ""),
            _word(row.get("imported")),
            "" if row["nodes"] is None else str(row["nodes"]),
            "" if ratio is None else f"{ratio:.1f}",
            _word(row["torch_onnx"]),
            _escaped(row["reason"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _word(verdict: str | None) -> str:
    """Return a verdict without its reason."""
    return (verdict or "").partition(":")[0]


def _ratio(row: dict[str, Any]) -> float | None:
    return row["seconds"] / row["capture"] if row["seconds"] and row["capture"] else None


def _escaped(text: str) -> str:
    code = text.replace("|", "/").replace("`", "'")
    return f"`{code}`" if code else ""
