"""ATen to ONNX lowerings for opsets 7 to 28, and ONNX to ATen decompositions.

Importing this package loads none of its modules, and neither onnx nor SymPy: each name brings its module along when it
is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from onnxops_decomp._version import __version__
from onnxops_decomp.lowerings import Lowering as Lowering

# The package of that name is entered first, so that the function below is what the name stands for afterwards.
from onnxops_decomp.lowerings import LoweringTable as LoweringTable
from onnxops_decomp.lowerings import builtin_table as builtin_table
from onnxops_decomp.support import Support as Support
from onnxops_decomp.support import lowerings as lowerings
from onnxops_decomp.support import why_not as why_not

if TYPE_CHECKING:
    from onnxops_decomp.builder.forms import adapter as adapter
    from onnxops_decomp.builder.op_builder import OpBuilder as OpBuilder
    from onnxops_decomp.errors import LoweringError as LoweringError
    from onnxops_decomp.errors import UnsupportedOperatorError as UnsupportedOperatorError
    from onnxops_decomp.errors import UnsupportedOpsetError as UnsupportedOpsetError
    from onnxops_decomp.onnx_to_aten import aten_decompositions as aten_decompositions

__all__ = [
    "Lowering",
    "LoweringError",
    "LoweringTable",
    "OpBuilder",
    "Support",
    "UnsupportedOperatorError",
    "UnsupportedOpsetError",
    "__version__",
    "adapter",
    "aten_decompositions",
    "builtin_table",
    "lowerings",
    "why_not",
]

_HOMES = {
    "LoweringError": "errors",
    "OpBuilder": "builder.op_builder",
    "UnsupportedOperatorError": "errors",
    "UnsupportedOpsetError": "errors",
    "adapter": "builder.forms",
    "aten_decompositions": "onnx_to_aten",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
