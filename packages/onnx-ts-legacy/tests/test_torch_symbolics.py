"""Torch's own symbolics, read as text, with nothing but their imports changed, and the names that they use."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from ts_models import agree, n

import onnx_ts_legacy
from onnx_ts_legacy import GraphContext, JitScalarType, _type_utils, jit_utils, symbolic_helper
from onnx_ts_legacy.registration import registry

PACKAGE = "torch.onnx._internal.torchscript_exporter"
FOLDER = Path(torch.__file__).parent / "onnx" / "_internal" / "torchscript_exporter"
OPSETS = range(7, 21)

pytestmark = [
    pytest.mark.skipif(not FOLDER.exists(), reason="this torch has no TorchScript exporter"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def torch_symbolics() -> Iterator[None]:
    """Register all of torch's symbolics for ATen operators."""
    names = []
    for opset in OPSETS:
        source = (FOLDER / f"symbolic_opset{opset}.py").read_text()
        source = source.replace(PACKAGE, "onnx_ts_legacy").replace("torch.onnx", "onnx_ts_legacy")
        module = types.ModuleType(f"published_opset{opset}")
        names.append(module.__name__)
        sys.modules[module.__name__] = module
        exec(compile(source, module.__name__, "exec"), module.__dict__)
    # Those of TorchScript's own nodes are written for the graph of torch's exporter, which is not built here.
    for name in registry.names():
        for opset in OPSETS if not name.startswith("aten::") else ():
            registry.unregister(name, opset)
    yield
    for name in names:
        del sys.modules[name]


def split(x: Tensor) -> Tensor:
    return torch.stack([part.sum() for part in torch.tensor_split(x, [1, 3])])


def written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 5.0
    return y


def many(x: Tensor) -> Tensor:
    y = torch.where(x > 0, x, x.exp()) + x.std(1, keepdim=True) + x.cumsum(1) + x.clamp(0, 1)
    return y + x.softmax(-1) + x.argmax(1, keepdim=True) + x.norm(dim=1, keepdim=True)


def layer(module: nn.Module) -> nn.Module:
    return module.eval()


