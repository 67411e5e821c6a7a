"""The page of ONNX operators that `to_torch` knows: `python -m tools.importer_table` measures and writes it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from tools.bench_report import markdown_table
from tools.operator_links import onnx_link
from tools.operator_tables import ranges

PAGE = Path("docs/reference/onnx-operators.md")
TESTS = Path("packages/onnxops-decomp/tests")
COMMAND = "python -m tools.importer_table"

Row = tuple[str, str, list[int], str, int, int]
"""Domain, name, opsets, what it is in torch, cases that are right, all cases."""


def importer_page(rows: Iterable[Row], reasons: Iterable[tuple[str, str]], suite: tuple[int, int]) -> str:
    """Return the page that lists each operator with what it is in torch, how many of its cases are right, and why."""
    rows = list(rows)
    imported = [row for row in rows if row[3] != "not imported"]
    cells = [
        [
            f"[`{name}`]({onnx_link(domain, name)})",
            domain or "ONNX",
            ranges(opsets),
            kind,
            f"{right} of {tried}" if tried else "",
        ]
        for domain, name, opsets, kind, right, tried in rows
    ]
    right, tried = sum(row[4] for row in rows), sum(row[5] for row in rows)
    return "\n\n".join(
        [
            "# ONNX operators in PyTorch",
            f"What `onnxops_decomp.to_torch` makes of each operator ({{doc}}`/how-to/from-onnx`): {len(imported)} are "
            f"imported, {len(rows) - len(imported)} are refused by name. Opsets are those of ONNX's own domain from 7 "
            "on. An operator is one operator of ATen, one of onnxops-core (native), a formula of several, control "
            "flow, or Python where the values are no tensors; `torch.ops` names what the first case calls. Cases are "
            f"ONNX's own node cases of one node, and for `com.microsoft` comparisons with ONNX Runtime: {right} of "
            f"{tried} agree. Of ONNX's whole backend suite, its models and what it writes out as functions included, "
            f"{suite[0]} of {suite[1]} agree. Written by `{COMMAND}`.",
            markdown_table(["operator", "domain", "opsets", "in PyTorch", "cases"], cells).replace("---:", "---"),
            "## What does not agree, and why",
            markdown_table(["operator or case", "reason"], [list(row) for row in reasons]).replace("---:", "---"),
            "",
        ]
    )


def main(root: Path) -> int:
    sys.path.insert(0, str(root / TESTS))
    matrix = importlib.import_module("importer_matrix")
    rows = matrix.measured()
    (root / PAGE).write_text(importer_page(rows, matrix.reasons(), matrix.backend_suite()), encoding="utf-8")
    print(f"{len(rows)} operators")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
