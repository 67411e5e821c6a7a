"""The length of a table that the model reads bounds the sizes that it is right for, through both exporters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from both_exporters import TRACING, tracing

from onnx_fx_export import OnnxExporterError

T = torch.Tensor


class Table(torch.nn.Module):
    def __init__(self, read: Callable[[Any, T], T]) -> None:
        super().__init__()
        self.read, self.embedding = read, torch.nn.Embedding(16, 4)
        self.register_buffer("table", torch.randn(16, 4))

    def forward(self, x: T) -> T:
        return x + self.read(self, x)


TABLES: dict[str, tuple[Callable[[Any, T], T], int]] = {
    "embedding": (lambda m, x: m.embedding(torch.arange(x.shape[1])), 16),
    "embedding of expanded positions": (
        lambda m, x: m.embedding(torch.arange(x.shape[1])[None].expand(x.shape[0], -1)),
        16,
    ),
    "embedding from an offset": (lambda m, x: m.embedding(torch.arange(x.shape[1]) + 2), 14),
    "positions that start later": (lambda m, x: m.embedding(torch.arange(3, x.shape[1] + 3)), 13),
    "index": (lambda m, x: m.table[torch.arange(x.shape[1])], 16),
    "index_select": (lambda m, x: m.table.index_select(0, torch.arange(x.shape[1])), 16),
    "slice": (lambda m, x: m.table[: x.shape[1]], 16),
}


@tracing
@pytest.mark.parametrize("case", TABLES)
def test_the_length_of_a_table_bounds_the_sizes_that_read_it(case: str, exporter: str) -> None:
    read, most = TABLES[case]
    model, dims = Table(read).eval(), {0: "b", 1: "n"}
    with pytest.warns(UserWarning, match=f"only some of the declared sizes: n <= {most}"):
        program = TRACING[exporter](model, (torch.randn(2, 5, 4),), dynamic_shapes=(dims,))
    assert program.constraints.conditions == (f"n <= {most}",)
    for length in (1, most):
        x = torch.randn(3, length, 4)
        result = program(x)
        torch.testing.assert_close(result[0] if isinstance(result, list) else result, model(x))
    with pytest.raises(OnnxExporterError, match=f"n <= {most}"):
        program(torch.randn(3, most + 1, 4))


@tracing
def test_a_declared_bound_is_no_news(exporter: str, recwarn: pytest.WarningsRecorder) -> None:
    dims = ({1: torch.export.Dim("n", max=12)},)
    model = Table(TABLES["embedding"][0]).eval()
    program = TRACING[exporter](model, (torch.randn(2, 5, 4),), dynamic_shapes=dims)
    assert program.constraints.conditions == ("n <= 12",)
    assert [each for each in recwarn if not issubclass(each.category, DeprecationWarning)] == []
