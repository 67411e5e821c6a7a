"""The capture of models that ask what their weights hold, as ``if self.initialized:`` does.

torch.export knows no values of weights. Such a question has one answer for the weights that the model has, if it writes
to none of them. The graph holds that answer, of which the user is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from onnx_fx_export.capture.torch_export import Recorded, Run, record
from onnx_fx_export.capture.torch_private import note_value
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.trial_runs import used_nodes
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import written_inputs

__all__ = ["has_small_weights", "record_with_known_weights", "warn_of_known_weights"]

# What code asks for is a flag, a count, or what is computed of as many numbers as there are classes or codes.
_MOST_ELEMENTS = 4096
_MOST_NAMES = 5


def has_small_weights(model: torch.nn.Module) -> bool:
    """Tell whether a model has weights that its code may ask for."""
    return bool(_small_weights(model))


def record_with_known_weights(model: torch.nn.Module, run: Callable[..., Run]) -> Recorded:
    """Capture with what the small weights of the model hold.

    Args:
        model: The model.
        run: Makes a run of torch.export.

    Raises:
        Exception: What torch.export raises, if it is for another reason.
        CaptureError: If the model writes to one of these weights, so that later calls may have other answers.
    """
    recorded = record(run(around=_known(model)))
    places = _places(recorded.program, _small_weights(model))
    if written := [name for node, name in places.items() if node in written_inputs(recorded.program.graph)]:
        raise CaptureError(f"The model writes to {written[0]}, whose value decides what it does.")
    return recorded


def warn_of_known_weights(model: torch.nn.Module, program: torch.export.ExportedProgram) -> None:
    """Tell the user which weights may have decided what a program does: those that are for nothing else, if any are."""
    places, used = _places(program, _small_weights(model)), used_nodes(program.graph)
    names = [name for node, name in places.items() if node not in used] or [*places.values()]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    warn_user(
        f"The code of the model asks what weights hold ({', '.join(names[:_MOST_NAMES])}{more}). The exported model "
        "does what it does for their present values: export it anew where these change."
    )


def _places(program: torch.export.ExportedProgram, weights: Iterable[str]) -> dict[torch.fx.Node, str]:
    """Return the placeholders of some weights, and their names."""
    wanted = frozenset(weights)
    placeholders = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
    return {node: str(spec.target) for node, spec in placeholders if spec.target in wanted}


def _small_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of few elements by name, without the counts of batches, which nothing but training reads."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {
        name: weight
        for name, weight in named
        if weight.numel() <= _MOST_ELEMENTS and not name.endswith("num_batches_tracked")
    }


@contextlib.contextmanager
def _known(model: torch.nn.Module) -> Iterator[None]:
    """Let what stands for small weights while the model is captured know their values."""
    values = {name: weight.detach().clone() for name, weight in _small_weights(model).items()}

    def note(module: torch.nn.Module, args: Any) -> None:
        for name, stand_in in _small_weights(module).items():
            if name in values:
                note_value(stand_in, values[name])

    handle = model.register_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()
