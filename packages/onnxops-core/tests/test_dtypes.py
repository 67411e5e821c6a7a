"""The dtype table, checked against the onnx package's own enumeration."""

import numpy as np
import onnx
import pytest
import torch

from onnxops_core import dtypes


def test_every_onnx_dtype_has_its_name():
    expected = {number: name for name, number in onnx.TensorProto.DataType.items() if number}

    assert {number: dtypes.onnx_dtype_name(number) for number in expected} == expected


def test_table_covers_all_onnx_dtypes_but_those_torch_lacks():
    known = onnx.TensorProto.DataType.items()
    missing = {name for name, number in known if number not in dtypes.ONNX_TO_TORCH}

    # Older releases of onnx have no dtypes of six bits.
    assert missing == {"UNDEFINED", "STRING", "FLOAT6E2M3", "FLOAT6E3M2"} & {name for name, _ in known}


@pytest.mark.parametrize("dtype", dtypes.TORCH_TO_ONNX, ids=str)
def test_conversion_round_trips(dtype):
    number = dtypes.onnx_dtype(dtype)

    assert dtypes.torch_dtype(number) is dtype
    assert dtypes.onnx_dtype(number) == number


@pytest.mark.parametrize("dtype", [d for d in dtypes.TORCH_TO_ONNX if d not in (torch.float4_e2m1fn_x2,)], ids=str)
def test_numbers_agree_with_onnx_for_sizes_and_kinds(dtype):
    number = dtypes.onnx_dtype(dtype)
    if number not in onnx.TensorProto.DataType.values():
        pytest.skip(f"onnx {onnx.__version__} has no {dtype}")
    array_dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    if array_dtype in (np.float32, np.int8, np.uint8) and str(array_dtype) != str(dtype).removeprefix("torch."):
        pytest.skip(f"onnx {onnx.__version__} has {array_dtype} arrays for {dtype}")

    expected = str(dtype).removeprefix("torch.")

    assert array_dtype.name == expected


@pytest.mark.parametrize(
    ("dtype", "carrier"),
    [(torch.int4, torch.int8), (21, torch.uint8), (torch.float16, torch.float16), (25, torch.uint8)],
)
def test_small_integers_are_carried_in_bytes(dtype, carrier):
    assert dtypes.carrier_dtype(dtype) is carrier


@pytest.mark.parametrize("dtype", [torch.complex32, torch.qint8])
def test_dtype_unknown_to_onnx_is_refused_by_name(dtype):
    with pytest.raises(ValueError, match=str(dtype)):
        dtypes.onnx_dtype(dtype)


@pytest.mark.parametrize(("number", "message"), [(8, "STRING"), (0, "UNDEFINED"), (99, "99 is not an ONNX dtype")])
def test_number_without_torch_dtype_is_refused(number, message):
    with pytest.raises(ValueError, match=message):
        dtypes.torch_dtype(number)
