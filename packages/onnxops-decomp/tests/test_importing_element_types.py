"""Imported operators compute in each element type that the specification allows them, as ONNX's evaluator does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from importable_models import model
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxops_decomp import to_torch

UNSIGNED = (np.uint16, np.uint32, np.uint64)
VOLUME = (1, 2, 4, 5, 4)
CASES: list[tuple[str, dict[str, Any], list[tuple[int, ...]], tuple[type, ...]]] = [
    ("Einsum", {"equation": "ij->i"}, [(3, 4)], (np.int32, np.int8, *UNSIGNED)),
    ("Einsum", {"equation": "ij,jk->ik"}, [(3, 4), (4, 2)], (np.int32, np.int8, *UNSIGNED)),
    ("Gemm", {}, [(3, 4), (4, 2), (2,)], (np.int32, np.int64, np.uint32, np.uint64)),
    ("Gemm", {"alpha": 0.25, "beta": 0.35}, [(3, 4), (4, 2), (1, 2)], (np.int32, np.int64)),
    ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, [(1, 8, 2, 3)], (np.uint8, *UNSIGNED)),
    ("Col2Im", {}, [(1, 5, 5)], UNSIGNED),
    ("PRelu", {}, [(3, 4), (4,)], (np.uint32, np.uint64, np.int32)),
    ("AveragePool", {"kernel_shape": [2, 3, 2], "pads": [1, 0, 0, 0, 0, 0]}, [VOLUME], (np.float16,)),
    ("LpPool", {"kernel_shape": [2, 3, 2]}, [VOLUME], (np.float16,)),
]
CONSTANTS = {"Col2Im": {"image": np.array([5, 5]), "block": np.array([1, 5])}}


@pytest.mark.parametrize(
    "op_type, attributes, shapes, dtype",
    [(op_type, attributes, shapes, dtype) for op_type, attributes, shapes, dtypes in CASES for dtype in dtypes],
)
def test_an_element_type_gives_what_the_evaluator_gives(
    op_type: str, attributes: dict[str, Any], shapes: list[tuple[int, ...]], dtype: type
) -> None:
    rng = np.random.default_rng(0)
    # Small, as the evaluator adds up halves in halves.
    least, most = (0, 9) if np.dtype(dtype).kind in "uf" else (-9, 9)
    feeds = {f"x{place}": rng.integers(least, most, shape).astype(dtype) for place, shape in enumerate(shapes)}
    constants = CONSTANTS.get(op_type, {})
    node = helper.make_node(op_type, [*feeds, *constants], ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    declared = [(name, array.shape) for name, array in feeds.items()]
    made = model([node], declared, [("y", None)], constants, opset=22, dtype=kind)

    (want,) = ReferenceEvaluator(made).run(None, feeds)
    got = to_torch(made)(*map(torch.from_numpy, feeds.values())).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-3 if got.dtype.kind == "f" else 0)


def test_the_determinant_of_halves_is_that_of_floats() -> None:
    x = np.array([[[2, 3], [1, 4]], [[1, 2], [2, 4]]], np.float16)
    made = model([helper.make_node("Det", ["x"], ["y"])], [("x", x.shape)], [("y", [2])], dtype=10, opset=22)
    np.testing.assert_array_equal(to_torch(made)(torch.from_numpy(x)).numpy(), np.array([5, 0], np.float16))
