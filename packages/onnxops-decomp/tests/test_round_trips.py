"""The plugin that imports the models of the exporters' tests notices what does not come back."""

from __future__ import annotations

import argparse

import numpy as np
import onnx
import onnxruntime
import pytest
import round_trips
from onnx import TensorProto, helper

import onnxops_decomp
from onnxops_decomp import to_torch


def model(op_type: str) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "graph", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model("Relu").SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture
def failures(monkeypatch) -> list[str]:
    found: list[str] = []
    round_trips._install()
    monkeypatch.setattr(round_trips, "_failures", found)
    return found


def test_models_are_kept_where_a_folder_is_named(failures: list[str], monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(round_trips, "_kept", tmp_path)
    session()
    session()
    (kept,) = tmp_path.iterdir()
    assert onnx.load(kept) == model("Relu")


X = {"x": np.array([-1, 2], np.float32)}


@pytest.mark.parametrize("as_values", [False, True])
def test_a_model_that_comes_back_is_no_failure(failures: list[str], as_values: bool) -> None:
    if as_values:
        session().run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(X["x"])})
    else:
        session().run(["y"], X)
    assert failures == []


@pytest.mark.parametrize("imported", [None, to_torch(model("Abs"))])
def test_a_model_that_does_not_come_back_is_one(failures: list[str], monkeypatch, imported) -> None:
    monkeypatch.setattr(onnxops_decomp, "to_torch", lambda _: imported)
    made = session()
    made.run(None, X)
    made.run(None, X)
    assert len(failures) == 2


@pytest.mark.parametrize(
    "nodeid, chosen, watched",
    [
        ("packages/onnx-fx-export/tests/test_a.py::test_b", "all", True),
        ("packages/onnx-fx-export/tests/test_a.py::test_b", "none", False),
        ("packages/onnx-verify/tests/test_a.py::test_b", "all", False),
    ],
)
def test_the_tests_of_the_exporters_are_watched(nodeid: str, chosen: str, watched: bool) -> None:
    assert round_trips.is_watched(nodeid, chosen) == watched


def test_a_spread_is_watched_by_default() -> None:
    tests = [f"packages/onnx-ts-legacy/tests/test_a.py::test_{number}" for number in range(1000)]
    assert 5 < sum(round_trips.is_watched(nodeid, "some") for nodeid in tests) < 60


def test_each_test_is_in_one_of_the_parts() -> None:
    tests = [f"packages/onnx-ts-legacy/tests/test_a.py::test_{number}" for number in range(100)]
    watched = [[round_trips.is_watched(nodeid, f"{part}/4") for part in (1, 2, 3, 4)] for nodeid in tests]
    assert [sum(each) for each in watched] == [1] * 100
    assert all(any(each) for each in zip(*watched, strict=True))


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/", "/4", "most", "1/4/2"])
def test_a_part_that_there_is_not_is_an_error(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        round_trips._chosen(text)
