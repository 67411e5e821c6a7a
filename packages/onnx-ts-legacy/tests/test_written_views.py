"""Views of every kind that are written to: what they show changes, or the export is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError


class Written(nn.Module):
    """Writes to a view of a copy of its input, and returns the copy."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.view = view

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        self.view(y).mul_(2).add_(1)
        return y, y + 1


def as_complex(y: Tensor) -> Tensor:
    return torch.view_as_complex(y.view(-1, 2, 2))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "alias": lambda y: torch.ops.aten.alias(y),
    "atleast_1d of an element": lambda y: torch.atleast_1d(y[1, 2]),
    "atleast_2d of an element": lambda y: torch.atleast_2d(y[1, 2]),
    "atleast_2d of a column": lambda y: torch.atleast_2d(y[:, 1])[0],
    "atleast_3d": lambda y: torch.atleast_3d(y, y)[1],
    "adjoint": lambda y: y.adjoint(),
    "broadcast_to": lambda y: torch.broadcast_to(y, y.shape),
    "chunk": lambda y: y.chunk(2, 1)[1],
    "complex": as_complex,
    "complex adjoint": lambda y: as_complex(y).adjoint()[0],
    "complex conj": lambda y: as_complex(y).conj(),
    "complex conj imag": lambda y: as_complex(y).conj().imag,
    "complex imag": lambda y: as_complex(y).imag,
    "complex real": lambda y: as_complex(y).real,
    "complex view_as_real": lambda y: torch.view_as_real(as_complex(y))[..., 1],
    "contiguous": lambda y: y.contiguous(),
    "data": lambda y: y.data,
    "data of a part": lambda y: y[1:].data[0],
    "detach": lambda y: y.detach(),
    "diagonal": lambda y: y.diagonal(),
    "expand": lambda y: y.expand(-1, -1),
    "flatten": lambda y: y.flatten(),
    "index with steps": lambda y: y[1:, ::2],
    "index with None": lambda y: y[..., None, 0],
    "index with a tensor": lambda y: y[torch.tensor([0, 1])],
    "movedim": lambda y: y.movedim(0, 1),
    "narrow": lambda y: y.narrow(0, 1, y.shape[0] - 1),
    "permute": lambda y: y.permute(1, 0)[0],
    "ravel": lambda y: y.ravel(),
    "reshape": lambda y: y.reshape(-1, 2),
    "select": lambda y: y.select(0, -1),
    "split": lambda y: y.split(2, 1)[1],
    "split with sizes": lambda y: y.split([1, 3], 1)[1],
    "split of a dynamic dimension": lambda y: y.split([1, y.shape[0] - 1], 0)[1],
    "squeeze": lambda y: y[:, None].squeeze(1),
    "t of a slice of t": lambda y: y.t()[1:].t()[0],
    "tensor_split": lambda y: y.tensor_split(2, 1)[1],
    "to": lambda y: y.to(torch.float32),
    "unbind": lambda y: y.unbind(1)[2],
    "unflatten": lambda y: y.unflatten(1, (2, 2)),
    "unsafe_chunk": lambda y: y.unsafe_chunk(2, 1)[1],
    "unsafe_split": lambda y: y.unsafe_split(2, 1)[1],
    "view": lambda y: y.view(-1),
}

# ONNX has no form for these, or it is not known which part of the memory they show.
REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor_split of a dynamic dimension": lambda y: y.tensor_split(2, 0)[1],
    "first of chunk of a dynamic dimension": lambda y: y.chunk(2, 0)[0],
    "second of chunk of a dynamic dimension": lambda y: y.chunk(2, 0)[1],
    "unfold": lambda y: y.unfold(1, 2, 2),
    "as_strided": lambda y: y.as_strided((2, 2), (4, 1)),
}


@pytest.mark.parametrize("axes", [None, {"x": {0: "n"}}], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", VIEWS)
def test_what_a_written_view_shows_changes(name: str, axes: dict | None) -> None:
    examples = [(torch.randn(6, 4),)] + ([(torch.randn(9, 4),)] if axes else [])
    exported(Written(VIEWS[name]).eval(), *examples, dynamic_axes=axes)


@pytest.mark.parametrize("name", REFUSED)
def test_a_write_that_cannot_be_followed_is_refused(name: str) -> None:
    with pytest.raises(OnnxExporterError, match=r"test_written_views\.py"):
        onnx_ts_legacy.export(Written(REFUSED[name]).eval(), (torch.randn(6, 4),), dynamic_axes={"x": {0: "n"}})


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_recurrent_cell_of_static_sizes(kind: type) -> None:
    torch.manual_seed(0)
    exported(kind(4, 3).eval(), (torch.randn(2, 4),))
