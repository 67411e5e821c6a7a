"""A model holds what its code names, and nothing else of the modules around it."""

from __future__ import annotations

import torch

from onnxops_decomp.exporting import Inventory
from onnxops_decomp.exporting.state.reachability import reachable

OTHERS: list[object] = []
NAMED: list[object] = []


class Keeping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.ones(2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + len(NAMED) + len(self.kept)


def test_what_a_module_holds_under_other_names_is_not_the_models() -> None:
    for elsewhere, expected in ((OTHERS, False), (NAMED, True)):
        model = Keeping()
        records = Inventory(model).records
        old, model.kept = model.kept, [torch.zeros(2)]
        elsewhere.append(old)
        assert reachable(records)(old) is expected
        assert reachable(records)(model.kept)
        elsewhere.clear()


class _Compiled(type):
    """A class of classes whose module is no text, as compiled code makes them."""

    __module__ = property(lambda cls: 5)  # type: ignore[assignment]


class Odd(metaclass=_Compiled):
    """What a model holds of such code."""


def test_classes_without_a_module_are_not_the_users() -> None:
    model = Keeping()
    model.odd = [Odd, Odd()]  # type: ignore[assignment]
    assert reachable(Inventory(model).records)(model.kept)


def asserting(x: torch.Tensor) -> torch.Tensor:
    assert isinstance(x, torch.Tensor)
    return x


def test_asserts_that_pytest_rewrites_do_not_lead_to_the_session() -> None:
    assert any(name.startswith("@") for name in asserting.__code__.co_names)
    inventory = Inventory(asserting)
    assert list(inventory.functions) == [asserting]
    assert not [record for record in inventory.records if type(record.target).__module__.startswith("_pytest")]
