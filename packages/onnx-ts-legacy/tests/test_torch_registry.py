"""Every operator that torch's TorchScript exporter has a symbolic for is converted here, or no exporter can."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.ao.nn.intrinsic.quantized as nniq
import torch.ao.nn.quantized as nnq
from torch import Tensor, nn
from torch.nn import functional as F
from ts_models import exported, n

import onnx_ts_legacy
from onnxops_decomp import builtin_table
from onnxops_decomp.exporting import functional_overload, is_composite

PACKAGE = "torch.onnx._internal.torchscript_exporter"

# Names of torch's modules that its registry lists, and that are not operators.
NO_OPERATORS = {"aten::_floor_divide", "aten::get_pool_ceil_padding", "aten::scan", "aten::tanhshrink"}


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


def edited(x: Tensor):
    rows = [x, x * 2]
    rows.append(x * 3)
    rows.insert(0, x * 4)
    rows[1] = x * 5
    del rows[2]
    return rows.pop() - rows[0], torch.stack(rows)


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
    **{f"aten::{name}": (edited, True) for name in ("Delete", "_set_item", "append", "insert", "pop")},
    "aten::as_tensor": (converted, True),
    "aten::is_pinned": (pinned, True),
    **{f"aten::__{name}__": (compared, True) for name in ("contains", "getitem", "is", "isnot", "not")},
    "aten::as_strided": (lambda x: x.as_strided((2, 2), (1, 2)), False),
    "aten::binary_cross_entropy_with_logits": (lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()), False),
    "aten::mse_loss": (lambda x: F.mse_loss(x, x * 2), False),
    "aten::conv_tbc": (lambda x: torch.conv_tbc(x[:, None, None], torch.ones(2, 1, 3), torch.ones(3)), False),
    "aten::_pack_padded_sequence": (packed, False),
}


def broken_off(x: Tensor):
    for i in range(5):
        if i > x.size(0):
            return x + i
    return x


def unpacked(x: Tensor):
    a, b = x.view(2, 2).unbind(0)
    return a * b


def paired(x: Tensor):
    return x + 1, x * 2


def optional(x: Tensor, y: Tensor | None = None):
    if y is None:
        y = x * 2
    return x + y


def asked(x: Tensor):
    y = torch.zeros(4, dtype=x.dtype, device=x.device, layout=x.layout)
    return x.data + y


def listed(x: Tensor):
    rows: list[float] = x.tolist()
    return torch.tensor(rows) * 2


def smaller(x: Tensor):
    return x * max(x.size(0), 3) + min(x.size(0), 3)


# What TorchScript alone has, by a program whose graph has it.
OF_SCRIPTS: dict[str, Callable] = {
    "prim::Constant": smaller,
    "prim::If": optional,
    "prim::ListConstruct": halved,
    "prim::ListUnpack": unpacked,
    "prim::Loop": broken_off,
    "prim::TupleConstruct": paired,
    "prim::Uninitialized": broken_off,
    "prim::data": asked,
    "prim::device": asked,
    "prim::dtype": asked,
    "prim::layout": asked,
    "prim::max": smaller,
    "prim::min": smaller,
    "prim::tolist": listed,
    "prim::unchecked_cast": optional,
}
# They stand in graphs that passes of torch's have changed, never in those of programs.
OF_PASSES = {
    *("onnx::Placeholder", "prim::ConstantChunk", "prim::ConstantSplit", "prim::convert_element_type", "prim::shape"),
    "prim::type",
}


class Quantized(nn.Module):
    """Quantizes, calls, and dequantizes."""

    def __init__(self, call: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.call, self.shape = call, shape

    def forward(self, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x.reshape(self.shape), 0.05, 64, torch.quint8)
        return self.call(q).dequantize()


def layer(kind: type, *sizes: int) -> nn.Module:
    torch.manual_seed(0)
    module = kind(*sizes)
    weight = torch.quantize_per_tensor(torch.randn(module.weight().shape) / 4, 0.01, 0, torch.qint8)
    module.set_weight_bias(weight, torch.randn(module.bias().shape))
    module.scale, module.zero_point = 0.1, 64
    return module


OUT = (0.1, 64)
VECTOR = torch.ones(4), torch.zeros(4)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{
        f"conv{rank}d": (partial(layer, getattr(nnq, f"Conv{rank}d"), 4, 2, 1), (1, 4, *[2] * rank))
        for rank in (1, 2, 3)
    },
    **{
        f"conv{rank}d_relu": (partial(layer, getattr(nniq, f"ConvReLU{rank}d"), 4, 2, 1), (1, 4, *[2] * rank))
        for rank in (1, 2, 3)
    },
    **{
        f"conv_transpose{rank}d": (partial(layer, getattr(nnq, f"ConvTranspose{rank}d"), 4, 2, 1), (1, 4, *[2] * rank))
        for rank in (1, 2, 3)
    },
    "linear": (partial(layer, nnq.Linear, 4, 2), (2, 4)),
    "linear_relu": (partial(layer, nniq.LinearReLU, 4, 2), (2, 4)),
}
quantized = torch.ops.quantized
OF_QUANTIZED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "add": (lambda q: quantized.add(q, q, *OUT), (2, 4)),
    "add_relu": (lambda q: quantized.add_relu(q, q, *OUT), (2, 4)),
    "mul": (lambda q: quantized.mul(q, q, *OUT), (2, 4)),
    "cat": (lambda q: quantized.cat([q, q], 0, *OUT), (2, 4)),
    "hardswish": (lambda q: quantized.hardswish(q, *OUT), (2, 4)),
    "leaky_relu": (lambda q: quantized.leaky_relu(q, 0.1, False, *OUT), (2, 4)),
    "sigmoid": (lambda q: quantized.sigmoid(q, 1 / 256, 0), (2, 4)),
    "layer_norm": (lambda q: quantized.layer_norm(q, [4], *VECTOR, 1e-5, *OUT), (2, 4)),
    "group_norm": (lambda q: quantized.group_norm(q, 2, *VECTOR, 1e-5, *OUT), (1, 4, 3)),
    "instance_norm": (lambda q: quantized.instance_norm(q, *VECTOR, 1e-5, *OUT), (1, 4, 3)),
}
# Random numbers of distributions that no operator of ONNX draws from.
IMPOSSIBLE = {"aten::_sample_dirichlet": lambda x: torch._sample_dirichlet(x.abs() + 1)}


def registered() -> set[str]:
    """Return what is in torch's registry once all of its modules are loaded, which are by the first export."""
    for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__):
        if module.name.startswith("symbolic_opset"):
            importlib.import_module(f"{PACKAGE}.{module.name}")
    return set(importlib.import_module(f"{PACKAGE}.registration").registry.all_functions())


