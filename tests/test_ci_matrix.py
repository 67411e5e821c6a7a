"""Which packages' tests a change calls for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import ci_matrix
from tools.release import git
from tools.workspace import Workspace

ROOT = Path(__file__).parents[1]
REAL = Workspace(ROOT)
EVERY = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["packages/onnx-fx-export/src/onnx_fx_export/api.py"], ["onnx-fx-export"]),
        (
            ["packages/onnxops-decomp/src/onnxops_decomp/builder.py"],
            ["onnx-fx-export", "onnx-ts-legacy", "onnxops-decomp"],
        ),
        (["packages/onnx-verify/pyproject.toml"], ["onnx-fx-export", "onnx-ts-legacy", "onnx-verify"]),
        (["packages/onnxops-core/tests/test_dtypes.py"], ["onnxops-core"]),
        (["packages/onnxops-core/tests/core_node_cases.py"], ["onnxops-core", "onnxops-decomp"]),
        (["packages/onnx-fx-export/tests/detection_models.py"], ["onnx-fx-export", "onnx-ts-legacy"]),
        (
            ["packages/onnxops-decomp/tests/torchvision_operators.py"],
            ["onnx-fx-export", "onnx-ts-legacy", "onnxops-decomp"],
        ),
        (["docs/how-to/add-an-operator.md"], ["onnxops-decomp"]),
        (["docs/reference/options.md"], ["onnxops-decomp"]),
        (["docs/how-to/errors.md"], ["onnx-fx-export", "onnxops-decomp"]),
        (["examples/quickstart.py"], ["onnx-fx-export"]),
        (["benchmarks/figures.py"], ["onnx-verify", "onnxops-decomp"]),
        (["packages/onnxops-core/README.md", "packages/onnxops-core/changelog.d/new.added.md"], []),
        (["docs/index.md", "tools/workspace.py", "README.md"], []),
        (["docs/index.md", "noxfile.py"], EVERY),
        (["packages/gone/src/gone/__init__.py"], []),
    ],
)
def test_a_change_calls_for_the_tests_it_can_break(changed: list[str], expected: list[str]) -> None:
    assert ci_matrix.affected(REAL, changed) == expected


def test_a_helper_calls_for_the_tests_that_import_it_by_way_of_another(sample: Workspace) -> None:
    (sample["sample-gamma"].path / "tests/deepest.py").write_text("X = 1\n")
    (sample["sample-alpha"].path / "tests/deeper.py").write_text("from deepest import X\n")
    (sample["sample-beta"].path / "tests/test_deep.py").write_text("def test_it():\n    import deeper\n")

    assert ci_matrix.affected(sample, ["packages/sample-gamma/tests/deepest.py"]) == [
        "sample-alpha",
        "sample-beta",
        "sample-gamma",
    ]


def test_every_file_that_a_test_reads_outside_of_its_package_is_one_the_matrix_knows() -> None:
    files = [text for _, _, text in ci_matrix.sources_of_tests(REAL)]

    named = sum(text.count("parents[3]") for text in files)
    known = list(ci_matrix.read_outside(REAL))

    assert named == len(known)
    assert all((REAL.root / path).exists() for _, path in known)


def test_the_matrix_is_computed_from_the_commits_since_the_base(
    sample: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    base = git.git(sample.root, "rev-parse", "HEAD")
    (sample["sample-gamma"].path / "src/sample_gamma/new.py").write_text("X = 1\n")
    git.commit_all(sample.root, [sample.root / "packages"], "Change", epoch=1_700_000_000)

    ci_matrix.main(base, sample.root)

    assert json.loads(capsys.readouterr().out) == ["sample-beta", "sample-gamma"]


def test_a_moved_file_counts_where_it_came_from_and_where_it_went(
    sample: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    base = git.git(sample.root, "rev-parse", "HEAD")
    source = sample["sample-alpha"].path / "tests/smoke.py"
    git.git(sample.root, "mv", source, sample["sample-gamma"].path / "tests/test_other.py")
    git.commit_all(sample.root, [sample.root / "packages"], "Move", epoch=1_700_000_000)

    ci_matrix.main(base, sample.root)

    assert json.loads(capsys.readouterr().out) == ["sample-alpha", "sample-gamma"]


@pytest.mark.parametrize("base", ["", "0" * 40, "1" * 40])
def test_a_first_or_forced_push_calls_for_every_test(
    sample: Workspace, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ci_matrix.main(base, sample.root)

    assert json.loads(capsys.readouterr().out) == ["sample-alpha", "sample-beta", "sample-gamma"]
