"""A package of this repository, released in a clone and then used by projects that depend on it."""

from __future__ import annotations

from pathlib import Path

from tools.commands import run
from tools.release import git, index, pipeline
from tools.release.artifacts import build_wheel
from tools.release.rehearsal import Environment
from tools.workspace import Workspace

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"

# Projects of users: each declares one requirement, and raises unless what it got from it does its work.

CALLS_AN_OPERATOR = """
from importlib.metadata import distributions

import torch

import onnxops_core as ops

names = {each.name.lower().replace("_", "-") for each in distributions()}
assert "onnxops-core" in names
assert not names & {"onnxops-decomp", "onnx-fx-export", "onnx-ts-legacy", "onnx-verify", "onnx"}, names

x, scale = torch.randn(3, 5, requires_grad=True), torch.randn(5)
expected = torch.nn.functional.rms_norm(x, [5], scale, 1e-5)
torch.testing.assert_close(ops.rms_normalization(x, scale), expected)
torch.testing.assert_close(torch.ops.onnxops.RMSNormalization.opset23(x, scale), expected)
[gradient] = torch.autograd.grad(ops.rms_normalization(x, scale).square().sum(), x)
torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), x)[0])

q, k, v = (torch.randn(2, 3, n, 8) for n in (4, 6, 6))
y = ops.attention(q, k, v, num_outputs=1)
torch.testing.assert_close(y, torch.nn.functional.scaled_dot_product_attention(q, k, v))
"""

EXPORTS_AND_VERIFIES = """
import tempfile
from pathlib import Path

import torch

import onnx_fx_export
import onnx_verify

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()
arguments = {"args": (torch.randn(2, 8),), "dynamic_shapes": [{0: "batch"}], "verify": True}
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.onnx"
    onnx_fx_export.export(model, f=path, **arguments)
    assert onnx_verify.compare(model, path, [(torch.randn(n, 8),) for n in (1, 7)])


def wrong(op, self, approximate="none"):
    return op.Relu(self)


try:
    onnx_fx_export.export(model, custom_translation_table={torch.ops.aten.gelu.default: wrong}, **arguments)
except onnx_fx_export.VerificationError as error:
    assert "does not agree with PyTorch" in str(error), error
else:
    raise AssertionError("a wrong export passed its verification")
"""


def clone_with_a_change(target: Path) -> Workspace:
    """A clone of the last commit in which onnxops-core has something to release."""
    git.clone_at(ROOT, "HEAD", target)
    fragment = target / "packages/onnxops-core/changelog.d/rehearsed-feature.added.md"
    fragment.write_text("Added a feature to rehearse with.\n")
    git.commit_all(target, [fragment], "Add a feature", epoch=1_700_000_000)
    return Workspace(target)


def test_a_minor_release_of_onnxops_core_serves_projects_downstream(identity: None, tmp_path: Path) -> None:
    workspace = clone_with_a_change(tmp_path / "clone")
    core = workspace["onnxops-core"]
    before = core.version
    address = (tmp_path / "index").as_uri()

    done = pipeline.release(
        workspace.root,
        "onnxops-core",
        "minor",
        target=tmp_path / "dist",
        constraints=[TORCH],
        move_dependents=True,
    )
    pipeline.publish(workspace.root, "onnxops-core", address)

    assert (done.version.major, done.version.minor) == (before.major, before.minor + 1)
    assert done.tag in git.git(workspace.root, "tag", "--points-at", "HEAD").split()
    assert git.git(workspace.root, "status", "--porcelain") == ""
    assert "- Added a feature to rehearse with." in (core.path / "CHANGELOG.md").read_text()
    assert {pin.partition("==")[0] for pin in done.rehearsed} == {each.name for each in workspace}
    for other in workspace:
        if other != core:
            index.add(tmp_path / "index", other.name, build_wheel(other, tmp_path / "others"))
    environment = Environment.create(tmp_path / "env", tmp_path / "index", [TORCH])
    use(environment, f"onnxops-core~={done.version.major}.{done.version.minor}", CALLS_AN_OPERATOR)
    use(environment, "onnx-fx-export[verify]", EXPORTS_AND_VERIFIES)


def use(environment: Environment, requirement: str, program: str) -> None:
    """Installs a project that declares nothing but `requirement`, and runs it."""
    project = environment.directory.with_name(f"uses-{requirement.partition('[')[0].partition('~')[0]}")
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{project.name}"\nversion = "1"\ndependencies = ["{requirement}"]\n'
    )
    module = project.name.replace("-", "_")
    (project / f"{module}.py").write_text(program)
    environment.install(str(project))
    run([environment.python, "-I", "-c", f"import {module}"], cwd=environment.directory)
