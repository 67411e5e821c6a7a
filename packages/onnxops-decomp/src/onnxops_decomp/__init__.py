"""ATen to ONNX lowerings for opsets 7 to 28, and ONNX to ATen decompositions.

Importing this package loads none of its modules, and neither onnx nor SymPy: each name, listed in ``__init__.pyi``,
brings its module along when it is first used.
"""

import lazy_loader

# The package of that name is entered first, so that the function of `support` is what the name stands for afterwards.
import onnxops_decomp.lowerings  # noqa: F401
from onnxops_decomp._version import __version__ as __version__
from onnxops_decomp.support import lowerings as lowerings

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
