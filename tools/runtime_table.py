"""What each runtime runs: `python -m tools.runtime_table` measures, and writes data and page.

    python -m tools.runtime_table [--engine ort ...] [--files FOLDER]

ONNX's own node cases run in every engine of onnx-verify. Their numbers go to `gaps.json` of onnx-verify, which
`onnx-verify portable` reads, and to docs/reference/runtimes.md. With `--files` the models of a folder are run in all
engines, too; `pytest --round-trips some --keep-models FOLDER` writes there what the exporters' tests run.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tools.bench_report import markdown_table
from tools.surviving import in_children

PAGE = Path("docs/reference/runtimes.md")
DATA = Path("packages/onnx-verify/src/onnx_verify/judging/gaps.json")
FILES = Path("packages/onnx-verify/tests/small_files.json")
TESTS = Path("packages/onnx-verify/tests")
ENGINES = ("ort", "openvino", "reference", "torch")
COMMAND = "python -m tools.runtime_table"

Numbers = tuple[int, int, int, int]
"""Cases, those that run, those that are right, and the version of the operator."""


def totals(gaps: Mapping[str, Mapping[str, Numbers]]) -> list[list[str]]:
    """Return a row for each engine: how many cases are right, wrong, refused."""
    rows = []
    for engine, operators in gaps.items():
        cases, ran, right = (sum(numbers[place] for numbers in operators.values()) for place in range(3))
        rows.append([engine, str(cases), str(right), str(ran - right), str(cases - ran)])
    return rows


def rows_of_operators(gaps: Mapping[str, Mapping[str, Numbers]]) -> list[list[str]]:
    """Return a row for each operator that some engine does not run rightly in all cases."""
    operators = sorted({name for found in gaps.values() for name, numbers in found.items() if numbers[2] < numbers[0]})
    return [[f"`{name}`", *(_cell(found.get(name)) for found in gaps.values())] for name in operators]


def _cell(numbers: Numbers | None) -> str:
    if numbers is None or numbers[0] == numbers[2]:
        return ""
    cases, ran, right, _ = numbers
    return f"{right} of {cases}" if ran < cases else f"{right} of {cases}, all run"


def rows_of_files(found: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """Return a row for each engine: how many files it runs rightly, and the operators that stand in the way."""
    rows = []
    for engine, files in found.items():
        right = sum(operator == "" for operator in files.values())
        blamed = Counter(operator for operator in files.values() if operator)
        named = ", ".join(f"{name} {count}" for name, count in blamed.most_common())
        rows.append([engine, f"{right} of {len(files)}", named])
    return rows


def page(
    versions: Mapping[str, str], gaps: Mapping[str, Mapping[str, Numbers]], files: Mapping[str, Mapping[str, str]]
) -> str:
    """Return the page."""
    measured = ", ".join(f"{engine} {version}" for engine, version in versions.items())
    sections = [
        "# What runtimes run",
        "ONNX's own cases of one node, run by onnx-verify in each engine as the file gives them: which are right, "
        "which differ from what ONNX expects in values, shape or dtype, and which are refused. `onnx-verify portable` "
        f"names what stands in the way of a model by the same numbers. Measured with {measured} by `{COMMAND}`.",
        markdown_table(["engine", "cases", "right", "wrong", "refused"], totals(gaps)),
    ]
    if files:
        sections += [
            "## Small files",
            "The models that a spread of the exporters' tests runs in ONNX Runtime, in every engine on random inputs: "
            "how many run and give the same, and the operator that stands in the way of the others. Models that draw "
            "random numbers count as `another result`, models that do not take such inputs as `ModelRunError`.",
            markdown_table(["engine", "files", "in the way"], rows_of_files(files)).replace("---:", "---"),
        ]
    sections += [
        "## Operators",
        "Right cases of those that there are, where not all are right; empty cells are complete.",
        markdown_table(["operator", *gaps], rows_of_operators(gaps)).replace("---:", "---"),
        "",
    ]
    return "\n\n".join(sections)


def by_line(data: Any) -> str:
    """Return the data as JSON with a line for each operator."""
    text = json.dumps(data, indent=1, sort_keys=True)
    return re.sub(r"\[\s+(\d+),\s+(\d+),\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2, \3, \4]", text) + "\n"


def obstacle(engine: str, path: Path) -> str:
    """Return what stands in the way of a file in an engine; empty if nothing does."""
    verify: Any = importlib.import_module("onnx_verify")
    engines = [engine] if engine == "ort" else ["ort", engine]
    try:
        place = verify.portable(path, engines=engines)[-1]
    except verify.OnnxVerifyError as error:
        return type(error).__name__
    if place.ok:
        return ""
    return place.operator or ("another result" if place.loads else "the whole model")


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--engine", nargs="*", default=ENGINES, choices=ENGINES, help="measure these anew")
    parser.add_argument("--files", type=Path, help="a folder of models to run in all engines")
    options = parser.parse_args(arguments)
    root = root or Path.cwd()
    sys.path.insert(0, str(root / TESTS))
    survey = importlib.import_module("runtime_survey")
    data = json.loads((root / DATA).read_text(encoding="utf-8")) if (root / DATA).exists() else {}
    for engine in options.engine:
        found = {name: list(astuple(fate)) for name, fate in survey.survey(engine, in_children).items()}
        data[engine] = {"version": survey.version(engine), "operators": found}
        (root / DATA).write_text(by_line(data), encoding="utf-8")
        print(engine, len(found))
    files = json.loads((root / FILES).read_text(encoding="utf-8")) if (root / FILES).exists() else {}
    if options.files:
        paths = sorted(options.files.glob("*.onnx"))
        for engine in ENGINES:
            said = in_children(functools.partial(obstacle, engine), paths)
            files[engine] = {path.stem: each for path, each in zip(paths, said, strict=True)}
        (root / FILES).write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    versions = {engine: data[engine]["version"] for engine in ENGINES if engine in data}
    gaps = {engine: {name: tuple(each) for name, each in data[engine]["operators"].items()} for engine in versions}
    (root / PAGE).write_text(page(versions, gaps, files), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
