"""Whether a model can leave TorchScript: what the FX exporter would make of it, beside what this one makes."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from onnx_ts_legacy.api import export
from onnx_ts_legacy.capture.graphs import split_arguments
from onnx_ts_legacy.errors import OnnxExporterError

__all__ = ["MigrationReport", "migration_report"]

_FX = "onnx_fx_export"
_SHARED = (
    *("input_names", "output_names", "opset_version", "dynamic_axes", "state"),
    *("export_params", "keep_initializers_as_inputs", "export_modules_as_functions"),
)


@dataclasses.dataclass(frozen=True)
class MigrationReport:
    """What would change if a model were exported by onnx-fx-export.

    Attributes:
        ready: Whether it takes the model.
        reason: Why it does not; an empty string if it does.
        input_names: Names here and there.
        output_names: Names here and there.
        opsets: Opset here and there.
        operators: ONNX operators whose number differs: how many here and there.
    """

    ready: bool
    reason: str
    input_names: tuple[list[str], list[str]]
    output_names: tuple[list[str], list[str]]
    opsets: tuple[int, int]
    operators: dict[str, tuple[int, int]]

    def __str__(self) -> str:
        """Return the report in words."""
        if not self.ready:
            return f"onnx-fx-export does not take the model yet: {self.reason}"
        lines = ["onnx-fx-export takes the model."]
        for what, (here, there) in {"inputs": self.input_names, "outputs": self.output_names}.items():
            lines.append(f"  {what}: {here}" + ("" if here == there else f" become {there}"))
        old, new = self.opsets
        lines.append(f"  opset: {old}" + ("" if old == new else f" becomes {new}"))
        lines.extend(f"  {name}: {a} nodes become {b}" for name, (a, b) in sorted(self.operators.items()))
        return "\n".join(lines)


def migration_report(
    model: Any, args: Any, *, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> MigrationReport:
    """Export a model by both exporters and compare the results.

    Args:
        model: The model.
        args: Example arguments, as :func:`onnx_ts_legacy.export` takes them.
        kwargs: Further keyword arguments.
        options: Options of :func:`onnx_ts_legacy.export`; those that both have go to both. Without
            ``opset_version`` each writes the opset that it writes by default.

    Raises:
        OnnxExporterError: If this package itself cannot export the model.
    """
    ours = export(model, args, None, kwargs=kwargs, **options)
    names, opset = (ours.input_names, ours.output_names), ours.model.opset_imports[""]
    positional, named = split_arguments(model, args, kwargs)
    try:
        theirs = _fx_program(model, positional, named, options)
    except (ImportError, OnnxExporterError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return MigrationReport(False, reason, (names[0], []), (names[1], []), (opset, 0), {})
    graph = theirs.model.graph
    found = ([str(v.name) for v in graph.inputs], [str(v.name) for v in graph.outputs])
    counts = [Counter(node.op_type for node in program.model.graph.all_nodes()) for program in (ours, theirs)]
    changed = {n: (counts[0][n], counts[1][n]) for n in counts[0] | counts[1] if counts[0][n] != counts[1][n]}
    new_opset = theirs.model.opset_imports[""]
    return MigrationReport(True, "", (names[0], found[0]), (names[1], found[1]), (opset, new_opset), changed)


def _fx_program(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Any:
    """Export with onnx-fx-export, which is found at run time: the packages do not depend on each other."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise TypeError(
            "it takes Python modules, and this is a scripted program; go back to the module that it was scripted from"
        )
    try:
        fx: Any = importlib.import_module(_FX)
    except ImportError:
        raise ImportError("it is not installed (pip install onnx-fx-export)") from None
    passed = {name: value for name, value in options.items() if name in _SHARED}
    return fx.export(model, args, kwargs=kwargs or None, **passed)
