"""The pages that describe an operator, by its name: ONNX's, ONNX Runtime's and PyTorch's."""

from __future__ import annotations

import importlib
from typing import Any

TORCH = "https://docs.pytorch.org/docs/stable"
SOURCE = "https://github.com/pytorch/pytorch/blob/main"
DECLARATIONS = "https://raw.githubusercontent.com/pytorch/pytorch/main/aten/src/ATen/native/native_functions.yaml"
# Operators of TorchScript alone: ATen does not declare them.
SCRIPTED = {"Bool", "Float", "FloatImplicit", "Int", "IntImplicit", "ScalarImplicit", "len"}
NAMESPACES = {
    "prims": f"{TORCH}/torch.compiler_ir.html",
    "quantized_decomposed": f"{SOURCE}/torch/ao/quantization/fx/_decomposed.py",
}
# Where PyTorch documents operators whose names start so.
MODULES = {"linalg_": "torch.linalg", "fft_": "torch.fft", "special_": "torch.special"}
# Functions with a docstring, but without a page.
WITHOUT_PAGE = {"index", "put", *(f"max_pool{rank}d_with_indices" for rank in (1, 2, 3))}


def onnx_link(domain: str, name: str) -> str:
    """Return the address of an ONNX operator's page; `domain` is empty for ONNX's own."""
    if domain == "com.microsoft":
        return f"https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.{name}"
    return f"https://onnx.ai/onnx/operators/onnx_{domain.replace('.', '')}_{name}.html"


def aten_link(operator: str) -> str:
    """Return the address of the page of `operator`, such as `aten::add.Tensor`.

    That is the page of the public function of its name; for the others, where PyTorch declares them.
    """
    namespace, _, overload = operator.partition("::")
    name = overload.partition(".")[0]
    if namespace == "torchvision":
        return f"https://docs.pytorch.org/vision/stable/generated/torchvision.ops.{name}.html"
    if namespace != "aten":
        return NAMESPACES[namespace]
    if name in SCRIPTED:
        return f"{TORCH}/jit_builtin_functions.html"
    function = documented_function(name)
    if function is None:
        return f"{DECLARATIONS}#:~:text=func%3A%20{name}"
    if function.startswith("torch.special."):
        return f"{TORCH}/special.html#{function}"
    return f"{TORCH}/generated/{function}.html"


def documented_function(name: str) -> str | None:
    """Return the public function of PyTorch that an ATen operator is named after, None if there is none."""
    torch = importlib.import_module("torch")
    for prefix, module in MODULES.items():
        if name.startswith(prefix) and hasattr(importlib.import_module(module), name.removeprefix(prefix)):
            return f"{module}.{name.removeprefix(prefix)}"
    if name.startswith("_") or name in WITHOUT_PAGE:
        return None
    functional: Any = importlib.import_module("torch.nn.functional")
    if name in torch.__all__ and getattr(torch, name).__doc__:
        return f"torch.{name}"
    for module, owner in (("torch.nn.functional", functional), ("torch.Tensor", torch.Tensor)):
        if getattr(getattr(owner, name, None), "__doc__", None):
            return f"{module}.{name}"
    return None
