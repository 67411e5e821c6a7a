"""Products with stored integers become ``MatMulNBits`` of the same result, or stay as they are."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from decomp_harness import run

from onnxops_decomp import LoweringError
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older
from onnxops_decomp.runtimes.onnxruntime.weights import FuseQuantizedProducts

ROWS, COLUMNS = 12, 96
DTYPES = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8, "uint8": np.uint8}


@dataclasses.dataclass
class Case:
    """The lines that compute ``w`` (N, K) of ``q``, ``s`` and ``z``, and ``y`` of it; and how many bits are used."""

    weight: str
    q: tuple[str, tuple[int, ...], tuple[int, int]]
    s: tuple[int, ...]
    z: tuple[str, tuple[int, ...], tuple[int, int]] | None = None
    product: str = "y = Gemm<transB = 1>(x, w, b)"
    bits: int | None = 4
    block: int = 32
    opset: int = 21
    columns: int = COLUMNS
    rank: int = 2

    def model(self, float_type: str = "float") -> ir.Model:
        shape = ", ".join([*"nm"[3 - self.rank :], str(self.columns)])
        text = f"""<ir_version: 10, opset_import: ["": {self.opset}]>
        main ({float_type}[{shape}] x) => ({float_type}[] y) {{
            {self.weight.replace("FLOAT", str(int(ir.DataType.FLOAT if float_type == "float" else 10)))}
            {self.product}
        }}"""
        model = ir.from_proto(onnx.parser.parse_model(text))
        model.graph.outputs[0].shape = None
        values = {value.name: value for node in model.graph for value in node.inputs if value is not None}
        for name, array in self.arrays(float_type).items():
            if name in values:
                values[name].const_value = ir.tensor(array, name=name)
                values[name].shape, values[name].dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
                model.graph.initializers.add(values[name])
        return _inferred(model)

    def arrays(self, float_type: str) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)
        dtype = np.float32 if float_type == "float" else np.float16
        found = {"s": random.uniform(0.5, 2, self.s).astype(dtype), "b": random.standard_normal(ROWS).astype(dtype)}
        for name, entry in (("q", self.q), ("z", self.z)):
            if entry is not None:
                kind, shape, (low, high) = entry
                found[name] = random.integers(low, high, shape, endpoint=True).astype(DTYPES[kind])
                # The ends of the range decide how many bits are needed.
                found[name].flat[0], found[name].flat[-1] = low, high
        sizes = {"by_groups": [ROWS, -1, self.block], "parameters": [ROWS, -1, 1], "whole": [ROWS, -1], "one": [1]}
        found["turned"] = random.standard_normal((4, ROWS)).astype(dtype)
        return {**found, **{name: np.array(size, np.int64) for name, size in sizes.items()}}

    def x(self, float_type: str, rows: int) -> np.ndarray:
        lead = (2, rows)[2 - self.rank + 1 :]
        return (
            np.random.default_rng(rows)
            .standard_normal((*lead, self.columns))
            .astype(np.float32 if float_type == "float" else np.float16)
        )


def _inferred(model: ir.Model) -> ir.Model:
    """Return the model with the shapes that ONNX infers; weights stay where they are."""
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(model), data_prop=True)
    inferred = ir.from_proto(proto)
    for index, node in enumerate(inferred.graph):
        node.name = f"node_{index}"
    return inferred


def result(model: ir.Model, x: np.ndarray) -> np.ndarray:
    (found,) = run(ir.to_proto(model), [torch.from_numpy(x)])
    return found.numpy()


GROUPED = """
    q3 = Reshape(q, by_groups)
    s3 = Reshape(s, parameters)
    qf = Cast<to = FLOAT>(q3)
    w3 = Mul(qf, s3)
    w = Reshape(w3, whole)
"""
WITH_ZEROS = """
    q3 = Reshape(q, by_groups)
    s3 = Reshape(s, parameters)
    z3 = Reshape(z, parameters)
    qf = Cast<to = FLOAT>(q3)
    zf = Cast<to = FLOAT>(z3)
    d = Sub(qf, zf)
    w3 = Mul(s3, d)
    w = Reshape(w3, whole)
