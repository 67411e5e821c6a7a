"""The TorchScript based ONNX exporter, kept alive.

Importing this package loads none of its modules: each name, listed in ``__init__.pyi``, brings its module along when it
is first used.
"""

import sys

import lazy_loader

from onnx_ts_legacy._version import __version__ as __version__
from onnx_ts_legacy.symbolics.opset_modules import register_opset_modules

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_opset_modules(sys.modules[__name__])
