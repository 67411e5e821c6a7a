"""The pages on how to add something are true: their steps are followed in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import onnxops_core
import onnxops_decomp

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
TESTS = Path(__file__).parent
CORE_TESTS = Path(__file__).parents[2] / "onnxops-core" / "tests"

pytestmark = pytest.mark.skipif(not PAGES.is_dir(), reason="the pages are only in the repository")


def files_on(page: str) -> list[str]:
    """The indented blocks of a page, each the content of a file."""
    prose = re.sub(r"^```.*?^```$", "fenced", (PAGES / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^    .*\n|^\n)+", prose, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in blocks if block.strip()]


def copied(package: ModuleType, folder: Path) -> Path:
    """A copy of a package and of what Python compiled of it, which stands before the installed one on the path."""
    source = Path(str(package.__file__)).parent
    return shutil.copytree(source, folder / source.name)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return copied(onnxops_decomp, tmp_path)


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
    every = "operators_with(Trait.REDUCES)"
    without(package / "adapters" / "axes.py", every, f'set({every}) - {{"ReduceMean"}}')
    assert run(package, "-c", REPLAYED).stdout.split()[1] == "0"
    (package / "adapters" / "added.py").write_text(adapter)
    result = run(package, "-c", REPLAYED)
    assert result.returncode == 0, result.stderr
    cases, right = map(int, result.stdout.split())
    assert right == 3 * cases > 0


def below(file: Path, line: str, added: str) -> None:
    """Put text below a line that a file has once."""
    without(file, line, line + textwrap.indent(added, "    "))


def test_the_steps_to_add_a_native_operator_add_it(tmp_path: Path) -> None:
    core = copied(onnxops_core, tmp_path)
    tests = shutil.copytree(CORE_TESTS, tmp_path / "tests")
    module, imported, sample, free, refused, function, count, exported = files_on("add-a-native-operator.md")
    (core / "native" / "activations" / "thresholded_relu.py").write_text(module)
    without(core / "native" / "__init__.py", "__all__ = [\n", f'{imported}\n__all__ = [\n    "thresholded_relu",\n')
    below(core / "__init__.py", "from onnxops_core.native import (\n", "thresholded_relu,\n")
    more = tests / "core_samples_more.py"
    more.write_text(f"{more.read_text()}\n\n{sample}")
    below(tests / "core_audit.py", "FREE: dict[str, dict[str, str]] = {\n", free)
    below(tests / "core_audit.py", "OUT_OF_RANGE: dict[str, dict[str, tuple]] = {\n", refused)
    below(tests / "test_native_node_cases.py", "FUNCTIONS = {\n", function)
    below(tests / "test_native_node_cases.py", "AT_LEAST = {\n", count)

    (tmp_path / "test_added.py").write_text(exported)

    files = [*(str(tests / f"test_native_{name}.py") for name in ("generic", "audit", "node_cases")), "test_added.py"]
    chosen = ("-m", "not wide", "-k", "ThresholdedRelu or thresholded or test_every or missing")
    result = run(core, "-m", "pytest", "-q", *files, *chosen)
    assert result.returncode == 0, result.stdout


def test_the_steps_to_work_around_a_runtime_are_what_lets_the_models_run(package: Path) -> None:
    gap, composition, test = files_on("add-a-workaround.md")
    room = package / "runtimes" / "onnxruntime"
    (package.parent / "test_added.py").write_text(test)
    without(room / "kernel_gaps.py", textwrap.indent(gap, "    "))
    without(room / "composed.py", composition)
    result = run(package, "-m", "pytest", "-q", "test_added.py")
    assert "4 failed" in result.stdout

    below(
        room / "kernel_gaps.py", "KERNEL_GAPS: Mapping[str, Mapping[str, Mapping[ir.DataType, ir.DataType]]] = {\n", gap
    )
    (room / "composed.py").write_text(f"{(room / 'composed.py').read_text()}\n\n{composition}")

    result = run(package, "-m", "pytest", "-q", "test_added.py")
    assert "4 passed" in result.stdout, result.stdout
