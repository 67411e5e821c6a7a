"""A pytest plugin that notes which ATen operators came out right at which opsets.

`pytest -p tools.operator_results packages/onnxops-decomp/tests` writes `build/aten-operators.json`: for each operator
the opsets at which a test lowered it, ran the model, and found what eager PyTorch computes. An operator counts when
the harness of those tests has compared the outputs of the model that it is part of, not when it was merely lowered.
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

    def lowering(self, lower: Callable[..., Any]) -> Callable[..., Any]:
        """A form of `lower` that starts a new model."""

        @functools.wraps(lower)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.pending.clear()
            return lower(*args, **kwargs)

        return wrapped

    def checking(self, check: Callable[..., Any]) -> Callable[..., Any]:
        """A form of `GraphLowering.check`, which sees every operator that was lowered, that notes it."""

        @functools.wraps(check)
        def wrapped(graph: Any, result: Any, val: Any, name: str) -> Any:
            self.pending.add((name, graph.op.opset))
            return check(graph, result, val, name)

        return wrapped

    def comparing(self, compare: Callable[..., Any]) -> Callable[..., Any]:
        """A form of `compare` after which the operators of the model count as right."""

        @functools.wraps(compare)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = compare(*args, **kwargs)
            for name, opset in self.pending:
                self.right[name].add(opset)
            return result

        return wrapped

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: sorted(opsets) for name, opsets in sorted(self.right.items())}
        path.write_text(json.dumps(plain, indent=0), encoding="utf-8")


recorder = Recorder()


def pytest_configure() -> None:
    """Puts the recorder between the harness and what it calls."""
    harness: Any = importlib.import_module("decomp_harness")
    harness.lower = recorder.lowering(harness.lower)
    harness.compare = recorder.comparing(harness.compare)
    graphs = importlib.import_module("onnxops_decomp.graph_lowering").GraphLowering
    graphs.check = recorder.checking(graphs.check)


def pytest_sessionfinish() -> None:
    """Writes what was found."""
    recorder.write(RESULTS)
