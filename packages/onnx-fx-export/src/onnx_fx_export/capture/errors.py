"""What torch.export raises, told in the user's terms: what it is, where, and what to do."""

from __future__ import annotations

import linecache
import re
import traceback

from torch.nn.utils import rnn

from onnx_fx_export.capture.branches import cond_for, decides
from onnx_fx_export.errors import CaptureError, DynamicShapeError
from onnx_fx_export.torch_private import not_the_users

__all__ = ["capture_error", "is_dimension_error"]


def is_dimension_error(error: Exception) -> bool:
    """Tell whether torch.export found a dimension other than it was declared."""
    text = str(error)
    return "Constraints violated" in text or "0/1 specialized" in text or ("marked" in text and "dynamic" in text)


def capture_error(error: Exception, place: str = "") -> CaptureError | DynamicShapeError:
    """Return what to tell the user of an error of torch.export.

    Args:
        error: What torch raised.
        place: ``file:line`` of the code concerned; if empty, that of the innermost frame that is not torch's.
    """
    text = str(error)
    if is_dimension_error(error):
        facts = [line.strip(" -") for line in text.splitlines() if re.search(r"L\[|marked|inferred|constant", line)]
        suggested = [match[0].strip() for match in re.finditer(r"^\s*\w+ = .*\bDim\(.*$", text, re.MULTILINE)]
        return DynamicShapeError.fixed(list(dict.fromkeys(map(_plain, facts)))[:8], suggested)
    place = place or _user_line(error)
    where = f" at {place}" if place else ""
    if _packs_sequences(error):
        return CaptureError(_PACKED.format(where=where))
    if "data-dependent" in text:
        about = _about_branch(place) if _asks_for_truth(text, place) else _about_size(place)
        return CaptureError(f"{about}\ntorch.export says: {text.splitlines()[0]}")
    head = "\n".join(text.splitlines()[:12])
    return CaptureError(f"torch.export cannot capture the model{where} ({type(error).__name__}):\n{head}")


_PACKED = (
    "The model packs sequences of several lengths (torch.nn.utils.rnn.pack_padded_sequence){where}, and the sizes of a "
    "packed sequence are numbers in a tensor, which torch.export cannot capture.\n"
    "Run the recurrent layer on the padded batch instead. In one direction its result up to each length is the same: "
    "put zeros behind it with torch.where, and read the last state at lengths - 1 with gather. Else hand the model to "
    "the TorchScript exporter, which takes it as it is: pass dynamo=False or fallback=True (needs onnx-ts-legacy)."
)


def _packs_sequences(error: Exception) -> bool:
    """Tell whether code that handles a packed sequence raised an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = (value for frame in frames for value in frame.f_locals.values())
    packs = any(frame.f_code.co_filename == rnn.__file__ for frame in frames)
    return packs or any(isinstance(value, rnn.PackedSequence) for value in values)


def _asks_for_truth(text: str, place: str) -> bool:
    """Tell whether data decides which way the code at a place takes, or else how large something is there."""
    file, _, line = place.rpartition(":")
    return not file or decides(file, int(line)) or re.search(r"Eq\([uz]\d+, 1\)", text.splitlines()[0]) is not None


def _shown(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f" at {place}:\n  {linecache.getline(file, int(line)).strip()}\n" if file else ".\n"


def _about_size(place: str) -> str:
    """Return what to do about code at a place that needs to know a size that data decides."""
    return (
        f"The model takes a size from the values of a tensor, and more has to be known of it{_shown(place)}"
        "What follows from sizes is best computed of numbers: x.shape[1] // 2, and not torch.div(x.shape[1], 2, ...). "
        "Where the data decides, state the bounds as soon as the number is there: n = lengths.max().item(); "
        "torch._check(n >= 0); torch._check(n <= x.shape[1])."
    )


def _about_branch(place: str) -> str:
    """Return what to do about code at a place that decides by data."""
    file, _, line = place.rpartition(":")
    rewrite = cond_for(file, int(line)) if file else ""
    general = "torch.cond(condition, when_true, when_false, (x,))   instead of   if condition: ... else: ..."
    return (
        f"The model decides by the values of a tensor{_shown(place)}"
        f"One graph holds both ways only if the code says so. Write\n  {rewrite or general}\n"
        "A loop that data ends is torch.while_loop(...), and a size read from data needs torch._check(...) for its "
        "bounds. onnx_ts_legacy.export takes a scripted model with such ifs as it is."
    )


def _plain(fact: str) -> str:
    """Shorten what torch says of a dimension to the fact; its advice is for another function's arguments."""
    return re.split(r"(?<=\)\.)? If you're using|! For more information", fact)[0]


def _user_line(error: Exception) -> str:
    """Return ``file:line`` of the innermost frame that belongs to the user, or an empty string."""
    own = not_the_users()
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((*own, "<"))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
