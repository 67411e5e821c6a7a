"""Size expressions of torch's symbolic shapes give in ONNX what they give in Python."""

from __future__ import annotations

import adapter_cases
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import sympy
from torch.utils._sympy import functions as f

from onnxops_decomp.builder.expressions import emit_expression, is_computable
from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.exporting.sizes.expressions import parsed_size, unevaluated, value_of_size
from onnxops_decomp.files.model import build_model

N, M = sympy.symbols("n m", integer=True, positive=True)

EXPRESSIONS: dict[str, sympy.Basic] = {
    "polynomial": 3 * N**2 - 2 * N * M + 7,
    "floor division": f.FloorDiv(N - 7, M),
    "clean division": f.CleanDiv(6 * N, 3),
    "ceiling division": f.CeilToInt(f.IntTrueDiv(N, M)),
    "remainder": f.PythonMod(N - 9, M),
    "modular indexing": f.ModularIndexing(5 * N, 2, M),
    "extremes": sympy.Max(N, 4) + sympy.Min(M, 3),
    "rational factor": 6 * N / 3,
    "half rounded down": sympy.floor(sympy.Rational(1, 2) * N),
    "square root": f.FloorToInt(f.OpaqueUnaryFn_sqrt(N * M)),
    "choice": sympy.Piecewise((N, N > M), (M + 1, True)),
    "torch's choice": f.Where(sympy.Ge(N, M), N, 2 * M),
    "magnitude": sympy.Abs(N - 5),
    "identity": f.Identity(N) + 1,
}


@pytest.mark.parametrize("opset", [7, 10, 13, 20])
@pytest.mark.parametrize("sizes", [(2, 3), (9, 4), (5, 5)])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_value_of(name: str, sizes: tuple[int, int], opset: int) -> None:
    op = OpBuilder(opset)
    x = op.input("x", ir.DataType.FLOAT, (ir.SymbolicDim("n"), ir.SymbolicDim("m")))
    op.context.symbols["n"] = lambda b: b.Shape(x, start=0, end=1)
    op.context.symbols["m"] = lambda b: b.Shape(x, start=1, end=2)
    expression = EXPRESSIONS[name]
    assert is_computable(op, expression)
    size = op.cast(emit_expression(op, expression), ir.DataType.INT64)
    proto = ir.to_proto(build_model(op, [size], name="test"))
    actual = adapter_cases.run_in_runtime(proto, {"x": np.zeros(sizes, np.float32)})[0]
    assert actual.tolist() == [int(expression.subs({N: sizes[0], M: sizes[1]}).expand(identity=True))]


TEXTS = [
    "n & (-1) + n == 0",
    "(n | m) ^ 3 > 4",
    "n % m == 0",
    "(n - 7) // m < -1",
    "2*n - m >= 4 and not n == m",
    "n != m or n**2 <= 16",
    "max(n, m, 4) > 4",
    "min(n, 3) == 3",
    "math.ceil(n / m) == 3",
    "FloorDiv(n, 2) * 2 == n",
    "math.floor(math.sqrt(n * m)) == 2",
    "round(n / m) == 2",
    "abs(m - n) <= 1",
    "math.trunc(torch.sym_float(n) / 2) == m",
    "-n + 2*m > 0",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_condition_that_is_written_as_text_gives_in_onnx_what_it_gives_in_python(text: str) -> None:
    op = OpBuilder(13)
    x = op.input("x", ir.DataType.FLOAT, (ir.SymbolicDim("n"), ir.SymbolicDim("m")))
    op.context.symbols["n"] = lambda b: b.Shape(x, start=0, end=1)
    op.context.symbols["m"] = lambda b: b.Shape(x, start=1, end=2)
    tree = parsed_size(text)
    assert tree is not None
    holds = emit_expression(op, unevaluated(tree))
    session = onnxruntime.InferenceSession(ir.to_proto(build_model(op, [holds], name="test")).SerializeToString())
    sizes = [(2, 3), (9, 4), (5, 5), (4, 1), (5, 2), (6, 2)]
    actual = [session.run(None, {"x": np.zeros(shape, np.float32)})[0].item() for shape in sizes]
    expected = [value_of_size(tree, {"n": n, "m": m}) for n, m in sizes]
    assert actual == expected
    assert set(expected) == {True, False}


def test_expression_with_a_function_that_onnx_lacks_is_not_computable() -> None:
    op = OpBuilder(20)
    op.context.symbols["n"] = lambda b: b.constant([1])
    assert not is_computable(op, sympy.gamma(N))
    assert not is_computable(op, M + 1)
    assert is_computable(op, N + 1)
