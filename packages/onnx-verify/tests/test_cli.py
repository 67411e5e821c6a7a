"""The command line: exit codes, JSON, files, and untrusted names."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import realistic
from models import clone, mlp, node_named, normal, set_weight, weight
from onnx import numpy_helper

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from onnx_verify.cli import app


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def sound(tmp_path):
    onnx.save(mlp(), tmp_path / "sound.onnx")
    return tmp_path / "sound.onnx"


@pytest.fixture
def broken(tmp_path):
    model = clone(mlp())
    values = weight(model, "b1")
    values[2] += 1
    set_weight(model, "b1", values)
    onnx.save(model, tmp_path / "broken.onnx")
    return tmp_path / "broken.onnx"


def test_compare_exits_with_0_1_or_2(sound, broken, tmp_path):
    assert run("compare", sound, sound).exit_code == 0
    result = run("compare", sound, broken)
    assert result.exit_code == 1
    assert "DISAGREES" in result.output
    result = run("compare", sound, tmp_path / "none.onnx")
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_a_table_that_is_piped_has_no_lines(sound):
    result = run("compare", sound, sound)
    assert "state" in result.stdout
    assert result.stdout.isascii()


def test_an_output_that_is_wrong_in_every_run_is_explained_once(sound, tmp_path):
    model = clone(mlp())
    node_named(model, "add2").op_type = "Sub"
    onnx.save(model, tmp_path / "wrong.onnx")
    text = " ".join(run("compare", sound, tmp_path / "wrong.onnx").output.split())
    assert text.count("elements differ") == 1
    assert "more runs)" in text


def test_a_search_that_had_nothing_to_do_says_how_to_make_it_look(sound):
    assert "--exhaustive" in run("bisect", sound, sound).output
    assert "--exhaustive" not in run("bisect", sound, sound, "--exhaustive").output


def test_a_model_is_described_in_plain_words(sound):
    text = run("inspect", sound).output
    assert "ai.onnx 18" in text
    assert "x float [batch, 8]" in text


def test_the_installed_command_exits_likewise(sound, broken):
    command = [sys.executable, "-m", "onnx_verify"]
    codes = [
        subprocess.run([*command, "compare", *pair], capture_output=True, check=False).returncode
        for pair in ((sound, sound), (sound, broken), (sound, "none.onnx"), (sound,))
    ]
    assert codes == [0, 1, 2, 2]


def test_a_crash_is_not_taken_for_a_mismatch(sound, tmp_path):
    code = (
        "import sys, onnx_verify.cli as cli\n"
        "cli.summarize = None\n"
        "from onnx_verify import _entry\n"
        f"sys.argv = ['onnx-verify', 'inspect', {str(sound)!r}]\n"
        "_entry.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "TypeError" in result.stderr


def test_missing_libraries_are_named():
    code = "import sys\nsys.modules['typer'] = None\nfrom onnx_verify import _entry\n_entry.main()\n"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "pip install 'onnx-verify[cli]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_json_is_all_that_is_printed(sound, broken):
    plain = json.loads(run("compare", sound, broken, "--json").stdout)
    assert plain["ok"] is False
    assert json.loads(run("compare", sound, "none.onnx", "--json").stdout)["ok"] is False
    assert json.loads(run("bisect", broken, sound, "--json").stdout)["mismatches"][0]["nodes"][-1]["name"] == "add1"
    assert json.loads(run("run", sound, "--json").stdout)["runs"][0]["outputs"][0]["shape"] == [2, 8]
    assert json.loads(run("inspect", sound, "--json").stdout)["nodes"] == 9
    rows = json.loads(run("bench", sound, broken, "--rounds", 2, "--no-memory", "--json").stdout)["rows"]
    assert [Path(row["name"]).name for row in rows] == ["sound.onnx", "broken.onnx"]


def test_bisect_names_the_node_and_writes_repro_and_report(sound, broken, tmp_path):
    pytest.importorskip("jinja2")
    result = run("bisect", broken, sound, "--repro", tmp_path / "repro", "--report", tmp_path / "r.html")
    assert result.exit_code == 1
    assert "Add add1" in result.output
    assert (tmp_path / "repro" / "repro.py").exists()
    assert "add1" in (tmp_path / "r.html").read_text()


def test_bisect_of_one_model_compares_runtimes(sound):
    result = run("bisect", sound, "--exhaustive")
    assert result.exit_code == 0
    first = result.output.splitlines()[0]
    # A line that is piped is not broken, however long the paths are.
    assert first.count(str(sound)) == 2
    assert "in reference" in first


def test_sizes_seed_and_tolerance_are_passed_on(sound, broken):
    plain = json.loads(run("compare", sound, sound, "--size", "batch=4,9", "--seed", 3, "--json").stdout)
    shapes = [case["outputs"][0]["candidate_shape"] for case in plain["cases"][:2]]
    assert shapes == [[4, 8], [9, 8]]
    assert run("compare", sound, broken, "--atol", "1000").exit_code == 0
    assert run("compare", sound, sound, "--size", "batch").exit_code == 2
    assert run("compare", sound, sound, "--size", "typo=3").exit_code == 2
    assert run("compare", sound, sound, "--runtime", "nonsense").exit_code == 2


def test_run_compares_with_the_stored_outputs(tmp_path):
    model = realistic.quantized()
    onnx.save(model, tmp_path / "model.onnx")
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    x = normal(3, 8)
    (data / "input_0.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    result = run("run", tmp_path / "model.onnx", "--inputs", tmp_path, "--output", tmp_path / "y.npz")
    assert result.exit_code == 0
    y = np.load(tmp_path / "y.npz")["y"]
    for shift, code in ((0, 0), (1, 1)):
        (data / "output_0.pb").write_bytes(numpy_helper.from_array(y + np.float32(shift)).SerializeToString())
        assert run("run", tmp_path / "model.onnx", "--inputs", tmp_path, "--expect").exit_code == code


def test_inspect_exits_with_1_for_a_wrong_property(sound):
    assert run("inspect", sound).exit_code == 0
    assert run("inspect", sound, "--opset", 17).exit_code == 1
    assert run("inspect", sound, "--dynamic", "seq").exit_code == 1


def test_names_cannot_steer_the_terminal(tmp_path):
    model = clone(mlp())
    evil = "\x1b[2J[bold red]name[/nothing]"
    node_named(model, "relu2").output[0] = evil
    model.graph.output[0].name = evil
    onnx.save(model, tmp_path / "evil.onnx")
    for command in (("compare", tmp_path / "evil.onnx", tmp_path / "evil.onnx"), ("inspect", tmp_path / "evil.onnx")):
        result = run(*command)
        assert (result.exit_code in (0, 1) and result.exception is None) or isinstance(result.exception, SystemExit)
        assert "\x1b" not in result.output


def test_the_version_is_printed():
    import onnx_verify

    assert run("--version").stdout.strip() == f"onnx-verify {onnx_verify.__version__}"


def test_a_model_that_never_ends_is_an_error_after_the_timeout(tmp_path):
    from test_security import endless

    onnx.save(endless(), tmp_path / "endless.onnx")
    result = run("run", tmp_path / "endless.onnx", "--timeout", 1)
    assert result.exit_code == 2
    assert "within 1 seconds" in result.output
