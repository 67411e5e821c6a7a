"""The names of this package, and where each one lives; the package loads it when it is first used."""

from . import errors as errors
from . import operators as operators
from . import registration as registration
from . import symbolic_helper as symbolic_helper
from . import utils as utils
from .api import export as export
from .api import export_to_pretty_string as export_to_pretty_string
from .api import is_in_onnx_export as is_in_onnx_export
from .api import unconvertible_ops as unconvertible_ops
from .enumerations import JitScalarType as JitScalarType
from .enumerations import OperatorExportTypes as OperatorExportTypes
from .enumerations import TrainingMode as TrainingMode
from .errors import OnnxExporterError as OnnxExporterError
from .migration import MigrationReport as MigrationReport
from .migration import migration_report as migration_report
from .program import TSProgram as TSProgram
from .registration import register_custom_op_symbolic as register_custom_op_symbolic
from .registration import unregister_custom_op_symbolic as unregister_custom_op_symbolic
from .symbolics.graph_context import GraphContext as GraphContext
from .utils import disable_log as disable_log
from .utils import enable_log as enable_log
from .utils import select_model_mode_for_export as select_model_mode_for_export

__version__: str
