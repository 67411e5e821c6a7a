"""The names of this package, and where each one lives; the package loads it when it is first used."""

from . import generation as generation
from .api import ONNXProgram as ONNXProgram
from .api import export as export
from .api import unconvertible_ops as unconvertible_ops
from .compat.preview import ExportOptions as ExportOptions
from .compat.preview import ExportOutput as ExportOutput
from .compat.preview import ExportOutputSerializer as ExportOutputSerializer
from .compat.preview import OnnxRegistry as OnnxRegistry
from .compat.preview import dynamo_export as dynamo_export
from .compat.torch_onnx import replace_torch_onnx as replace_torch_onnx
from .errors import CaptureError as CaptureError
from .errors import ConversionError as ConversionError
from .errors import DynamicShapeError as DynamicShapeError
from .errors import FallbackError as FallbackError
from .errors import InvalidArgumentError as InvalidArgumentError
from .errors import MutationError as MutationError
from .errors import OnnxExporterError as OnnxExporterError
from .errors import RuntimeSupportError as RuntimeSupportError
from .errors import SaveError as SaveError
from .errors import UnsupportedOperatorError as UnsupportedOperatorError
from .errors import UnsupportedOpsetError as UnsupportedOpsetError
from .errors import VerificationError as VerificationError
from .reopset import Reopset as Reopset
from .reopset import reopset as reopset
from .weights.unallocated import enable_fake_mode as enable_fake_mode

__version__: str
