"""The places where the exporter needs something of torch that it does not offer publicly.

``tests/test_torch_private.py`` notices when torch changes one of them.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["guard_texts", "is_without_data"]


def guard_texts(program: torch.export.ExportedProgram) -> list[str]:
    """Return the guards on input sizes as Python text over ``L['x'].size()[0]`` (``_guards_code``)."""
    return list(getattr(program, "_guards_code", None) or ())


def is_without_data(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has a shape and no contents (``FakeTensor``, or on the meta device)."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)
