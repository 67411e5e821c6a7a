"""Writes docs/reference/options.md: what each path to an exporter does with each option of an export."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "text"]

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"

HEAD = """# Options of an export

What each path to an exporter does with each option: it honours it, or refuses it with the reason below; "in part" means
that some values are refused. Nothing is ignored. Inside `replace_torch_onnx`, a call takes one of the first three.

Written by `python -m tools.option_table` from the table by which both exporters check their arguments.

"""


def text() -> str:
    """Return the page."""
    options = importlib.import_module("onnxops_decomp.exporting")
    paths = list(options.ExportPath)
    lines = [f"| option | values | {' | '.join(path.value for path in paths)} |", "| --- " * (len(paths) + 2) + "|"]
    notes: dict[str, int] = {}
    for name, option in options.OPTIONS.items():
        cells = []
        for path in paths:
            reason = option.refused.get(path)
            verdict = "refused" if option.asks is bool else "in part"
            cells.append(f"{verdict} [{notes.setdefault(reason, len(notes) + 1)}]" if reason else "honoured")
        about = f" {option.about}" if option.about else ""
        lines.append(f"| `{name}` | {option.kind.text}.{about} | {' | '.join(cells)} |".replace("..", "."))
    reasons = [f"{number}. {reason}" for reason, number in notes.items()]
    return HEAD + "\n".join(lines) + f"\n\n{_counted(options)}\n\n" + "\n".join(reasons) + "\n"


def _counted(options: Any) -> str:
    """Return how many pairs of an option and a path there are of each kind."""
    pairs = [(option, path) for option in options.OPTIONS.values() for path in options.ExportPath]
    refused = [option.asks is bool for option, path in pairs if option.refused.get(path)]
    honoured, in_part = len(pairs) - len(refused), len(refused) - sum(refused)
    return (
        f"Of {len(pairs)} pairs of an option and a path, {honoured} are honoured, {in_part} honoured in part and "
        f"{sum(refused)} refused; none is dropped."
    )


if __name__ == "__main__":
    PAGE.write_text(text())
