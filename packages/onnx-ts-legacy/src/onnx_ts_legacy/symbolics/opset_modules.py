"""The modules ``symbolic_opset7`` and so on, under the names that published symbolics import them by."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["OPSETS", "OpsetModule", "register_opset_modules"]

OPSETS = range(7, 27)


class OpsetModule(ModuleType):
    """ATen operators as functions for custom symbolics; they are made when they are first asked for.

    Args:
        package: Name of the package that the module belongs to.
        opset: The opset in its name.
    """

    def __init__(self, package: str, opset: int) -> None:
        name = f"{package}.symbolic_opset{opset}"
        super().__init__(name, f"ATen operators as functions for custom symbolics at opset {opset}.")
        self.__spec__ = ModuleSpec(name, None)
        self._opset = opset

    # Making the modules loads nothing: the package does it whenever it is imported. And whoever looks through
    # `sys.modules` asks each one for names like `__file__`, amid other imports.
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        from onnx_ts_legacy.symbolics.aten_functions import opset_function
        from onnx_ts_legacy.symbolics.opset_helpers import opset_helper

        found = opset_helper(name, self._opset) or opset_function(name, self._opset)
        if found is None:
            raise AttributeError(f"symbolic_opset{self._opset} has no function {name!r}")
        return found

    def __dir__(self) -> list[str]:
        from onnxops_decomp import builtin_table

        return sorted(
            {name.removeprefix("aten::").split(".")[0] for name in builtin_table() if name.startswith("aten")}
        )


def register_opset_modules(package: ModuleType) -> None:
    """Let ``import <package>.symbolic_opset9`` and its like find the modules; type checkers find them by stub files."""
    for opset in OPSETS:
        module = OpsetModule(package.__name__, opset)
        sys.modules[module.__name__] = module
        setattr(package, f"symbolic_opset{opset}", module)
