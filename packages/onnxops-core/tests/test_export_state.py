"""Ours and torch's idea of being inside an ONNX export."""

import threading
import types

import pytest
import torch
from torch.onnx import is_in_onnx_export as held_before_export

import onnxops_core
from onnxops_core.export_state import unfused_layers


def test_nothing_is_exported_outside_the_context():
    assert onnxops_core.is_in_onnx_export() is False
    assert torch.onnx.is_in_onnx_export() is False


def test_both_answers_are_true_inside_the_context():
    with onnxops_core.onnx_export():
        answers = onnxops_core.is_in_onnx_export(), torch.onnx.is_in_onnx_export(), held_before_export()

    assert answers == (True, True, True)
    assert (onnxops_core.is_in_onnx_export(), held_before_export()) == (False, False)


def test_contexts_nest():
    with onnxops_core.onnx_export():
        with onnxops_core.onnx_export():
            pass
        inside = onnxops_core.is_in_onnx_export(), torch.onnx.is_in_onnx_export()

    assert inside == (True, True)
    assert torch.onnx.is_in_onnx_export() is False


def test_state_is_restored_after_an_error():
    with pytest.raises(KeyError), onnxops_core.onnx_export():
        raise KeyError

    assert (onnxops_core.is_in_onnx_export(), torch.onnx.is_in_onnx_export()) == (False, False)


def test_another_thread_is_not_exporting():
    seen = []

    with onnxops_core.onnx_export():
        thread = threading.Thread(
            target=lambda: seen.append((onnxops_core.is_in_onnx_export(), torch.onnx.is_in_onnx_export()))
        )
        thread.start()
        thread.join()

    assert seen == [(False, False)]


def test_torchs_answer_is_still_a_plain_function_of_no_arguments():
    # The flag module swaps this function's code object; it must stay a closure-free Python function.
    function = torch.onnx.is_in_onnx_export

    assert isinstance(function, types.FunctionType)
    assert function.__closure__ is None
    assert function.__code__.co_argcount == 0


def test_ours_is_true_inside_torchs_own_exporter(monkeypatch):
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)

    assert onnxops_core.is_in_onnx_export() is True


class _Branches(torch.nn.Module):
    def forward(self, x):
        if onnxops_core.is_in_onnx_export():
            return x + 1
        return x - 1


@pytest.mark.parametrize("strict", [False, True])
def test_captured_graph_takes_the_export_branch(strict):
    x = torch.zeros(3)

    with onnxops_core.onnx_export():
        program = torch.export.export(_Branches(), (x,), strict=strict)

    assert program.module()(x).tolist() == [1.0, 1.0, 1.0]


def test_compiled_code_outside_an_export_takes_the_plain_branch():
    compiled = torch.compile(_Branches(), backend="eager", fullgraph=True)

    assert compiled(torch.zeros(2)).tolist() == [-1.0, -1.0]


def test_layers_run_by_their_definition_inside_unfused_layers():
    before = torch.backends.mha.get_fastpath_enabled()

    with unfused_layers():
        inside = torch.backends.mha.get_fastpath_enabled()

    assert (before, inside, torch.backends.mha.get_fastpath_enabled()) == (True, False, True)