CNN = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
N = {0: "n"}
CASES: dict[str, tuple[int, Callable[..., Any], list[tuple[Tensor, ...]], dict[int, str]]] = {
    "squeeze": (11, lambda x: x.squeeze(1) * 2, [(n(2, 1, 3),), (n(4, 1, 2),)], {0: "n", 1: "m", 2: "k"}),
    "hstack": (11, lambda x: torch.hstack([x, x]), [(n(2, 3),), (n(4, 3),)], N),
    "unfold": (12, lambda x: x.unfold(0, 2, 1) * 2, [(n(5, 3),)], {}),
    "tensor_split": (13, split, [(n(5, 3),), (n(8, 3),)], N),
    "tile": (13, lambda x: x.tile((2, 1, 2)), [(n(2, 3),), (n(5, 3),)], N),
    "repeat_interleave": (13, lambda x, r: x.repeat_interleave(r, 0), [(n(3, 2), torch.tensor([1, 2, 3]))], {}),
    "diagonal": (13, lambda x: x.diagonal(1), [(n(4, 4),), (n(6, 6),)], {0: "n", 1: "n"}),
    "embedding_bag": (
        13,
        nn.EmbeddingBag(10, 3, mode="sum"),
        [(torch.arange(5), torch.tensor([0, 2])), (torch.arange(8), torch.tensor([0, 5]))],
        N,
    ),
    "scatter_reduce": (
        16,
        lambda x, i, s: x.scatter_reduce(0, i, s, "sum"),
        [(n(4), torch.tensor([0, 1, 1]), n(3)), (n(4), torch.tensor([3, 3, 1]), n(3))],
        {},
    ),
    "roll": (13, lambda x: x.roll(1, 0), [(n(4, 3),), (n(7, 3),)], N),
    "cnn": (13, layer(CNN), [(n(2, 3, 8, 8),), (n(4, 3, 8, 8),)], N),
    "attention": (14, layer(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), [(n(2, 3, 8),), (n(4, 3, 8),)], N),
    "lstm": (14, nn.LSTM(3, 4), [(n(5, 2, 3),), (n(7, 2, 3),)], N),
    "written": (13, written, [(n(3, 4),), (n(5, 4),)], N),
    "index": (13, lambda x, i: x[i, :, i], [(n(3, 4, 3), torch.tensor([0, 2]))], {}),
    "many": (13, many, [(n(3, 4),), (n(5, 4),)], N),
    "resize": (13, lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), [(n(1, 2, 3, 3),)], N),
    "group_norm": (18, nn.GroupNorm(2, 4), [(n(2, 4, 3),), (n(5, 4, 3),)], N),
    "pad": (13, lambda x: F.pad(x, (1, 2)), [(n(2, 4),), (n(5, 4),)], N),
    "topk": (13, lambda x: x.topk(2), [(n(2, 4),), (n(5, 4),)], N),
    "chunk": (13, lambda x: x.chunk(2, 1), [(n(2, 4),), (n(5, 4),)], N),
    "arange": (13, lambda x: torch.arange(x.shape[0]) * 2, [(n(2, 4),), (n(5, 4),)], N),
    "meshgrid": (13, lambda x, y: torch.meshgrid(x, y, indexing="ij"), [(n(2), n(3))], {}),
    "masked_fill": (13, lambda x: x.masked_fill(x > 0, 0.0) + x.tril(), [(n(3, 3),), (n(4, 4),)], {0: "n", 1: "n"}),
    "fake_quantize": (
        13,
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        [(n(2, 4),), (n(3, 4),)],
        N,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("torch_symbolics")
def test_the_symbolics_of_torch_work_with_other_imports(name: str) -> None:
    opset, model, examples, axes = CASES[name]
    program = onnx_ts_legacy.export(
        model, examples[0], opset_version=opset, input_names=["x"], dynamic_axes={"x": axes} if axes else None
    )

    agree(program, model, *examples)


# ---- names

# Functions of torch's modules that convert the nodes of its own graph, using passes of TorchScript's ONNX dialect.
OF_TORCH_GRAPHS = {
    *("prim_constant", "prim_device", "prim_if", "prim_list_construct", "prim_loop", "prim_tuple_construct"),
    *("prim_type", "prim_uninitialized", "onnx_placeholder"),
}
# Lists by which torch makes symbolics that refuse; a package makes its own.
TABLES = {"block_listed_op", "block_listed_operators", "GRID_SAMPLE_INTERPOLATION_MODES", "GRID_SAMPLE_PADDING_MODES"}
# Operators that are grid_sampler and affine_grid_generator of this package, under a name that only torch's module has.
RENAMED = {"_affine_grid_generator", "_grid_sampler", "get_pool_ceil_padding"}


def public(module: Any) -> set[str]:
    names = {name for name in dir(module) if not name.startswith("__") and name != "annotations"}
    return {name for name in names if not isinstance(getattr(module, name), types.ModuleType)}


@pytest.mark.parametrize("opset", OPSETS)
def test_the_symbolic_opset_modules_have_the_names_of_torch(opset: int) -> None:
    wanted = public(importlib.import_module(f"torch.onnx.symbolic_opset{opset}"))
    own = importlib.import_module(f"onnx_ts_legacy.symbolic_opset{opset}")

    assert {name for name in wanted if not hasattr(own, name)} <= OF_TORCH_GRAPHS | TABLES | RENAMED


@pytest.mark.parametrize(
    ("name", "own", "exceptions"),
    [
        ("torch.onnx.symbolic_helper", symbolic_helper, set()),
        (f"{PACKAGE}._type_utils", _type_utils, {"Literal", "ScalarName", "TorchName"}),
        (f"{PACKAGE}.jit_utils", jit_utils, {"Any", "GLOBALS", "Iterable", "Sequence", "get_device_from_value"}),
        (f"{PACKAGE}._globals", importlib.import_module("onnx_ts_legacy._globals"), set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_modules_have_the_names_of_torch(name: str, own: Any, exceptions: set[str]) -> None:
    # The helpers for symbolics begin with an underscore, in the other modules what is of no concern outside does.
    wanted = {
        found
        for found in public(importlib.import_module(name))
        if name.endswith("symbolic_helper") or not found.startswith("_")
    }

    assert {found for found in wanted if not hasattr(own, found)} <= exceptions


def test_the_classes_have_the_names_of_torch() -> None:
    types_of_torch = importlib.import_module(f"{PACKAGE}._type_utils").JitScalarType
    context = importlib.import_module(f"{PACKAGE}.jit_utils").GraphContext
    state = importlib.import_module(f"{PACKAGE}._globals").GLOBALS
    from onnx_ts_legacy._globals import GLOBALS

    assert set(vars(types_of_torch)) - {"__doc__"} <= set(dir(JitScalarType)) | set(vars(JitScalarType))
    assert {name for name in vars(context) if not name.startswith("__")} <= set(dir(GraphContext)) | {"new_nodes"}
    assert {name for name in dir(state) if not name.startswith("_")} <= set(dir(GLOBALS))


@pytest.mark.parametrize("name", ["Float", "float", "Long", "int64_t", "Half", "Bool", "ComplexDouble", "QUInt8"])
def test_scalar_types_are_found_by_the_names_that_torch_has(name: str) -> None:
    types_of_torch = importlib.import_module(f"{PACKAGE}._type_utils")
    expected = types_of_torch.JitScalarType._from_name(name)

    assert JitScalarType.from_name(name).name == expected.name
    assert _type_utils.valid_scalar_name(name) == types_of_torch.valid_scalar_name(name)
    assert _type_utils.valid_torch_name(name) == types_of_torch.valid_torch_name(name)
