"""Runs a torch function through the table and ONNX Runtime, without any capture of torch.export.

A function of tensors is recorded by ``make_fx`` as the ATen calls that it makes, composite ones left whole, lowered
node by node, and compared with eager PyTorch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from onnx.reference import ReferenceEvaluator
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.builder.scope import ModelContext, NanHandling
from onnxops_decomp.dtypes import mark_complex, to_ir
from onnxops_decomp.files.model import build_model
from onnxops_decomp.graph.graph_lowering import GraphLowering
from onnxops_decomp.graph.mutation import needs_functionalization
from onnxops_decomp.graph.symbols import SymbolNames
from onnxops_decomp.graph.whole_calls import WholeCalls, restore_calls
from onnxops_decomp.lowerings import LoweringTable, builtin_table
from onnxops_decomp.runtimes import target_passes

ORT_NEWEST_OPSET = 26
TOLERANCE = {
    torch.float64: (1e-6, 1e-8),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (2e-2, 2e-2),
}


@dataclasses.dataclass
class Lowered:
    """A model, and what its decompositions take for granted of symbolic sizes."""

    proto: onnx.ModelProto
    assumptions: Sequence[Any] = ()

    def op_types(self) -> list[str]:
        return [node.op_type for node in self.proto.graph.node]


def lower(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    opset: int = 20,
    dynamic: bool = False,
    whole: bool = True,
    table: LoweringTable | None = None,
    target: str | None = None,
    nan: NanHandling = "exact",
) -> Lowered:
    """Lower ``function(*args)``; with ``dynamic`` every size of every tensor other than 0 and 1 is symbolic."""
    traced = trace(function, args, dynamic=dynamic, whole=whole)
    return lower_graph(traced, opset=opset, table=table, target=target, nan=nan)


def trace(
    function: Callable[..., Any], args: Sequence[Any], *, dynamic: bool = False, whole: bool = True
) -> torch.fx.GraphModule:
    """Record the ATen calls of ``function(*args)``."""
    with torch.no_grad(), WholeCalls():
        traced = make_fx(function, tracing_mode="symbolic" if dynamic else "fake", pre_dispatch=whole)(*args)
        restore_calls(traced)
        if needs_functionalization(traced):
            operands = [node.meta.get("val") for node in traced.graph.nodes if node.op == "placeholder"]
            with operands[0].fake_mode:
                traced = make_fx(torch.func.functionalize(traced), pre_dispatch=False)(*operands)
    return traced


def lower_graph(
    traced: torch.fx.GraphModule,
    *,
    opset: int,
    table: LoweringTable | None = None,
    widen_bfloat16: bool = False,
    target: str | None = None,
    nan: NanHandling = "exact",
    **context_options: Any,
) -> Lowered:
    """Lower what :func:`trace` recorded; a target's passes run too."""
    context = ModelContext(opset, widen_bfloat16=widen_bfloat16, target=target, nan=nan, **context_options)
    op = OpBuilder(opset, context=context)
    symbols = SymbolNames(op)
    values = [_input(op, symbols, node) for node in traced.graph.nodes if node.op == "placeholder"]
    lowering = GraphLowering(op, table or builtin_table(), symbols)
    results = pytree.tree_leaves(lowering.run(traced, values))
    if lowering.failures:
        raise lowering.failures[0].error
    outputs = [value for value in results if isinstance(value, ir.Value)]
    model = build_model(op, outputs, name="test")
    for each in target_passes(target) if target is not None else ():
        each()(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    return Lowered(proto, lowering.assumptions)


def _input(op: OpBuilder, symbols: SymbolNames, node: torch.fx.Node) -> Any:
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return val
    dims = symbols.dims(val)
    value = op.input(node.name, to_ir(val.dtype), (*dims, 2) if val.is_complex() else dims)
    for axis, dim in enumerate(dims):
        if isinstance(dim, ir.SymbolicDim):
            op.context.symbols.setdefault(str(dim.value), lambda b, a=axis: b.Shape(value, start=a, end=a + 1))
    return mark_complex(value) if val.is_complex() else value


def _feed(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).contiguous()
    return ir.tensor_adapters.TorchTensor(tensor).numpy()


def run(proto: onnx.ModelProto, args: Sequence[Any]) -> list[torch.Tensor]:
    """Run a model, in ONNX Runtime if it knows the opset, else in ONNX's own evaluator."""
    return session(proto)(args)


def session(proto: onnx.ModelProto) -> Callable[[Sequence[Any]], list[torch.Tensor]]:
    """Return a function that runs the model, which is loaded once; see :func:`run`."""
    opset = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    names = [i.name for i in proto.graph.input]
    if opset > ORT_NEWEST_OPSET:
        evaluator = ReferenceEvaluator(proto)
        return lambda args: [_to_torch(np.asarray(r)) for r in evaluator.run(None, _feeds(names, args))]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    loaded = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kept = {i.name for i in loaded.get_inputs()}

    def run_loaded(args: Sequence[Any]) -> list[torch.Tensor]:
        values = {name: _to_ort(array) for name, array in _feeds(names, args).items() if name in kept}
        return [_ort_to_torch(output) for output in loaded.run_with_ort_values(None, values)]

    return run_loaded


def _feeds(names: Sequence[str], args: Sequence[Any]) -> dict[str, Any]:
    tensors = [arg for arg in pytree.tree_leaves(list(args)) if isinstance(arg, torch.Tensor)]
    return {name: _feed(tensor) for name, tensor in zip(names, tensors, strict=True)}


def _to_ort(array: Any) -> ort.OrtValue:
    if array.dtype.name == "bfloat16":
        bits = np.ascontiguousarray(array).view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _ort_to_torch(value: ort.OrtValue) -> torch.Tensor:
    if value.element_type() == onnx.TensorProto.BFLOAT16:
        # An empty tensor has no memory that it could hand over.
        empty = torch.empty(value.shape(), dtype=torch.bfloat16)
        return torch.from_dlpack(value._ortvalue.to_dlpack()) if empty.numel() else empty
    array = np.array(value.numpy())
    # The runtime's 64-bit numbers may be of another C type than torch knows them by.
    return torch.from_numpy(array.astype(array.dtype.str))


def expected_of(function: Callable[..., Any], args: Sequence[Any]) -> list[torch.Tensor]:
    copies = pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, list(args))
    leaves = pytree.tree_leaves(function(*copies))
    tensors = [leaf.detach().resolve_conj().resolve_neg() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]


