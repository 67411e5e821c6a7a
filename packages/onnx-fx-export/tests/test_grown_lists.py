"""Lists that loops over a dynamic size add to, and what is done with them afterwards, at other lengths."""

from __future__ import annotations

import pytest
import torch

from onnx_fx_export import export


class BestPath(torch.nn.Module):
    """Viterbi's algorithm: the best labels of a sequence, found backwards from the best last one."""

    def __init__(self) -> None:
        super().__init__()
        self.transitions = torch.nn.Parameter(torch.randn(5, 5))

    def forward(self, emissions):
        score, pointers = emissions[:, 0], []
        for step in range(1, emissions.size(1)):
            total = score.unsqueeze(2) + self.transitions + emissions[:, step].unsqueeze(1)
            score, index = total.max(1)
            pointers.append(index)
        best = score.argmax(1)
        path = [best]
        for place in range(len(pointers) - 1, -1, -1):
            best = pointers[place].gather(1, best.unsqueeze(1)).squeeze(1)
            path.append(best)
        path.reverse()
        return torch.stack(path, 1), score.max(1)[0]


class BothDirections(torch.nn.Module):
    """Two recurrences, the second of which runs backwards and puts its results in front."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.ModuleList([torch.nn.GRUCell(5, 5), torch.nn.GRUCell(5, 5)])

    def forward(self, x):
        forwards, backwards = [torch.zeros(x.size(0), 5)], [torch.zeros(x.size(0), 5)]
        for step in range(x.size(1)):
            forwards.append(self.cells[0](x[:, step], forwards[-1]))
        for step in range(x.size(1) - 1, -1, -1):
            backwards.insert(0, self.cells[1](x[:, step], backwards[0]))
        return torch.cat([torch.stack(forwards[1:], 1), torch.stack(backwards[:-1], 1)], -1)


class Reversed(torch.nn.Module):
    def forward(self, x):
        rows, sums, total = [], [x[:, 0]], x[:, 0] * 0
        for row in x.unbind(1):
            rows.append(row * 2)
        for row in reversed(rows):
            total = torch.tanh(total + row)
        for row in rows[::-1]:
            sums.append(sums[-1] * 0.5 + row)
        sums.append(total)
        return torch.stack(sums, -1), total * len(rows), rows[-1] - rows[0]


@pytest.mark.parametrize("kind", [BestPath, BothDirections, Reversed])
def test_a_list_is_read_after_its_loop_and_within(kind) -> None:
    model = kind().eval()

    program = export(model, (torch.randn(2, 6, 5),), dynamic_shapes=({0: "rows", 1: "steps"},))

    assert program.capture_strategy == "size-loops"
    for sizes in ((2, 6), (3, 9), (1, 2)):
        x = torch.randn(*sizes, 5)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_elements_within_the_list_are_no_newest_ones() -> None:
    """The list would have to be carried whole, which grows: the loop stays as it is, and its size fixed."""

    def looks_back(x):
        rows = [x[:, 0], x[:, 1]]
        for step in range(2, x.size(1)):
            rows.append(rows[-1] + rows[-2] * x[:, step])
        return torch.stack(rows, 1)

    x = torch.randn(2, 6)
    program = export(looks_back, (x,), dynamic_shapes=({0: "rows"},))
    torch.testing.assert_close(program(x + 1), looks_back(x + 1))
