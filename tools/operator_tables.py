"""The tables of supported operators in the documentation: `python -m tools.operator_tables`.

ATen operators by opset come from test results (`tools.operator_results`), native operators from the registry of
onnxops-core, so neither says more than is so.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.bench_report import markdown_table
from tools.operator_links import aten_link, onnx_link
from tools.operator_results import RESULTS

ATEN_PAGE = Path("docs/reference/aten-operators.md")
ATEN_DATA = Path("packages/onnxops-decomp/src/onnxops_decomp/tested_opsets.json")
NATIVE_PAGE = Path("docs/reference/native-operators.md")
COMMAND = "nox -s tables"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in order, neighbours joined: `7, 9, 11-13`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def of_namespaces(results: Mapping[str, Any], operators: Iterable[str]) -> dict[str, Any]:
    """Return the results of operators that share a namespace with one of `operators`; tests define others."""
    namespaces = {name.partition("::")[0] for name in operators}
    return {name: row for name, row in results.items() if name.partition("::")[0] in namespaces}


def aten_data(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the same as a file of onnxops-decomp, one operator to a line: what `onnxops_decomp.lowerings` reads."""
    rows = [
        f"{json.dumps(name)}: {json.dumps({key: value for key, value in row.items() if value})}"
        for name, row in sorted(results.items())
    ]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def aten_page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page that lists each operator with the opsets at which tests found it right."""
    rows = [[f"[`{name}`]({aten_link(name)})", ranges(row["opsets"])] for name, row in sorted(results.items())]
    return "\n\n".join(
        [
            "# ATen operators",
            f"{len(rows)} operator overloads, each with the opsets at which a test has lowered it, run the model in a "
            "runtime, and found what eager PyTorch computes. For random operators that is the dtype and the shape. An "
            "opset that is not listed is one at which no test has tried, not one that fails. The names are links to "
            f"PyTorch's page, or to the declaration of what has none. Written by `{COMMAND}`.",
            markdown_table(["operator", "opsets"], rows).replace("---:", "---"),
            "",
        ]
    )


def native_page(operators: Iterable[tuple[str, str, int]]) -> str:
    """Return the page that lists native operators, given as domain, name and opset."""
    versions: dict[tuple[str, str], list[int]] = {}
    for domain, name, opset in operators:
        versions.setdefault((domain, name), []).append(opset)
    rows = [
        [
            f"[`{name}`]({onnx_link(domain, name)})",
            domain or "ONNX",
            ", ".join(f"`opset{opset}`" for opset in sorted(opsets)),
        ]
        for (domain, name), opsets in sorted(versions.items())
    ]
    return "\n\n".join(
        [
            "# Native ONNX operators",
            "The operators of `torch.ops.onnxops`, by name, domain and the overloads that stand for the versions of "
            f"the ONNX operator. Written from the registry of onnxops-core by `{COMMAND}`.",
            markdown_table(["operator", "domain", "overloads"], rows).replace("---:", "---"),
            "",
        ]
    )


def main(root: Path) -> int:
    table = importlib.import_module("onnxops_decomp").builtin_table()
    results = of_namespaces(json.loads((root / RESULTS).read_text(encoding="utf-8")), table)
    native_ops = importlib.import_module("onnxops_core").native_ops().values
    native = [(each.domain, each.op_type, each.since_version) for each in native_ops()]
    (root / ATEN_PAGE).write_text(aten_page(results), encoding="utf-8")
    (root / ATEN_DATA).write_text(aten_data(results), encoding="utf-8")
    (root / NATIVE_PAGE).write_text(native_page(native), encoding="utf-8")
    print(f"{len(results)} ATen operators, {len(native)} native overloads")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
