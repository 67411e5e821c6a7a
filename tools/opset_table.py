"""The page of what becomes of models at other opsets: `python -m tools.opset_table` measures and writes it."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench_report import markdown_table
from tools.surviving import in_children

PAGE = Path("docs/reference/opset-conversion.md")
TESTS = Path("packages/onnxops-decomp/tests")
COMMAND = "python -m tools.opset_table"
OPSETS = (11, 17, 24)
NETWORK_OPSETS = (9, 11, 13, 15, 17, 20, 23, 25)
EXPORTED_AT = 18
NETWORKS = ("resnet", "bert", "yolo-like", "u-net", "llama")
FATES = ("right", "refused", "wrong")

Suite = Mapping[int, Mapping[str, Mapping[str, Mapping[str, int]]]]
"""Counts by opset, direction, converter and fate."""


def rows_of_suite(found: Suite) -> list[list[str]]:
    """Return a row for each opset and direction."""
    return [
        [f"{direction} to {opset}", *(str(counts.get(fate, 0)) for counts in by_converter.values() for fate in FATES)]
        for opset, directions in found.items()
        for direction, by_converter in directions.items()
    ]


def rows_of_networks(found: Mapping[str, Mapping[str, Sequence[int]]]) -> list[list[str]]:
    """Return a row for each network."""
    return [
        [name, *(", ".join(map(str, opsets)) or "none" for opsets in by_converter.values())]
        for name, by_converter in found.items()
    ]


def page(suite: Suite, networks: Mapping[str, Mapping[str, Sequence[int]]], every: int) -> str:
    """Return the page."""
    taken = "all cases" if every == 1 else f"one case in {every}"
    command = COMMAND if every == 1 else f"{COMMAND} --every {every}"
    header = [f"{fate}, `{name}`" for name in ("convert_opset", "onnx.version_converter") for fate in FATES]
    sections = [
        "# Models at another opset, beside ONNX's own converter",
        "What becomes of the models of ONNX's backend suite at other opsets, in `onnxops_decomp.convert_opset` "
        "({doc}`/how-to/another-opset`) and in `onnx.version_converter`: the result has the opset and gives what the "
        "case expects, the converter refuses, or the result is wrong: it does not run where the original runs, gives "
        f"something else, or the converter crashes. Of {taken}, of opset 7 or newer, those that run as they are, in "
        f"ONNX Runtime or ONNX's evaluator. Written by `{command}`.",
        markdown_table(["models", *header], rows_of_suite(suite)),
        "## Exported networks",
        f"Networks that onnx-fx-export wrote at opset {EXPORTED_AT}, and those opsets out of "
        f"{', '.join(map(str, NETWORK_OPSETS))} at which the result gives the same in ONNX Runtime.",
        markdown_table(["network", "`convert_opset`", "`onnx.version_converter`"], rows_of_networks(networks)).replace(
            "---:", "---"
        ),
        "",
    ]
    return "\n\n".join(sections)


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take one case of so many")
    options = parser.parse_args(arguments)
    root = root or Path.cwd()
    sys.path.insert(0, str(root / TESTS))
    outcomes: Any = importlib.import_module("opset_outcomes")
    networks = outcomes.networks(NETWORKS, NETWORK_OPSETS, in_children, EXPORTED_AT)
    print(networks, flush=True)
    suite = {}
    for opset in OPSETS:
        suite[opset] = outcomes.suite(opset, in_children, options.every)
        print(opset, suite[opset], flush=True)
    (root / PAGE).write_text(page(suite, networks, options.every), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
