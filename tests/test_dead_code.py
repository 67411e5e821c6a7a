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
