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
    from onnx_verify.checks import Expectations, Finding, check_model, summarize
    from onnx_verify.comparing.bench import BenchmarkReport, benchmark
    from onnx_verify.comparing.comparison import compare
    from onnx_verify.comparing.verdict import CaseReport, OutputReport, Verdict
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
    from onnx_verify.inputs.fitting import fitting_inputs
    from onnx_verify.inputs.generate import RandomInputs, generate_inputs
    from onnx_verify.inputs.reading import input_sets
    from onnx_verify.inputs.sets import InputSet
    from onnx_verify.judging.answers import Answer, usable_engines
    from onnx_verify.judging.blame import Blame, blame
    from onnx_verify.judging.portable import Place, portable
    from onnx_verify.models.model import LoadedModel, load_model
    from onnx_verify.reporting.report import write_report
    from onnx_verify.running.arena import set_memory_limit
    from onnx_verify.running.runtimes import Backend, OnnxBackend, Runtime
    from onnx_verify.search.find import find_mismatch
    from onnx_verify.search.findings import MismatchReport, NodeLabel, NodeMismatch
    from onnx_verify.search.steps import SearchOptions
    from onnx_verify.torchscript import GraphInfo, VerificationOptions, verify_aten_graph
    from onnx_verify.values.tolerance import Tolerance, default_tolerance

_MODULES = {
    "reporting.report": ("write_report",),
    "torchscript": ("GraphInfo", "VerificationOptions", "verify_aten_graph"),
    "running.arena": ("set_memory_limit",),
    "comparing.bench": (
        "BenchmarkReport",
        "benchmark",
    ),
    "checks": (
        "Expectations",
        "Finding",
        "check_model",
        "summarize",
    ),
    "comparing.comparison": ("compare",),
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
    "search.find": ("find_mismatch",),
    "search.findings": (
        "MismatchReport",
        "NodeLabel",
        "NodeMismatch",
    ),
    "inputs.fitting": ("fitting_inputs",),
    "inputs.generate": (
        "RandomInputs",
        "generate_inputs",
    ),
    "inputs.reading": ("input_sets",),
    "inputs.sets": ("InputSet",),
    "judging.answers": ("Answer", "usable_engines"),
    "judging.blame": ("Blame", "blame"),
    "judging.portable": ("Place", "portable"),
    "models.model": (
        "LoadedModel",
        "load_model",
    ),
    "running.runtimes": (
        "Backend",
        "OnnxBackend",
        "Runtime",
    ),
    "search.steps": ("SearchOptions",),
    "values.tolerance": (
        "Tolerance",
        "default_tolerance",
    ),
    "comparing.verdict": (
        "CaseReport",
        "OutputReport",
        "Verdict",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Answer",
    "Backend",
    "BenchmarkReport",
    "Blame",
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
    "Place",
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
    "blame",
    "check_model",
    "compare",
    "default_tolerance",
    "find_mismatch",
    "fitting_inputs",
    "generate_inputs",
    "input_sets",
    "load_model",
    "portable",
    "set_memory_limit",
    "summarize",
    "torchscript",
    "usable_engines",
    "verify_aten_graph",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name == "torchscript":
        return import_module("onnx_verify.torchscript")
    if name not in _HOMES:
        raise AttributeError(f"module 'onnx_verify' has no attribute {name!r}")
    value = getattr(import_module(f"onnx_verify.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted({*globals(), *__all__})
