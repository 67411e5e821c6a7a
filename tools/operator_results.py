"""A pytest plugin that notes which ATen operators came out right at which opsets.

`pytest -p tools.operator_results packages/onnxops-decomp/tests` writes `build/aten-operators.json`: for each operator
the opsets at which a test lowered it, ran the model, and found what eager PyTorch computes. An operator counts when
the harness of those tests has compared the outputs of the model that it is part of, not when it was merely lowered.
Beside the opsets stands what an opset refused, by the lowest one that does not.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path("build/aten-operators.json")


class Recorder:
    """Operators of the model at hand, and those of models that were right."""

    def __init__(self) -> None:
        self.pending: set[tuple[str, int]] = set()
        self.right: defaultdict[str, set[int]] = defaultdict(set)
        self.limits: defaultdict[str, dict[int, str]] = defaultdict(dict)

    def lowering(self, lower: Callable[..., Any]) -> Callable[..., Any]:
        """Return a form of `lower` that starts a new model."""

        @functools.wraps(lower)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.pending.clear()
            try:
                return lower(*args, **kwargs)
            except Exception as error:
                self.refused(error)
                raise

        return wrapped

    def checking(self, check: Callable[..., Any]) -> Callable[..., Any]:
        """Return a form of `GraphLowering.check`, which sees every operator that was lowered, that notes it."""

        @functools.wraps(check)
        def wrapped(graph: Any, result: Any, val: Any, name: str) -> Any:
            self.pending.add((name, graph.op.opset))
            return check(graph, result, val, name)

        return wrapped

    def comparing(self, compare: Callable[..., Any]) -> Callable[..., Any]:
        """Return a form of `compare` after which the operators of the model count as right."""

        @functools.wraps(compare)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = compare(*args, **kwargs)
            for name, opset in self.pending:
                self.right[name].add(opset)
            return result

        return wrapped

    def refused(self, error: Any) -> None:
        """Note what an opset could not express: an `UnsupportedOpsetError` that says which one can."""
        operator, lowest = getattr(error, "operator", ""), getattr(error, "lowest", None)
        if operator and lowest:
            reason = f": {error.reason}" if error.reason else ""
            self.limits[operator].setdefault(lowest, f"ONNX {error.op_type}{reason}")

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.plain(), indent=0), encoding="utf-8")

    def plain(self) -> dict[str, dict[str, Any]]:
        """Return what was found, by operator in order."""
        return {
            name: {"opsets": sorted(opsets), "limits": {str(k): v for k, v in sorted(self.limits[name].items())}}
            for name, opsets in sorted(self.right.items())
        }


recorder = Recorder()


def pytest_configure() -> None:
    """Put the recorder between the harness and what it calls."""
    harness: Any = importlib.import_module("decomp_harness")
    harness.lower_graph = recorder.lowering(harness.lower_graph)
    harness.compare = recorder.comparing(harness.compare)
    graphs = importlib.import_module("onnxops_decomp.exporting").GraphLowering
    graphs.check = recorder.checking(graphs.check)


def pytest_sessionfinish() -> None:
    """Write what was found."""
    recorder.write(RESULTS)
