"""ATen to ONNX lowerings for opsets 7 to 28, and ONNX to ATen decompositions.

Importing this package loads none of its modules, and neither onnx nor SymPy: each name, listed in ``__init__.pyi``,
brings its module along when it is first used.
"""

import lazy_loader

# The package of that name is entered first, so that the function of `support` is what the name stands for afterwards.
import onnxops_decomp.lowerings  # noqa: F401
from onnxops_decomp._version import __version__ as __version__
from onnxops_decomp.builder.parts import ADAPTERS as _ADAPTERS
from onnxops_decomp.builder.parts import DEFAULT_RUNTIME as _DEFAULT_RUNTIME
from onnxops_decomp.support import lowerings as lowerings

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _load_adapters() -> None:
    from onnxops_decomp.adapters import load_all

    load_all()


def _load_runtime() -> object:
    from onnxops_decomp.runtimes.onnxruntime.runtime import ONNXRUNTIME

    return ONNXRUNTIME


_ADAPTERS.comes_from(_load_adapters)
_DEFAULT_RUNTIME.comes_from(_load_runtime)
