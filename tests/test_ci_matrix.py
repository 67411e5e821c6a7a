"""Which packages' tests a change calls for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import ci_matrix
from tools.commands import ToolError
from tools.release import git
from tools.workspace import Workspace

REAL = Workspace(Path(__file__).parents[1])
EVERY = ["onnx-fx-export", "onnx-ts-legacy", "onnx-verify", "onnxops-core", "onnxops-decomp"]


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
        (
            ["packages/onnxops-core/tests/core_node_cases.py"],
            ["onnx-fx-export", "onnx-ts-legacy", "onnxops-core", "onnxops-decomp"],
        ),
        (["packages/onnxops-core/README.md", "packages/onnxops-core/changelog.d/new.added.md"], []),
        (["docs/index.md", "tools/workspace.py", "README.md"], []),
        (["docs/index.md", "noxfile.py"], EVERY),
        (["packages/gone/src/gone/__init__.py"], []),
    ],
)
def test_a_change_calls_for_the_tests_it_can_break(changed: list[str], expected: list[str]) -> None:
    assert ci_matrix.affected(REAL, changed) == expected


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


@pytest.mark.parametrize("base", ["", "0" * 40])
def test_a_first_push_calls_for_every_test(sample: Workspace, base: str, capsys: pytest.CaptureFixture[str]) -> None:
    ci_matrix.main(base, sample.root)

    assert json.loads(capsys.readouterr().out) == ["sample-alpha", "sample-beta", "sample-gamma"]


def test_an_unknown_base_is_an_error_not_an_empty_matrix(sample: Workspace) -> None:
    with pytest.raises(ToolError):
        ci_matrix.main("1" * 40, sample.root)