"""
BY_ROWS = """
    qf = Cast<to = FLOAT>(q)
    s2 = Unsqueeze(s, one)
    w = Mul(qf, s2)
"""
MATMUL = "t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)"
SIGNED, UNSIGNED = ("int8", (ROWS, COLUMNS), (-8, 7)), ("uint8", (ROWS, COLUMNS), (0, 15))
CASES = {
    "groups": Case(GROUPED, SIGNED, (ROWS, 3)),
    "groups and zeros": Case(WITH_ZEROS, SIGNED, (ROWS, 3), ("int8", (ROWS, 3), (-8, 7))),
    "unsigned": Case(WITH_ZEROS, UNSIGNED, (ROWS, 3), ("uint8", (ROWS, 3), (0, 15))),
    "unsigned without zeros": Case(GROUPED, UNSIGNED, (ROWS, 3)),
    "eight bits": Case(
        WITH_ZEROS, ("int8", (ROWS, COLUMNS), (-128, 127)), (ROWS, 3), ("int8", (ROWS, 3), (-9, 7)), bits=8),
    "zeros of eight bits": Case(WITH_ZEROS, SIGNED, (ROWS, 3), ("int8", (ROWS, 3), (-9, 7)), bits=8),
    "unsigned eight bits": Case(GROUPED, ("uint8", (ROWS, COLUMNS), (0, 16)), (ROWS, 3), bits=8),
    "rows": Case(BY_ROWS, SIGNED, (ROWS,), block=128),
    "rows of an odd length": Case(BY_ROWS, ("int8", (ROWS, 37), (-8, 7)), (ROWS,), block=64, columns=37),
    "a product of three dimensions": Case(GROUPED, SIGNED, (ROWS, 3), product=MATMUL, rank=3),
    "without a bias": Case(GROUPED, SIGNED, (ROWS, 3), product="y = Gemm<transB = 1>(x, w)"),
    "a transposed weight": Case(
        GROUPED, SIGNED, (ROWS, 3), product="t = Transpose<perm = [1, 0]>(w) y = Gemm(x, t, b)"),
    "parts of groups": Case(GROUPED.replace("32", "48"), SIGNED, (ROWS, 2), block=48),
    "DequantizeLinear by rows": Case(
        "w = DequantizeLinear<axis = 0>(q, s, z)", SIGNED, (ROWS,), ("int8", (ROWS,), (-8, 7)), block=128, opset=19),
    **{
        f"DequantizeLinear of {kind}": Case(
            "w = DequantizeLinear<axis = 1, block_size = 32>(q, s, z)",
            (kind, (ROWS, COLUMNS), ends), (ROWS, 3), (kind, (ROWS, 3), ends))
        for kind, ends in (("int4", (-8, 7)), ("uint4", (0, 15)), ("int8", (-8, 7)), ("uint8", (0, 15)))
    },
    "DequantizeLinear without zeros": Case(
        "w = DequantizeLinear<axis = -1, block_size = 16>(q, s)", SIGNED, (ROWS, 6), block=16),
}  # fmt: skip


@pytest.mark.parametrize("float_type", ["float", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_stored_integers_are_multiplied_as_they_are(name: str, float_type: str) -> None:
    case = CASES[name]
    model = case.model(float_type)
    before = [result(model, case.x(float_type, rows)) for rows in (1, 5)]
    # The kernel takes no eight bits in older releases, for which the model stays as it is.
    assert FuseQuantizedProducts()(model).modified == (case.bits != 8 or not is_older(1, 23))
    if case.bits == 8 and is_older(1, 23):
        return
    nodes = list(model.graph)
    assert [node.op_type for node in nodes] == ["MatMulNBits"]
    sizes = {key: nodes[0].attributes[key].as_int() for key in ("K", "N", "bits")}
    assert sizes == {"K": case.columns, "N": ROWS, "bits": case.bits}
    stored = sum(value.const_value.nbytes for value in nodes[0].inputs[1:2])
    padded = -(-case.columns // nodes[0].attributes["block_size"].as_int()) * nodes[0].attributes["block_size"].as_int()
    assert stored == ROWS * padded * sizes["bits"] // 8
    for rows, expected in zip((1, 5), before, strict=True):
        tolerance = 1e-5 if float_type == "float" else 5e-3
        scale = np.abs(expected).max()
        np.testing.assert_allclose(result(model, case.x(float_type, rows)), expected, rtol=0, atol=tolerance * scale)


LEFT_ALONE = {
    "small groups": Case(GROUPED, SIGNED, (ROWS, 12), block=8),
    "groups of an odd size": Case(GROUPED, SIGNED, (ROWS, 4), block=24),
    "a factor": Case(GROUPED, SIGNED, (ROWS, 3), product="y = Gemm<transB = 1, alpha = 2.0>(x, w, b)"),
    "a bias for each row": Case(GROUPED, SIGNED, (ROWS, 3), product="y = Gemm<transB = 1>(x, w, turned)"),
    "columns first": Case(
        "w = DequantizeLinear<axis = 1>(q, s)", ("int8", (COLUMNS, ROWS), (-8, 7)), (ROWS,),
        product="y = MatMul(x, w)"),
    "numbers that are turned": Case(
        "q2 = Transpose<perm = [1, 0]>(q) w = DequantizeLinear<axis = 0>(q2, s)",
        ("int8", (COLUMNS, ROWS), (-8, 7)), (ROWS,)),
    "a scale for each column": Case(
        "qf = Cast<to = FLOAT>(q) w = Mul(qf, s)", ("int8", (ROWS, COLUMNS), (-8, 7)), (COLUMNS,)),
    "one scale for all": Case(
        "qf = Cast<to = FLOAT>(q) w = Mul(qf, s)", ("int8", (ROWS, COLUMNS), (-8, 7)), ()),
    "a scale that is computed": Case(
        "qf = Cast<to = FLOAT>(q) e = Exp(s) s2 = Unsqueeze(e, one) w = Mul(qf, s2)", SIGNED, (ROWS,)),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_products_stay_as_they_are(name: str) -> None:
    case = LEFT_ALONE[name]
    model = case.model()
    # What is left alone is a model that runs.
    result(model, case.x("float", 4))
    before = [node.op_type for node in model.graph]
    assert not FuseQuantizedProducts()(model).modified
    assert [node.op_type for node in model.graph] == before


def test_numbers_that_the_caller_may_replace_stay_as_they_are() -> None:
    model = CASES["groups"].model()
    model.graph.inputs.append(model.graph.initializers["q"])
    assert not FuseQuantizedProducts()(model).modified


def test_a_weight_of_two_products_is_packed_once() -> None:
    model = dataclasses.replace(
        CASES["groups"], product="a = Gemm<transB = 1>(x, w, b) c = Gemm<transB = 1>(x, w) y = Add(a, c)"
    ).model()
    x = CASES["groups"].x("float", 4)
    expected = result(model, x)
    assert FuseQuantizedProducts()(model).modified
    assert [node.op_type for node in model.graph] == ["MatMulNBits", "MatMulNBits", "Add"]
    assert len([name for name in model.graph.initializers if "packed" in name]) == 1
    np.testing.assert_allclose(result(model, x), expected, rtol=1e-4, atol=1e-4)


def test_weights_that_need_more_bits_are_refused() -> None:
    model = CASES["groups"].model()
    FuseQuantizedProducts()(model)
    packed = next(value.const_value for name, value in model.graph.initializers.items() if "packed" in name)
    wide = ir.tensor(np.full((ROWS, COLUMNS), 9, np.int8), name="q")
    with pytest.raises(LoweringError, match=r"integers from 9 to 9, .* 4 bits"):
        packed.of([wide]).numpy()
