"""Lets a test run through each exporter, and feeds what comes out by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from onnx_fx_export import export

ts = pytest.importorskip("onnx_ts_legacy")


def through_torchscript(model: Any, args: Any = (), **options: Any) -> Any:
    return ts.export(model, args, **options)


def scripted(model: Any, args: Any = (), **options: Any) -> Any:
    return ts.export(torch.jit.script(model), args, **options)


def without_dynamo(model: Any, args: Any = (), **options: Any) -> Any:
    return export(model, args, dynamo=False, **options)


TRACING: dict[str, Callable[..., Any]] = {"fx": export, "ts": through_torchscript, "dynamo=False": without_dynamo}
EXPORTERS = {**TRACING, "scripted": scripted}
exporters = pytest.mark.parametrize("exporter", EXPORTERS)
tracing = pytest.mark.parametrize("exporter", TRACING)


def run_by_name(program: Any, **feeds: torch.Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: value.numpy() for name, value in feeds.items()})
