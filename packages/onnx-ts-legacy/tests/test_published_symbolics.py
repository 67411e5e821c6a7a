"""Files of custom symbolics in the ways that published ones are written, with nothing but their imports changed."""

from __future__ import annotations

import importlib.util
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from ts_models import agree, exported

import onnx_ts_legacy
from onnx_ts_legacy import errors, register_custom_op_symbolic, symbolic_opset11
from onnx_ts_legacy import symbolic_helper as sym_help
from onnx_ts_legacy.symbolic_helper import _unimplemented, parse_args, quantized_args
from onnx_ts_legacy.symbolic_opset9 import _cast_Long, select, squeeze, unsqueeze

X = torch.randn(2, 3)
AXES = {"x": {0: "n"}}


@pytest.fixture
def contrib_operators() -> types.ModuleType:
    """What ONNX Runtime publishes for its own operators."""
    spec = importlib.util.find_spec("onnxruntime.tools.pytorch_export_contrib_ops")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text().replace("torch.onnx", "onnx_ts_legacy")
    module = types.ModuleType("contrib_operators")
    module.__dict__["onnx_ts_legacy"] = onnx_ts_legacy
    module.__dict__["inverts"] = "aten::linalg_inv" in source
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    module.register()
    return module


class CustomGradient(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) + F.gelu(x, approximate="tanh")


def upper_and_lower(x: Tensor) -> Tensor:
    return torch.triu(x, 1) + torch.tril(x, -1)


def sampled(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)


