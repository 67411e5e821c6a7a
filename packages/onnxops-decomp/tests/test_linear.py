"""Matrix products equal eager PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

OPSETS = swept(7, 9, 13, 18, 26)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 1, 2, 3), (5, 3, 4))],
)
def test_matmul_of_any_ranks(a: tuple[int, ...], b: tuple[int, ...], opset: int) -> None:
    check(torch.matmul, torch.randn(a), torch.randn(b), opset=opset)


def test_matmul_runs_at_other_sizes() -> None:
    check(torch.matmul, torch.randn(2, 3, 4), torch.randn(4, 5), others=[(torch.randn(6, 2, 7), torch.randn(7, 3))])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.float64, torch.float16])
def test_matmul_keeps_the_dtype(dtype: torch.dtype) -> None:
    a, b = (torch.arange(6) * 30).reshape(2, 3).to(dtype), (torch.arange(6) - 3).reshape(3, 2).to(dtype)
    check(torch.mm, a, b)


def test_matmul_over_an_empty_dimension_is_zero() -> None:
    check(torch.mm, torch.randn(2, 0), torch.randn(0, 3))


EMPTY = [((0, 3, 4), (4,)), ((0, 4), (4,)), ((3, 0), (0,)), ((2, 3, 0), (0,)), ((4,), (0, 4, 3)), ((3, 4), (0, 4, 2))]


@pytest.mark.parametrize("a, b", [*EMPTY, ((0, 1, 3, 4), (5, 4, 2)), ((2, 3, 0), (2, 0, 5)), ((0,), (0,))])
def test_matmul_of_empty_tensors(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(torch.matmul, torch.randn(a), torch.randn(b))


@pytest.mark.parametrize("function", [torch.matmul, torch.nn.functional.linear])
def test_matrix_times_vector_over_sizes_that_are_zero_at_run_time(function: Any) -> None:
    sizes = [(0, 3, 4), (2, 0, 4), (2, 3, 0), (5, 2, 6)]
    check(function, torch.randn(2, 3, 4), torch.randn(4), others=[(torch.randn(s), torch.randn(s[-1])) for s in sizes])
    check(torch.mv, torch.randn(3, 4), torch.randn(4), others=[(torch.randn(3, 0), torch.randn(0))])
    check(
        torch.addmv,
        torch.randn(3),
        torch.randn(3, 4),
        torch.randn(4),
        others=[[torch.randn(s) for s in (3, (3, 0), 0)]],
    )


@pytest.mark.parametrize("opset", [9, 13, 20])
def test_transposed_matrices_over_nothing(opset: int) -> None:
    others = [(torch.randn(2, 0, 3),), (torch.randn(0, 4, 3),), (torch.randn(5, 6, 7),)]
    lowered = check(lambda x: x.mT @ x, torch.randn(2, 4, 3), others=others, opset=opset)
    # Where nothing is contracted the runtime leaves memory as it finds it, which may happen to be zero.
    assert "Where" in lowered.op_types()


def test_a_static_contraction_is_one_product() -> None:
    lowered = check(lambda x: x @ x.mT, torch.randn(2, 1, 1), others=[(torch.randn(5, 1, 1),)])
    assert "Where" not in lowered.op_types()


@pytest.mark.parametrize(
    "equation, shapes", [("abc,dbc->acd", ((0, 6, 7), (0, 6, 7))), ("ab,bc->ac", ((2, 0), (0, 3)))]
)
def test_einsum_of_empty_tensors(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(lambda *x: torch.einsum(equation, *x), *map(torch.randn, shapes))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(4,), (2, 4), (3, 2, 4)])
def test_linear_of_any_rank(shape: tuple[int, ...], opset: int) -> None:
    check(F.linear, torch.randn(shape), torch.randn(5, 4), torch.randn(5), opset=opset)


def test_linear_of_a_matrix_is_one_gemm() -> None:
    lowered = check(F.linear, torch.randn(2, 4), torch.randn(5, 4), torch.randn(5))
    assert lowered.op_types() == ["Gemm"]


def test_linear_with_a_vector_as_weight() -> None:
    check(F.linear, torch.randn(2, 4), torch.randn(4))


@pytest.mark.parametrize("bias", [(2, 3), (3,), (2, 1), ()])
def test_addmm_scales_both_terms(bias: tuple[int, ...]) -> None:
    check(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        torch.randn(bias),
        torch.randn(2, 4),
        torch.randn(4, 3),
    )


def test_addmm_with_beta_zero_ignores_nan() -> None:
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), torch.full((3,), torch.nan), torch.ones(2, 4), torch.ones(4, 3))


def test_addmm_of_integers() -> None:
    check(
        lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3),
        torch.tensor([2**60, 1, -5]),
        torch.arange(8).reshape(2, 4),
        torch.arange(12).reshape(4, 3),
    )


def test_addmm_over_an_empty_dimension_keeps_the_scaled_bias() -> None:
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0.5), torch.randn(3), torch.randn(2, 0), torch.randn(0, 3))


@pytest.mark.parametrize("function", [torch.baddbmm, torch.addbmm])
def test_batched_products_are_added(function: Any) -> None:
    check(
        lambda c, a, b: function(c, a, b, beta=0.5, alpha=2),
        torch.randn(2, 3),
        torch.randn(5, 2, 4),
        torch.randn(5, 4, 3),
    )


def test_addmv_and_addr() -> None:
    check(lambda c, a, b: torch.addmv(c, a, b, beta=3), torch.randn(2), torch.randn(2, 4), torch.randn(4))
    check(lambda c, a, b: torch.addr(c, a, b, alpha=3), torch.randn(2, 3), torch.randn(2), torch.randn(3))
    check(torch.addr, torch.eye(2, dtype=torch.bool), torch.tensor([True, False]), torch.tensor([False, True]))


def test_outer_promotes() -> None:
    check(torch.outer, torch.arange(3), torch.randn(4))


def test_dot_and_mv() -> None:
    check(torch.dot, torch.arange(3), torch.arange(3))
    check(torch.mv, torch.randn(2, 3), torch.randn(3))


EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("bij, bjk -> bik", [(2, 3, 4), (2, 4, 5)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
    ("...ij,...kj->...ik", [(2, 3, 4), (2, 5, 4)]),
    ("...ij,...jk", [(6, 2, 3, 4), (2, 4, 5)]),
    ("...i->...", [(2, 3, 4)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("iij,jk->ki", [(3, 3, 2), (2, 4)]),
    ("ij->ji", [(2, 3)]),
    ("ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("i,i->i", [(3,), (3,)]),
    ("i,j,k->kji", [(2,), (3,), (4,)]),
    ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ("bA,bB", [(2, 3), (2, 4)]),
    ("ij,ij->i", [(2, 3), (2, 1)]),
    ("ijk,jl->il", [(2, 3, 4), (3, 5)]),
    ("i,->i", [(3,), ()]),
    (",", [(), ()]),
]


@pytest.mark.parametrize("opset", swept(7, 9, 11, 12, 18, 26))
@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], opset: int) -> None:
    check(lambda *x: torch.einsum(equation, *x), *(torch.randn(shape) for shape in shapes), opset=opset)


@pytest.mark.parametrize("opset", [11, 12])
def test_einsum_runs_at_other_sizes(opset: int) -> None:
    check(
        lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b),
        torch.randn(2, 4, 3, 5),
        torch.randn(2, 6, 3, 5),
        opset=opset,
        others=[(torch.randn(7, 3, 2, 4), torch.randn(7, 5, 2, 4))],
    )


@pytest.mark.parametrize("opset", swept(7, 11, 12, 18, 26))
@pytest.mark.parametrize("equation", ["bqd,bkd->bqk", "bdq,kdb->kq", "bqd,bkd->q"])
def test_einsum_of_what_is_empty_at_run_time(equation: str, opset: int) -> None:
    def operands(sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
        labels = equation.partition("->")[0].split(",")
        return tuple(torch.randn([sizes[label] for label in term]) for term in labels)

    usual = {"b": 2, "q": 3, "k": 4, "d": 5}
    # Of these ONNX Runtime's Einsum ends the process.
    empty = [operands({**usual, label: 0}) for label in usual]
    check(lambda *x: torch.einsum(equation, *x), *operands(usual), opset=opset, others=empty)


def test_einsum_is_one_node() -> None:
    product = check(lambda a, b: torch.einsum("bij,bjk->bik", a, b), torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    assert product.op_types() == ["MatMul"]
    scores = check(lambda a, b: torch.einsum("bqd,bkd->bqk", a, b), torch.randn(2, 3, 4), torch.randn(2, 5, 4))
    assert scores.op_types() == ["Einsum"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64, torch.float16])
def test_einsum_keeps_the_dtype(dtype: torch.dtype) -> None:
    a, b = torch.arange(6).reshape(2, 3).to(dtype), torch.arange(8).reshape(4, 2).to(dtype)
    check(lambda a, b: torch.einsum("ij,ki->jk", a, b), a, b)


@pytest.mark.parametrize("opset", [9, 12, 18])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ij->", [(2, 3)]), ("ij->i", [(2, 3)]), ("ij->ji", [(2, 3)]), ("ij->i", [(2, 1)]), ("ij,k->k", [(2, 3), (4,)])],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_einsum_sums_integers_like_sum(
    dtype: torch.dtype, equation: str, shapes: list[tuple[int, ...]], opset: int
) -> None:
    operands = [torch.randint(100, 127, shape).to(dtype) for shape in shapes]
    check(lambda *operands: torch.einsum(equation, *operands), *operands, opset=opset)


@pytest.mark.parametrize("equation", ["i,j->ij", "i,i->i"])
def test_einsum_promotes_what_it_only_multiplies(equation: str) -> None:
    numbers, bools = torch.arange(4), torch.tensor([True, False, True, True])
    for a, b in ((numbers, torch.rand(4)), (numbers.int(), torch.rand(4).half()), (bools, numbers)):
        check(lambda a, b: torch.einsum(equation, a, b), a, b)
        check(lambda a, b: torch.einsum("i,->i", a, b[1]), a, b)


def test_bilinear_and_tensordot() -> None:
    check(F.bilinear, torch.randn(4, 2), torch.randn(4, 3), torch.randn(5, 2, 3), torch.randn(5))
    check(lambda a, b: torch.tensordot(a, b, dims=([1, 0], [0, 1])), torch.randn(2, 3, 4), torch.randn(3, 2, 5))


def test_chain_of_matrices() -> None:
    check(torch.chain_matmul, torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 5))


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, float("inf")])
def test_distances_between_rows(p: float) -> None:
    check(
        lambda a, b: torch.cdist(a, b, p),
        torch.randn(2, 3, 4),
        torch.randn(2, 5, 4),
        others=[(torch.randn(7, 2, 6), torch.randn(7, 8, 6))],
    )


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize(
    ("rows", "mode", "products"),
    [((26, 3), None, True), ((3, 26), None, True), ((25, 25), None, False), ((3, 4), 1, True), ((30, 40), 2, False)],
)
def test_distances_are_computed_as_torch_computes_them(
    rows: tuple[int, int], mode: int | None, products: bool, opset: int
) -> None:
    a, b = torch.randn(2, 1, rows[0], 4), torch.randn(3, rows[1], 4)

    lowered = check(lambda a, b: torch._C._VariableFunctions.cdist(a, b, 2.0, mode), a, b, opset=opset)

    assert ("MatMul" in lowered.op_types()) == products


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, float("inf")])
@pytest.mark.parametrize("opset", [9, 18])
def test_distances_within_a_matrix(p: float, opset: int) -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, -3.0], [0.0, 0.5]])
    check(lambda x: F.pdist(x, p), x, opset=7)
    check(lambda x: F.pdist(x, p), x, others=[(torch.randn(6, 4),), (torch.randn(1, 3),)], opset=opset)


@pytest.mark.parametrize(("a", "b"), [((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4))])
def test_complex_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(torch.matmul, torch.randn(a, dtype=torch.complex64), torch.randn(b, dtype=torch.complex64))


def test_complex_vdot_and_linear() -> None:
    dtype = torch.complex64
    check(torch.vdot, torch.randn(3, dtype=dtype), torch.randn(3, dtype=dtype))
    check(F.linear, torch.randn(2, 3, dtype=dtype), torch.randn(4, 3, dtype=dtype), torch.randn(4, dtype=dtype))


EMPTY_PRODUCTS = {
    "matmul": lambda a, b: a @ b.mT,
    "bmm": lambda a, b: torch.bmm(a, b.transpose(1, 2)),
    "baddbmm": lambda a, b: torch.baddbmm(torch.ones(2, 3, 3, dtype=a.dtype), a, b.mT),
}


@pytest.mark.parametrize("opset", [9, 13, 18, 26])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("name", EMPTY_PRODUCTS)
def test_products_over_an_inner_size_of_zero_are_zero(name: str, dtype: torch.dtype, opset: int) -> None:
    nothing, example = torch.zeros(2, 3, 0, dtype=dtype), torch.ones(2, 3, 4, dtype=dtype)
    # What the runtime leaves unwritten may be zero by chance.
    for _ in range(5):
        check(EMPTY_PRODUCTS[name], nothing, nothing, opset=opset)
    check(EMPTY_PRODUCTS[name], example, example, others=[(nothing, nothing)] * 5, opset=opset)


@pytest.mark.parametrize("opset", swept(9, 13, 18, 20))
@pytest.mark.parametrize(
    ("shapes", "dim"),
    [
        ([(3, 4), (3, 4)], 1),
        ([(2, 3, 4), (2, 3, 4)], -2),
        ([(2, 3, 4), (3, 4)], 1),
        ([(2, 3, 4), (4,)], 0),
        ([(3, 1), (3, 4)], 1),
    ],
)
def test_cosine_similarity(shapes: list[tuple[int, ...]], dim: int, opset: int) -> None:
    check(lambda x, y: F.cosine_similarity(x, y, dim), *map(torch.randn, shapes), opset=opset)


def test_cosine_similarity_at_other_sizes() -> None:
    check(
        lambda x, y: F.cosine_similarity(x, y, -1),
        torch.randn(2, 3),
        torch.randn(2, 3),
        others=[(torch.randn(5, 7), torch.randn(5, 7)), (torch.randn(5, 0), torch.randn(5, 0))],
    )


@pytest.mark.parametrize("factor", [0.0, 1e-12, 1e4, 1e17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_cosine_similarity_of_short_and_long_vectors(dtype: torch.dtype, factor: float) -> None:
    x, y = torch.randn(3, 20), torch.randn(3, 20)
    far = (x * factor).clamp(-1e4, 1e4) if dtype == torch.float16 else x * factor
    for pair in ((far, y), (far, far)):
        check(F.cosine_similarity, *(each.to(dtype) for each in pair))
