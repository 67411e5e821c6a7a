"""What tensors hold, kept while a model runs on them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onnxops_core.exporting import original
from onnxops_decomp.torch_private import is_without_data, unwatched

__all__ = ["KeptContents", "restored_contents"]

_SETS_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
# Functions that write to an operand and have no name that says so.
_WRITERS = re.compile("__setitem__|batch_norm|instance_norm|fake_quant|multi_tensor|_foreach")

# Those of them that write to what they are given only if an argument is true, which all forms of them have at a place.
_TRAINING, _PLACE = {"batch_norm": "training", "instance_norm": "use_input_stats"}, 5


class KeptContents(TorchFunctionMode):
    """Copies what tensors hold before a function first writes to them, and nothing of the others.

    Args:
        tensors: The tensors.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        strided = [tensor for tensor in tensors if tensor.layout is torch.strided and not is_without_data(tensor)]
        self._versions = {id(x): (x, x._version) for x in strided if not x.is_inference()}
        self._watched = {tensor.untyped_storage().data_ptr() for tensor in strided if tensor.numel()}
        self._copies = _Copies()
        self._writers: dict[Any, bool] = {}
        # Where calls are captured, detach() would give a tensor without data.
        self._before = {id(tensor): (tensor, tensor.detach()) for tensor in strided}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and copy before what it may write to.

        Raises:
            TypeError: If a tensor that has data is given the memory of one without.
        """
        kwargs = kwargs or {}
        # Dynamo reads this code as well, where nothing has data.
        if not torch.compiler.is_dynamo_compiling():
            self.keep(func, args, kwargs)
        return func(*args, **kwargs)

    def keep(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Copy what a call of a function of torch may write to; for modes that see the calls in place of this one.

        Raises:
            TypeError: If a tensor that has data is given the memory of one without.
        """
        if func == _SETS_DATA and id(args[0]) in self._before and is_without_data(args[1]):
            raise TypeError("no export follows an assignment to the data of a tensor; write x.copy_(...)")
        writes = self._writers.get(func)
        if writes is None:
            writes = self._writers[func] = _may_write(func)
        if (writes and not _only_normalizes(func, args, kwargs)) or "out" in kwargs:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not is_without_data(leaf):
                    self._keep(leaf.untyped_storage())

    def _keep(self, storage: torch.UntypedStorage) -> None:
        if storage.data_ptr() in self._watched:
            self._copies.keep(storage)

    def written(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor was written to since :meth:`restore`, itself or as memory of another one."""
        known, version = self._versions.get(id(tensor), (None, 0))
        with unwatched():
            return known is not None and known._version != version

    def restore(self) -> None:
        """Put the copies back, and the memory and sizes that ``x.data = ...``, ``set_`` and their like took away."""
        with unwatched():
            _restore_places(self._before.values())
            self._copies.restore()
            self._versions = {key: (tensor, tensor._version) for key, (tensor, _) in self._versions.items()}


@contextmanager
def restored_contents(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Give tensors what they hold back in the end, whoever writes to them meanwhile.

    All of them are copied, unlike by :class:`KeptContents`: code asks whether a mode is on, and what it compiles under
    one is not compiled again.

    Args:
        tensors: The tensors.
    """
    strided = [tensor for tensor in tensors if tensor.layout is torch.strided and not is_without_data(tensor)]
    before = [(tensor, tensor.detach()) for tensor in strided]
    copies = _Copies()
    for tensor in strided:
        copies.keep(tensor.untyped_storage())
    try:
        yield
    finally:
        _restore_places(before)
        copies.restore()


def _restore_places(before: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give tensors their memory, sizes and strides back, which other tensors hold."""
    stride = original(torch.Tensor, "stride")
    for tensor, own in before:
        if tensor.data_ptr() != own.data_ptr() or tensor.shape != own.shape or stride(tensor) != stride(own):
            tensor.data = own


class _Copies:
    """What memory held before it was first written to."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.UntypedStorage, Any]] = {}

    def keep(self, storage: torch.UntypedStorage) -> None:
        if (address := storage.data_ptr()) not in self._kept:
            # Where calls are captured, torch copies nothing.
            on_cpu = storage.device.type == "cpu"
            self._kept[address] = storage, ctypes.string_at(address, storage.nbytes()) if on_cpu else storage.clone()

    def restore(self) -> None:
        for storage, copy in self._kept.values():
            size = len(copy) if isinstance(copy, bytes) else copy.nbytes()
            if storage.nbytes() < size:
                storage.resize_(size)
            if isinstance(copy, bytes):
                ctypes.memmove(storage.data_ptr(), copy, len(copy))
            else:
                storage.copy_(copy)


def _only_normalizes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call normalizes with statistics that it is given, which it writes to in training only."""
    name = _TRAINING.get(getattr(func, "__name__", ""))
    if name is None:
        return False
    return (args[_PLACE] if len(args) > _PLACE else kwargs.get(name)) is False


def _may_write(func: Any) -> bool:
    """Tell whether a function may write to what it is given: operators say so, nearly all, and names of others do."""
    name = str(getattr(func, "__name__", func))
    if _WRITERS.search(name):
        return True
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.is_mutable
    if isinstance(func, torch._ops.OpOverloadPacket):
        return any(getattr(func, overload)._schema.is_mutable for overload in func.overloads())
    return name.endswith("_") and (not name.startswith("__") or name.startswith("__i")) and name != "requires_grad_"
