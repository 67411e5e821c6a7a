"""An export is not disturbed by objects that are collected meanwhile, by other threads, or by an export before it."""

import gc
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils import _pytree as pytree

import onnx_fx_export as fx
import onnx_ts_legacy
import onnxops_core
from onnx_fx_export import DynamicShapeError, OnnxExporterError


@pytest.fixture
def _collection_by_hand():
    gc.disable()
    yield
    gc.enable()


class Collecting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        gc.collect()
        return self.linear(x)


def leave_a_generator_inside_of(context):
    """Return where the generator, which is garbage, notes whether an export runs when it is closed."""
    closed = []

    def generator():
        with context:
            try:
                yield held
            finally:
                closed.append(onnxops_core.is_in_onnx_export())

    held = [generator()]
    next(held[0])
    return closed


@pytest.mark.usefixtures("_collection_by_hand")
@pytest.mark.parametrize("arguments", [{}, {"dynamo": False}], ids=["fx", "torchscript"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_generator_that_is_garbage_is_not_closed_while_a_model_is_captured(context, arguments):
    closed = leave_a_generator_inside_of(context())

    program = fx.export(Collecting(), (torch.randn(2, 3),), **arguments)
    gc.collect()

    assert closed == [False]
    assert {node.op_type for node in program.model.graph} == {"Gemm"}


class FixesItsRows(torch.nn.Module):
    def forward(self, x):
        return x + torch.ones(2, 3)


def test_an_export_that_fails_leaves_no_mark_on_the_example():
    x = torch.randn(2, 3)

    with pytest.raises(DynamicShapeError):
        fx.export(FixesItsRows(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))

    assert not vars(x)
    torch.testing.assert_close(fx.export(FixesItsRows(), (x,))(x), x + 1)


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.register_buffer("offset", torch.full((3,), factor))

    def forward(self, x):
        if x.shape[0] == 1:
            return x
        return torch.atleast_3d(x * self.factor + self.offset)


def test_exports_by_several_threads_give_the_models_that_they_give_alone():
    x, y = torch.randn(4, 3), torch.randn(6, 3)
    factors = [float(factor) for factor in range(1, 7)]

    def run(factor: float):
        if factor == 5.0:
            return fx.export(FixesItsRows(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        declared = {"dynamic_axes": {"x": [0]}, "dynamo": False} if factor % 2 else {"dynamic_shapes": ({0: "n"},)}
        return fx.export(Scaled(factor), (x,), **declared)

    with ThreadPoolExecutor(len(factors)) as pool:
        futures = [pool.submit(run, factor) for factor in factors]

    assert isinstance(futures[4].exception(), OnnxExporterError)
    for factor, future in zip(factors, futures, strict=True):
        if factor != 5.0:
            result = future.result()(y)
            result = result[0] if isinstance(result, list) else result
            torch.testing.assert_close(result, Scaled(factor)(y))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_replacements_of_torch_onnx_by_several_threads_end_in_any_order(order):
    before, contexts = torch.onnx.export, [fx.replace_torch_onnx(), fx.replace_torch_onnx()]
    with ThreadPoolExecutor(1) as other:
        contexts[0].__enter__()
        other.submit(contexts[1].__enter__).result()

        contexts[order[0]].__exit__(None, None, None)
        program = torch.onnx.export(FixesItsRows(), (torch.ones(2, 3),))
        other.submit(contexts[order[1]].__exit__, None, None, None).result()

    assert isinstance(program, fx.ONNXProgram)
    assert torch.onnx.export is before


def test_another_thread_makes_models_with_memory_while_one_makes_them_without():
    with ThreadPoolExecutor(1) as other, fx.enable_fake_mode():
        mine, theirs = torch.nn.Linear(2, 2), other.submit(torch.nn.Linear, 2, 2).result()

    assert (mine.weight.device.type, theirs.weight.device.type) == ("meta", "cpu")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

    @staticmethod
    def symbolic(g, x):
        return g.op("Add", x, x)


def test_a_function_with_a_symbolic_keeps_its_gradient_in_other_threads():
    names: queue.SimpleQueue[str] = queue.SimpleQueue()

    def train():
        names.put(type(Doubled.apply(torch.ones(1, requires_grad=True)).grad_fn).__name__)

    def forward(x):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        return Doubled.apply(x)

    program = fx.export(forward, (torch.ones(2),))

    assert names.get(timeout=10) == "DoubledBackward"
    assert [node.op_type for node in program.model.graph] == ["Add"]


def _through(path, model, x):
    if path in ("fx", "fallback"):
        return fx.export(model, (x,), fallback=path == "fallback")
    if path == "torchscript":
        return onnx_ts_legacy.export(model, (x,))
    with fx.replace_torch_onnx():
        return torch.onnx.export(model, (x,), dynamo=path == "torch.onnx")


def test_threads_that_export_along_all_paths_get_their_own_models():
    paths = ["fx", "torchscript", "fallback", "torch.onnx", "torch.onnx of TorchScript"] * 2
    models = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)) for _ in paths]
    patched = [(torch.onnx, "export"), (torch, "set_autocast_enabled"), (torch._VF, "atleast_1d")]
    before = [getattr(owner, name) for owner, name in patched]
    x, programs = torch.randn(4, 3), {}

    def work(place):
        programs[place] = _through(paths[place], models[place], x)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(paths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(programs) == list(range(len(paths)))
    for place, program in programs.items():
        (found,) = pytree.tree_leaves(program(x))
        torch.testing.assert_close(found, models[place](x))
    assert [getattr(owner, name) for owner, name in patched] == before
