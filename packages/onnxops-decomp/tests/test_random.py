"""Random numbers have torch's dtype, shape and distribution."""

import pytest
import torch
from decomp_harness import check, lower, run

from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

X = torch.rand(3, 4)
LARGER = [(torch.rand(6, 5),)]

DRAWS = [
    lambda x: torch.rand(x.shape[0], 2),
    lambda x: torch.randn(x.shape[1], dtype=torch.float64),
    lambda x: torch.rand_like(x),
    lambda x: torch.randn_like(x, dtype=torch.float16),
    lambda x: torch.randint(3, 7, (x.shape[0], 2)),
    lambda x: torch.randint_like(x, 5),
    lambda x: torch.randperm(x.shape[0]),
    lambda x: torch.bernoulli(x),
    lambda x: torch.bernoulli(x, 0.3),
    lambda x: torch.normal(x, x),
    lambda x: torch.normal(2.0, x),
    lambda x: torch.normal(x, 3.0),
    lambda x: torch.normal(1.0, 2.0, (x.shape[0],)),
    lambda x: x.clone().normal_(1.0, 2.0),
    lambda x: x.clone().uniform_(1.0, 2.0),
    lambda x: x.clone().exponential_(2.0),
    lambda x: x.clone().cauchy_(),
    lambda x: x.clone().geometric_(0.3),
    lambda x: x.clone().log_normal_(),
    lambda x: x.clone().random_(9),
    lambda x: x.int().random_(),
    lambda x: torch.multinomial(x, 2),
    lambda x: torch.multinomial(x, 3, replacement=True),
    lambda x: torch.multinomial(x[0], 3),
    lambda x: torch.poisson(x),
    lambda x: torch._standard_gamma(x),
]


@pytest.mark.parametrize("function", DRAWS)
def test_dtype_and_shape(function) -> None:
    check(lambda x: (x * 1, function(x)), X, values=False)
    check(lambda x: (x * 1, function(x)), X, others=LARGER, values=False)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 23, 26])
@pytest.mark.parametrize("number", [0, 1, 2, 4, 6, 7, 9, 21, 22, 25])
def test_draw_at_every_opset(number: int, opset: int) -> None:
    check(lambda x: (x * 1, DRAWS[number](x)), X, opset=opset, values=False)


def draw(function, *args: torch.Tensor, opset: int = 20) -> torch.Tensor:
    return run(lower(function, args, opset=opset).proto, args)[0]


@pytest.mark.parametrize(
    "function",
    [
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.randint_like(x, -2, 7),
        lambda x: torch.normal(x, 2 * x + 1),
        lambda x: x.clone().uniform_(-1.0, 3.0),
        lambda x: x.clone().exponential_(2.0),
        lambda x: x.clone().geometric_(0.3),
        lambda x: x.clone().log_normal_(0.0, 0.5),
        lambda x: torch.bernoulli(x * 0 + 0.3),
        lambda x: torch.poisson(x * 3.5),
        lambda x: torch.binomial(x * 12, x * 0.3),
        lambda x: torch._standard_gamma(x * 0.4),
        lambda x: torch._standard_gamma(x * 3.5),
        lambda x: torch.dropout(torch.ones(200_000), 0.3, True) * x,
        lambda x: torch.normal(x, 3.0),
        lambda x: torch.normal(2.0, 2 * x),
        lambda x: torch.normal(1.0, 2.0, (x.shape[0],)),
        lambda x: torch.bernoulli(x, 0.3),
        lambda x: x.clone().random_(9),
        lambda x: torch.randint(3, 7, (x.shape[0],)),
        lambda x: torch.dropout(x, 0.3, True),
        lambda x: torch.feature_dropout(x.reshape(-1, 2, 1), 0.3, True).flatten(),
        lambda x: torch.nn.functional.alpha_dropout(x, 0.3, True),
        lambda x: torch.nn.functional.rrelu(-x, 0.1, 0.5, True),
    ],
)
@pytest.mark.parametrize("opset", [18, 24])
def test_moments_are_those_of_torch(function, opset: int) -> None:
    x = torch.ones(200_000)
    mine, theirs = draw(lambda x: function(x) + x * 0, x, opset=opset).double(), function(x).double()
    # The standard error of either mean is std / 450.
    assert abs(mine.mean() - theirs.mean()) < theirs.std() / 50
    assert mine.std() == pytest.approx(theirs.std().item(), rel=0.05)


