"""Every entry of the table, called by its own name: torch's result at several opsets and at other sizes."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Sequence

import decomp_harness as harness
import opinfo_samples
import pytest
import test_torch_releases
import torch
from entry_cases import references
from entry_samples import entry_calls, is_drawn
from other_sizes import Outcome, check_other_sizes
from recorded_calls import recorded
from test_number_entries import NUMBERS

from onnxops_decomp import builtin_table
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

OPSETS = list(range(7, 27))
IN_THE_EVALUATOR = [27, 28]

# Entries that answer with the reason why there is no form of the operator in ONNX.
REFUSED = frozenset(f"aten::{name}" for name in ("_linalg_eigvals", "linalg_eig", "linalg_eigvals"))
# Entries that have no form for complex numbers, and say so.
REAL_ALONE = frozenset(("aten::linalg_ldl_factor_ex",))
# Entries that cannot be called here, and where they are called instead.
ELSEWHERE = {
    **dict.fromkeys(
        (
            "aten::quantize_per_tensor",
            "aten::quantize_per_tensor.tensor_qparams",
            "aten::dequantize.self",
            "aten::dequantize.tensor",
        ),
        "only scripted graphs have quantized tensors: tests of onnx-ts-legacy",
    ),
    **dict.fromkeys(
        ("aten::tensor", "aten::tensor.bool", "aten::tensor.float", "aten::tensor.int"),
        "only scripted graphs have them: tests of onnx-ts-legacy",
    ),
    **dict.fromkeys(
        ("quantized_decomposed::quantize_per_tensor.tensor2", "quantized_decomposed::dequantize_per_tensor.tensor2"),
        "their bounds have to be constants: test_quantized",
    ),
    "aten::_scaled_mm": "NumPy has no numbers of 8 bits to feed: test_quantized",
    "aten::_scaled_mm_v2": "torch has no CPU kernel: test_quantized",
    "aten::_weight_int4pack_mm": "torch has no CPU kernel; the entry is that of _weight_int4pack_mm_for_cpu",
    "aten::cuda": "it needs a GPU in torch, and is nothing in ONNX",
    "aten::random.from": "an fx graph cannot be compiled with an argument called from",
    "quantized_decomposed::choose_qparams_per_token": "torch's fake kernel says DOUBLE, its CPU kernel gives FLOAT",
    "transformers::grouped_mm_fallback": "it belongs to transformers: tests of onnx-fx-export",
}
# Of these the first result is compared; the others serve a backward pass, in whatever form its kernel likes.
FIRST_ALONE = frozenset(
    """aten::_linalg_det aten::_linalg_slogdet aten::_ctc_loss aten::_ctc_loss.Tensor aten::embedding_bag
    aten::embedding_bag.padding_idx aten::_embedding_bag aten::_embedding_bag_forward_only aten::_linalg_eigh
    aten::mkldnn_rnn_layer torchvision::ps_roi_align torchvision::roi_pool""".split()
)
# The signs of singular vectors are free.
SHAPES_ALONE = frozenset(("aten::_linalg_svd",))
# ONNX's evaluator is at fault, where ONNX Runtime runs the same nodes rightly at opset 26: it stacks what a Loop
# collects wrongly, ignores lengths of recurrent networks and groups of transposed convolutions, sorts 64 elements.
NOT_IN_THE_EVALUATOR = frozenset(
    f"aten::{name}"
    for name in """_linalg_solve_ex _linalg_svd _logcumsumexp logcumsumexp cummax cummin conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input fractional_max_pool2d fractional_max_pool3d geqrf gru.data lstm.data
    rnn_tanh.data rnn_relu.data rnn_relu.input
    linalg_cholesky_ex linalg_inv_ex linalg_ldl_factor_ex linalg_lu_factor_ex linalg_qr sort topk
    _linalg_eigh _linalg_det _linalg_slogdet bernoulli cholesky constant_pad_nd _ctc_loss _ctc_loss.Tensor
    ctc_loss.IntList ctc_loss.Tensor normal_ normal_functional""".split()
) | {"torchvision::roi_pool"}

# What this release of torch has no longer.
GONE = {f"aten::{name}" for name in test_torch_releases.GONE if not hasattr(torch.ops.aten, name)}

CALLED = sorted(builtin_table().keys() - NUMBERS - REFUSED - ELSEWHERE.keys() - GONE)


@functools.cache
def calls(name: str) -> list[opinfo_samples.Call]:
    """Return some calls of an entry, those with several elements first."""
    found = entry_calls(name)
    first = list(itertools.islice(found, 6))
    if not any(map(_has_elements, first)):
        first += list(itertools.islice(filter(_has_elements, itertools.islice(found, 60)), 2))
    return sorted(first, key=lambda call: not _has_elements(call))


def _has_elements(call: opinfo_samples.Call) -> bool:
    return any(tensor.numel() > 1 for tensor in call.tensors)


def expected_of(call: opinfo_samples.Call) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return harness.expected_of(references().get(call.name, call), call.tensors)


def lowered_at(traced: torch.fx.GraphModule, opset: int) -> harness.Lowered | UnsupportedOpsetError:
    try:
        return harness.lower_graph(traced, opset=opset)
    except UnsupportedOpsetError as error:
        return error


def compare(name: str, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    count = 1 if name in FIRST_ALONE else len(expected)
    values = not is_drawn(name) and name not in SHAPES_ALONE
    tolerance = (1e-3, 1e-4) if any(tensor.dtype == torch.float32 for tensor in expected) else None
    harness.compare(results[:count], expected[:count], values=values, tolerance=tolerance)


def check(call: opinfo_samples.Call, opsets: list[int]) -> None:
    """Assert that a call gives torch's result at opsets, or is refused with the opset that it needs."""
    reference, first_alone = references().get(call.name), call.name in FIRST_ALONE
    expected, traced = expected_of(call), recorded(call, reference=reference, first_alone=first_alone)
    for opset in opsets:
        if opset in IN_THE_EVALUATOR and call.name in NOT_IN_THE_EVALUATOR:
            continue
        lowered = lowered_at(traced, opset)
        if isinstance(lowered, UnsupportedOpsetError):
            assert opset < (lowered.lowest or 0), lowered
            continue
        assert bool(lowered.proto.graph.output) == bool(expected)
        results = harness.run(lowered.proto, call.tensors) if expected else []
        try:
            compare(call.name, results, expected)
        except AssertionError as error:
            raise AssertionError(f"opset {opset}: {error}") from error


