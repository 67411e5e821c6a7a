"""What the tests of the exporter share: running a model, and where the scripted speech model lies."""

from __future__ import annotations

import importlib.util
import re
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch.utils import _pytree as pytree

import onnx_ts_legacy
from onnx_ts_legacy import TSProgram
from onnx_ts_legacy.errors import UnsupportedOperatorsError

__all__ = [
    *("OPSETS", "agree", "exported", "n", "over_opsets", "refused_below", "run", "scripted_program", "silero_path"),
    "speech",
]

OPSETS = range(7, 27)


def silero_path() -> Path | None:
    """The scripted model in the package silero-vad, which is read without importing the package."""
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "silero_vad.jit"
    return path if path.exists() else None


def scripted_program(folder: Path, parameters: str, body: str) -> torch.jit.ScriptFunction:
    """The scripted function with this text, which TorchScript reads from a file."""
    path = folder / "program.py"
    imports = "import math\nimport torch\nimport torch.nn.functional as F"
    path.write_text(f"{imports}\n\ndef program({parameters}):\n{textwrap.indent(body, '    ')}\n")
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return torch.jit.script(module.program)


def speech(samples: int, rate: int) -> torch.Tensor:
    """A voice-like signal: a gliding pulse train through two resonances, in bursts between noise."""
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(samples) / rate
    pitch = 120 + 30 * torch.sin(2 * torch.pi * 0.7 * time)
    phase = 2 * torch.pi * torch.cumsum(pitch, 0) / rate
    voice = sum(torch.sin(k * phase) * torch.exp(torch.tensor(-(((k * 120 - 700) / 600) ** 2))) for k in range(1, 25))
    bursts = (torch.sin(2 * torch.pi * 1.5 * time) > -0.2).float()
    return 0.1 * voice * bursts + 0.003 * torch.randn(samples, generator=generator)


def run(proto: onnx.ModelProto, feeds: Mapping[str, Any], optimized: bool = True) -> list[np.ndarray]:
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def n(*sizes: int) -> torch.Tensor:
    """Return normal numbers that are the same in every process."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def agree(program: TSProgram, model: Any, *examples: Sequence[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Assert that the program computes what the model does, dtypes and shapes included, for every example."""
    proto = program.model_proto
    onnx.checker.check_model(proto, full_check=True)
    for example in examples:
        own = [x.clone() if isinstance(x, torch.Tensor) else x for x in example]
        with torch.no_grad():
            result = model(*own)
        leaves = [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(result) if leaf is not None]
        is_scripted = isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction)
        kinds = (torch.Tensor, bool, int, float) if is_scripted else (torch.Tensor,)
        inputs = [leaf for leaf in pytree.tree_leaves(list(example)) if isinstance(leaf, kinds)]
        feeds = {name: np.asarray(value) for name, value in zip(program.input_names, inputs, strict=True)}
        outputs = [torch.from_numpy(np.array(output)) for output in run(proto, feeds)]
        assert len(outputs) == len(leaves)
        for actual, expected in zip(outputs, leaves, strict=True):
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def exported(model: Any, *examples: Sequence[Any], opset: int = 17, **options: Any) -> TSProgram:
    """Export with the first example and assert that all agree."""
    program = onnx_ts_legacy.export(model, tuple(examples[0]), opset_version=opset, **options)
    declared = {entry.domain: entry.version for entry in program.model_proto.opset_import}
    assert declared[""] == opset
    agree(program, model, *examples)
    return program


def over_opsets(cases: Mapping[str, Any], lowest: Mapping[str, int] | None = None) -> list[Any]:
    """Return a case, the lowest opset that can express it and an opset, for every case and opset.

    The default run takes three opsets or so of each case, by turns, so that every opset is met; the wide one the rest.
    """
    assert set(lowest or {}) <= set(cases)
    found = []
    for index, (name, case) in enumerate(cases.items()):
        first = (lowest or {}).get(name, OPSETS[0])
        for opset in OPSETS:
            marks = [] if (opset + 3 * index) % 7 == 0 else [pytest.mark.wide]
            found.append(pytest.param(case, first, opset, marks=marks, id=f"{name}-{opset}"))
    return found


@contextmanager
def refused_below(lowest: int, opset: int) -> Iterator[None]:
    """Run what exports at an opset; below ``lowest`` it has to be refused, and an opset that it needs named."""
    if opset >= lowest:
        yield
        return
    with pytest.raises(UnsupportedOperatorsError) as caught:
        yield
    needed = [re.search(r"the lowest opset that works is (\d+)", call.reason) for call in caught.value.calls]
    assert all(needed), str(caught.value)
    assert all(opset < int(found[1]) <= lowest for found in needed if found), str(caught.value)


def in_another_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns that another thread calls."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]