def compare(
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    *,
    values: bool = True,
    tolerance: Any = None,
) -> None:
    assert len(actual) == len(expected), f"{len(actual)} outputs for {len(expected)}"
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.dtype == theirs.dtype, f"dtype {mine.dtype}, expected {theirs.dtype}"
        assert tuple(mine.shape) == tuple(theirs.shape), f"shape {tuple(mine.shape)}, expected {tuple(theirs.shape)}"
        if values:
            rtol, atol = tolerance or TOLERANCE.get(theirs.dtype, (0, 0))
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)


def check(
    function: Callable[..., Any],
    *args: Any,
    opset: int = 20,
    others: Sequence[Sequence[Any]] = (),
    tolerance: Any = None,
    values: bool = True,
    target: str | None = None,
    nan: NanHandling = "exact",
) -> Lowered:
    """Assert that the lowered function equals eager torch.

    Args:
        function: Function of tensors; Python arguments are baked in.
        args: Example arguments.
        opset: Opset to lower to.
        others: Further arguments of other sizes; given these, the function is lowered with symbolic sizes.
        tolerance: (rtol, atol) in place of that of the dtype; say why at the call.
        values: Whether values are compared, not only dtypes and shapes (random operators).
        target: Runtime whose own operators may be used.
        nan: Whether the model has to be right for NaN.
    """
    torch.manual_seed(0)
    lowered = lower(function, args, opset=opset, dynamic=bool(others), target=target, nan=nan)
    declared = {o.domain: o.version for o in lowered.proto.opset_import}
    assert declared[""] == opset
    for example in (args, *others):
        compare(run(lowered.proto, example), expected_of(function, example), values=values, tolerance=tolerance)
    return lowered


def example(*shape: int) -> torch.Tensor:
    """Random doubles, the same in every run."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