def stable_number(name: str) -> int:
    """Number an entry by its name alone, so that a new one shifts the opsets of no other."""
    return zlib.crc32(name.encode())


@pytest.mark.parametrize("name", CALLED)
def test_entry_at_opsets_whose_turn_it_is(name: str) -> None:
    turn = stable_number(name)
    opsets = [OPSETS[(turn + offset) % len(OPSETS)] for offset in (0, 4, 8)]
    check(calls(name)[0], [*opsets, IN_THE_EVALUATOR[turn % 2]])


@pytest.mark.wide
@pytest.mark.parametrize("name", CALLED)
def test_entry_at_every_opset(name: str) -> None:
    check(calls(name)[0], [*OPSETS, *IN_THE_EVALUATOR])


@pytest.mark.wide
@pytest.mark.parametrize("name", CALLED)
def test_further_calls_of_an_entry(name: str) -> None:
    for call in calls(name)[1:]:
        if name in REAL_ALONE and any(tensor.is_complex() for tensor in call.tensors):
            with pytest.raises(LoweringError, match="no form for complex"):
                harness.lower_graph(recorded(call), opset=23)
        else:
            check(call, [9, 13, 18, 23])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_entry_without_a_form_says_so(name: str) -> None:
    with pytest.raises(LoweringError, match=name):
        harness.lower_graph(recorded(calls(name)[0]), opset=20)


def test_exceptions_are_entries() -> None:
    assert builtin_table().keys() >= NUMBERS | REFUSED | ELSEWHERE.keys()


# ---- other sizes

