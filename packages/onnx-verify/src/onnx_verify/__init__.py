"""Compares ONNX models with their reference and finds the first wrong node."""

from onnx_verify._version import __version__
from onnx_verify.bench import BenchmarkReport, benchmark
from onnx_verify.checks import Expectations, Finding, check_model, summarize
from onnx_verify.comparison import compare
from onnx_verify.errors import (
    InputError,
    MismatchError,
    MissingDependencyError,
    ModelLoadError,
    ModelRunError,
    OnnxVerifyError,
    SubgraphExportError,
    UnsafeModelError,
)
from onnx_verify.find import SearchOptions, find_mismatch
from onnx_verify.findings import MismatchReport, NodeLabel, NodeMismatch
from onnx_verify.generate import RandomInputs, generate_inputs
from onnx_verify.inputs import InputSet, input_sets
from onnx_verify.model import LoadedModel, load_model
from onnx_verify.runtimes import Backend, OnnxBackend, Runtime
from onnx_verify.tolerance import Tolerance, default_tolerance
from onnx_verify.verdict import CaseReport, OutputReport, Verdict

__all__ = [
    "Backend",
    "BenchmarkReport",
    "CaseReport",
    "Expectations",
    "Finding",
    "InputError",
    "InputSet",
    "LoadedModel",
    "MismatchError",
    "MismatchReport",
    "MissingDependencyError",
    "ModelLoadError",
    "ModelRunError",
    "NodeLabel",
    "NodeMismatch",
    "OnnxBackend",
    "OnnxVerifyError",
    "OutputReport",
    "RandomInputs",
    "Runtime",
    "SearchOptions",
    "SubgraphExportError",
    "Tolerance",
    "UnsafeModelError",
    "Verdict",
    "__version__",
    "benchmark",
    "check_model",
    "compare",
    "default_tolerance",
    "find_mismatch",
    "generate_inputs",
    "input_sets",
    "load_model",
    "summarize",
]
