"""Embeddings and bags of embeddings equal eager PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

MODES = ["sum", "mean", "max"]


@pytest.mark.parametrize("opset", swept(7, 13, 26))
@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (0,)])
def test_embedding_is_a_gather(shape: tuple[int, ...], opset: int) -> None:
    lowered = check(lambda i, w: F.embedding(i, w, 0), torch.randint(0, 5, shape), torch.randn(5, 3), opset=opset)
    assert lowered.op_types() == ["Gather"]


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
def test_renormalized_embeddings(norm: float) -> None:
    check(
        lambda w, i: torch.ops.aten.embedding_renorm(w, i, 1.0, norm), torch.randn(5, 3), torch.tensor([[1, 4], [1, 2]])
    )


@pytest.mark.parametrize("opset", swept(16, 18, 26))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 1, -2])
def test_embedding_bag(padding: int | None, last: bool, mode: str, opset: int) -> None:
    check(
        lambda i, w, o: F.embedding_bag(i, w, o, mode=mode, include_last_offset=last, padding_idx=padding),
        torch.tensor([1, 2, 3, 4, 5, 1]),
        torch.randn(7, 3),
        torch.tensor([0, 2, 2, 6] if last else [0, 2, 2, 5]),
        opset=opset,
    )


def test_embedding_bag_of_a_matrix_and_weights() -> None:
    check(
        lambda i, w, p: F.embedding_bag(i, w, mode="sum", per_sample_weights=p),
        torch.randint(0, 7, (4, 3)),
        torch.randn(7, 2),
        torch.randn(4, 3),
    )


@pytest.mark.parametrize("mode", MODES)
def test_embedding_bag_runs_at_other_sizes(mode: str) -> None:
    check(
        lambda i, w, o: F.embedding_bag(i, w, o, mode=mode),
        torch.tensor([1, 2, 3, 4, 5, 1]),
        torch.randn(8, 3),
        torch.tensor([0, 2, 2, 5]),
        others=[(torch.tensor([1, 2, 3]), torch.randn(5, 4), torch.tensor([0, 1]))],
    )


@pytest.mark.parametrize("opset", swept(9, 16, 26))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", [*MODES, "weighted"])
def test_the_last_offset_ends_the_last_bag(mode: str, padding: int | None, dtype: torch.dtype, opset: int) -> None:
    def bags(indices: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        scales = {"mode": "sum", "per_sample_weights": scale} if mode == "weighted" else {"mode": mode}
        return F.embedding_bag(indices, weight, offsets, include_last_offset=True, padding_idx=padding, **scales)

    weight, scale = torch.randn(9, 6).to(dtype), torch.rand(7).to(dtype)
    indices = torch.tensor([1, 2, 3, 4, 2, 6, 7])
    ends = ([0, 2, 2, 5, 6], [0, 2, 5, 5], [0, 7, 7, 7], [0, 3, 7], [0, 4])
    check(
        bags,
        indices,
        weight,
        torch.tensor([0, 2, 5]),
        scale,
        opset=opset,
        others=[(indices, weight, torch.tensor(offsets), scale) for offsets in ends],
    )


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_an_infinite_row_stays_in_its_bag(mode: str) -> None:
    weight = torch.randn(4, 3)
    weight[0] = torch.inf
    check(lambda i, w, o: F.embedding_bag(i, w, o, mode=mode), torch.arange(4), weight, torch.tensor([0, 2]))


@pytest.mark.parametrize("mode", MODES)
def test_embedding_bag_of_half_floats(mode: str) -> None:
    check(
        lambda i, w, o: F.embedding_bag(i, w, o, mode=mode),
        torch.tensor([1, 2, 3, 0]),
        torch.randn(4, 3).half(),
        torch.tensor([0, 3]),
    )
