"""The verdict on one class: both exports, their values at other sizes, the way back, and torch.onnx beside them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

import onnx_fx_export
from onnxops_decomp import to_torch
from tools.architectures.inputs import FORMS, NotBuiltError, inputs_of
from tools.architectures.small import small_model

__all__ = ["Call", "Verdict", "judged"]

# Of the example, and of the two calls that are compared: a batch and a length each.
_EXAMPLE, _OTHERS = (2, 12), ((3, 15), (1, 9))
_OPSET = 20
# How many times as far from the results in double precision as eager PyTorch's another result may be.
_FARTHER = 2.0
Inputs = Mapping[str, torch.Tensor]


@dataclasses.dataclass
class Verdict:
    """What became of a class.

    Attributes:
        library: Where the class is from.
        name: Its name.
        verdict: ``right``, ``static`` (right with static sizes only), ``wrong``, ``refused``, ``no end``, or
            ``not built``.
        reason: Why it is not ``right``.
        strategy: The strategy that captured it.
        nodes: The number of nodes of the dynamic model, or else the static one.
        seconds: What the dynamic export took.
        capture: What torch.export alone took, with the same dimensions.
        torch_onnx: The verdict on torch.onnx, if it was asked for.
        imported: The verdict on the exported model as a module of torch again, if it was asked for.
    """

    library: str
    name: str
    verdict: str = "right"
    reason: str = ""
    strategy: str | None = None
    nodes: int | None = None
    seconds: float | None = None
    capture: float | None = None
    torch_onnx: str | None = None
    imported: str | None = None


@dataclasses.dataclass
class Call:
    """A call of a class.

    Attributes:
        model: The model.
        inputs: Its inputs.
        wanted: What it gives.
    """

    model: torch.nn.Module
    inputs: Inputs
    wanted: list[torch.Tensor]

    def difference(self, found: list[torch.Tensor]) -> str:
        """Say in which result other results differ by more than rounding does; an empty string if in none."""
        text = _difference(found, self.wanted)
        return "" if text and self._rounds(found) else text

    def _rounds(self, found: list[torch.Tensor]) -> bool:
        """Tell whether results are about as near to those in double precision as the model's own."""
        try:
            exact = _tensors(copy.deepcopy(self.model).double(), {n: _doubled(x) for n, x in self.inputs.items()})
        except Exception:
            return False
        if [x.shape for x in found] != [x.shape for x in exact] or len(self.wanted) != len(exact):
            return False
        return all(
            _distance(ours, true) <= _FARTHER * _distance(eager, true)
            for ours, eager, true in zip(found, self.wanted, exact, strict=True)
            if _difference([ours], [eager])
        )


def judged(library: str, name: str, *, timed: bool = True, beside: bool = False, imported: bool = False) -> Verdict:
    """Judge a class.

    Args:
        library: Where it is from.
        name: Its name.
        timed: Whether torch.export alone is measured.
        beside: Whether torch.onnx is judged, too.
        imported: Whether what was exported is imported and compared with the class, too.
    """
    result = Verdict(library, name)
    try:
        model = small_model(library, name, lambda model: _form(library, model))
        form = _form(library, model)
        example, dims = inputs_of(library, model, *_EXAMPLE, form)
        calls = _calls(library, model, example, form)
        expected = [Call(model, inputs, _tensors(model, inputs)) for inputs in calls]
        if text := _difference(_tensors(model, example), expected[0].wanted):
            raise NotBuiltError(f"eager draws random numbers: in two calls, {text}")
    except NotBuiltError as error:
        result.verdict, result.reason = "not built", str(error)
        return result
    except Exception as error:
        result.verdict, result.reason = "not built", f"eager fails: {_line(error)}"
        return result
    with _quiet():
        program = _judge(result, model, example, dims, expected)
        if imported and program is not None:
            result.imported = _imported(program, expected if result.verdict == "right" else expected[:1])
        if timed:
            marked = _marked(dims)
            result.capture = _seconds(lambda: torch.export.export(model, (), dict(example), dynamic_shapes=marked))
        if beside:
            result.torch_onnx = _torch_onnx(model, example, dims, expected)
    return result


def _form(library: str, model: torch.nn.Module) -> int:
    """Return the first layout of the inputs that a model runs on.

    Raises:
        Exception: What it does with the usual layout, if it runs on none.
    """
    first: Exception | None = None
    for form in range(FORMS):
        try:
            _tensors(model, inputs_of(library, model, *_EXAMPLE, form)[0])
        except Exception as error:
            first = first or error
        else:
            return form
    assert first is not None
    raise first


def _calls(library: str, model: torch.nn.Module, example: Inputs, form: int) -> Iterator[Inputs]:
    """Yield the inputs of the comparisons: the example, and those of other sizes."""
    yield example
    for batch, length in _OTHERS:
        yield inputs_of(library, model, batch, length, form)[0]


