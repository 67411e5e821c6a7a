"""The tiled CPU kernel of attention against the reference, over random calls that cross the borders of
tiles."""

import random
import subprocess
import sys

import pytest
import torch

from onnxops_core import native
from onnxops_core.native import find_native_op
from onnxops_core.native.attentions import kernel

_REFERENCE = find_native_op(torch.ops.onnxops.Attention.opset25).reference


def _random_call(seed, longest):
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    def chance():
        return number(0, 1) == 1

    def rand(*shape):
        return torch.randn(shape, generator=generator)

    batch, kv_heads, group = number(1, 3), number(1, 2), number(1, 3)
    heads, size, v_size = kv_heads * group, number(1, 12), number(1, 12)
    length, keys = number(1, longest), number(1, longest)
    past, lengths = 0, None
    if chance():
        past = number(1, longest)
    elif chance():
        lengths = torch.randint(0, keys + 1, (batch,), generator=generator)
    total = past + keys
    mask = None
    if chance():
        shape = [(length, total), (1, total), (batch, 1, length, total), (heads, 1, total), (total,)][number(0, 4)]
        mask = rand(*shape) if chance() else rand(*shape) > -1.0
        mask = mask[..., : number(1, total)] if number(0, 3) == 0 else mask
    cache = (rand(batch, kv_heads, past, size), rand(batch, kv_heads, past, v_size)) if past else (None, None)
    inputs = (rand(batch, heads, length, size), rand(batch, kv_heads, keys, size), rand(batch, kv_heads, keys, v_size))
    return (*inputs, mask, *cache, lengths), {
        "is_causal": chance(),
        "softcap": 1.5 * chance(),
        "left_window_size": number(0, longest) if chance() else -1,
        "right_window_size": number(0, longest) if chance() else -1,
        "num_outputs": 1,
    }


