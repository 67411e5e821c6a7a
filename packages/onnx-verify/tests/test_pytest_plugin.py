"""The fixture for downstream projects."""

import models
import onnx
import pytest
import torch
from models import clone, mlp, normal, set_weight, weight

import onnx_verify

pytest_plugins = ["pytester"]


def test_the_fixture_passes_for_agreement(assert_onnx_close):
    verdict = assert_onnx_close(mlp(), mlp())
    assert verdict.ok
    assert len(verdict.cases) > 3
    assert assert_onnx_close(lambda x: models.mlp_numpy(mlp(), x), mlp(), (normal(3, 8),))


def test_the_fixture_fails_and_names_the_node(assert_onnx_close):
    broken = clone(mlp())
    set_weight(broken, "b1", weight(broken, "b1") + 1)
    with pytest.raises(pytest.fail.Exception) as caught:
        assert_onnx_close(mlp(), broken)
    assert "DISAGREES" in str(caught.value)
    assert "Add add1" in str(caught.value)


def test_the_fixture_fails_for_a_torch_reference(assert_onnx_close):
    with pytest.raises(pytest.fail.Exception, match="DISAGREES"):
        assert_onnx_close(torch.nn.ReLU(), mlp(), (torch.randn(2, 8),))


def test_an_error_is_no_failure(assert_onnx_close):
    with pytest.raises(onnx_verify.InputError):
        assert_onnx_close(mlp(), mlp(), [])


def test_the_fixture_is_there_without_being_asked_for(pytester):
    onnx.save(mlp(), pytester.path / "a.onnx")
    pytester.makepyfile("def test_a(assert_onnx_close):\n    assert_onnx_close('a.onnx', 'a.onnx')\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