@pytest.mark.parametrize(
    ("model", "args", "operators"),
    [
        (torch.nn.GELU(), (X,), ["Gelu"]),
        (torch.inverse, (torch.eye(3) + torch.rand(2, 3, 3),), ["Inverse"]),
        (upper_and_lower, (torch.randn(4, 4),), ["Trilu", "Trilu"]),
        (sampled, (torch.randn(1, 2, 4, 5), torch.rand(1, 3, 3, 2) * 2 - 1), ["GridSample"]),
    ],
    ids=["gelu", "inverse", "triangles", "grid_sample"],
)
def test_the_contrib_operators_of_onnx_runtime(
    contrib_operators: types.ModuleType, model: Callable[..., Tensor], args: tuple[Tensor, ...], operators: list[str]
) -> None:
    program = onnx_ts_legacy.export(model, args, opset_version=14)

    written = [node.op_type for node in program.model.graph if node.domain == "com.microsoft"]
    # Old releases register nothing for `linalg_inv`, which is what torch traces.
    assert written == (operators if contrib_operators.inverts or model is not torch.inverse else [])
    for expected, actual in zip([model(*args)], program(*args), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_symbolic_may_leave_a_case_to_the_symbolic_opset_module(contrib_operators: types.ModuleType) -> None:
    program = onnx_ts_legacy.export(CustomGradient(), (X,), opset_version=14)

    (actual,) = program(X)
    torch.testing.assert_close(actual, CustomGradient()(X), rtol=1e-4, atol=1e-5)
    assert [node.op_type for node in program.model.graph if node.domain] == ["Gelu"]


# ---- detection: boxes that are kept, by helpers and functions of a symbolic opset module


@torch.library.custom_op("ts_published::nms", mutates_args=())
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    kept: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        areas = [(boxes[j, 2:] - boxes[j, :2]).prod() for j in range(len(boxes))]
        overlaps = []
        for j in kept:
            sides = torch.minimum(boxes[i, 2:], boxes[j, 2:]) - torch.maximum(boxes[i, :2], boxes[j, :2])
            inner = sides.clamp(min=0).prod()
            overlaps.append(float(inner / (areas[i] + areas[j] - inner)))
        if all(overlap <= iou_threshold for overlap in overlaps):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


@nms.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@parse_args("v", "v", "f")
def symbolic_nms(g, boxes, scores, iou_threshold):
    boxes = unsqueeze(g, boxes, 0)
    scores = unsqueeze(g, unsqueeze(g, scores, 0), 0)
    max_output_per_class = g.op("Constant", value_t=torch.tensor([2000], dtype=torch.long))
    iou_threshold = g.op("Constant", value_t=torch.tensor([iou_threshold], dtype=torch.float))
    nms_out = g.op("NonMaxSuppression", boxes, scores, max_output_per_class, iou_threshold)
    picked = select(g, nms_out, 1, g.op("Constant", value_t=torch.tensor([2], dtype=torch.long)))
    return _cast_Long(g, squeeze(g, picked, 1), False)


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_boxes_are_suppressed(opset: int) -> None:
    register_custom_op_symbolic("ts_published::nms", symbolic_nms, 11)
    corners = torch.rand(12, 2)
    boxes, scores = torch.cat([corners, corners + torch.rand(12, 2) + 0.1], 1), torch.rand(12)

    def model(boxes: Tensor, scores: Tensor) -> Tensor:
        return boxes[nms(boxes, scores, 0.3)]

    axes = {"boxes": {0: "n"}, "scores": {0: "n"}}
    program = onnx_ts_legacy.export(model, (boxes[:5], scores[:5]), opset_version=opset, dynamic_axes=axes)

    agree(program, model, (boxes, scores), (boxes[3:], scores[3:]))


# ---- replacements of built-in conversions, with types, sizes and lists


def clamp(g, self, min, max):
    dtype = self.type().scalarType()

    def bound(value):
        if sym_help._is_none(value):
            return None
        number = sym_help._maybe_get_const(value, "f")
        constant = g.op("Constant", value_t=torch.tensor(number))
        return g.op("Cast", constant, to_i=sym_help.cast_pytorch_to_onnx[dtype])

    return g.op("Clip", self, bound(min), bound(max))


@parse_args("v", "i")
def pixel_shuffle(g, self, upscale_factor):
    dims = self.type().sizes()
    if len(dims) != 4:
        return _unimplemented("pixel_shuffle", "only support 4d input")
    return g.op("DepthToSpace", self, blocksize_i=upscale_factor, mode_s="CRD")


def stack(g, tensor_list, dim):
    dim = sym_help._get_const(dim, "i", "dim")
    unsqueezed = [sym_help._unsqueeze_helper(g, tensor, [dim]) for tensor in sym_help._unpack_list(tensor_list)]
    return g.op("Concat", *unsqueezed, axis_i=dim)


def flatten(g, input, start_dim, end_dim):
    rank = sym_help._get_tensor_rank(input)
    first, last = (sym_help._get_const(value, "i", "dim") for value in (start_dim, end_dim))
    return sym_help._flatten_helper(g, input, first, last + rank if last < 0 else last, rank)


def sort(g, self, dim, descending):
    return sym_help._sort_helper(
        g, self, sym_help._get_const(dim, "i", "dim"), sym_help._get_const(descending, "b", "d")
    )


def argmax(g, input, dim=None, keepdim=False):
    return sym_help._argmin_argmax_helper(g, input, dim, keepdim, "ArgMax")


def scatter(g, self, dim, index, src):
    return sym_help._scatter_helper(g, self, sym_help._get_const(dim, "i", "dim"), index, src)


def sqrt(g, self):
    root = g.op("Pow", g.op("Cast", self, to_i=11), sym_help._generate_wrapped_number(g, 0.5))
    narrow = g.op("Cast", root, to_i=1).setTypeAs(self)
    assert narrow.isCompleteTensor()
    assert not narrow.requires_grad()
    return narrow.setDebugName("root")


def exp(g, self):
    result = g.op("com.example::Exponential", self)
    result.inferTypeFrom(torch.empty(1, 4, 2, 3))
    assert self.unique() != result.unique()
    return g.op("Exp", self)


def places(x: Tensor) -> Tensor:
    return torch.scatter(x, 1, torch.tensor([[[[0, 1, 1]]]]), torch.ones(1, 1, 1, 3))


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    ("name", "symbolic", "model"),
    [
        ("scatter", scatter, places),
        ("sqrt", sqrt, lambda x: torch.sqrt(x.abs())),
        ("exp", exp, torch.exp),
        ("clamp", clamp, lambda x: torch.clamp(x, 0.1) + torch.clamp(x, max=0.5)),
        ("pixel_shuffle", pixel_shuffle, lambda x: F.pixel_shuffle(x, 2)),
        ("stack", stack, lambda x: torch.stack([x, x + 1], 1)),
        ("flatten", flatten, lambda x: torch.flatten(x, 1, 2)),
        ("sort", sort, lambda x: torch.sort(x, 1, descending=False)),
        ("argmax", argmax, lambda x: (torch.argmax(x, 1, keepdim=True), torch.argmax(x))),
    ],
)
def test_a_replacement_is_used_and_right(name: str, symbolic: Callable, model: Callable, opset: int) -> None:
    register_custom_op_symbolic(f"aten::{name}", symbolic, 11)

    exported(model, (torch.randn(1, 4, 2, 3),), opset=opset)


