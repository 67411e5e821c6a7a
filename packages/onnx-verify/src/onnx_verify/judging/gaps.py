"""What each runtime runs of ONNX's own cases, and gets right, operator by operator.

The numbers stand in ``gaps.json`` beside this file; in the repository ``python -m tools.runtime_table`` measures all
runtimes in the same way and writes them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import onnx

from onnx_verify.search.findings import NodeLabel

__all__ = ["Fate", "Measured", "lacks", "measured", "name_of"]


@dataclass(frozen=True)
class Fate:
    """How the cases of one operator fare.

    Attributes:
        cases: how many there are.
        ran: how many run.
        right: how many give what ONNX expects.
        since: version of the operator in the oldest of them.
    """

    cases: int
    ran: int
    right: int
    since: int


@dataclass(frozen=True)
class Measured:
    """One runtime.

    Attributes:
        version: the version that was measured.
        operators: how the cases of each operator fare; those of other domains are named ``domain::name``.
    """

    version: str
    operators: Mapping[str, Fate]


@functools.cache
def measured() -> Mapping[str, Measured]:
    """Return what is known of each engine, by its name."""
    text = resources.files("onnx_verify.judging").joinpath("gaps.json").read_text(encoding="utf-8")
    return {
        engine: Measured(entry["version"], {name: Fate(*numbers) for name, numbers in entry["operators"].items()})
        for engine, entry in json.loads(text).items()
    }


def lacks(engine: str, node: onnx.NodeProto, opset: int) -> bool:
    """Tell whether an engine ran no case of a node's operator, in this version or an older one.

    Args:
        engine: its name; one that was not measured lacks nothing that is known.
        node: the node.
        opset: opset of the node's domain.
    """
    known = measured().get(engine)
    fate = known.operators.get(name_of(node)) if known else None
    if fate is None or fate.ran:
        return False
    return bool(onnx.defs.get_schema(node.op_type, opset, node.domain).since_version >= fate.since)


def name_of(node: onnx.NodeProto | NodeLabel) -> str:
    """Return the name of a node's operator, with its domain where that is not ONNX's own."""
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
