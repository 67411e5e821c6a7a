"""Activation functions, softmax and dropout equal eager PyTorch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check, lower, run
from onnxruntime.transformers.optimizer import FusionOptions, optimize_by_fusion

INF = float("inf")
X = torch.tensor([[-30.0, -4.0, -3.0, -1.0, -0.5], [-0.0, 0.25, 1.0, 5.0, 30.0]])
ACTIVATIONS = {
    "celu": lambda x: F.celu(x, alpha=1.5),
    "elu": lambda x: F.elu(x, alpha=1.5),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "glu": lambda x: F.glu(x, dim=0),
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": lambda x: F.hardtanh(x, -2.0, 0.5),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "relu": F.relu,
    "relu6": F.relu6,
    "rrelu": F.rrelu,
    "selu": F.selu,
    "silu": F.silu,
    "softplus": lambda x: F.softplus(x, beta=2, threshold=3),
    "softshrink": F.softshrink,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.3, -7.0),
}

# The error function came with opset 9.
FIRST_OPSET = {"gelu": 9}


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("opset", [7, 9, 13, 18, 20, 23, 24, 26])
def test_activation(name: str, opset: int) -> None:
    opset = max(opset, FIRST_OPSET.get(name, 7))
    check(lambda x: ACTIVATIONS[name](x), X, opset=opset)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logsigmoid_far_from_zero(dtype: torch.dtype) -> None:
    infinity = float("inf")
    x = torch.tensor([-1e30, -1e4, -100.0, -20.0, -17.0, -1e-3, 0.0, 5.0, 90.0, infinity, -infinity, float("nan")])
    check(F.logsigmoid, x.to(dtype))


def test_gelu_is_written_in_the_form_that_runtimes_fuse() -> None:
    lowered = check(ACTIVATIONS["gelu_tanh"], torch.randn(2, 3, 4), opset=18)

    fused = optimize_by_fusion(lowered.proto, "bert", 0, 0, FusionOptions("bert"))

    assert [node.op_type for node in fused.model.graph.node] == ["FastGelu"]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_at_other_sizes(name: str) -> None:
    check(lambda x: ACTIVATIONS[name](x), X, others=[(torch.randn(4, 7),)])


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_in_half_precision(name: str) -> None:
    check(lambda x: ACTIVATIONS[name](x), X.half())


@pytest.mark.parametrize(
    ("function", "op_type", "opset"),
    [(F.gelu, "Gelu", 20), (F.hardswish, "HardSwish", 14), (F.mish, "Mish", 18), (F.silu, "Swish", 24)],
)
def test_fused_operator_where_the_opset_has_it(
    function: Callable[[torch.Tensor], torch.Tensor], op_type: str, opset: int
) -> None:
    assert lower(lambda x: function(x), [X], opset=opset).op_types() == [op_type]


def test_shrinks_and_bounds_pass_infinity_and_nan_on() -> None:
    special = torch.tensor([float("nan"), INF, -INF])
    check(lambda x: (F.softshrink(x), F.hardshrink(x), F.relu(x), F.relu6(x), F.threshold(x, 1, 2)), special)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("slopes", [1, 3])
def test_prelu(shape: tuple[int, ...], slopes: int) -> None:
    if slopes == 3 and (not shape or (len(shape) == 1)):
        shape = (5, 3)
    check(F.prelu, torch.randn(shape), torch.rand(slopes))


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 26])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_along_any_dimension(opset: int, dim: int) -> None:
    x = torch.randn(2, 3, 4)
    check(lambda x: (x.softmax(dim), x.log_softmax(dim)), x, opset=opset, others=[(torch.randn(5, 2, 3),)])


def test_softmax_of_one_number() -> None:
    check(lambda x: (x.softmax(0), x.log_softmax(-1)), torch.tensor(3.0))


def test_softmax_computes_in_the_dtype_asked_for() -> None:
    check(lambda x: x.softmax(1, dtype=torch.float32), torch.randn(2, 3, dtype=torch.float16))
    check(lambda x: x.log_softmax(0, dtype=torch.float64), torch.arange(3))


def test_safe_softmax_of_a_masked_row_is_zero() -> None:
    check(
        lambda x: torch.ops.aten._safe_softmax(x, -1),
        torch.tensor([[1.0, -INF], [-INF, -INF]]),
        others=[(torch.full((3, 4), -INF),)],
    )


def test_dropout_of_a_model_in_eval_mode_leaves_no_node() -> None:
    lowered = check(lambda x: F.dropout(x, 0.5, training=False) + 1, X)
    assert lowered.op_types() == ["Add"]


@pytest.mark.parametrize("opset", [7, 12, 13, 22])
def test_dropout_in_training_drops_or_scales(opset: int) -> None:
    lowered = check(lambda x: F.dropout(x, 0.25, training=True), torch.ones(50, 40), opset=opset, values=False)
    (result,) = run(lowered.proto, [torch.ones(50, 40)])
    kept = result[result != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 4 / 3))
    assert 0.2 < (result == 0).double().mean() < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("options", [{}, {"beta": 0.5}, {"beta": 3, "threshold": 2}, {"beta": -1.0}])
def test_softplus_around_its_threshold(options: dict[str, float], dtype: torch.dtype) -> None:
    numbers = torch.tensor([-torch.inf, -100, -30, -1, 0, 0.6, 0.7, 15, 19.9, 20.1, 39, 41, 100, 3e4, torch.inf])
    check(lambda x: F.softplus(x, **options), numbers.to(dtype))


def test_softplus_is_one_node_where_the_threshold_is_rounded_away() -> None:
    assert check(F.softplus, torch.randn(3, 4)).op_types() == ["Softplus"]
    assert "Where" in check(F.softplus, torch.randn(3, 4).double()).op_types()
