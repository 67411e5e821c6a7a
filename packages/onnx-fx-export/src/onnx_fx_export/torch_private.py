"""The places where the exporter needs something of torch that it does not offer publicly.

``tests/test_torch_private.py`` notices when torch changes one of them.
"""

from __future__ import annotations

import torch

__all__ = ["guard_texts"]


def guard_texts(program: torch.export.ExportedProgram) -> list[str]:
    """Return the guards on input sizes as Python text over ``L['x'].size()[0]`` (``_guards_code``)."""
    return list(getattr(program, "_guards_code", None) or ())
