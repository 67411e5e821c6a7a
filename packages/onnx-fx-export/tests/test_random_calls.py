"""Random calling conventions: file and program give what the model gives, under the names that were asked for."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from both_exporters import TRACING
from random_calls import RandomCall, leaves

from onnx_fx_export import OnnxExporterError

BLOCK = 12
# The block that is run by default has met faults.
BLOCKS = [pytest.param(n, marks=[] if n == 2 else [pytest.mark.wide]) for n in range(40)]


def shapes(value: Any) -> Any:
    """Return the declaration that each tensor in a structure has a dynamic number of rows."""
    if isinstance(value, torch.Tensor):
        return {0: "rows"}
    if isinstance(value, dict):
        return {key: shapes(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [shapes(part) for part in value]
    return {name: shapes(part) for name, part in vars(value).items()} if hasattr(value, "first") else None


def in_file_order(model: torch.nn.Module, exporter: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors of a call in the order of the inputs: of the call, or with TorchScript of the signature."""
    if exporter != "fx":
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
        args, kwargs = (), bound.arguments
    return [leaf for leaf in leaves([*args, *kwargs.values()]) if isinstance(leaf, torch.Tensor)]


def same(given: list[Any], expected: list[Any], source: str) -> None:
    assert len(given) == len(expected), source
    for one, other in zip(map(torch.as_tensor, given), expected, strict=True):
        is_number = not isinstance(other, torch.Tensor)
        expected_one = torch.as_tensor(other)
        assert one.is_floating_point() == expected_one.is_floating_point(), source
        torch.testing.assert_close(one, expected_one, check_dtype=not is_number, msg=lambda text: f"{text}\n{source}")


def check(seed: int, exporter: str) -> bool:
    """Export a model, and compare at two sizes; return whether it was exported."""
    call = RandomCall(seed)
    model, example = call.model(), call.values(4)
    args, kwargs = call.form(example)
    inputs, outputs = in_file_order(model, exporter, args, kwargs), leaves(model(*args, **kwargs))
    given = {"input_names": call.names(len(inputs)), "output_names": call.names(len(outputs))}
    dynamic = {"dynamic_shapes": shapes(example)} if call.random.random() < 0.6 else {}
    try:
        program = TRACING[exporter](model, copy.deepcopy(args), kwargs=copy.deepcopy(kwargs), **given, **dynamic)
    except OnnxExporterError:
        return False
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [value.name for value in session.get_inputs()]
    assert names == program.input_names
    assert len({*names, *program.output_names}) == len(inputs) + len(outputs), call.source
    assert program.output_names[: len(given["output_names"])] == given["output_names"], call.source
    by_position = [*inspect.signature(model.forward).parameters][: len(args)]
    for rows in (4, 7) if dynamic else (4,):
        values = call.values(rows)
        fed = in_file_order(model, exporter, [values[name] for name in by_position], {k: values[k] for k in kwargs})
        results = session.run(None, {name: value.numpy() for name, value in zip(names, fed, strict=True)})
        for _ in range(2):
            args, keywords = call.form(values)
            with torch.no_grad():
                expected = leaves(model(*args, **keywords))
            same([*map(torch.from_numpy, map(np.array, results))], expected, call.source)
            same(leaves(program(*args, **keywords)), expected, call.source)
    return True


@pytest.mark.parametrize("block", BLOCKS)
def test_each_calling_convention_is_honoured_or_refused(block: int) -> None:
    exporters = [*TRACING]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = [check(seed, exporters[seed % 3]) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert sum(exported) >= BLOCK // 2