def test_a_function_with_several_forms_is_chosen_by_the_number_of_inputs() -> None:
    @sym_help._overload_by_arg_count
    def total(g, *args):
        @parse_args("v", "none")
        def of_all(g, self, dtype):
            return g.op("ReduceSum", self, keepdims_i=0)

        @parse_args("v", "is", "i", "none")
        def of_some(g, self, dim, keepdim, dtype):
            return sym_help._reducesum_helper(g, self, dim, keepdim)

        return of_all, of_some

    register_custom_op_symbolic("aten::sum", total, 9)

    exported(lambda x: x.sum() + x.sum(1, keepdim=True), (X,), (torch.randn(5, 3),), dynamic_axes=AXES)


def test_several_results_have_the_types_that_are_declared() -> None:
    def symbolic(g, x, dim):
        values, indices = g.op("com.example::MyMax", x, dim_i=sym_help._get_const(dim, "i", "dim"), outputs=2)
        values.setType(x.type().with_sizes([2]))
        return values, indices.setType(x.type().with_sizes([2]).with_dtype(torch.int64))

    register_custom_op_symbolic("ts_published::maximum", symbolic, 9)

    program = onnx_ts_legacy.export(lambda x: maximum(x, 1)[0] + 1, (X,), custom_opsets={"com.example": 3})

    assert program.model.opset_imports["com.example"] == 3
    assert [value.dtype.name for value in program.model.graph[0].outputs] == ["FLOAT", "INT64"]


