"""Notices when torch changes one of the private names that reading TorchScript graphs relies on."""

import pytest
from torch_names import found, private_names

import onnx_verify


@pytest.mark.parametrize("name", private_names(onnx_verify))
def test_every_private_name_in_use_is_there(name: str) -> None:
    assert found(name) is not None
