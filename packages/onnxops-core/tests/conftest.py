"""Makes the helper modules of this folder importable, and each test reproducible."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def _no_compiled_kernels(tmp_path_factory):
    """Keeps kernels that the user has built out of the tests, but for those that build their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
