"""The class of an operator's calls is the one place where its parameters are written."""

import inspect

import pytest
import torch
from core_audit import public_functions

from onnxops_core import native
from onnxops_core.native import find_native_op


def test_schema_and_signature_are_read_from_the_class():
    signature = inspect.signature(native.dft)

    assert str(torch.ops.onnxops.DFT.opset20._schema) == (
        "onnxops::DFT.opset20(Tensor input, SymInt? dft_length=None, int axis=-2, *, bool inverse=False, "
        "bool onesided=False) -> Tensor"
    )
    assert [str(found) for found in signature.parameters.values()] == [
        "input: 'torch.Tensor'",
        "dft_length: 'int | torch.SymInt | torch.Tensor | None' = None",
        "axis: 'int | torch.Tensor' = -2",
        "inverse: 'bool' = False",
        "onesided: 'bool' = False",
    ]


def test_older_versions_leave_out_what_they_do_not_have():
    names = {
        version: set(find_native_op(getattr(torch.ops.onnxops.Attention, f"opset{version}")).parameters.names)
        for version in (23, 24, 25)
    }

    assert names[24] - names[23] == {"nonpad_kv_seqlen"}
    assert names[25] - names[24] == {"left_window_size", "right_window_size"}


@pytest.mark.parametrize("name", public_functions())
def test_public_functions_have_a_docstring_and_a_place(name):
    function = public_functions()[name]

    assert function.__name__ == function.__qualname__ == name
    assert function.__module__.startswith("onnxops_core.native.")
    assert {"Args:", "Returns:", "Raises:"} <= set(function.__doc__.split())


def test_unknown_and_missing_arguments_are_refused():
    with pytest.raises(TypeError, match="approximat"):
        native.gelu(torch.ones(1), approximat="tanh")
    with pytest.raises(TypeError, match="X"):
        native.gelu()


def test_an_axis_in_a_tensor_is_read_at_every_call():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    for axis in (0, 1, 0):
        torch.testing.assert_close(native.cum_prod(x, torch.tensor(axis)), x.cumprod(axis))
    with pytest.raises(ValueError, match="axis"):
        native.cum_prod(x, torch.tensor(2))
