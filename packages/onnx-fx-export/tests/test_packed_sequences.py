"""Sequences of several lengths, packed for recurrent layers, at batches, lengths and sizes other than the example's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from onnx_fx_export import export

SHAPES = ({0: "batch", 1: "time"}, {0: "batch"})


def batch(
    size: int, time: int, *, batch_first: bool = True, falling: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.randint(1, time + 1, (size,))
    lengths[0] = time
    x = torch.randn(size, time, 3)
    return x if batch_first else x.transpose(0, 1).contiguous(), lengths.sort(descending=True)[
        0
    ] if falling else lengths


class Layer(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], total: bool = False, falling: bool = False, **options: Any) -> None:
        super().__init__()
        options = {"batch_first": True, **options}
        self.layer, self.total, self.falling = kind(3, 4, **options), total, falling

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        first = self.layer.batch_first
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.falling)
        output, state = self.layer(packed)
        total = x.shape[1 if first else 0] if self.total else None
        return *rnn.pad_packed_sequence(output, batch_first=first, total_length=total), state


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True},
        {"batch_first": False, "falling": True},
        {"total": True},
    ],
    ids=["one way", "both ways", "time first", "total length"],
)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_layer_over_a_pack(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    model = Layer(kind, **options).eval()
    given = {key: options[key] for key in ("batch_first", "falling") if key in options}
    shapes = SHAPES if model.layer.batch_first else ({0: "time", 1: "batch"}, {0: "batch"})

    program = export(model, batch(3, 5, **given), dynamic_shapes=shapes)

    for sizes in ((3, 5), (4, 8), (2, 3), (1, 6)):
        args = batch(*sizes, **given)
        torch.testing.assert_close(program(*args), model(*args), rtol=1e-4, atol=1e-6)


def test_a_pack_that_is_computed_on() -> None:
    """Embedded rows, lengths of a mask, two layers, the last states, another padding value, given first states."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.first = nn.Embedding(9, 6), nn.LSTM(6, 4, bidirectional=True, proj_size=3)
            self.second = nn.GRU(6, 3)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, state: torch.Tensor) -> Any:
            ids = rnn.pack_padded_sequence(ids, mask.sum(1), batch_first=True, enforce_sorted=False)
            rows, (last, _) = self.first(ids._replace(data=self.embedding(ids.data)))
            padded, lengths = rnn.pad_packed_sequence(self.second(rows, state)[0], batch_first=True, padding_value=-1.0)
            return padded, lengths, torch.cat([last[-2], last[-1]], 1)

    def example(size: int, time: int) -> tuple[torch.Tensor, ...]:
        _, lengths = batch(size, time)
        mask = (torch.arange(time) < lengths.unsqueeze(1)).long()
        return torch.randint(0, 9, (size, time)), mask, torch.randn(1, size, 3)

    model = Model().eval()
    shapes = ({0: "batch", 1: "time"}, {0: "batch", 1: "time"}, {1: "batch"})
    program = export(model, example(3, 5), dynamic_shapes=shapes)
    for sizes in ((4, 8), (2, 3)):
        args = example(*sizes)
        torch.testing.assert_close(program(*args), model(*args), rtol=1e-4, atol=1e-6)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        output, state = self.layer(rnn.pack_sequence([x, y], enforce_sorted=False))
        return state, rnn.unpack_sequence(output), rnn.pad_sequence([x, y], padding_value=2.0, padding_side="left")


def test_sequences_of_a_list_whichever_is_longer() -> None:
    model = Listed().eval()
    program = export(model, (torch.randn(3, 3), torch.randn(5, 3)), dynamic_shapes=({0: "n"}, {0: "m"}))
    for n, m in ((3, 5), (8, 2), (4, 4)):
        args = torch.randn(n, 3), torch.randn(m, 3)
        torch.testing.assert_close(program(*args), model(*args), rtol=1e-4, atol=1e-6)
