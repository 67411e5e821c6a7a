"""A pytest plugin: what the exporters' tests run in ONNX Runtime is imported, and has to give the same in PyTorch.

By default a spread of the tests is watched, `--round-trips all` watches every one, and `--round-trips 3/8` runs the
third of eight parts of them alone, so that the whole can be done bit by bit. A model that holds operators of the user's
own is left out, as is one that is fed other weights than its own. With `--keep-models FOLDER` the watched tests alone
run, and the models that they run are written to the folder.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    # The repository's own tests load this plugin, too, and need no onnx.
    import onnx

WATCHED = ("packages/onnx-fx-export/", "packages/onnx-ts-legacy/")
SPREAD = 50
"""Of so many tests one is watched by default."""
LARGEST = 256 << 20
"""Models of more bytes are left out."""
DRAWING = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
DRAWING |= {"RandomUniformLike"}
KNOWN_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "com.microsoft"}

_sources: weakref.WeakKeyDictionary[Any, bytes | str] = weakref.WeakKeyDictionary()
_imported: weakref.WeakKeyDictionary[Any, _Imported | None] = weakref.WeakKeyDictionary()
_failures: list[str] | None = None
_kept: Path | None = None
"""Folder for the models that watched tests run."""


class _Imported:
    """A model as a module of torch, and how exactly it is compared."""

    def __init__(self, model: onnx.ModelProto, folder: str | None) -> None:
        import onnx

        from onnxops_decomp import to_torch

        halves = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
        # What is beside the file is found by its path alone.
        self.module = to_torch(model if folder is None else folder)
        nodes = [node for graph in (model.graph, *model.functions) for node in _nodes(graph)]
        dtypes = {value.type.tensor_type.elem_type for value in model.graph.input}
        dtypes |= {tensor.data_type for tensor in model.graph.initializer}
        dtypes |= {each.i for node in nodes for each in node.attribute if each.name in ("to", "dtype")}
        self.drawn = any(node.op_type in DRAWING for node in nodes)
        self.step = _largest_step(model)
        self.tolerance: dict[str, Any] = (
            {"rtol": 2e-2, "atol": 2e-2} if dtypes & halves else {"rtol": 1e-3, "atol": 1e-4}
        )

    def compare(self, feeds: Mapping[str, Any], names: Sequence[str] | None, wanted: Sequence[Any]) -> None:
        """Raise an AssertionError if the module gives something else."""
        import torch

        facts = self.module.meta["onnx"]
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            made = self.module(*(feeds.get(name) for name in facts["inputs"]))
        by_name = dict(zip(facts["outputs"], made if isinstance(made, tuple) else (made,), strict=True))
        for name, want in zip(names or facts["outputs"], wanted, strict=True):
            self._assert_same(by_name[name], _tensor(want), name)

    def _assert_same(self, got: Any, want: Any, name: str) -> None:
        import torch

        if isinstance(want, list):
            assert len(got) == len(want), name
            for one, other in zip(got, want, strict=True):
                self._assert_same(one, other, name)
        elif not isinstance(want, torch.Tensor):
            assert got is None if want is None else (got == want).all(), name
        elif self.drawn:
            assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        else:
            if want.is_floating_point() and want.element_size() == 1:
                got, want = got.float(), want.float()
            tolerance: dict[str, Any] = self.tolerance if want.is_floating_point() else {}
            # Half way between two steps, as means of a few steps often are, the last bit of a sum decides.
            if self.step and want.is_floating_point():
                tolerance = {"rtol": 1e-3, "atol": self.step}
            elif self.step and want.dtype in (torch.int8, torch.uint8):
                tolerance = {"rtol": 0, "atol": 1}
            torch.testing.assert_close(got, want, equal_nan=True, msg=lambda text: f"{name}: {text}", **tolerance)


def _largest_step(model: onnx.ModelProto) -> float:
    """Return the largest scale that a constant of the model quantizes by, or 0 if it quantizes nothing."""
    import onnx

    constants = [
        node for node in _nodes(model.graph) if node.op_type == "Constant" and node.attribute[0].name == "value"
    ]
    named = {tensor.name: tensor for tensor in model.graph.initializer}
    named |= {node.output[0]: node.attribute[0].t for node in constants}
    rounding = [node for node in _nodes(model.graph) if "QuantizeLinear" in node.op_type or "QLinear" in node.op_type]
    scales = [named[name] for node in rounding for name in node.input[1:] if name in named]
    floats = [onnx.numpy_helper.to_array(each) for each in scales if each.data_type == onnx.TensorProto.FLOAT]
    return max((float(each.max()) for each in floats if each.size), default=0.0)


def _nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _tensor(value: Any) -> Any:
    """Return a value of ONNX Runtime, or an array, as a tensor; lists item by item."""
    import numpy as np
    import onnx_ir as ir
    import torch

    if isinstance(value, list):
        return [_tensor(each) for each in value]
    if value is None:
        return None
    if hasattr(value, "data_ptr"):
        dtype = ir.tensor_adapters.to_torch_dtype(ir.DataType(value.element_type()))
        made = torch.empty(value.shape(), dtype=dtype, device="cpu")
        ctypes.memmove(made.data_ptr(), value.data_ptr(), made.nbytes)
        return made
    array = np.array(value)
    if array.dtype.kind in "OSUT":
        return array
    if array.dtype.type.__module__ != "numpy":
        return _narrow(array)
    return torch.from_numpy(array.view(array.dtype.str))


def _narrow(array: Any) -> Any:
    """Return an array of a dtype that NumPy lacks as a tensor."""
    import onnx_ir as ir
    import torch

    dtype = ir.tensor_adapters.to_torch_dtype(ir.DataType.from_numpy(array.dtype))
    carrier = {1: torch.uint8, 2: torch.int16}[array.dtype.itemsize]
    return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).view(carrier).view(dtype)


def _import_of(session: Any) -> _Imported | None:
    """Return the imported model of a session, or None if it is left out."""
    if session not in _imported:
        source = _sources.get(session)
        _imported[session] = None if source is None else _read(source)
    return _imported[session]


def _read(source: bytes | str) -> _Imported | None:
    import onnx

    model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)
    if isinstance(source, bytes) and _has_weights_beside(model):
        return None
    own = {function.domain for function in model.functions}
    bodies = [node for function in model.functions for node in function.node]
    if {node.domain for node in (*_nodes(model.graph), *bodies)} - KNOWN_DOMAINS - own:
        return None
    return _Imported(model, None if isinstance(source, bytes) else source)


def _has_weights_beside(model: onnx.ModelProto) -> bool:
    import onnx

    return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer)


def _watched(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that runs a session, and compares what comes out."""

    def wrapper(self: Any, output_names: Any, feeds: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if _failures is None:
            return run(self, output_names, feeds, *args, **kwargs)
        kept = {name: _tensor(value) for name, value in feeds.items()}  # a copy, as the feeds may be written to
        made = run(self, output_names, feeds, *args, **kwargs)
        try:
            imported = _import_of(self)
            if imported is not None and not kept.keys() - set(imported.module.meta["onnx"]["inputs"]):
                imported.compare(kept, output_names, list(made))
        except Exception as error:
            _failures.append(f"{type(error).__name__}: {error}")
        return made

    return wrapper


def _keep(source: bytes | str) -> None:
    """Write a model to the folder of kept ones, unless its weights lie beside it."""
    import onnx

    assert _kept is not None
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    model = onnx.load_from_string(data)
    if not _has_weights_beside(model):
        (_kept / f"{hashlib.sha256(data).hexdigest()[:16]}.onnx").write_bytes(data)


def _install() -> None:
    """Let every session of this process remember its model."""
    import onnxruntime

    kind = onnxruntime.InferenceSession
    made: Callable[..., None] = kind.__init__
    if hasattr(made, "__wrapped__"):
        return

    def __init__(self: Any, path_or_bytes: Any, *args: Any, **kwargs: Any) -> None:
        made(self, path_or_bytes, *args, **kwargs)
        source = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        if (len(source) if isinstance(source, bytes) else os.path.getsize(source)) < LARGEST:
            _sources[self] = source
        if _kept is not None and _failures is not None:
            _keep(source)

    __init__.__wrapped__ = made  # type: ignore[attr-defined]
    kind.__init__ = __init__
    kind.run = _watched(kind.run)
    kind.run_with_ort_values = _watched(kind.run_with_ort_values)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--round-trips",
        metavar="some|all|none|K/N",
        type=_chosen,
        default="some",
        help="import the models that these of the exporters' tests run, and compare: some (default), all, none, or one "
        "of N parts of all, without the other tests",
    )

    parser.addoption("--keep-models", metavar="FOLDER", help="run watched tests alone, and write their models there")


