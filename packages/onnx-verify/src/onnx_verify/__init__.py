"""Compares ONNX models with their reference and finds the first wrong node.

The public names are imported when they are first used: a test session that only loads the pytest plugin, or a command
that only prints its help, does not have to wait for the runtimes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onnx_verify._version import __version__

if TYPE_CHECKING:
    from onnx_verify import torchscript
    from onnx_verify._arena import set_memory_limit
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
    from onnx_verify.find import find_mismatch
    from onnx_verify.findings import MismatchReport, NodeLabel, NodeMismatch
    from onnx_verify.generate import RandomInputs, generate_inputs
    from onnx_verify.inputs import InputSet, input_sets
    from onnx_verify.model import LoadedModel, load_model
    from onnx_verify.report import write_report
    from onnx_verify.runtimes import Backend, OnnxBackend, Runtime
    from onnx_verify.search import SearchOptions
    from onnx_verify.tolerance import Tolerance, default_tolerance
    from onnx_verify.torchscript import GraphInfo, VerificationOptions, verify_aten_graph
    from onnx_verify.verdict import CaseReport, OutputReport, Verdict

_MODULES = {
    "report": ("write_report",),
    "torchscript": ("GraphInfo", "VerificationOptions", "verify_aten_graph"),
    "_arena": ("set_memory_limit",),
    "bench": (
        "BenchmarkReport",
        "benchmark",
    ),
    "checks": (
        "Expectations",
        "Finding",
        "check_model",
        "summarize",
    ),
    "comparison": ("compare",),
    "errors": (
        "InputError",
        "MismatchError",
        "MissingDependencyError",
        "ModelLoadError",
        "ModelRunError",
        "OnnxVerifyError",
        "SubgraphExportError",
        "UnsafeModelError",
    ),
    "find": ("find_mismatch",),
    "findings": (
        "MismatchReport",
        "NodeLabel",
        "NodeMismatch",
    ),
    "generate": (
        "RandomInputs",
        "generate_inputs",
    ),
    "inputs": (
        "InputSet",
        "input_sets",
    ),
    "model": (
        "LoadedModel",
        "load_model",
    ),
    "runtimes": (
        "Backend",
        "OnnxBackend",
        "Runtime",
    ),
    "search": ("SearchOptions",),
    "tolerance": (
        "Tolerance",
        "default_tolerance",
    ),
    "verdict": (
        "CaseReport",
        "OutputReport",
        "Verdict",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Backend",
    "BenchmarkReport",
    "CaseReport",
    "Expectations",
    "Finding",
    "GraphInfo",
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
    "VerificationOptions",
    "__version__",
    "benchmark",
    "check_model",
    "compare",
    "default_tolerance",
    "find_mismatch",
    "generate_inputs",
    "input_sets",
    "load_model",
    "set_memory_limit",
    "summarize",
    "torchscript",
    "verify_aten_graph",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Imports a public name from its module."""
    if name == "torchscript":
        return import_module("onnx_verify.torchscript")
    if name not in _HOMES:
        raise AttributeError(f"module 'onnx_verify' has no attribute {name!r}")
    value = getattr(import_module(f"onnx_verify.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names."""
    return sorted({*globals(), *__all__})
