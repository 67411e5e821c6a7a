"""Which argument each input of a model is, and what inputs and outputs are called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

__all__ = ["in_signature_order"]


def in_signature_order(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call in the order of their parameters.

    Args:
        signature: Signature of what is called.
        kwargs: The arguments; those that ``**kwargs`` collects come last, in the order of the call.
    """
    ordered = {name: kwargs[name] for name in signature.parameters if name in kwargs}
    return {**ordered, **kwargs}