def _chosen(text: str) -> str:
    part, _, parts = text.partition("/")
    if text not in ("some", "all", "none") and not (part.isdigit() and parts.isdigit() and 0 < int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is none of some, all, none, 1/8 to 8/8 and the like")
    return text


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--round-trips")
    if config.getoption("--keep-models") or "/" in chosen:
        items[:] = [item for item in items if is_watched(item.nodeid, chosen)]


def is_watched(nodeid: str, chosen: str) -> bool:
    """Tell whether the models of a test are imported."""
    if chosen == "none" or not nodeid.startswith(WATCHED):
        return False
    part, _, parts = f"1/{SPREAD}".partition("/") if chosen == "some" else chosen.partition("/")
    return chosen == "all" or zlib.crc32(nodeid.encode()) % int(parts) == int(part) - 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    global _failures, _kept
    left_out = item.get_closest_marker("no_round_trip")
    if left_out or not is_watched(item.nodeid, item.config.getoption("--round-trips")):
        return (yield)
    _install()
    folder = item.config.getoption("--keep-models")
    if folder:
        _kept = Path(folder)
        _kept.mkdir(parents=True, exist_ok=True)
    found: list[str] = []
    _failures = found
    try:
        result = yield
    finally:
        _failures = None
    assert not found, f"{len(found)} models do not come back from ONNX; the first: {found[0]}"
    return result