def _judge(
    result: Verdict,
    model: torch.nn.Module,
    example: Inputs,
    dims: Mapping[str, Mapping[int, str]],
    expected: list[Call],
) -> Any:
    """Fill in the verdict; return the program that is right, dynamic or static, or None."""
    try:
        start = time.perf_counter()
        program = onnx_fx_export.export(model, kwargs=dict(example), dynamic_shapes=dims, opset_version=_OPSET)
        result.seconds = round(time.perf_counter() - start, 2)
    except Exception as error:
        result.verdict, result.reason = "refused", _line(error)
    else:
        _describe(result, program)
        result.verdict, result.reason = _compared(program, expected)
        if result.verdict == "right":
            return program
    if result.verdict == "refused":
        with contextlib.suppress(Exception):
            program = onnx_fx_export.export(model, kwargs=dict(example), opset_version=_OPSET)
            if _compared(program, expected[:1])[0] == "right":
                _describe(result, program)
                result.verdict = "static"
                return program
    return None


def _imported(program: Any, expected: list[Call]) -> str:
    """Return the verdict on an exported model as a module of torch again."""
    try:
        module = to_torch(program.model_proto)
        names = module.meta["onnx"]["inputs"]
    except Exception as error:
        return f"refused: {_line(error)}"
    verdict, reason = _compared(lambda **inputs: module(*(inputs[name] for name in names)), expected)
    return f"{verdict}: {reason}" if reason else verdict


def _describe(result: Verdict, program: Any) -> None:
    result.nodes = sum(1 for _ in program.model.graph.all_nodes())
    result.strategy = program.capture_strategy


def _compared(program: Any, expected: list[Call]) -> tuple[str, str]:
    for call in expected:
        sizes = [tuple(value.shape) for value in call.inputs.values()]
        try:
            found = _tensors(program, call.inputs)
        except Exception as error:
            return "refused", f"at {sizes}: {_line(error)}"
        if text := call.difference(found):
            return "wrong", f"at {sizes}: {text}"
    return "right", ""


def _difference(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} outputs, not {len(wanted)}"
    for index, (ours, eager) in enumerate(zip(found, wanted, strict=True)):
        if ours.shape != eager.shape or ours.dtype != eager.dtype:
            return f"output {index} is {ours.dtype} {tuple(ours.shape)}, not {eager.dtype} {tuple(eager.shape)}"
        if not eager.numel():
            continue
        scale = float(eager.double().nan_to_num(posinf=0, neginf=0).abs().max())
        if not torch.allclose(ours.double(), eager.double(), rtol=1e-3, atol=1e-4 * max(scale, 1.0), equal_nan=True):
            return f"output {index} differs by {float((ours.double() - eager.double()).abs().max()):.2g}"
    return ""


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def _torch_onnx(
    model: torch.nn.Module,
    example: Inputs,
    dims: Mapping[str, Mapping[int, str]],
    expected: list[Call],
) -> str:
    """Return the verdict on ``torch.onnx.export`` of the same call."""
    import onnxruntime

    try:
        shapes = _marked(dims)
        exported = torch.onnx.export(model, (), kwargs=dict(example), dynamic_shapes=shapes, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString())  # type: ignore[union-attr]
        names = [value.name for value in session.get_inputs()]
        for call in expected:
            feeds = {name: call.inputs[name].numpy() for name in names}
            found = [torch.from_numpy(value) for value in session.run(None, feeds)]
            if text := call.difference(found):
                return f"wrong: {text}"
    except Exception as error:
        return f"refused: {_line(error)}"
    return "right"


def _marked(dims: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, Any]]:
    return {name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for name, axes in dims.items()}


def _seconds(run: Callable[[], object]) -> float | None:
    start = time.perf_counter()
    try:
        run()
    except Exception:
        return None
    return round(time.perf_counter() - start, 2)


def _tensors(model: Callable[..., Any], inputs: Inputs) -> list[torch.Tensor]:
    with torch.no_grad():
        result = model(**{name: value.clone() for name, value in inputs.items()})
    # Numbers are outputs of a file, too.
    kinds = (torch.Tensor, bool, int, float)
    return [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(_plain(result)) if isinstance(leaf, kinds)]


def _plain(result: Any) -> Any:
    """Return a result with dictionaries in place of the classes of transformers."""
    if isinstance(result, Mapping):
        return {key: _plain(value) for key, value in result.items()}
    return tuple(map(_plain, result)) if isinstance(result, list | tuple) else result


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def _line(error: BaseException) -> str:
    """Return what kind of error it is, and what it says first, in one line without paths."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = " ".join(lines[:3])
    words = [word.rpartition("/")[2] if "/" in word else word for word in text.split()]
    return f"{type(error).__name__}: {' '.join(words)}"[:240]
