"""The strategies of capture: which one is taken, why others are refused, and that what they capture is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim
from torch.func import grad, jacfwd, jacrev, vjp, vmap

from onnx_fx_export import CaptureError, DynamicShapeError, InvalidArgumentError, OnnxExporterError, export
from onnx_fx_export.capture.strategies import STRATEGIES
from onnx_fx_export.sizes.fitting import fitted
from onnxops_decomp.exporting import OPTIONS

DYNAMIC = Dim.DYNAMIC


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def symbolic(g, x):
        return g.op("Add", x, x)


class Block(torch.nn.Module):
    def forward(self, x):
        return x.relu() + 1


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_the_option_takes_the_names_of_all_strategies() -> None:
    annotated = get_args(get_args(get_type_hints(export)["strategy"])[0])
    assert annotated == tuple(STRATEGIES)
    assert all(OPTIONS["strategy"].kind.fits(name) for name in STRATEGIES)


class Transformed(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.linear = function, torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.function(self, x)


def energy(model, x):
    return model.linear(x).tanh().sum()


TRANSFORMED = {
    "gradient": lambda model, x: grad(lambda x: energy(model, x))(x),
    "gradients of rows": lambda model, x: vmap(grad(lambda row: energy(model, row)))(x),
    "jacobians of rows": lambda model, x: vmap(jacrev(lambda row: model.linear(row).tanh()))(x),
    "forward": lambda model, x: vmap(jacfwd(torch.sin))(x),
    "pullback": lambda model, x: vjp(torch.sin, x)[1](x * 2)[0],
    "mapped to another axis": lambda model, x: vmap(lambda row: row.softmax(-1), out_dims=1)(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_what_transforms_of_functions_compute_is_captured(name: str) -> None:
    torch.manual_seed(0)
    model = Transformed(TRANSFORMED[name])
    program = export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "rows"},))
    assert program.capture_strategy == "transforms"
    for rows in (3, 5, 1):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_failed_export_leaves_no_transform_of_functions() -> None:
    model = Transformed(lambda model, x: vmap(grad(lambda row: torch.as_tensor(float((row**3).sum()))))(x))
    with pytest.raises(OnnxExporterError):
        export(model, (torch.randn(3, 4),))
    torch.randn(2)  # an error inside vmap


@pytest.mark.parametrize("name", ["repeated-blocks", "non-strict", "strict"])
def test_a_chosen_strategy_is_taken(name: str) -> None:
    x = torch.randn(3, 4)
    blocks = name == "repeated-blocks"
    program = export(Blocks(), (x,), strategy=name, capture_repeated_blocks=blocks)
    assert program.capture_strategy == name
    torch.testing.assert_close(program(x), Blocks()(x))


def test_by_default_the_first_one_that_serves_is_taken() -> None:
    assert export(Block(), (torch.ones(2),)).capture_strategy == "non-strict"
    assert export(Blocks(), (torch.ones(2),), capture_repeated_blocks=True).capture_strategy == "repeated-blocks"


class CastsItsLayer(torch.nn.Module):
    """Casts a layer in each call, as the routers of some mixtures of experts do."""

    def __init__(self, by_name: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.by_name = torch.nn.Linear(4, 3, dtype=dtype), by_name

    def forward(self, x):
        dtype = torch.float32
        self.linear = self.linear.to(dtype=dtype) if self.by_name else self.linear.to(dtype)
        return self.linear(x)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_layer_may_be_cast_to_the_dtype_that_it_has(by_name: bool) -> None:
    model, x = CastsItsLayer(by_name, torch.float32), torch.randn(2, 4)
    program = export(model, (x,))
    torch.testing.assert_close(program(x), model(x).detach())
    with pytest.raises(CaptureError, match="swap"):
        export(CastsItsLayer(by_name, torch.float64), (x,))


def test_dynamo_does_not_lose_a_symbolic_method() -> None:
    with pytest.raises(CaptureError, match="symbolic method"):
        export(lambda x: Doubled.apply(x), (torch.ones(2),), strategy="strict")


def test_a_strategy_that_has_nothing_to_do_says_so() -> None:
    with pytest.raises(CaptureError, match="no list of the model has enough equal members"):
        export(Block(), (torch.ones(2),), strategy="repeated-blocks")
    with pytest.raises(CaptureError, match="no dimension is dynamic"):
        export(Block(), (torch.ones(2),), strategy="measured-kernels")


def test_what_is_captured_already_has_no_strategy_left() -> None:
    captured = torch.export.export(Block(), (torch.ones(2),))
    assert export(captured).capture_strategy is None
    with pytest.raises(InvalidArgumentError, match="leave out strategy"):
        export(captured, strategy="non-strict")


MEASURED: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2), lambda n, m: (torch.randn(1, n, m),), ({1: DYNAMIC, 2: DYNAMIC},)),
    "split view": (
        lambda x: x.view(5, -1, 5) + 1,
        lambda n, m: (torch.randn(5 * n, 5 if (n, m) == (5, 7) else 5 * m),),
        ({0: DYNAMIC, 1: DYNAMIC},),
    ),
    "geqrf": (torch.geqrf, lambda n, m: (torch.randn(n, m),), ({0: DYNAMIC, 1: DYNAMIC},)),
}


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.filterwarnings("ignore:The model")
def test_measured_shapes_are_right_at_other_sizes(name: str) -> None:
    function, inputs, dims = MEASURED[name]
    program = export(lambda x: function(x), inputs(5, 7), dynamic_shapes=dims)
    assert program.capture_strategy == "measured-kernels"
    for sizes in ((5, 7), (6, 12), (9, 4)):
        example = inputs(*sizes)
        torch.testing.assert_close(program(*example), function(*example))


def test_measured_shapes_are_compared_or_not_used() -> None:
    def pooled(x):
        return F.max_pool1d(x, 3, 2)

    example, dims = (torch.randn(1, 2, 9),), ({2: DYNAMIC},)
    with pytest.raises(DynamicShapeError):
        export(pooled, example, dynamic_shapes=dims, trial_runs=False)
    with pytest.raises(CaptureError, match="not be compared"):
        export(pooled, example, dynamic_shapes=dims, trial_runs=False, strategy="measured-kernels")


@pytest.mark.parametrize("function", [lambda x: x.reshape(3, 8), lambda x: x.unbind(0)[0], lambda x: x.split(2)])
def test_what_the_model_fixes_itself_stays_an_error(function: Callable[..., Any]) -> None:
    with pytest.raises(OnnxExporterError):
        export(function, (torch.randn(6, 4),), dynamic_shapes=({0: DYNAMIC, 1: DYNAMIC},))


SIZES = [(6, 7), *((6 + k, 7) for k in (-2, -1, *range(1, 17), 37)), *((6, 7 + k) for k in (-2, -1, *range(1, 17), 37))]


@pytest.mark.parametrize(
    "size",
    [
        lambda n, m: 3,
        lambda n, m: 2 * n - 1,
        lambda n, m: (n - 3) // 2 + 1,
        lambda n, m: (3 * m + 1) // 4,
        lambda n, m: 2 * n * m,
        lambda n, m: n + 2 * m + 1,
        lambda n, m: min(n, m),
    ],
)
def test_formulas_are_found(size: Callable[[int, int], int]) -> None:
    formula = fitted({sizes: size(*sizes) for sizes in [*SIZES, (9, 11)]})
    assert formula is not None
    assert all(formula(sizes) == size(*sizes) for sizes in ((20, 31), (7, 16)))


def test_no_formula_is_made_up() -> None:
    assert fitted({sizes: sizes[0] ** 2 + sizes[1] for sizes in SIZES}) is None
