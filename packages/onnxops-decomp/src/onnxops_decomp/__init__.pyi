"""The names of this package, and where each one lives; the package loads it when it is first used."""

from .builder.forms import adapter as adapter
from .builder.op_builder import OpBuilder as OpBuilder
from .errors import LoweringError as LoweringError
from .errors import UnsupportedOperatorError as UnsupportedOperatorError
from .errors import UnsupportedOpsetError as UnsupportedOpsetError
from .importing.convert import to_torch as to_torch
from .importing.decompositions import aten_decompositions as aten_decompositions
from .importing.errors import ModelImportError as ModelImportError
from .lowerings import Lowering as Lowering
from .lowerings import LoweringTable as LoweringTable
from .lowerings import builtin_table as builtin_table
from .opsets.convert import convert_opset as convert_opset
from .support import Support as Support
from .support import lowerings as lowerings
from .support import why_not as why_not

__version__: str