def _compare(seed, longest):
    args, kwargs = _random_call(seed, longest)

    y = native.attention(*args, **kwargs)

    torch.testing.assert_close(y, _REFERENCE(*args, **kwargs)[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("seed", range(60))
def test_short_random_calls(seed):
    _compare(seed, 12)


@pytest.mark.parametrize("seed", range(60, 90))
def test_random_calls_over_several_tiles(seed, monkeypatch):
    # Small tiles make every call cross their borders.
    monkeypatch.setattr(kernel, "_TILE_ELEMENTS", 1 << 10)

    _compare(seed, 70)


@pytest.mark.parametrize("seed", range(90, 96))
def test_long_random_calls(seed):
    _compare(seed, 600)


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_many_random_calls(seed, monkeypatch):
    monkeypatch.setattr(kernel, "_TILE_ELEMENTS", 1 << (8 + seed % 12))

    _compare(seed, 5 + seed % 90)


_PEAK = """
import resource, torch
from onnxops_core import attention

def call(length):
    q, k, v = (torch.randn(1, 2, length, 16) for _ in range(3))
    attention(q, k, v, MASK, is_causal=True, num_outputs=1, **OPTIONS)

torch.set_num_threads(1)
call(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
call(4096)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        ("None", {}),
        ("None", {"softcap": 3.0}),
        ("None", {"left_window_size": 64}),
        ("torch.ones(1, length, dtype=torch.bool)", {}),
    ],
)
def test_memory_grows_with_the_length_not_its_square(mask, options):
    code = _PEAK.replace("MASK", mask).replace("OPTIONS", repr(options))
    score_matrix = 2 * 4096 * 4096 * 4 // 1024

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert int(done.stdout) < score_matrix / 5


@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
@pytest.mark.parametrize("lengths", [(9, 9), (3, 7), (0, 5)])
def test_decoding_step_on_a_cache(heads, lengths):
    q = torch.randn(2, heads[0], 1, 8)
    k, v = torch.randn(2, heads[1], 9, 8), torch.randn(2, heads[1], 9, 6)

    y = native.attention(q, k, v, None, None, None, torch.tensor(lengths), is_causal=True, num_outputs=1)

    for row, length in enumerate(lengths):
        expected = torch.nn.functional.scaled_dot_product_attention(
            q[row], k[row, :, :length], v[row, :, :length], enable_gqa=True
        )
        torch.testing.assert_close(y[row], expected if length else torch.zeros_like(y[row]))


def test_decoding_loop_with_an_in_place_cache_is_attention_over_the_whole_sequence():
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    keys, values = torch.zeros(1, 2, 10, 8), torch.zeros(1, 2, 10, 8)
    steps = []
    for step in range(6):
        at = torch.tensor([step])
        native.tensor_scatter_(keys, k[:, :, step : step + 1], at)
        native.tensor_scatter_(values, v[:, :, step : step + 1], at)
        steps.append(
            native.attention(
                q[:, :, step : step + 1], keys, values, None, None, None, at + 1, is_causal=True, num_outputs=1
            )
        )

    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(torch.cat(steps, 2), whole)


def _some_attention(case):
    """A call of random shapes, layouts and attributes: the inputs, and the attributes of its newest version."""
    rng = random.Random(case)
    torch.manual_seed(case)
    kv_heads, group, batch, size, width = (rng.choice(x) for x in ((1, 2), (1, 3), (1, 3), (4, 8), (4, 8)))
    length, keys, past = rng.choice((1, 1, 2, 5)), rng.choice((1, 1, 5, 8)), rng.choice((0, 0, 3))
    heads, total = kv_heads * group, keys + past
    shapes = ((batch, length, heads, size), (batch, keys, kv_heads, size), (batch, keys, kv_heads, width))
    inputs = [torch.randn(shape).transpose(1, 2) for shape in shapes]
    if rng.random() < 0.5:
        inputs = [x.contiguous() for x in inputs]
    masks = [(length, total), (batch, 1, length, total), (1, heads, length, total), (batch, heads, 1, total), (total,)]
    mask = rng.choice([None, *(torch.randn(shape) for shape in masks)])
    inputs.append(mask if mask is None or rng.random() < 0.5 else mask > -0.5)
    inputs += [torch.randn(batch, kv_heads, past, n) if past else None for n in (size, width)]
    lengths = [None, torch.randint(0, keys + 1, (batch,)), torch.full((batch,), rng.choice((0, 1, keys)))]
    inputs.append(None if past else rng.choice(lengths))
    attributes = {"is_causal": rng.random() < 0.5, "softcap": rng.choice((0.0, 0.0, 3.0))}
    attributes |= {"scale": rng.choice((None, None, 0.3, 0.0)), "qk_matmul_output_mode": rng.randrange(4)}
    attributes |= {"left_window_size": rng.choice((-1, -1, 2)), "right_window_size": rng.choice((-1, -1, 1))}
    return inputs, attributes


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("case", range(120))
def test_every_way_to_compute_a_call_gives_the_references_result(case, gradients):
    inputs, attributes = _some_attention(case)
    expected = _REFERENCE(*inputs, **attributes)
    inputs[0].requires_grad_(gradients)

    for wanted in (1, 3, 4):
        found = native.attention(*inputs, **attributes, num_outputs=wanted)
        for one, other in zip([found] if wanted == 1 else found, expected, strict=False):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("gradients", [False, True])
def test_one_causal_query_after_a_past_does_not_see_later_keys(gradients):
    q, k, v = (torch.randn(1, 2, n, 4, requires_grad=gradients) for n in (1, 5, 5))
    past_k, past_v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)

    y = native.attention(q, k, v, None, past_k, past_v, is_causal=True, num_outputs=1)

    first = torch.cat((past_k, k[:, :, :1]), 2), torch.cat((past_v, v[:, :, :1]), 2)
    torch.testing.assert_close(y, torch.nn.functional.scaled_dot_product_attention(q, *first))
