"""Calls of the entries that no sample of OpInfo fits: one argument list for each overload, by family."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
import torchvision_operators

__all__ = ["Arguments", "cases", "references"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Cases = dict[str, Arguments]

torchvision_operators.define()


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _of(*args: Any, **kwargs: Any) -> Arguments:
    return args, kwargs


def _each(names: str, arguments: Arguments) -> Cases:
    return dict.fromkeys(names.split(), arguments)


def _conversions() -> Cases:
    return {
        "aten::_to_copy": _of(_draw(3, 4), dtype=torch.float64),
        "aten::to.dtype_layout": _of(_draw(3, 4), dtype=torch.int32),
        "aten::to.prim_dtype": _of(_draw(3, 4), torch.int64),
        "aten::to.prim_Device": _of(_draw(3, 4), "cpu", torch.float16),
        "aten::type_as": _of(_draw(3, 4), torch.ones(2, dtype=torch.int32)),
        "prims::convert_element_type": _of(_draw(3, 4), torch.int32),
        "aten::view.dtype": _of(_draw(3, 4), torch.int32),
        "aten::view_copy.dtype": _of(_draw(3, 4), torch.int32),
    }


def _copies() -> Cases:
    unary = "alias detach lift lift_fresh lift_fresh_copy requires_grad_ cpu detach_copy numpy_T"
    return {
        **_each(" ".join(f"aten::{name}" for name in unary.split()), _of(_draw(3, 4))),
        **_each(
            "prims::conj_physical aten::matrix_H aten::_conj aten::_conj_copy",
            _of(torch.randn(3, 4, dtype=torch.complex64)),
        ),
        "prims::conj": _of(torch.randn(3, 4, dtype=torch.complex64)),
        "aten::copy": _of(_draw(3, 4), _draw(4).double()),
        "aten::movedim.int": _of(_draw(2, 3, 4), 0, -1),
        "aten::moveaxis.int": _of(_draw(2, 3, 4), 0, -1),
        "aten::_unsafe_view": _of(_draw(2, 3, 4), [3, 8]),
        "aten::_reshape_alias": _of(_draw(2, 3, 4), [24], [1]),
        "aten::resize": _of(_draw(3, 4), [3, 4]),
        "aten::resize_as": _of(_draw(3, 4), _draw(3, 4)),
        "aten::_shape_as_tensor": _of(_draw(3, 4)),
        "aten::meshgrid": _of([_draw(3), _draw(4)]),
        "aten::block_diag": _of([_draw(3, 2), _draw(4), torch.tensor(2.0)]),
        "aten::broadcast_tensors": _of([_draw(3, 1), _draw(4)]),
        "aten::cartesian_prod": _of([_draw(3), _draw(4)]),
        "aten::where": _of(_draw(3, 4) > 0),
        "aten::nonzero": _of(_draw(3, 4) > 0),
        "aten::nonzero_numpy": _of(_draw(3, 4) > 0),
        "aten::view_as": _of(_draw(3, 4, 5), _draw(12, 5)),
        "aten::reshape_as": _of(_draw(3, 4, 5), _draw(12, 5)),
        **_each(
            "aten::unsafe_split_with_sizes aten::split.sizes aten::split_with_sizes aten::split_with_sizes_copy",
            _of(_draw(5, 4), [2, 3]),
        ),
        **_each("aten::split.Tensor aten::split_copy.Tensor aten::unsafe_split.Tensor", _of(_draw(6, 4), 2)),
        **_each("aten::unbind.int aten::unbind_copy.int", _of(_draw(3, 4), 0)),
        **_each("aten::tensor_split.indices", _of(_draw(6, 4), [2, 3])),
        "aten::tensor_split.tensor_indices_or_sections": _of(_draw(6, 4), torch.tensor([2, 3])),
        "aten::take_along_dim": _of(_draw(5, 4), torch.tensor([[3, 0, 1], [1, 1, 2]]).repeat(3, 1)[:5], 1),
        "aten::_stack": _of([_draw(3, 4), _draw(3, 4)], -1),
    }


def _assertions() -> Cases:
    true = torch.tensor(True)
    return {
        "aten::_is_all_true": _of(_draw(3, 4) > 0),
        "aten::_is_any_true": _of(_draw(3, 4) > 0),
        "aten::_assert_async": _of(true),
        "aten::_assert_async.msg": _of(true, "no"),
        "aten::_functional_assert_async.msg": _of(true, "no", torch.ones(3)),
        "aten::_functional_assert_scalar": _of(1, "no", torch.ones(3)),
        "aten::_assert_scalar": _of(1, "no"),
        "aten::_assert_tensor_metadata": _of(_draw(3, 4), dtype=torch.float32),
        "aten::_linalg_check_errors": _of(torch.tensor(0, dtype=torch.int32), "inv", is_matrix=True),
    }


def _creation() -> Cases:
    shape = [3, 4]
    return {
        **_each("aten::empty.memory_format aten::_efficientzerotensor aten::rand aten::randn", _of(shape)),
        **_each("aten::rand.generator aten::randn.generator", _of(shape, generator=None)),
        **_each("aten::rand_like.generator aten::randn_like.generator", _of(_draw(3, 4), generator=None)),
        "aten::empty_strided": _of(shape, [4, 1]),
        "aten::empty_permuted": _of(shape, [1, 0]),
        "aten::scalar_tensor": _of(2.5),
        "aten::range": _of(1.0, 5.0),
        "aten::range.step": _of(1.0, 6.0, 1.5),
        "aten::eye": _of(4),
        "aten::eye.m": _of(4, 3),
        "aten::randint.generator": _of(9, shape, generator=None),
        "aten::randint.low_generator": _of(2, 9, shape, generator=None),
        "aten::randint_like.generator": _of(_draw(3, 4), 9, generator=None),
        "aten::randint_like.Tensor": _of(_draw(3, 4), torch.tensor(9)),
        "aten::randint_like.Tensor_generator": _of(_draw(3, 4), torch.tensor(9), generator=None),
        "aten::randint": _of(9, shape),
        "aten::randint.low": _of(2, 9, shape),
        "aten::randint_like.low_generator_dtype": _of(_draw(3, 4), 2, 9, generator=None),
        "aten::random": _of(torch.ones(3, 4, dtype=torch.int64)),
        "aten::random.to": _of(_draw(3, 4), 9),
        "aten::random.from": _of(_draw(3, 4), 2, 9),
        "aten::randperm": _of(6),
        "aten::randperm.generator": _of(6, generator=None),
        "aten::bernoulli.p": _of(_draw(3, 4), 0.3),
        "aten::bernoulli.Tensor": _of(_draw(3, 4), torch.rand(3, 4)),
        **_each("aten::_standard_gamma aten::_sample_dirichlet", _of(torch.rand(3, 4) + 0.5)),
        "aten::poisson": _of(torch.rand(3, 4)),
        "aten::binomial": _of(torch.full((3, 4), 5.0), torch.rand(3, 4)),
        **_windows(),
    }


def _windows() -> Cases:
    found: Cases = {}
    for name in ("bartlett", "blackman", "hamming", "hann", "kaiser"):
        found[f"aten::{name}_window"] = _of(6)
        found[f"aten::{name}_window.periodic"] = _of(6, False)
    found["aten::hamming_window.periodic_alpha"] = _of(6, True, 0.5)
    found["aten::hamming_window.periodic_alpha_beta"] = _of(6, False, 0.5, 0.4)
    found["aten::kaiser_window.beta"] = _of(6, True, 8.0)
    return found


def _bits() -> Cases:
    found: Cases = {}
    numbers = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    for name in ("and", "or", "xor", "lshift", "rshift"):
        found[f"aten::__{name}__.Tensor"] = _of(numbers, torch.tensor([1, 2, 3, 0], dtype=torch.int32))
        found[f"aten::__{name}__.Scalar"] = _of(numbers, 3)
    return found


def _activations() -> Cases:
    x = _draw(3, 4)
    return {
        **_each("aten::_softmax aten::_log_softmax", _of(x, -1, False)),
        "aten::_safe_softmax": _of(x, -1),
        "aten::_prelu_kernel": _of(x, _draw(4)),
        "aten::tensordot": _of(_draw(2, 3, 4), _draw(4, 3, 5), [1, 2], [1, 0]),
        "aten::mkldnn_rnn_layer": _of(
            *(_draw(7, 2, 3), _draw(16, 3), _draw(16, 4), _draw(16), _draw(16), _draw(1, 2, 4), _draw(1, 2, 4)),
            *(False, [], 2, 4, 1, True, False, False, False),
        ),
        **_each(
            "aten::dropout aten::alpha_dropout aten::feature_dropout aten::feature_alpha_dropout",
            _of(_draw(2, 3, 4), 0.5, True),
        ),
        "aten::native_dropout": _of(x, 0.5, True),
    }


def _losses() -> Cases:
    x, target = torch.randn(5, 7).log_softmax(1), torch.tensor([1, 0, 6, 3, 2])
    planes, labels = torch.randn(2, 7, 3, 4).log_softmax(1), torch.randint(0, 7, (2, 3, 4))
    probabilities, words = torch.randn(12, 2, 5).log_softmax(2), torch.tensor([[1, 2, 2], [4, 3, 1]])
    lengths = [12, 10], [3, 2]
    found: Cases = {
        "aten::nll_loss": _of(x, target),
        "aten::nll_loss_nd": _of(planes, labels),
        "aten::nll_loss2d": _of(planes, labels),
        "aten::nll_loss_forward": _of(x, target, torch.rand(7), 1, -100),
        "aten::nll_loss2d_forward": _of(planes, labels, torch.rand(7), 1, -100),
        "aten::hinge_embedding_loss": _of(_draw(5), torch.tensor([1.0, -1, 1, -1, 1])),
        "aten::margin_ranking_loss": _of(_draw(5), _draw(5), torch.tensor([1.0, -1, 1, -1, 1]), 0.2),
    }
    for name in ("ctc_loss", "_ctc_loss"):
        found[f"aten::{name}.{'IntList' if name == 'ctc_loss' else ''}".strip(".")] = _of(
            probabilities, words, *lengths
        )
        found[f"aten::{name}.Tensor"] = _of(probabilities, words, *map(torch.tensor, lengths))
    return found


def _distances_and_sets() -> Cases:
    numbers = torch.tensor([[3, 1, 2, 3], [3, 1, 2, 3], [0, 5, 2, 2]])
    points = torch.rand(9, 2)
    edges = [torch.tensor([0.0, 0.3, 0.7, 1.0]), torch.tensor([0.0, 0.5, 1.0])]
    return {
        "aten::cdist": _of(_draw(2, 5, 3), _draw(2, 4, 3)),
        "aten::cosine_similarity": _of(_draw(2, 5, 3), _draw(5, 3), 2),
        "aten::_cdist_forward": _of(_draw(5, 3), _draw(4, 3), 1.0, None),
        "aten::_unique": _of(numbers, True, True),
        "aten::_unique2": _of(numbers, True, True, True),
        "aten::unique_dim": _of(numbers, 0, True, True, True),
        "aten::unique_dim_consecutive": _of(numbers, 0, True, True),
        "aten::histogram.bins_tensor": _of(torch.rand(9), torch.tensor([0.0, 0.2, 0.5, 1.0])),
        "aten::histogram.bin_ct": _of(torch.rand(9), 4),
        "aten::unique_consecutive": _of(torch.tensor([1, 1, 2, 2, 1, 3]), True, True),
        "aten::searchsorted.Tensor": _of(torch.tensor([0.1, 0.2, 0.5, 0.7, 0.9]), torch.rand(3, 4)),
        "aten::repeat_interleave.Tensor": _of(torch.tensor([2, 0, 3])),
        "aten::_histogramdd_bin_edges": _of(points, [3, 2], range=[0.0, 1.0, 0.0, 1.0]),
        "aten::_histogramdd_from_bin_cts": _of(points, [3, 2], range=[0.0, 1.0, 0.0, 1.0]),
        "aten::_histogramdd_from_bin_tensors": _of(points, edges),
        "aten::histogramdd": _of(points, [3, 2], range=[0.0, 1.0, 0.0, 1.0]),
        "aten::histogramdd.int_bins": _of(points, 3),
        "aten::histogramdd.TensorList_bins": _of(points, edges),
        "aten::einsum": _of("bij,bjk->bik", [_draw(2, 3, 4), _draw(2, 4, 5)]),
    }


def _embedding() -> Cases:
    weight, indices, offsets = _draw(6, 3), torch.tensor([1, 4, 4, 0, 2]), torch.tensor([0, 2, 2])
    return {
        "aten::embedding_renorm": _of(weight, indices, 0.5, 2.0),
        **_each(
            "aten::embedding_bag aten::_embedding_bag aten::_embedding_bag_forward_only", _of(weight, indices, offsets)
        ),
        "aten::embedding_bag.padding_idx": _of(weight, indices, offsets, False, 1, False, None, False, 4),
    }


def _indexing() -> Cases:
    x, indices = _draw(4, 5, 3), [torch.tensor([0, 3, 1]), torch.tensor([4, 0, 2])]
    return {
        "aten::index_add": _of(x, 1, torch.tensor([4, 0, 2]), _draw(4, 3, 3)),
        **_each("aten::index.Tensor aten::index.Tensor_hacked_twin aten::_unsafe_index.Tensor", _of(x, indices)),
        **_each("aten::_unsafe_index_put aten::_index_put_impl", _of(x, indices, _draw(3, 3))),
    }


def _convolution() -> Cases:
    x, weight, bias = _draw(2, 4, 7, 6), _draw(5, 4, 3, 3), _draw(5)
    shape = ([2, 1], [1, 0], [1, 1], False, [0, 0], 1)
    cube = _draw(2, 4, 7, 6, 5)
    return {
        "aten::conv2d": _of(x, weight, bias, [2, 1], [1, 0]),
        "aten::conv3d": _of(cube, _draw(5, 4, 3, 3, 2), bias, [1, 1, 1], [1, 0, 1]),
        "aten::conv_transpose1d": _of(_draw(2, 4, 7), _draw(4, 5, 3), bias, [2], [1], [1]),
        "aten::conv_transpose2d.input": _of(x, _draw(4, 5, 3, 3), bias, [2, 1], [1, 0], [1, 0]),
        "aten::conv_transpose3d.input": _of(cube, _draw(4, 5, 3, 3, 2), bias, [2] * 3, [1] * 3, [1] * 3),
        "aten::convolution": _of(x, weight, bias, *shape),
        "aten::_convolution": _of(x, weight, bias, *shape, False, False, False, False),
        "aten::_convolution.deprecated": _of(x, weight, bias, *shape, False, False, False),
        "aten::col2im": _of(_draw(2, 8, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
    }


def _padding() -> Cases:
    found: Cases = {}
    for rank in (1, 2, 3):
        amounts = [1, 2, 0, 1, 2, 1][: 2 * rank]
        for kind in ("reflection", "replication"):
            found[f"aten::{kind}_pad{rank}d"] = _of(_draw(2, 3, *(4, 5, 6)[:rank]), amounts)
    found["aten::_pad_circular"] = _of(_draw(2, 3, 4, 5), [1, 2, 0, 1])
    return found


def _pooling() -> Cases:
    found: Cases = {}
    for rank in (1, 2, 3):
        x = _draw(2, 3, *(6, 7, 8)[:rank])
        for name in (f"max_pool{rank}d", f"max_pool{rank}d_with_indices"):
            found[f"aten::{name}"] = _of(x, [2] * rank, [2] * rank)
        found[f"aten::adaptive_max_pool{rank}d"] = _of(x, [2] * rank)
    for rank in (2, 3):
        kernel, size = [2] * rank, [3] * rank
        found[f"aten::fractional_max_pool{rank}d"] = _of(
            _draw(2, 3, *(6, 7, 8)[:rank]), kernel, size, torch.rand(2, 3, rank)
        )
    pooled, indices = torch.nn.functional.max_pool2d(_draw(2, 3, 6, 8), 2, return_indices=True)
    found["aten::max_unpool2d"] = _of(pooled, indices, [6, 8])
    pooled, indices = torch.nn.functional.max_pool3d(_draw(2, 3, 6, 4, 8), 2, return_indices=True)
    found["aten::max_unpool3d"] = _of(pooled, indices, [6, 4, 8], [2, 2, 2], [0, 0, 0])
    return found


def _resampling() -> Cases:
    found: Cases = {}
    modes = {"nearest": (1, 2, 3), "nearest_exact": (1, 2, 3), "linear": (1,), "bilinear": (2,), "trilinear": (3,)}
    for mode, ranks in {**modes, "bicubic": (2,), "bilinear_aa": (2,), "bicubic_aa": (2,)}.items():
        for rank in ranks:
            x, private = _draw(2, 3, *(4, 5, 3)[:rank]), mode.endswith(("exact", "aa"))
            base = mode.partition("_aa")[0]
            name = f"aten::{'_' if private else ''}upsample_{base}{rank}d{'_aa' if mode != base else ''}"
            aligned = () if mode.startswith("nearest") else (False,)
            found[name] = _of(x, [9, 7, 5][:rank], *aligned)
            found[f"{name}.vec"] = _of(x, None, *aligned, [2.0, 1.5, 2.5][:rank])
    theta = _draw(5, 2, 3)
    return {
        **found,
        "aten::grid_sampler": _of(_draw(2, 3, 4, 5), torch.rand(2, 6, 7, 2) * 2 - 1, 0, 0, False),
        "aten::affine_grid_generator": _of(theta, [5, 4, 6, 7], False),
    }


def _normalization() -> Cases:
    x, weight, bias, mean, variance = _draw(4, 3, 5), _draw(3), _draw(3), _draw(3), torch.rand(3) + 0.5
    return {
        "aten::batch_norm": _of(x, weight, bias, mean, variance, False, 0.1, 1e-5, False),
        "aten::_native_batch_norm_legit_functional": _of(x, weight, bias, mean, variance, True, 0.1, 1e-5),
        "aten::_native_batch_norm_legit_no_training": _of(x, weight, bias, mean, variance, 0.1, 1e-5),
        "aten::instance_norm": _of(x, weight, bias, None, None, True, 0.1, 1e-5, False),
    }


def _linear() -> Cases:
    query = _draw(2, 4, 6, 8)
    return {
        "aten::_scaled_dot_product_flash_attention_for_cpu": _of(query, _draw(2, 4, 5, 8), _draw(2, 4, 5, 8)),
        "aten::_linalg_svd": _of(_draw(5, 4)),
        "aten::linalg_vector_norm": _of(_draw(3, 4), 2, [1]),
        "aten::polygamma": _of(1, torch.rand(3, 4) + 0.5),
        "aten::_fft_r2c": _of(_draw(3, 6), [1], 0, True),
        "prims::fft_r2c": _of(_draw(3, 6), dim=[1], onesided=True),
        "aten::stft": _of(_draw(2, 40), 8, 4, window=torch.hann_window(8), return_complex=True),
        "aten::stft.center": _of(_draw(2, 40), 8, 4, window=torch.hann_window(8), return_complex=True),
    }


def _recurrent() -> Cases:
    steps = torch.nn.utils.rnn.pack_padded_sequence(_draw(5, 3, 4), torch.tensor([5, 3, 2]))
    found: Cases = {
        "aten::gru_cell": _of(_draw(3, 4), _draw(3, 6), _draw(18, 4), _draw(18, 6), _draw(18), _draw(18)),
        "aten::lstm_cell": _of(
            _draw(3, 4), [_draw(3, 6), _draw(3, 6)], _draw(24, 4), _draw(24, 6), _draw(24), _draw(24)
        ),
    }
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        weights = [_draw(6 * gates, 4), _draw(6 * gates, 6), _draw(6 * gates), _draw(6 * gates)]
        state: Any = _draw(1, 3, 6)
        state = [state, _draw(1, 3, 6)] if name == "lstm" else state
        found[f"aten::{name}.input"] = _of(_draw(5, 3, 4), state, weights, True, 1, 0.0, False, False, False)
        found[f"aten::{name}.data"] = _of(steps.data, steps.batch_sizes, state, weights, True, 1, 0.0, False, False)
    return found


def _quantized() -> Cases:
    x, scale, zero = _draw(4, 6), torch.rand(4) + 0.1, torch.zeros(4, dtype=torch.int32)
    limits = (-128, 127)
    return {
        **_each(
            "aten::fake_quantize_per_tensor_affine aten::fake_quantize_per_tensor_affine_cachemask",
            _of(x, 0.1, 3, *limits),
        ),
        "aten::fake_quantize_per_tensor_affine.tensor_qparams": _of(
            x, torch.tensor(0.1), torch.tensor(3, dtype=torch.int32), *limits
        ),
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _of(
            x, torch.tensor(0.1), torch.tensor(3, dtype=torch.int32), torch.tensor(1), *limits
        ),
        **_each(
            "aten::fake_quantize_per_channel_affine aten::fake_quantize_per_channel_affine_cachemask",
            _of(x, scale, zero, 0, *limits),
        ),
        "aten::_fake_quantize_learnable_per_tensor_affine": _of(x, torch.tensor([0.1]), torch.tensor([2.0]), *limits),
        "aten::_fake_quantize_learnable_per_channel_affine": _of(x, scale, torch.zeros(4), 0, *limits),
        "aten::_fused_moving_avg_obs_fq_helper_functional": _of(
            x,
            torch.tensor([1]),
            torch.tensor([1]),
            torch.tensor(-1.0),
            torch.tensor(1.0),
            torch.tensor([0.1]),
            torch.tensor([0], dtype=torch.int32),
            0.01,
            0,
            255,
            -1,
        ),
    }


def _packed_weights() -> Cases:
    bytes_ = torch.randint(-9, 9, (20, 16), dtype=torch.int8)
    return {
        "aten::_int_mm": _of(bytes_, bytes_[:8].T.contiguous()),
        "aten::_weight_int8pack_mm": _of(
            _draw(3, 32), torch.randint(-9, 9, (16, 32), dtype=torch.int8), torch.rand(16)
        ),
        "aten::_weight_int4pack_mm_for_cpu": _of(
            _draw(3, 64),
            torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (32, 64), dtype=torch.int32), 2),
            32,
            torch.rand(2, 32, 2),
        ),
        "aten::_grouped_mm": _of(
            _draw(6, 16).bfloat16(), _draw(2, 16, 8).bfloat16(), torch.tensor([2, 6], dtype=torch.int32)
        ),
    }


def _narrow_products() -> Cases:
    """Products that torch has for GPUs alone; :func:`references` says what they give."""
    left, right = _draw(3, 4).bfloat16(), _draw(4, 5).bfloat16()
    return {
        "aten::mm.dtype": _of(left, right, torch.float32),
        "aten::addmm.dtype": _of(torch.randn(5), left, right, torch.float32),
        "aten::bmm.dtype": _of(left[None], right[None], torch.float32),
        "aten::baddbmm.dtype": _of(torch.randn(1, 3, 5), left[None], right[None], torch.float32),
    }


def references() -> Mapping[str, Callable[..., torch.Tensor]]:
    """Return what calls compute, as functions of their tensors, where this torch has no kernel or a rough one."""

    def product(left: torch.Tensor, right: torch.Tensor, *rest: object) -> torch.Tensor:
        return left.float() @ right.float()

    def sum_with_product(added: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *rest: object) -> torch.Tensor:
        return added + product(left, right)

    def exponential(matrices: torch.Tensor) -> torch.Tensor:
        wide = torch.complex128 if matrices.is_complex() else torch.float64
        return torch.linalg.matrix_exp(matrices.to(wide)).to(matrices.dtype)

    return {
        "aten::linalg_matrix_exp": exponential,
        **dict.fromkeys(("aten::mm.dtype", "aten::bmm.dtype"), product),
        **dict.fromkeys(("aten::addmm.dtype", "aten::baddbmm.dtype"), sum_with_product),
    }


def _vision() -> Cases:
    corners = torch.rand(6, 2) * 5
    boxes = torch.cat([corners, corners + 1 + torch.rand(6, 2) * 4], 1)
    regions = torch.cat([torch.tensor([[0.0], [1], [1], [0], [0], [1]]), boxes], 1)
    planes = _draw(2, 8, 10, 12)
    return {
        "torchvision::nms": _of(boxes, torch.rand(6), 0.3),
        "torchvision::roi_align": _of(planes, regions, 0.5, 2, 2, 2, False),
        "torchvision::ps_roi_align": _of(planes, regions, 0.5, 2, 2, 2),
        "torchvision::roi_pool": _of(planes, regions, 0.5, 2, 2),
        "torchvision::deform_conv2d": _of(
            *(_draw(2, 5, 8, 12), _draw(7, 5, 3, 3), _draw(2, 18, 6, 10), torch.rand(2, 9, 6, 10), _draw(7)),
            *(1, 1, 0, 0, 1, 1, 1, 1, True),
        ),
    }


def _quantized_decomposed() -> Cases:
    x, scale, zero = _draw(4, 6), torch.rand(4, dtype=torch.float64) + 0.1, torch.zeros(4, dtype=torch.int64)
    whole = torch.randint(-9, 9, (4, 6), dtype=torch.int8)
    limits, dtype = (-128, 127), torch.int8
    one, none = torch.tensor(0.1, dtype=torch.float64), torch.tensor(3)
    groups, nothing = torch.rand(4, 2) + 0.1, torch.zeros(4, 2, dtype=torch.int8)
    tokens, zeros = torch.rand(4, 1) + 0.1, torch.zeros(4, 1)
    found = {
        "quantize_per_tensor": _of(x, 0.1, 3, *limits, dtype),
        "quantize_per_tensor.tensor": _of(x, one, none, *limits, dtype),
        "dequantize_per_tensor": _of(whole, 0.1, 3, *limits, dtype),
        "dequantize_per_tensor.tensor": _of(whole, one, none, *limits, dtype),
        "quantize_per_channel": _of(x, scale, zero, 0, *limits, dtype),
        "dequantize_per_channel": _of(whole, scale, zero, 0, *limits, dtype),
        "quantize_per_token": _of(x, tokens, zeros, *limits, dtype),
        "dequantize_per_token": _of(whole, tokens, zeros, *limits, dtype, torch.float32),
        "quantize_per_channel_group": _of(x, groups, nothing, *limits, dtype, 3),
        "dequantize_per_channel_group": _of(whole, groups, nothing, *limits, dtype, 3, torch.float32),
        "choose_qparams.tensor": _of(x, *limits, 1e-6, dtype),
        "choose_qparams_symmetric.tensor": _of(x, *limits, 1e-6, dtype),
        "choose_qparams_per_token": _of(x, dtype),
        "choose_qparams_per_token_asymmetric": _of(x, dtype),
        "_choose_qparams_per_token_asymmetric_impl": _of(x, dtype),
    }
    return {f"quantized_decomposed::{name}": arguments for name, arguments in found.items()}


_FAMILIES = (
    _conversions,
    _copies,
    _assertions,
    _creation,
    _bits,
    _activations,
    _losses,
    _distances_and_sets,
    _embedding,
    _indexing,
    _convolution,
    _padding,
    _pooling,
    _resampling,
    _normalization,
    _linear,
    _recurrent,
    _quantized,
    _packed_weights,
    _quantized_decomposed,
    _narrow_products,
    _vision,
)


@functools.cache
def cases() -> Mapping[str, Arguments]:
    """Return the arguments of a call of each overload that has one here, by its qualified name."""
    torch.manual_seed(0)
    return {name: arguments for family in _FAMILIES for name, arguments in family().items()}
