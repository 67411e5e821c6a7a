"""The pages on how to add an operator and an opset are true: their steps are followed in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import onnxops_decomp

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
TESTS = Path(__file__).parent

pytestmark = pytest.mark.skipif(not PAGES.is_dir(), reason="the pages are only in the repository")


def files_on(page: str) -> list[str]:
    """The indented blocks of a page, each the content of a file."""
    prose = re.sub(r"^```.*?^```$", "fenced", (PAGES / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^    .*\n|^\n)+", prose, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in blocks if block.strip()]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, which stands before the installed one on the path."""
    copy = tmp_path / "onnxops_decomp"
    shutil.copytree(Path(onnxops_decomp.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def without(file: Path, old: str, new: str = "") -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = [str(package.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package.parent, check=False)


HAS_SOFTPLUS = """
from onnxops_decomp.lowerings import builtin_table
entry = builtin_table().find("aten::softplus")
print(entry and entry.function.__module__)
"""


def test_the_steps_to_add_an_operator_add_it(package: Path) -> None:
    lowering, test = files_on("add-an-operator.md")
    without(package / "lowerings" / "pointwise" / "activations.py", "@lowering(aten.softplus.default)\n")
    assert run(package, "-c", HAS_SOFTPLUS).stdout.strip() == "None"
    (package / "lowerings" / "pointwise" / "added.py").write_text(lowering)
    assert run(package, "-c", HAS_SOFTPLUS).stdout.strip() == "onnxops_decomp.lowerings.pointwise.added"
    (package.parent / "test_added.py").write_text(test)
    result = run(package, "-m", "pytest", "-q", "test_added.py")
    assert result.returncode == 0, result.stdout
    assert "9 passed" in result.stdout


REPLAYED = """
import adapter_cases
cases = adapter_cases.cases_of("ReduceMean")
outcomes = [adapter_cases.replay(case, opset) for opset in (7, 13, 17) for case in cases]
print(len(cases), sum(outcome.error is None for outcome in outcomes))
"""


def test_the_steps_to_add_an_opset_write_its_operator_below_it(package: Path) -> None:
    (adapter,) = files_on("add-an-opset.md")
    without(package / "adapters" / "axes.py", '    "ReduceMean",\n')
    assert run(package, "-c", REPLAYED).stdout.split()[1] == "0"
    (package / "adapters" / "added.py").write_text(adapter)
    result = run(package, "-c", REPLAYED)
    assert result.returncode == 0, result.stderr
    cases, right = map(int, result.stdout.split())
    assert right == 3 * cases > 0