def names_of_torch() -> list[str]:
    """Return the operators in torch's registry; it strips one underscore of names such as ``__and__``."""
    found = {name for name in registered() if name.startswith("aten::")} - NO_OPERATORS
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


def test_each_other_name_has_an_example() -> None:
    others = {name for name in registered() if not name.startswith("aten::")}

    assert others == {*OF_SCRIPTS, *OF_PASSES, *(f"quantized::{name}" for name in (*MODULES, *OF_QUANTIZED))}


@pytest.mark.parametrize("kind", OF_SCRIPTS)
def test_what_scripts_alone_have_is_converted(kind: str) -> None:
    program = torch.jit.script(OF_SCRIPTS[kind])

    assert program.graph.findNode(kind) is not None
    exported(program, (n(4),), opset=13)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*MODULES, *OF_QUANTIZED])
def test_a_quantized_operator_is_within_one_step_of_torchs_kernel(name: str) -> None:
    call, shape = (MODULES[name][0](), MODULES[name][1]) if name in MODULES else OF_QUANTIZED[name]
    model = Quantized(call, shape).eval()
    x = torch.linspace(-2, 2, math.prod(shape))

    assert f"quantized::{name}" in str(torch.jit.trace(model, x, check_trace=False).inlined_graph)
    actual = onnx_ts_legacy.export(model, (x,), opset_version=13)(x)[0]
    expected = model(x)
    if "transpose" in name:  # torch's kernels for x86 are further from the sum that they stand for
        q = torch.quantize_per_tensor(x.reshape(shape), 0.05, 64, torch.quint8)
        expected = getattr(F, name)(q.dequantize(), call.weight().dequantize(), call.bias())
    torch.testing.assert_close(actual, expected, rtol=0, atol=0.1001)