def test_cauchy_has_the_quartiles_of_its_parameters() -> None:
    mine = draw(lambda x: x.clone().cauchy_(1.0, 2.0) + x * 0, torch.zeros(200_000))
    quartiles = torch.quantile(mine[:100_000], torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 1.0, 3.0]), atol=0.1, rtol=0)


def test_randint_covers_its_range_and_nothing_else() -> None:
    drawn = draw(lambda x: torch.randint(3, 7, (1000,)) + x.long(), torch.zeros(1))
    assert drawn.unique().tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("n", [0, 1, 50])
def test_randperm_is_a_permutation(n: int) -> None:
    if not n and is_older(1, 28):
        pytest.skip("ONNX Runtime before 1.28 gives outputs that are empty constants no type")
    drawn = draw(lambda x: torch.randperm(n) + x.long(), torch.zeros(1))
    assert drawn.sort().values.tolist() == list(range(n))


def test_counts_of_nothing() -> None:
    check(lambda x: (torch.poisson(x), torch.binomial(x, x)), torch.zeros(3))
    check(lambda x: (torch.poisson(x), torch.binomial(x, x)), torch.zeros(0))


def test_gamma_of_what_is_no_shape() -> None:
    alpha = torch.tensor([0.0, float("inf"), float("nan")])
    drawn = draw(lambda x: torch._standard_gamma(x), alpha)
    assert drawn[0] == torch.finfo(torch.float32).tiny
    assert drawn[1].isinf()
    assert drawn[2].isnan()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 8.0])
def test_gamma_has_the_quantiles_of_its_distribution(alpha: float) -> None:
    mine = draw(lambda x: torch._standard_gamma(x), torch.full((100_000,), alpha)).double()
    # A sample below each decile is as likely as the decile says, within four standard errors.
    deciles = torch.quantile(
        torch._standard_gamma(torch.full((1_000_000,), alpha)).double(), torch.arange(1, 10).double() / 10
    )
    below = (mine.unsqueeze(1) < deciles).double().mean(0)
    torch.testing.assert_close(below, torch.arange(1, 10).double() / 10, rtol=0, atol=4 * 0.5 / 100_000**0.5 + 0.002)


def test_every_permutation_is_as_likely() -> None:
    drawn = draw(lambda x: torch.stack([torch.randperm(3) for _ in range(600)]) + x.long(), torch.zeros(1))
    counts = (drawn * torch.tensor([9, 3, 1])).sum(1).unique(return_counts=True)[1]
    # 100 of each are expected; the standard deviation is 9.
    assert len(counts) == 6
    assert (counts > 60).all()


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial_follows_the_weights(replacement: bool) -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0]).expand(20_000, 4)
    drawn = draw(lambda w: torch.multinomial(w, 2, replacement)[:, 0], weights.contiguous())
    shares = torch.bincount(drawn, minlength=4) / drawn.numel()
    torch.testing.assert_close(shares, torch.tensor([0.0, 0.125, 0.25, 0.625]), atol=0.02, rtol=0)


def test_multinomial_without_replacement_draws_each_class_once() -> None:
    drawn = draw(lambda w: torch.multinomial(w, 5), torch.rand(100, 5))
    assert (drawn.sort(1).values == torch.arange(5)).all()


@pytest.mark.parametrize("opset", [18, 24])
@pytest.mark.parametrize(
    "function",
    [
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.poisson(x * 5),
        lambda x: torch.binomial(x * 9, x * 0.4),
        lambda x: torch._standard_gamma(x * 2),
        lambda x: torch.dropout(x, 0.5, True),
    ],
)
def test_two_draws_do_not_depend_on_each_other(function, opset: int) -> None:
    both = draw(lambda x: torch.stack([function(x), function(x)]), torch.ones(100_000), opset=opset)
    # The standard error is 1 / 316.
    assert abs(torch.corrcoef(both)[0, 1]) < 0.015
