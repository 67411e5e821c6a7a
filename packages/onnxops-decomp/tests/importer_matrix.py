"""What the importer makes of each ONNX operator, measured by ONNX's own cases and those of ONNX Runtime's operators."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[2] / "onnxops-core" / "tests"))

import test_importing_contrib as contrib
import test_importing_node_cases as nodes
from core_node_cases import onnx_cases

from onnxops_decomp import to_torch
from onnxops_decomp.importing.registry import implementation, implementations
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OLDEST_OPSET, op_spec

# They change how elements are looked at, moved or held, and stand beside most formulas.
_BESIDE = {
    "alias", "arange", "as_strided", "clone", "_conj", "copy_", "detach", "empty", "expand", "full", "lift_fresh",
    "lift_fresh_copy", "permute", "select", "slice", "split", "squeeze", "t", "_to_copy", "transpose", "unbind",
    "unsqueeze", "_unsafe_view", "view", "view_as_complex", "view_as_real", "_local_scalar_dense", "scalar_tensor",
    "zeros", "ones", "new_zeros", "unflatten", "item", "is_nonzero",
}  # fmt: skip
_OF_PYTHON = ("sequences", "strings", "machine_learning")


class _Calls(TorchDispatchMode):
    """Counts the operators of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.name().rpartition(".")[0] if "." in func.name() else func.name()] += 1
        return func(*args, **(kwargs or {}))


def cases() -> Iterator[tuple[tuple[str, str], bool, Any]]:
    """Yield each case: its operator, whether it came out right, and what runs it once."""
    for case in onnx_cases():
        node = case.model.graph.node[0]
        if len(case.model.graph.node) == 1 and "_expanded" not in case.name:
            right = nodes.failure(case) is None
            yield (node.domain, node.op_type), right, lambda case=case: _of_onnx(case)
    for op_type, several in contrib.CASES.items():
        for given in several:
            model, fed = contrib.case_model(op_type, *given)
            feeds = [torch.from_numpy(each) for each in fed.values()]
            run = lambda model=model, feeds=feeds: to_torch(model)(*feeds)  # noqa: E731
            contrib.assert_agrees(op_type, given)
            yield (contrib.DOMAIN, op_type), True, run


def _of_onnx(case: Any) -> None:
    inputs, _ = case.data_sets[0]
    to_torch(case.model)(*(nodes.value(each) for each in inputs))


def made_of(operator: tuple[str, str], run: Any) -> str:
    """Return what an operator is in torch: one operator, one of onnxops-core, a formula, control flow, or Python."""
    entry = implementations()[operator][0]
    room = getattr(entry.function, "__module__", "") or ""
    if room.endswith("control_flow"):
        return "control flow"
    if run is None:
        if isinstance(entry.function, torch._ops.OpOverload):
            return f"native `onnxops::{operator[1]}`"
        return "random" if room.endswith("random") else "Python" if room.endswith(_OF_PYTHON) else "formula"
    if entry.rank_of_numbers is not None or operator == ("", "Constant"):
        return "Python numbers"
    with _Calls() as calls, torch.no_grad():
        run()
    native = [name for name in calls.names if name.startswith("onnxops::")]
    if native:
        return f"native `{native[0]}`"
    if room.endswith(_OF_PYTHON):
        return "Python"
    work = [name for name in calls.names if name.removeprefix("aten::").rstrip("_") not in _BESIDE]
    if len(work) > 1:
        return f"formula of {len(work)} operators"
    names = work or [name for name in calls.names if "lift" not in name]
    return f"ATen `{names[-1]}`" if names else "Python numbers"


def opsets(operator: tuple[str, str]) -> list[int]:
    """Return the opsets of ONNX's own domain at which the importer knows an operator."""
    domain, op_type = operator
    if domain:
        return []
    specs = {opset: op_spec(op_type, opset) for opset in range(OLDEST_OPSET, NEWEST_OPSET + 1)}
    known = {opset: spec.since_version for opset, spec in specs.items() if spec is not None}
    return [opset for opset, since in known.items() if implementation(domain, op_type, since) is not None]


def backend_suite() -> tuple[int, int]:
    """Return how many cases of ONNX's backend suite are right, and how many there are."""
    every = [*onnx_cases(), *nodes.model_cases()]
    return sum(nodes.failure(case) is None for case in every), len(every)


Row = tuple[str, str, list[int], str, int, int]


def measured() -> list[Row]:
    """Return what is known of each operator, also of those of ONNX that the importer does not know.

    A row is domain, name and opsets of an operator, what it is in torch, and how many of how many cases are right.
    """
    right: Counter[tuple[str, str]] = Counter()
    tried: Counter[tuple[str, str]] = Counter()
    kinds: dict[tuple[str, str], str] = {}
    known = implementations()
    for operator, is_right, run in cases():
        tried[operator] += 1
        right[operator] += is_right
        if is_right and operator in known and operator not in kinds:
            kinds[operator] = made_of(operator, run)
    schemas = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas() if not schema.deprecated}
    rows: list[Row] = []
    for operator in sorted(schemas | known.keys()):
        kind = "not imported" if operator not in known else kinds.get(operator) or made_of(operator, None)
        rows.append((*operator, opsets(operator), kind, right[operator], tried[operator]))
    return rows


def reasons() -> list[tuple[str, str]]:
    """Return the cases that do not agree, and the operators that are not imported, with the reason of each."""
    drawn = [("`Bernoulli`, `Dropout` in training", "what they draw is not ONNX's; dtypes and shapes are right")]
    refused = [(f"`{operator}`", reason) for operator, reason in sorted(nodes.REASONS.items())]
    return [*refused, *drawn, *((f"`{name}`", reason) for name, reason in nodes.OTHER_RESULTS.items())]
