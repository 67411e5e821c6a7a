"""The package as a whole: its names, and what it does without torch."""

import subprocess
import sys

import pytest

import onnx_verify


def test_every_public_name_is_there():
    for name in onnx_verify.__all__:
        assert getattr(onnx_verify, name) is not None
    assert set(onnx_verify._HOMES) | {"__version__", "torchscript"} == set(onnx_verify.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        onnx_verify.no_such_name


def test_every_error_has_one_root():
    from onnx_verify import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 8
    assert all(issubclass(kind, onnx_verify.OnnxVerifyError) for kind in kinds)


def test_the_plugin_loads_without_the_runtimes():
    code = "import sys, onnx_verify.pytest_plugin\nassert not {'onnx', 'onnxruntime', 'torch'} & set(sys.modules)\n"
    subprocess.run([sys.executable, "-c", code], check=True)


WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
import numpy as np
import onnx
from models import clone, mlp, mlp_numpy, node_named, normal

import onnx_verify
from onnx_verify.reporting.report import render_report

sound = mlp()
broken = clone(sound)
node_named(broken, "add1").op_type = "Sub"
assert onnx_verify.compare(lambda x: mlp_numpy(sound, x), sound, (normal(2, 8),))
assert onnx_verify.compare(sound, sound, "random")
assert not onnx_verify.compare(lambda x: {"a": [mlp_numpy(sound, x)]}, broken, {"x": normal(2, 8)})
report = onnx_verify.find_mismatch(broken, "random", reference=sound)
assert report.first.node.name == "add1"
assert onnx_verify.find_mismatch(sound, "random", exhaustive=True).ok
report.first.export_repro(sys.argv[2])
assert "add1" in render_report(report)
assert onnx_verify.check_model(sound) == []
assert onnx_verify.benchmark([sound], "random", rounds=2, memory=False).rows
onnx.save(sound, sys.argv[2] + "/a.onnx")
from onnx_verify import torchscript

try:
    torchscript.find_mismatch(lambda x: x, ())
except onnx_verify.MissingDependencyError as error:
    assert "onnx-verify[torch]" in str(error)
else:
    raise AssertionError("torch is missing and nobody said so")
np.savez(sys.argv[2] + "/x.npz", x=normal(2, 8))
assert onnx_verify.compare(sound, sound, sys.argv[2] + "/x.npz")
halved = onnx_verify.find_mismatch(broken, "random", reference=sound, strategy="bisect")
assert halved.first.node.name == "add1"
from onnx_verify._entry import main

path = sys.argv[2] + "/a.onnx"
for command in (["compare", path, path], ["bisect", path, path], ["run", path], ["inspect", path],
                ["bench", path, "--rounds", "2", "--no-memory"]):
    sys.argv = ["onnx-verify", *command]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, command
assert "torch" not in sys.modules
print("all of it")
"""


def test_all_that_needs_no_torch_works_without_it(tmp_path, request):
    pytest.importorskip("jinja2")
    pytest.importorskip("typer")
    command = [sys.executable, "-c", WITHOUT_TORCH, str(request.path.parent), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().endswith("all of it")
