"""Every operator that torch's TorchScript exporter has a symbolic for is converted here, or no exporter can."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from ts_models import exported, n

import onnx_ts_legacy
from onnxops_decomp import builtin_table
from onnxops_decomp.exporting import functional_overload, is_composite

PACKAGE = "torch.onnx._internal.torchscript_exporter"

# Functions of torch's modules that its registry lists, and that are no operators.
NO_OPERATORS = {"aten::_floor_divide", "aten::get_pool_ceil_padding", "aten::tanhshrink"}


def counted(x: Tensor):
    for i in range(1, x.size(0), 2):
        x = x + i
    return x


def counted_list(x: Tensor):
    return [x * i for i in range(0, 5, 2)]


def halved(x: Tensor):
    return x.view(x.size(0) // 2, -1)


def copied(x: Tensor):
    sizes = list(x.size())
    sizes.append(1)
    return x.view(sizes)


def converted(x: Tensor):
    return torch.as_tensor(x.size(0), dtype=torch.float32) + x


def resized(x: Tensor):
    return F.interpolate(x[None, None], scale_factor=2.0)


def compared(x: Tensor, y: Tensor | None = None):
    sizes = [x.size(0), 2]
    if y is None and 3 not in sizes:
        x = x * sizes[1]
    return x if y is not None else x + 1


def pinned(x: Tensor):
    return x if x.is_pinned() else x * 2


def packed(x: Tensor):
    sequence = nn.utils.rnn.pack_padded_sequence(x[:, None, None], torch.tensor([4]))
    return nn.utils.rnn.pad_packed_sequence(sequence)[0]


# What TorchScript alone has, what needs more than the operands, and what torch defines by others.
BESIDE_THE_TABLE: dict[str, tuple[Callable, bool]] = {
    "aten::__derive_index": (counted, True),
    "aten::__range_length": (counted_list, True),
    "aten::__interpolate": (resized, True),
    "aten::floordiv": (halved, True),
    "aten::list": (copied, True),
    "aten::as_tensor": (converted, True),
    "aten::is_pinned": (pinned, True),
    **{f"aten::__{name}__": (compared, True) for name in ("contains", "getitem", "is", "isnot", "not")},
    "aten::as_strided": (lambda x: x.as_strided((2, 2), (1, 2)), False),
    "aten::mse_loss": (lambda x: F.mse_loss(x, x * 2), False),
    "aten::conv_tbc": (lambda x: torch.conv_tbc(x[:, None, None], torch.ones(2, 1, 3), torch.ones(3)), False),
    "aten::_pack_padded_sequence": (packed, False),
}
# Random numbers of distributions that no operator of ONNX draws from.
IMPOSSIBLE = {"aten::_sample_dirichlet": lambda x: torch._sample_dirichlet(x.abs() + 1)}


def names_of_torch() -> list[str]:
    """Return the operators in torch's registry; it strips one underscore of names such as ``__and__``."""
    registry = importlib.import_module(f"{PACKAGE}.registration").registry
    found = {name for name in registry.all_functions() if name.startswith("aten::")} - NO_OPERATORS
    return sorted(name if hasattr(torch.ops.aten, name[6:]) else f"{name}_" for name in found)


def is_converted(name: str) -> bool:
    packet = getattr(torch.ops.aten, name[6:])
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    known = [*overloads, *(functional_overload(overload) for overload in overloads)]
    return any(str(each.name()) in builtin_table() or is_composite(each) for each in known)


def test_each_operator_has_a_lowering_or_another_conversion() -> None:
    missing = {name for name in names_of_torch() if not is_converted(name)}

    assert missing <= BESIDE_THE_TABLE.keys() | IMPOSSIBLE.keys()
    assert len(names_of_torch()) > 300


@pytest.mark.parametrize(("function", "scripted"), dict.fromkeys(BESIDE_THE_TABLE.values()))
def test_operators_beside_the_table(function: Callable, scripted: bool) -> None:
    exported(torch.jit.script(function) if scripted else function, (n(4),))


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_exporter_can_convert_is_refused_by_name(name: str) -> None:
    with pytest.raises(onnx_ts_legacy.OnnxExporterError, match=name):
        onnx_ts_legacy.export(IMPOSSIBLE[name], (n(4),))
