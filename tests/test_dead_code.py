"""Definitions that nothing uses are found; what frameworks use is not reported."""

from __future__ import annotations

from pathlib import Path

from tools.dead_code import unused


def test_an_unused_function_is_reported_and_a_used_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def used():\n    pass\n\n\ndef lonely():\n    pass\n")
    (tmp_path / "b.py").write_text("from a import used\n\nused()\n")

    assert unused(tmp_path, ["a.py", "b.py"]) == ["a.py:5: nothing uses the function lonely"]


def test_registered_functions_hooks_and_parameters_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import torch\n"
        "from table import lowering\n\n\n"
        "@lowering(torch.ops.aten.relu.default)\n"
        "def relu(op, input, unused_parameter=None):\n"
        "    return op.Relu(input)\n\n\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x\n\n\n"
        "Model()\n"
    )

    assert unused(tmp_path, ["a.py"]) == []


def test_an_unused_property_is_reported_although_it_is_decorated(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import functools\n\n\n"
        "class Thing:\n"
        "    @property\n"
        "    def lonely(self):\n"
        "        return 1\n\n"
        "    @functools.cached_property\n"
        "    def used(self):\n"
        "        return 1\n\n\n"
        "Thing().used\n"
    )

    assert unused(tmp_path, ["a.py"]) == ["a.py:5: nothing uses the property lonely"]


def test_a_name_that_a_module_offers_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('__all__ = ["offered"]\n\n\ndef offered():\n    pass\n')

    assert unused(tmp_path, ["a.py"]) == []