# No size of these calls can vary, for the reason given with each.
FIXED = {
    **dict.fromkeys(
        [name for name in CALLED if name.startswith("aten::") and "_window" in name], "a length is a number for torch"
    ),
    **dict.fromkeys(
        [name for name in CALLED if name.startswith("aten::_assert") or "check_errors" in name], "nothing is computed"
    ),
    "aten::histogramdd.int_bins": "there are edges for each column",
    "aten::_stack": "torch's fake kernel fixes the sizes",
    "aten::hash_tensor": "torch's fake kernel fixes the sizes",
    "aten::_functional_assert_async.msg": "torch's fake kernel fixes the sizes",
    **dict.fromkeys(
        [
            f"aten::{name}"
            for name in """arange arange.start arange.start_step range range.step scalar_tensor
            tril_indices triu_indices linspace linspace.Tensor_Tensor
            linspace.Scalar_Tensor linspace.Tensor_Scalar logspace logspace.Scalar_Tensor logspace.Tensor_Scalar
            logspace.Tensor_Tensor""".split()
        ],
        "it takes numbers, no sizes",
    ),
    **dict.fromkeys(
        [name for name in CALLED if name.startswith(("aten::lstm.", "aten::gru.", "aten::rnn_", "aten::mkldnn_rnn"))],
        "weights have to be constant: test_recurrent varies batch and length",
    ),
    **dict.fromkeys(
        ("aten::split.Tensor", "aten::split_copy.Tensor", "aten::unsafe_split.Tensor"),
        "the number of results has to be known: test_slicing varies the other axes",
    ),
    **dict.fromkeys(
        [f"aten::{name}.generator" for name in ("rand", "randn", "randint", "randperm")]
        + ["aten::randint.low_generator"],
        "torch records it without its generator alone",
    ),
    "aten::combinations": "the number of results follows from the length, which has to be known",
    "aten::fractional_max_pool3d": "torch's fake kernel fixes the sizes",
    "aten::linalg_lstsq": "torch records it through torch.linalg.lstsq alone: test_whole_calls",
    "aten::_weight_int4pack_mm_for_cpu": "a packed weight is constant",
}
# Sizes for which other values make no valid call, which torch does not say: labels, offsets and indices out of range.
KEPT: dict[str, tuple[int, ...]] = {
    "torchvision::deform_conv2d": (3, 6, 8, 9, 10, 12, 18),
    "aten::_grouped_mm": (2, 6),
    **dict.fromkeys([name for name in CALLED if "ctc_loss" in name], (5,)),
    **dict.fromkeys([name for name in CALLED if "_unsafe_masked_index" in name], (5,)),
}
# With no elements along some axis, which is not compared, these never end in ONNX Runtime (convolutions) or give memory
# that it has not written (products of integers over nothing), crash PyTorch (attention), make it give masks of another
# dtype (dropout) or bounds that are not numbers (histogram), or rest on an equality of sizes that torch has divided by
# others (reshape_as).
NOT_EMPTY = {name for name in CALLED if "conv" in name} | {
    f"aten::{name}"
    for name in """_scaled_dot_product_flash_attention_for_cpu native_dropout _int_mm histogram.bin_ct reshape_as
    view_as""".split()
}
# Ends the process in ONNX Runtime before 1.31 where there is nothing to choose from.
NOT_EMPTY |= {"aten::topk"} if is_older(1, 31) else set()
# Torch's kernel takes a plane that is one pixel wide for one of another layout.
NOT_ONE = frozenset(name for name in CALLED if "2d_aa" in name)


def other_sizes(name: str, opset: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    check_call = functools.partial(
        check_other_sizes,
        compare=functools.partial(compare, name),
        reference=references().get(name),
        few=() if name in NOT_ONE else (1,) if name in NOT_EMPTY else (1, 0),
        kept=KEPT.get(name, ()),
        first_alone=name in FIRST_ALONE,
    )
    for call in calls(name) if name not in FIXED else ():
        try:
            outcomes.append(check_call(call, opset))
        except UnsupportedOpsetError as error:
            outcomes.append(check_call(call, error.lowest or 0))
        if outcomes[-1].varied or outcomes[-1].wrong:
            break
    return outcomes


@pytest.mark.parametrize("name", sorted(set(CALLED) - FIXED.keys()))
def test_entry_at_other_sizes(name: str) -> None:
    if name == "torchvision::deform_conv2d" and is_older(1, 26):
        pytest.skip("ONNX Runtime has DeformConv since 1.26; before, images of dynamic sizes are refused by name")
    opset = (20, 13, 23)[stable_number(name) % 3]
    outcomes = other_sizes(name, opset)
    assert not [outcome.wrong for outcome in outcomes if outcome.wrong]
    assert any(outcome.varied for outcome in outcomes), [outcome.fixed for outcome in outcomes]


def test_every_exception_is_an_entry() -> None:
    excepted = {*FIXED, *KEPT, *NOT_EMPTY, *NOT_ONE, *FIRST_ALONE, *SHAPES_ALONE, *NOT_IN_THE_EVALUATOR}
    assert excepted <= {*CALLED, *GONE}
