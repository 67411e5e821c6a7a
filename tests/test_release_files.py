"""The files of a release: reproducible, complete, and never replaced once published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.commands import ToolError, run
from tools.release import artifacts, index
from tools.workspace import Workspace

EPOCH = 1_700_000_000


def test_two_builds_give_the_same_bytes(sample: Workspace, tmp_path: Path) -> None:
    files = artifacts.build_reproducibly(sample["sample-alpha"], tmp_path / "dist", EPOCH)

    assert [file.name for file in files] == [
        "sample_alpha-0.1.0-py3-none-any.whl",
        "sample_alpha-0.1.0.tar.gz",
    ]
    artifacts.check(sample["sample-alpha"], files)


def test_files_of_another_version_in_the_folder_are_no_part_of_a_release(sample: Workspace, tmp_path: Path) -> None:
    for name in ("0.1.0.tar.gz", "0.1.0-py3-none-any.whl", "0.1.01.tar.gz", "0.1.0rc1-py3-none-any.whl"):
        (tmp_path / f"sample_alpha-{name}").touch()

    files = artifacts.files_of(sample["sample-alpha"], tmp_path)

    assert [file.name for file in files] == [
        "sample_alpha-0.1.0-py3-none-any.whl",
        "sample_alpha-0.1.0.tar.gz",
    ]


def test_builds_that_differ_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, content in ((first, b"one"), (second, b"two")):
        folder.mkdir()
        (folder / "same.whl").write_bytes(b"same")
        (folder / "other.tar.gz").write_bytes(content)

    with pytest.raises(ToolError, match=r"differ in other\.tar\.gz"):
        artifacts.require_same(sorted(first.iterdir()), sorted(second.iterdir()))


def test_a_wheel_with_a_foreign_top_level_package_is_refused(sample: Workspace, tmp_path: Path) -> None:
    alpha = sample["sample-alpha"]
    (alpha.path / "src" / "stray").mkdir()
    (alpha.path / "src" / "stray" / "__init__.py").write_text("X = 1\n")
    text = alpha.pyproject.read_text()
    alpha.pyproject.write_text(
        text.replace('packages = ["src/sample_alpha"]', 'packages = ["src/sample_alpha", "src/stray"]')
    )
    files = artifacts.build(alpha, tmp_path / "dist", EPOCH)

    with pytest.raises(ToolError, match="stray"):
        artifacts.check(alpha, files)


def test_a_missing_readme_is_refused(sample: Workspace, tmp_path: Path) -> None:
    alpha = sample["sample-alpha"]
    alpha.pyproject.write_text(alpha.pyproject.read_text().replace('readme = "README.md"\n', ""))
    files = artifacts.build(alpha, tmp_path / "dist", EPOCH)

    with pytest.raises(ToolError, match="long_description"):
        artifacts.check(alpha, files)


def test_pip_finds_a_version_in_a_directory_index(tmp_path: Path) -> None:
    file = tmp_path / "sample_alpha-0.1.0-py3-none-any.whl"
    file.write_bytes(b"content")

    index.add(tmp_path / "index", "sample-alpha", [file])

    found = run(
        [
            "python",
            "-m",
            "pip",
            "index",
            "versions",
            "sample-alpha",
            "--index-url",
            (tmp_path / "index").as_uri(),
        ],
        cwd=tmp_path,
    )
    assert "Available versions: 0.1.0" in found


def test_a_published_file_never_changes(tmp_path: Path) -> None:
    file = tmp_path / "sample_alpha-0.1.0.tar.gz"
    file.write_bytes(b"first")
    index.add(tmp_path / "index", "sample-alpha", [file])
    index.add(tmp_path / "index", "sample-alpha", [file])
    file.write_bytes(b"second")

    with pytest.raises(ToolError, match="already published"):
        index.add(tmp_path / "index", "sample-alpha", [file])

    assert (tmp_path / "index/sample-alpha/sample_alpha-0.1.0.tar.gz").read_bytes() == b"first"
