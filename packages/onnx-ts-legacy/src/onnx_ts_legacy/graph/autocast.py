"""Autocast in TorchScript: a trace holds the casts of operators, and not those that are made inside one."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import CaptureError
from onnx_ts_legacy.graph.parts import all_nodes
from onnx_ts_legacy.graph.sources import user_frame
from onnxops_core.exporting import Replacements, active_autocasts, replaced
from onnxops_decomp.exporting import casts_unseen, has_autocast_kernel, is_composite

__all__ = ["Autocasts", "TracedAutocast", "autocasts_of", "cast_scripted", "may_cast_inside"]

# Types of devices, each with the dtype that is cast to.
Autocasts = tuple[tuple[str, torch.dtype], ...]

_MARK = "autocast"
_CALLS = ("prim::CallFunction", "prim::CallMethod")
_SWITCHES = ("set_autocast_enabled", "set_autocast_dtype")


def autocasts_of(node: Any) -> Autocasts:
    """Return under which autocast a node was traced."""
    if not node.hasAttribute(_MARK):
        return ()
    pairs = (text.split(":") for text in node.s(_MARK).split())
    return tuple((device, getattr(torch, dtype)) for device, dtype in pairs)


def may_cast_inside(overload: torch._ops.OpOverload) -> bool:
    """Tell whether autocast may cast in a call: it has a rule for the operator, or for what the operator calls.

    What gives out its operand casts nothing. The answer is not kept: a program may give its operators a rule meanwhile.
    """
    if overload._schema.is_mutable or any(result.alias_info for result in overload._schema.returns):
        return False
    known = is_composite(overload) or casts_unseen(overload)
    return known or any(has_autocast_kernel(overload, device) for device in ("cpu", "cuda"))


class TracedAutocast:
    """Marks the nodes of a trace with the autocast that is on where they are recorded."""

    def __init__(self) -> None:
        self._count = 0
        self._marks: set[str] = set()
        # The first line that calls something scripted under autocast.
        self._call = ""
        self._is_switched = False

    def begin(self, tensors: Sequence[torch.Tensor]) -> None:
        """Start with a new trace of these inputs."""
        self._count, self._marks, self._call, self._is_switched = 0, set(), "", False

    def note(self) -> None:
        """Mark what was recorded since the last time; called before autocast is switched, and at the end."""
        autocasts = active_autocasts()
        if not private.traces() or not (autocasts or self._is_switched):
            return
        # A trace is recorded in this order, calls of modules as blocks.
        nodes = list(all_nodes(private.traced_graph()))
        mark = " ".join(f"{device}:{str(dtype).removeprefix('torch.')}" for device, dtype in autocasts)
        for node in nodes[self._count :]:
            if not node.kind().startswith("aten::") and node.kind() not in _CALLS:
                continue
            self._marks.add(mark)
            if mark and node.kind() in _CALLS:
                frame = user_frame()
                self._call = self._call or (f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "a line")
            if mark:
                node.s_(_MARK, mark)
        self._count = len(nodes)

    def inline_calls(self, graph: Any) -> None:
        """Replace calls of scripted functions by what they do, which is under autocast as the calls are.

        Raises:
            CaptureError: If only a part of the model is under autocast, so that it is not known which calls are.
        """
        private.inline_calls(graph)
        if not self._call:
            return
        if len(self._marks) > 1:
            raise CaptureError(
                "The model itself enters torch.autocast and calls a scripted function or module in it (at "
                f"{self._call}). Enter autocast around the export instead, or call the Python function."
            )
        (mark,) = self._marks
        for node in all_nodes(graph):
            if node.kind().startswith("aten::"):
                node.s_(_MARK, mark)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Note in the body where this thread switches autocast."""
        before = getattr(_active, "noted", None)
        _active.noted = self
        try:
            with replaced(_NOTING, in_all_threads=True):
                yield
        finally:
            _active.noted = before

    def note_switch(self) -> None:
        """Take note that autocast is about to be switched."""
        self._is_switched = True
        self.note()


def _noting(switch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(switch)
    def switched(*args: Any, **kwargs: Any) -> Any:
        noted: TracedAutocast | None = getattr(_active, "noted", None)
        if noted is not None:
            noted.note_switch()
        return switch(*args, **kwargs)

    return switched


_active = threading.local()
_NOTING = Replacements((torch, name, _noting) for name in _SWITCHES)


def cast_scripted(graph: Any) -> None:
    """Insert the casts that TorchScript makes where a scripted program enters autocast.

    Raises:
        CaptureError: If it enters it in a way that TorchScript does not know before it runs.
    """
    if not graph.findAllNodes("prim::Enter"):
        return
    try:
        private.insert_casts(graph)
    except RuntimeError as error:
        raise CaptureError(f"TorchScript refuses the way in which the program uses torch.autocast: {error}.") from error
