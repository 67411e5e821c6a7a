"""Opsets to test at: two by default, the others in the wide sweep."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["swept"]

# Where two forms of an operator differ most often lies between these.
_USUAL = (18, 20, 23, 13)


def swept(*opsets: int) -> list[Any]:
    """Return parameters for ``opsets``: the lowest and a usual one run by default, the rest is marked wide."""
    usual = next((opset for opset in _USUAL if opset in opsets), opsets[-1])
    quick = {min(opsets), usual}
    return [opset if opset in quick else pytest.param(opset, marks=pytest.mark.wide) for opset in opsets]
