"""A typed face of ``torch.library.Library``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OperatorLibrary"]


class OperatorLibrary:
    """Owns a torch operator namespace: definitions, kernels and fake kernels.

    Kernels go to the dispatcher directly; ``torch.library.custom_op`` would cost twice the call overhead.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._library = torch.library.Library(namespace, "DEF")

    def define(self, schema: str) -> None:
        """Define an operator from ``name.overload(arguments) -> returns``."""
        self._library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

    def kernel(self, name: str, kernel: Callable[..., object], dispatch_key: str) -> None:
        """Register a kernel for a dispatch key."""
        self._library.impl(name, kernel, dispatch_key)

    def fake(self, name: str, kernel: Callable[..., object]) -> None:
        """Register what computes the outputs' shapes, dtypes and strides alone."""
        torch.library.register_fake(f"{self.namespace}::{name}", kernel, lib=self._library)