@torch.library.custom_op("ts_published::maximum", mutates_args=())
def maximum(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, indices = x.max(dim)
    return values.clone(), indices.clone()


@maximum.register_fake
def _(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, indices = x.max(dim)
    return values.clone(), indices.clone()


def test_errors_and_warnings_of_symbolics_are_those_of_the_export() -> None:
    def too_old(g, self):
        warnings.warn("slow", errors.OnnxExporterWarning, stacklevel=1)  # noqa: TID251
        raise errors.UnsupportedOperatorError("aten::exp", g.opset, 20)

    def odd(g, self):
        raise errors.SymbolicValueError("only 4-d inputs", self)

    register_custom_op_symbolic("aten::exp", too_old, 9)
    register_custom_op_symbolic("aten::relu", odd, 9)

    with (
        pytest.warns(errors.OnnxExporterWarning, match="slow"),
        pytest.raises(errors.UnsupportedOperatorsError, match=r"only 4-d inputs") as caught,
    ):
        onnx_ts_legacy.export(lambda x: x.relu().exp(), (X,))

    assert "lowest opset that works is 20" in str(caught.value)


# ---- quantized inputs


@quantized_args(True)
def sigmoid(g, self):
    return g.op("Sigmoid", self)


@quantized_args(True, scale=1.0 / 256.0, zero_point=0)
def sigmoid_of_given_scale(g, self):
    return g.op("Sigmoid", self)


@pytest.mark.parametrize("symbolic", [sigmoid, sigmoid_of_given_scale], ids=["scale of the input", "given scale"])
def test_a_symbolic_for_floats_takes_quantized_inputs(symbolic: Callable) -> None:
    register_custom_op_symbolic("aten::sigmoid", symbolic, 10)

    def quantized(x: Tensor) -> Tensor:
        return torch.sigmoid(torch.quantize_per_tensor(x, 1.0 / 64.0, 3, torch.quint8)).dequantize()

    program = onnx_ts_legacy.export(quantized, (X,), opset_version=13)

    (actual,) = program(X)
    step = 1.0 / 256.0 if symbolic is sigmoid_of_given_scale else 1.0 / 64.0
    rounded = torch.quantize_per_tensor(X, 1.0 / 64.0, 3, torch.quint8).dequantize()
    expected = torch.quantize_per_tensor(rounded.sigmoid(), step, 0 if step < 0.01 else 3, torch.quint8).dequantize()
    assert ((actual - expected).abs() <= step * 1.01).all()
    assert [node.op_type for node in program.model.graph] == [
        *("QuantizeLinear", "DequantizeLinear", "Sigmoid", "QuantizeLinear", "DequantizeLinear")
    ]


def test_a_quantized_input_of_floats_alone_is_as_before() -> None:
    register_custom_op_symbolic("aten::sigmoid", sigmoid, 10)

    program = exported(torch.sigmoid, (X,))

    assert [node.op_type for node in program.model.graph] == ["Sigmoid"]


# ---- resizing in the manner of detection libraries, which compute the scales of Resize themselves


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("by_factor", [False, True], ids=["size", "factor"])
def test_a_resize_with_scales_of_its_own(opset: int, dynamic: bool, by_factor: bool) -> None:
    from onnx_ts_legacy.symbolic_helper import _interpolate_get_scales_if_available, _interpolate_size_to_scales
    from onnx_ts_legacy.symbolic_opset11 import unused

    def nearest(g, input, output_size, *scales):
        factors = _interpolate_get_scales_if_available(g, scales)
        if factors is None:
            factors = _interpolate_size_to_scales(g, input, output_size, 4)
        return g.op(
            "Resize",
            input,
            unused(g) if g.opset >= 13 else g.op("Constant", value_t=torch.tensor([])),
            factors,
            mode_s="nearest",
            nearest_mode_s="floor",
            coordinate_transformation_mode_s="asymmetric",
        )

    def resized(x: Tensor) -> Tensor:
        if by_factor:
            return torch.nn.functional.interpolate(x, scale_factor=(2.0, 3.0))
        return torch.nn.functional.interpolate(x, size=(8, 9))

    onnx_ts_legacy.register_custom_op_symbolic("aten::upsample_nearest2d", nearest, 9)
    axes = {"x": {0: "n", 2: "h", 3: "w"}} if dynamic else {}
    other = torch.randn(3, 2, 8, 3) if dynamic else torch.randn(1, 2, 4, 3)

    program = exported(resized, (torch.randn(1, 2, 4, 3),), (other,), opset=opset, dynamic_axes=axes)

    assert "Resize" in {node.op_type for node in program.model.graph}


def test_resizing_below_opset_11_may_warn() -> None:
    from onnx_ts_legacy.errors import OnnxExporterWarning
    from onnx_ts_legacy.symbolic_helper import _interpolate_warning

    with pytest.warns(OnnxExporterWarning, match="opset_version 11"):
        _interpolate_warning("linear")


@pytest.mark.parametrize("opset", [9, 11, 18])
def test_slices_of_the_symbolic_opset_modules_are_written_for_the_opset(opset: int) -> None:
    from onnx_ts_legacy.symbolic_opset9 import _slice

    def halved(g, self):
        return _slice(g, self, axes=[1], starts=[0], ends=[2])

    onnx_ts_legacy.register_custom_op_symbolic("aten::relu", halved, 9)

    program = onnx_ts_legacy.export(lambda x: torch.relu(x), (torch.randn(2, 2),), opset_version=opset)

    assert [node.op_type for node in program.model.graph] == ["Slice"]


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_a_size_may_be_a_constant_and_a_flag_none(opset: int) -> None:
    class Spread(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.expand(4, 2, 3).clone()

        @staticmethod
        def symbolic(g: Any, x: Any) -> Any:
            from onnx_ts_legacy import symbolic_opset9

            return symbolic_opset9.expand(g, x, g.op("Constant", value_t=torch.tensor([4, 2, 3])), None)

    exported(Spread.apply, (torch.randn(2, 3),), (torch.randn(2, 3),), opset=opset)


def test_a_symbolic_that_returns_nothing_is_refused() -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.relu()

        @staticmethod
        def symbolic(g: Any, x: Any) -> None:
            g.op("Relu", x)

    with pytest.raises(onnx_ts_legacy.errors.OnnxExporterError, match="returns None"):
        onnx_ts_legacy.export(Nothing.apply, (torch.randn(2, 3),))


def test_a_function_of_the_opset_modules_takes_none_for_what_is_left_out() -> None:
    def squeezed(g, self, dim=None):
        return symbolic_opset11.squeeze(g, self, dim)

    register_custom_op_symbolic("aten::squeeze", squeezed, 9)
    exported(lambda x: torch.squeeze(x) * 2, (torch.randn(1, 3),), opset=13)


def test_names_of_dtypes_are_those_of_torch() -> None:
    names = {code: code.torch_name() for code in onnx_ts_legacy.JitScalarType}

    assert names[onnx_ts_legacy.JitScalarType.INT64] == "int64_t"
    assert names[onnx_ts_legacy.JitScalarType.FLOAT] == "float"
    assert names[onnx_ts_legacy.JitScalarType.INT] == "int"
    assert names[onnx_ts_legacy.JitScalarType.FLOAT8E5M2] == "float8_e5m2"


def test_every_opset_has_a_module_and_a_stub_file_for_type_checkers() -> None:
    stubs = {path.stem for path in Path(str(onnx_ts_legacy.__file__)).parent.glob("symbolic_opset*.pyi")}
    assert stubs == {f"symbolic_opset{opset}" for opset in range(7, 27)}
    for name in stubs:
        module = importlib.import_module(f"onnx_ts_legacy.{name}")
        assert module.relu.__module__ == module.__name__
        assert "relu" in dir(module)
