"""The torch.export based ONNX exporter.

Importing this package loads none of its modules: each name, listed in ``__init__.pyi``, brings its module along when it
is first used.
"""

import lazy_loader

from onnx_fx_export._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
