"""The face of this package for exporters: the names that another distribution may build on, beside those of the users.

They are grouped by what an export does with them, in the order of its stages:

- options: :data:`OPTIONS`, :func:`check_options`, :class:`ExportPath`, :func:`translation_table`
- calls: :func:`bound_arguments`, :class:`CallStructure`, :class:`Interface`, :func:`names_by_leaf`
- sizes: :func:`normalized_shapes`, :class:`SizeConstraints`, :func:`add_size_checks`, :func:`other_sizes`
- state: :class:`Inventory`, :class:`StateWatch`, :func:`needed_state`, :func:`shared_memory`
- lowering: :class:`GraphLowering`, :func:`find_lowering`, :class:`ModelContext`, :func:`build_model`
- finishing: :func:`finish_model`, :func:`set_custom_opsets`, :func:`stamp_nodes`
- the result: :class:`ONNXProgram`, :class:`ExportRecord`, :func:`verify_program`
"""

from onnxops_core.exporting import warn_user
from onnxops_decomp.builder.expressions import at_sizes, emit_expression, is_computable
from onnxops_decomp.builder.folding import MAX_FOLDED_BYTES
from onnxops_decomp.builder.scope import (
    DEFAULT_NAN,
    ModelContext,
    NanHandling,
    SymbolSource,
    axis_size,
    number_as_size,
    remove_unused,
)
from onnxops_decomp.builder.sizes import is_one
from onnxops_decomp.dtypes import affine_of, is_complex, mark_complex, mark_number, real_contents, to_ir, to_torch
from onnxops_decomp.exporting.calls.caches import cache_argument, register_class, tensor_places
from onnxops_decomp.exporting.calls.casts import casts_that_change_something
from onnxops_decomp.exporting.calls.containers import register_containers, registered_results
from onnxops_decomp.exporting.calls.interface import Interface, Output
from onnxops_decomp.exporting.calls.models import check_numbers, plain_model
from onnxops_decomp.exporting.calls.modes import in_mode
from onnxops_decomp.exporting.calls.naming import (
    Leaf,
    argument_paths,
    call_leaves,
    check_names,
    example_paths,
    in_order,
    key_of,
    left_out,
    names_by_leaf,
    output_name,
    path_name,
    positional_parameters,
    structure_paths,
    warn_of_left_out,
    warn_of_names,
    warn_of_numbers,
    without_absent,
    without_keywords,
)
from onnxops_decomp.exporting.calls.structure import CallStructure
from onnxops_decomp.exporting.errors import (
    InvalidArgumentError,
    MissingRuntimeError,
    RuntimeSupportError,
    SaveError,
    VerificationError,
)
from onnxops_decomp.exporting.finish import finish_model
from onnxops_decomp.exporting.finish.functions import constants_to_nodes
from onnxops_decomp.exporting.options.domains import set_custom_opsets
from onnxops_decomp.exporting.options.table import (
    OPTIONS,
    ExportPath,
    asked_of_torchscript,
    check_options,
    number_of,
    option_refusal,
)
from onnxops_decomp.exporting.program.callable_program import CallableProgram
from onnxops_decomp.exporting.program.onnx_program import ONNXProgram
from onnxops_decomp.exporting.program.running import Session
from onnxops_decomp.exporting.program.saving import MAX_SINGLE_FILE_BYTES, Saving, replaced_file, save_model
from onnxops_decomp.exporting.program.verification import Reference, Verified, verify_program
from onnxops_decomp.exporting.program.ways import Way, merge_programs
from onnxops_decomp.exporting.reporting.page import ReportedCall
from onnxops_decomp.exporting.reporting.record import ExportRecord, recorded
from onnxops_decomp.exporting.reporting.tool_metadata import (
    Metadata,
    class_name,
    scope_keys,
    stamp_nodes,
    stamp_values,
    without_metadata,
)
from onnxops_decomp.exporting.sizes.assumptions import assumed_conditions
from onnxops_decomp.exporting.sizes.checks import add_size_checks
from onnxops_decomp.exporting.sizes.conditions import either_of
from onnxops_decomp.exporting.sizes.constraints import CONSTRAINTS_KEY, SizeConstraints, warn_of_bounds
from onnxops_decomp.exporting.sizes.deciding import truths
from onnxops_decomp.exporting.sizes.dimensions import (
    dimension_texts,
    distinct_name,
    is_dimension_name,
    renamed_text,
)
from onnxops_decomp.exporting.sizes.dynamic_shapes import (
    DYNAMIC_NUMBER,
    FlatSpecs,
    axes_by_number,
    bound_arguments,
    collected_shapes,
    declared_bounds,
    declared_text,
    for_torch,
    from_dynamic_axes,
    leaf_specs,
    normalized_shapes,
    smallest_declared,
)
from onnxops_decomp.exporting.sizes.expressions import (
    condition_holds,
    names_in_size,
    parsed_size,
    symbolic_size,
    value_of_size,
)
from onnxops_decomp.exporting.sizes.homes import helpers_of, homes_of, modules_entered, modules_named
from onnxops_decomp.exporting.sizes.layouts import order_relations
from onnxops_decomp.exporting.sizes.math_functions import (
    INTEGER_FUNCTIONS,
    MATH_FUNCTIONS,
    math_stand_in,
    math_stand_ins,
)
from onnxops_decomp.exporting.sizes.number_classes import class_of_numbers
from onnxops_decomp.exporting.sizes.other_sizes import Example, fitted_lengths, other_sizes, resampled
from onnxops_decomp.exporting.state.code import code_names, is_generated_code
from onnxops_decomp.exporting.state.contents import KeptContents
from onnxops_decomp.exporting.state.gradients import asks_for_gradients, gradient_mode, note_gradients
from onnxops_decomp.exporting.state.identities import codes_in, identities_of_numbers, written_code
from onnxops_decomp.exporting.state.inventory import Inventory, is_library, kept_inventory
from onnxops_decomp.exporting.state.liveness import needed_state
from onnxops_decomp.exporting.state.meetings import differs_apart_in_copies, meeting_refusal
from onnxops_decomp.exporting.state.memory import place_in_memory, shared_memory, with_line, with_lines
from onnxops_decomp.exporting.state.registries import Rebound, Registries
from onnxops_decomp.exporting.state.trial import are_close, lasting_in_copies, results_of
from onnxops_decomp.exporting.state.type_tests import type_tests
from onnxops_decomp.exporting.state.watch import StatePlace, StateWatch, ignored_state, state_refusal
from onnxops_decomp.exporting.translations.table import Translations, translation_table
from onnxops_decomp.exporting.weights.converted import Converted, RowConversion, converted_rows
from onnxops_decomp.exporting.weights.initializers import TIED_KEY, StreamedTensor
from onnxops_decomp.exporting.weights.loading import apply_weights
from onnxops_decomp.exporting.weights.tensor_subclasses import inner_tensors
from onnxops_decomp.files.model import build_model
from onnxops_decomp.graph.assertions import unneeded_nodes
from onnxops_decomp.graph.autocast import casts_unseen
from onnxops_decomp.graph.calls import (
    apply_lowering,
    check_result,
    choice_arguments,
    chosen_by_data,
    find_lowering,
    functional_overload,
    not_given,
)
from onnxops_decomp.graph.decompose import Decomposer, Decomposition
from onnxops_decomp.graph.definitions import masked_index, torch_definition
from onnxops_decomp.graph.graph_lowering import Failure, GraphLowering, NodeHandler, RegionHandler
from onnxops_decomp.graph.mutation import (
    hands_through,
    needs_functionalization,
    shared_writes,
    shown_inputs,
    shown_nodes,
    shows_silently,
    written_arguments,
    written_inputs,
    written_roots,
)
from onnxops_decomp.graph.size_definitions import defined_for_sizes
from onnxops_decomp.graph.symbols import SymbolNames, dimension_symbol
from onnxops_decomp.graph.whole_calls import WholeCalls, keep_calls, kept_whole, restore_calls
from onnxops_decomp.graph.whole_operators import grouped_mm_form
from onnxops_decomp.lowerings.scripted import ScriptFunction
from onnxops_decomp.passes import FoldBatchNormalization
from onnxops_decomp.passes.matching import nodes_in
from onnxops_decomp.runtimes.onnxruntime.divided_products import DivideWideProducts
from onnxops_decomp.runtimes.onnxruntime.fusions import FuseSkipNormalization
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import installed_release
from onnxops_decomp.runtimes.onnxruntime.shared_caches import share_caches
from onnxops_decomp.spec.aten_traits import AtenTrait, has_aten_trait
from onnxops_decomp.spec.inference import UNKNOWN_DIM, Dims, dims_of
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OLDEST_OPSET
from onnxops_decomp.spec.signs import is_never_negative
from onnxops_decomp.spec.traits import Trait, has_trait
from onnxops_decomp.torch_private import (
    fake_mode_of,
    flattened_subclass,
    has_autocast_kernel,
    is_composite,
    is_without_data,
    plain_fake,
    real_tensors,
    trace_graph,
    unwatched,
)

