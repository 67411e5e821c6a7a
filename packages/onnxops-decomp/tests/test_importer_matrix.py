"""The published page of imported operators lists what the table holds."""

from __future__ import annotations

import re
from pathlib import Path

from onnxops_decomp.importing.registry import implementations

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "onnx-operators.md"
ROW = re.compile(r"^\| \[`(\w+)`\]\([^)]*\) \| ([\w.]+) \| [^|]*\| ([^|]*) \|", re.MULTILINE)


def test_every_operator_of_the_table_has_a_row() -> None:
    listed = {
        ("" if domain == "ONNX" else domain, name)
        for name, domain, kind in ROW.findall(PAGE.read_text(encoding="utf-8"))
        if kind != "not imported"
    }
    assert listed == set(implementations()), "python -m tools.importer_table writes the page"
