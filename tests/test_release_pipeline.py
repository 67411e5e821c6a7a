"""A release of a small repository from start to end, and what it refuses to do."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.commands import ToolError
from tools.release import artifacts, git, pipeline, upload
from tools.release.__main__ import main
from tools.workspace import Workspace


def state(workspace: Workspace) -> tuple[str, str, str]:
    return (
        git.git(workspace.root, "rev-parse", "HEAD"),
        git.git(workspace.root, "tag"),
        git.git(workspace.root, "status", "--porcelain"),
    )


def test_a_release_ends_in_a_commit_a_tag_and_files_that_its_tag_reproduces(sample: Workspace, tmp_path: Path) -> None:
    done = pipeline.release(sample.root, "sample-alpha", "patch", target=tmp_path / "dist")

    assert done.tag == git.git(sample.root, "describe", "--tags", "HEAD") == "sample-alpha-v0.1.1"
    assert done.rehearsed == ["sample-alpha==0.1.1", "sample-beta==0.1.0", "sample-gamma==0.1.0"]
    assert git.git(sample.root, "status", "--porcelain") == ""
    alpha = sample["sample-alpha"]
    assert "## 0.1.1 (" in (alpha.path / "CHANGELOG.md").read_text()
    assert "- The first feature." in (alpha.path / "CHANGELOG.md").read_text()
    assert alpha.fragments == []
    _, rebuilt = pipeline.build_tag(sample.root, done.tag, tmp_path / "again")
    artifacts.require_same(done.files, rebuilt)


def test_a_version_outside_of_the_dependents_ranges_is_refused_and_leaves_no_trace(
    sample: Workspace, tmp_path: Path
) -> None:
    before = state(sample)

    with pytest.raises(ToolError, match=r"sample-beta requires sample-alpha~=0\.1\.0"):
        pipeline.release(sample.root, "sample-alpha", "minor", target=tmp_path / "dist")

    assert state(sample) == before


def test_dependents_move_with_the_release_on_request(sample: Workspace, tmp_path: Path) -> None:
    git.git(sample.root, "tag", "sample-beta-v0.1.0")

    done = pipeline.release(sample.root, "sample-alpha", "minor", target=tmp_path / "dist", move_dependents=True)

    # The released sample-beta 0.1.0 keeps 0.2.0 out, so the one in the tree takes part in the rehearsal.
    assert done.rehearsed == ["sample-alpha==0.2.0", "sample-beta==0.1.0", "sample-gamma==0.1.0"]
    assert 'dependencies = ["sample-alpha~=0.2.0"]' in sample["sample-beta"].pyproject.read_text()
    assert git.git(sample.root, "status", "--porcelain") == ""


def test_a_dependent_that_breaks_with_the_new_version_stops_the_release(sample: Workspace, tmp_path: Path) -> None:
    beta = sample["sample-beta"]
    with (beta.path / "tests/smoke.py").open("a") as smoke:
        smoke.write("import sample_alpha\nassert sample_alpha.__version__ == '0.1.0', 'beta is broken'\n")
    git.commit_all(sample.root, [beta.path], "Depend on a detail", epoch=1_700_000_000)
    before = state(sample)

    with pytest.raises(ToolError, match="beta is broken"):
        pipeline.release(sample.root, "sample-alpha", "patch", target=tmp_path / "dist")

    assert state(sample) == before


def test_the_published_dependent_takes_part_not_the_one_being_worked_on(sample: Workspace, tmp_path: Path) -> None:
    git.git(sample.root, "tag", "sample-beta-v0.1.0")
    beta = sample["sample-beta"]
    (beta.path / "src/sample_beta/_version.py").write_text('__version__ = "0.5.0"\n')
    git.commit_all(sample.root, [beta.path], "Work on", epoch=1_700_000_000)

    done = pipeline.release(sample.root, "sample-alpha", "patch", target=tmp_path / "dist")

    assert "sample-beta==0.1.0" in done.rehearsed


def test_a_rehearsed_release_leaves_the_repository_as_it_was(sample: Workspace) -> None:
    git.git(sample.root, "tag", "sample-beta-v0.1.0")
    before = state(sample)

    status = main(["rehearse", "sample-alpha", "patch"], root=sample.root)

    assert status == 0
    assert state(sample) == before


def test_a_release_is_rehearsed_beside_what_another_revision_held(
    sample: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    old = git.git(sample.root, "rev-parse", "HEAD")
    alpha, beta = sample["sample-alpha"], sample["sample-beta"]
    (beta.path / "src/sample_beta/__init__.py").write_text(
        "import sample_alpha\n\nfrom sample_beta._version import __version__\n\nsample_alpha.newer\n"
    )
    (alpha.path / "src/sample_alpha/__init__.py").write_text(
        "from sample_alpha._version import __version__\n\nnewer = True\n"
    )
    (beta.path / "src/sample_beta/_version.py").write_text('__version__ = "0.1.1"\n')
    git.commit_all(sample.root, [sample.root / "packages"], "Work on both", epoch=1_700_000_000)

    done = pipeline.rehearse(sample.root, "sample-alpha", "patch", beside=old)
    assert done.rehearsed == ["sample-alpha==0.1.1", "sample-beta==0.1.0", "sample-gamma==0.1.0"]

    # The other way round, the newer one needs what the older one does not have.
    assert main(["rehearse", "sample-beta", "0.1.2", "--beside", old], root=sample.root) == 1
    assert "newer" in capsys.readouterr().err


def test_a_release_without_a_changelog_entry_is_refused(sample: Workspace, tmp_path: Path) -> None:
    [fragment] = sample["sample-alpha"].fragments
    fragment.unlink()
    git.commit_all(sample.root, [sample.root / "packages"], "Drop it", epoch=1_700_000_000)

    with pytest.raises(ToolError, match="add a fragment"):
        pipeline.release(sample.root, "sample-alpha", "patch", target=tmp_path / "dist")


def test_a_tree_with_changes_is_refused(sample: Workspace, tmp_path: Path) -> None:
    (sample.root / "note.txt").write_text("not committed")

    with pytest.raises(ToolError, match=r"not clean[^?]*\?\? note\.txt"):
        pipeline.release(sample.root, "sample-alpha", "patch", target=tmp_path / "dist")

    assert (sample.root / "note.txt").exists()


def test_a_tag_that_does_not_match_its_source_is_not_built(sample: Workspace, tmp_path: Path) -> None:
    git.git(sample.root, "tag", "sample-alpha-v9.9.9")

    with pytest.raises(ToolError, match=r"holds version 0\.1\.0"):
        pipeline.build_tag(sample.root, "sample-alpha-v9.9.9", tmp_path / "dist")


def test_publishing_before_a_release_is_refused(sample: Workspace, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="has no release"):
        pipeline.publish(sample.root, "sample-alpha", (tmp_path / "index").as_uri())


def test_publishing_needs_an_index_named_by_the_environment(
    sample: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TWINE_REPOSITORY_URL", raising=False)

    status = main(["publish", "sample-alpha"], root=sample.root)

    assert status == 1
    assert "TWINE_REPOSITORY_URL" in capsys.readouterr().err


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a package index served from an empty directory, without passwords."""
    folder = tmp_path / "served"
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pypiserver", "run", "-p", str(port), "-i", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "-a", ".", "-P", ".", "--server", "wsgiref", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{address}/simple/", timeout=1)
                break
            except OSError:
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()


def test_a_release_reaches_an_index_server_once(
    sample: Workspace,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TWINE_REPOSITORY_URL", server)
    monkeypatch.setenv("TWINE_USERNAME", "anyone")
    monkeypatch.setenv("TWINE_PASSWORD", "anything")
    done = pipeline.release(sample.root, "sample-gamma", "current", target=tmp_path / "dist")

    status = main(["publish", "sample-gamma"], root=sample.root)

    assert status == 0
    with pytest.raises(ToolError, match="Bad Request"):
        upload.upload("sample-gamma", done.files, server)
    artifacts.require_same(done.files, sorted((tmp_path / "served").glob("sample_gamma*")))
