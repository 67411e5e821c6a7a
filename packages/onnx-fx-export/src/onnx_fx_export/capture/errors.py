"""What torch.export raises, in the user's terms: what it is, where, and what to do."""

from __future__ import annotations

import linecache
import re
import traceback

import sympy
import torch

from onnx_fx_export.capture.conditions.branches import cond_for, decides
from onnx_fx_export.errors import CaptureError, DynamicShapeError
from onnx_fx_export.torch_private import dimension_facts, is_dimension_error, is_users_code, undecided_condition

__all__ = ["capture_error", "scripted_part_error"]


# How torch says that an argument is of a class that it does not know.
_ARGUMENTS = ("Unsupported input type <class", "Unfamiliar meta val")
# How it says so of what the model returns.
_RESULT = re.compile(r"Found <class '(?:[\w.]*\.)?(\w+)'> in output, which is not a known type")


def capture_error(error: Exception, place: str = "") -> CaptureError | DynamicShapeError:
    """Return what to tell the user of an error of torch.export.

    Args:
        error: What torch raised.
        place: ``file:line`` of the code concerned; if empty, that of the innermost frame that is not torch's.
    """
    if is_dimension_error(error):
        facts, suggested, is_condition = dimension_facts(error)
        return DynamicShapeError.fixed(facts[:8], suggested, is_condition=is_condition)
    text = str(error)
    place = place or _user_line(error)
    where = f" at {place}" if place else ""
    condition = undecided_condition(error)
    if condition is not None:
        about = _about_branch(place) if _asks_for_truth(condition, place) else _about_size(place)
        return CaptureError(f"{about}\ntorch.export says: {text.splitlines()[0]}")
    if "User output nan" in text:
        return CaptureError(
            "The model returns the number nan, which torch.export takes for no output. Return a tensor instead: "
            'torch.tensor(float("nan")).'
        )
    if (result := _RESULT.search(text)) is not None:
        return CaptureError(
            f"The model returns a {result[1]}; ONNX has only tensors, and numbers as tensors. A class of your own that "
            "holds tensors may be a dataclass."
        )
    if "is mutated in the forward method" in text:
        return CaptureError(
            f"The model changes a tensor{where} that is no buffer of it, as those of a module that it keeps in a list, "
            "a dict or a closure. Keep modules in attributes, torch.nn.ModuleList or torch.nn.ModuleDict."
        )
    if any(said in text for said in _ARGUMENTS):
        if "numpy.ndarray" in text:
            return CaptureError("An argument of the model is a NumPy array. Give a tensor, as torch.from_numpy(x) is.")
        where = f"{where}: it takes tensors, numbers, texts and None as arguments. Bind what is none of these before"
        where += " the export, as in functools.partial(model, dtype=torch.float16)"
    head = "\n".join(text.splitlines()[:12])
    return CaptureError(f"torch.export cannot capture the model{where} ({type(error).__name__}):\n{head}")


def scripted_part_error(model: torch.nn.Module) -> CaptureError | None:
    """Return what to tell the user of a model that could not be captured and has a scripted part; None if it has none.

    torch.export calls what it captures, and cannot look into TorchScript.
    """
    scripted = (path for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule))
    path = next(scripted, None)
    if path is None:
        return None
    return CaptureError(
        f"The submodule {path!r} is scripted, and torch.export cannot look into TorchScript. Replace it with the "
        "module that it was scripted from, or let the TorchScript exporter take the model (dynamo=False, "
        "fallback=True)."
    )


def _asks_for_truth(condition: sympy.Basic, place: str) -> bool:
    """Tell whether data decides which way the code at a place takes, or else how large something is there."""
    file, _, line = place.rpartition(":")
    # The truth of a tensor is a symbol of its own, which is compared with 1.
    is_truth = isinstance(condition, sympy.Eq) and condition.rhs == 1 and condition.lhs.is_Symbol
    return not file or decides(file, int(line)) or is_truth


def _shown(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f" at {place}:\n  {linecache.getline(file, int(line)).strip()}\n" if file else ".\n"


def _about_size(place: str) -> str:
    """Return what to do about code at a place that needs to know a size that data decides."""
    return (
        "The model takes a size from the values of a tensor, and torch.export has to know more about "
        f"it{_shown(place)}Compute with sizes as numbers: x.shape[1] // 2, not torch.div(x.shape[1], 2, ...). "
        "Where the data decides, state the bounds as soon as the number is known: n = lengths.max().item(); "
        "torch._check(n >= 0); torch._check(n <= x.shape[1])."
    )


def _about_branch(place: str) -> str:
    """Return what to do about code at a place that decides by data."""
    file, _, line = place.rpartition(":")
    rewrite = cond_for(file, int(line)) if file else ""
    general = "torch.cond(condition, when_true, when_false, (x,))   instead of   if condition: ... else: ..."
    return (
        f"The model branches on the values of a tensor{_shown(place)}One graph can hold both branches only if the "
        f"code says so. Write\n  {rewrite or general}\nFor a loop that the data ends, use torch.while_loop(...); "
        "for a size read from data, state its bounds with torch._check(...). onnx_ts_legacy.export takes a "
        "scripted model with such ifs as it is."
    )


def _user_line(error: Exception) -> str:
    """Return ``file:line`` of the innermost frame that belongs to the user, or an empty string."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_code(frame.filename, frame.name)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
