"""No export, successful or not, changes the process that it runs in, or the model, on any path."""

from __future__ import annotations

import builtins
import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

import onnx_fx_export as fx
import onnx_ts_legacy as ts

X = torch.linspace(-2, 2, 12).reshape(4, 3)
OWNERS: tuple[Any, ...] = (
    *(builtins, torch, torch.Tensor, torch._C.TensorBase, torch.SymInt, torch.SymFloat, torch.SymBool),
    *(torch.nn.functional, torch.nn.Module, torch.nn.LSTM, torch.nn.MultiheadAttention, torch.jit, torch.onnx),
    *(torch.UntypedStorage, torch.TypedStorage, torch.autograd.Function, torch.export, torch.random, torch.utils),
    *(torch.overrides, torch.nn.modules.module, torch.fx, torch.fx.Graph, torch._dynamo.config, torch._ops.OpOverload),
    *(torch.autocast, torch.no_grad, threading.Thread),
)


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.dropout = torch.nn.Dropout(0.5)
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) + self.dropout(torch.zeros_like(x))


class Model(torch.nn.Module):
    """Modules of which some train, weights of which some have gradients, hooks, and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Inner(), torch.nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.eval()
        self.other.train()
        self.inner.linear.weight.requires_grad_(False)
        self.other.bias.grad = torch.ones(3)
        self.history: list[int] = [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.inner(x)) * self.scale


class Failing(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(self.other(self.inner(x)).T @ x).real


class Raising(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.other(self.inner(x))
        if y.dim() == 2:
            raise ValueError("no matrices")
        return y


class Deciding(Model):
    """Takes a branch that the data decides, which the FX exporter hands over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.other(self.inner(x))
        return y * 2 if bool(x.sum() > -99) else y[:1]


def looked_at(module: Inner, args: tuple[torch.Tensor]) -> None:
    pass


def process() -> dict[str, Any]:
    """Return what an export might change outside of the model."""
    modes = torch.overrides._get_current_function_mode_stack()
    return {
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "default dtype and device": (torch.get_default_dtype(), torch.get_default_device()),
        "autocast": [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
        ],
        "cache of autocast": torch.is_autocast_cache_enabled(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "random numbers": (
            torch.get_rng_state().tolist(),
            random.getstate(),
            [str(part) for part in np.random.get_state()],
        ),
        "warnings": ([*warnings.filters], warnings.showwarning, warnings.formatwarning),
        "imports": ([*sys.path], [*sys.meta_path], [*sys.path_hooks]),
        "modes": (len(modes), torch.utils._python_dispatch._get_current_dispatch_mode(), torch._C._get_tracing_state()),
        "interpreter": (gc.isenabled(), sys.getrecursionlimit(), sys.gettrace(), sys.getprofile(), os.getcwd()),
        "threads": (torch.get_num_threads(), threading.active_count()),
        "environment": dict(os.environ),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def functions() -> dict[str, Any]:
    """Return what stands under the names of torch, Python and their classes."""
    return {
        f"{getattr(owner, '__name__', owner)}.{name}": value
        for owner in OWNERS
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, property | classmethod | staticmethod)
    }


def contents(model: torch.nn.Module) -> dict[str, Any]:
    """Return what an export might change in a model."""
    modules = dict(model.named_modules())
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "training": {name: module.training for name, module in modules.items()},
        "classes": {name: type(module) for name, module in modules.items()},
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "hooks": {
            (name, kind): len(value)
            for name, module in modules.items()
            for kind, value in vars(module).items()
            if "hooks" in kind
        },
        "weights": {name: (id(x), x.requires_grad, x.grad is None, x.tolist()) for name, x in weights.items()},
        "history": list(getattr(model, "history", ())),
    }


def torch_onnx(model: Any, args: Any, **options: Any) -> Any:
    with fx.replace_torch_onnx():
        return torch.onnx.export(model, args, **options)


def scripted(model: Any, args: Any, **options: Any) -> Any:
    return ts.export(torch.jit.script(model), args, **options)


DIMS: dict[str, Any] = {"dynamic_shapes": ({0: Dim.DYNAMIC},)}
AXES: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
PATHS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "fx": (fx.export, DIMS),
    "fx verified": (fx.export, {**DIMS, "verify": True}),
    "fx strict": (fx.export, {**DIMS, "strategy": "strict"}),
    "fallback": (fx.export, {**DIMS, "fallback": True}),
    "dynamo=False": (fx.export, {**AXES, "dynamo": False}),
    "ts": (ts.export, AXES),
    "ts scripted": (scripted, AXES),
    "torch.onnx": (torch_onnx, {**DIMS, "dynamo": True}),
    "torch.onnx without dynamo": (torch_onnx, {**AXES, "dynamo": False}),
}
# A trace keeps the branch of the example, with a warning.
KEEPING_OR_SCRIPTED = ("dynamo=False", "ts", "ts scripted", "torch.onnx without dynamo")


@pytest.mark.parametrize("kind", [Model, Failing, Raising, Deciding])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore")
def test_an_export_leaves_no_trace(path: str, kind: type[Model]) -> None:
    export, options = PATHS[path]
    model = kind()
    model.inner.register_forward_pre_hook(looked_at)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        # The first one may import what it needs.
        for _ in range(2):
            before = process(), functions(), contents(model)
            try:
                export(model, (X,), **options)
                succeeded = True
            except (fx.OnnxExporterError, ts.OnnxExporterError):
                succeeded = False
            after = process(), functions(), contents(model)
    finally:
        torch.use_deterministic_algorithms(False)

    for old, new in zip(before, after, strict=True):
        assert {name for name in old if old[name] != new.get(name)} == set()
        assert new.keys() == old.keys()
    assert succeeded is (kind is Model or (kind is Deciding and path in KEEPING_OR_SCRIPTED))
