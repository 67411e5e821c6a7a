"""Writes the specifications of ONNX operators that the oldest supported onnx lacks, for the lowerings to speak of.

`python packages/onnxops-decomp/tests/write_newer_operators.py` writes them from the installed onnx,
which has to be the newest.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import onnx

from onnxops_decomp.spec.schemas import NEWER_OPERATORS, OLDEST_ONNX_OPSET, op_spec

__all__ = ["text"]


def _plain(value: Any) -> Any:
    """What JSON holds in place of a field of a specification."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(_plain(each) for each in value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    return getattr(value, "name", value)


def text() -> str:
    """The specifications as of the installed onnx, as JSON: by operator, oldest first."""

    newer = {
        (schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.since_version > OLDEST_ONNX_OPSET and not schema.deprecated
    }
    table: dict[str, list[Any]] = {}
    for name, version in sorted(newer):
        spec = op_spec(name, version)
        assert spec is not None
        table.setdefault(name, []).append(_plain(asdict(spec)))
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(specs)}" for name, specs in table.items())
    return f"{{\n{rows}\n}}\n"


if __name__ == "__main__":
    NEWER_OPERATORS.write_text(text(), encoding="utf-8")