__all__ = [
    "CONSTRAINTS_KEY",
    "DEFAULT_NAN",
    "DYNAMIC_NUMBER",
    "INTEGER_FUNCTIONS",
    "MATH_FUNCTIONS",
    "MAX_FOLDED_BYTES",
    "MAX_SINGLE_FILE_BYTES",
    "NEWEST_OPSET",
    "OLDEST_OPSET",
    "OPTIONS",
    "TIED_KEY",
    "UNKNOWN_DIM",
    "AtenTrait",
    "CallStructure",
    "CallableProgram",
    "Converted",
    "Decomposer",
    "Decomposition",
    "Dims",
    "DivideWideProducts",
    "Example",
    "ExportPath",
    "ExportRecord",
    "Failure",
    "FlatSpecs",
    "FoldBatchNormalization",
    "FuseSkipNormalization",
    "GraphLowering",
    "Interface",
    "InvalidArgumentError",
    "Inventory",
    "KeptContents",
    "Leaf",
    "Metadata",
    "MissingRuntimeError",
    "ModelContext",
    "NanHandling",
    "NodeHandler",
    "ONNXProgram",
    "Output",
    "Rebound",
    "Reference",
    "RegionHandler",
    "Registries",
    "ReportedCall",
    "RowConversion",
    "RuntimeSupportError",
    "SaveError",
    "Saving",
    "ScriptFunction",
    "Session",
    "SizeConstraints",
    "StatePlace",
    "StateWatch",
    "StreamedTensor",
    "SymbolNames",
    "SymbolSource",
    "Trait",
    "Translations",
    "VerificationError",
    "Verified",
    "Way",
    "WholeCalls",
    "add_size_checks",
    "affine_of",
    "apply_lowering",
    "apply_weights",
    "are_close",
    "argument_paths",
    "asked_of_torchscript",
    "asks_for_gradients",
    "assumed_conditions",
    "at_sizes",
    "axes_by_number",
    "axis_size",
    "bound_arguments",
    "build_model",
    "cache_argument",
    "call_leaves",
    "casts_that_change_something",
    "casts_unseen",
    "check_names",
    "check_numbers",
    "check_options",
    "check_result",
    "choice_arguments",
    "chosen_by_data",
    "class_name",
    "class_of_numbers",
    "code_names",
    "codes_in",
    "collected_shapes",
    "condition_holds",
    "constants_to_nodes",
    "converted_rows",
    "declared_bounds",
    "declared_text",
    "defined_for_sizes",
    "differs_apart_in_copies",
    "dimension_symbol",
    "dimension_texts",
    "dims_of",
    "distinct_name",
    "either_of",
    "emit_expression",
    "example_paths",
    "fake_mode_of",
    "find_lowering",
    "finish_model",
    "fitted_lengths",
    "flattened_subclass",
    "for_torch",
    "from_dynamic_axes",
    "functional_overload",
    "gradient_mode",
    "grouped_mm_form",
    "hands_through",
    "has_aten_trait",
    "has_autocast_kernel",
    "has_trait",
    "helpers_of",
    "homes_of",
    "identities_of_numbers",
    "ignored_state",
    "in_mode",
    "in_order",
    "inner_tensors",
    "installed_release",
    "is_complex",
    "is_composite",
    "is_computable",
    "is_dimension_name",
    "is_generated_code",
    "is_library",
    "is_never_negative",
    "is_one",
    "is_without_data",
    "keep_calls",
    "kept_inventory",
    "kept_whole",
    "key_of",
    "lasting_in_copies",
    "leaf_specs",
    "left_out",
    "mark_complex",
    "mark_number",
    "masked_index",
    "math_stand_in",
    "math_stand_ins",
    "meeting_refusal",
    "merge_programs",
    "modules_entered",
    "modules_named",
    "names_by_leaf",
    "names_in_size",
    "needed_state",
    "needs_functionalization",
    "nodes_in",
    "normalized_shapes",
    "not_given",
    "note_gradients",
    "number_as_size",
    "number_of",
    "option_refusal",
    "order_relations",
    "other_sizes",
    "output_name",
    "parsed_size",
    "path_name",
    "place_in_memory",
    "plain_fake",
    "plain_model",
    "positional_parameters",
    "real_contents",
    "real_tensors",
    "recorded",
    "register_class",
    "register_containers",
    "registered_results",
    "remove_unused",
    "renamed_text",
    "replaced_file",
    "resampled",
    "restore_calls",
    "results_of",
    "save_model",
    "scope_keys",
    "set_custom_opsets",
    "share_caches",
    "shared_memory",
    "shared_writes",
    "shown_inputs",
    "shown_nodes",
    "shows_silently",
    "smallest_declared",
    "stamp_nodes",
    "stamp_values",
    "state_refusal",
    "structure_paths",
    "symbolic_size",
    "tensor_places",
    "to_ir",
    "to_torch",
    "torch_definition",
    "trace_graph",
    "translation_table",
    "truths",
    "type_tests",
    "unneeded_nodes",
    "unwatched",
    "value_of_size",
    "verify_program",
    "warn_of_bounds",
    "warn_of_left_out",
    "warn_of_names",
    "warn_of_numbers",
    "with_line",
    "with_lines",
    "without_absent",
    "without_keywords",
    "without_metadata",
    "written_arguments",
    "written_code",
    "written_inputs",
    "written_roots",
]


def __getattr__(name: str) -> int:
    if name == "MAX_FOLDED_SIZE":
        warn_user("MAX_FOLDED_SIZE counts elements; use MAX_FOLDED_BYTES.", DeprecationWarning)
        return MAX_FOLDED_BYTES // 8
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
