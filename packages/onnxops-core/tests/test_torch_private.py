"""Notices when torch changes one of the private names that native operators rely on."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch_names import found, private_names

import onnxops_core
from onnxops_core import _torch_private


class _Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _NoFunction(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Subclass(torch.Tensor):
    pass


def test_plain_tensors_are_plain():
    assert _torch_private.is_plain_eager((torch.ones(2), None, torch.nn.Parameter(torch.ones(2), requires_grad=False)))


def test_tensors_that_need_gradients_are_plain_only_without_grad_mode():
    x = torch.ones(2, requires_grad=True)

    assert not _torch_private.is_plain_eager((x,))
    with torch.no_grad():
        assert _torch_private.is_plain_eager((x,))


def test_subclasses_meta_and_fake_tensors_are_not_plain():
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))

    for tensor in (torch.ones(2).as_subclass(_Subclass), torch.ones(2, device="meta"), fake):
        assert not _torch_private.is_plain_eager((tensor,))


def test_tensors_of_two_devices_and_sparse_ones_are_not_plain():
    x = torch.ones(2, 2)

    assert not _torch_private.is_plain_eager((x, x.to("meta")))
    assert not _torch_private.is_plain_eager((x, x.to_sparse()))


def test_nothing_is_plain_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not _torch_private.is_plain_eager((torch.ones(2),))


def test_nothing_is_plain_under_a_dispatch_mode():
    with _Nothing():
        assert not _torch_private.is_plain_eager((torch.ones(2),))


def test_nothing_is_plain_under_a_function_mode():
    with _NoFunction():
        assert not _torch_private.is_plain_eager((torch.ones(2),))


def test_nothing_is_plain_while_jit_traces():
    seen = []

    def function(x):
        seen.append(_torch_private.is_plain_eager((x,)))
        return x + 1

    torch.jit.trace(function, (torch.ones(2),), check_trace=False)

    assert seen == [False]


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad])
def test_nothing_is_plain_under_functorch(transform):
    seen = []

    def function(x):
        seen.append((_torch_private.is_plain_eager((x,)), _torch_private.has_values(x)))
        return x.sum()

    transform(function)(torch.ones(2, 2) if transform is torch.vmap else torch.ones(2))

    assert seen == [(False, False)]


@pytest.mark.parametrize("nested", [torch.func.grad, lambda function: function])
def test_mapped_tensors_are_known_on_every_level(nested):
    seen = []

    def function(x, y):
        seen.append((_torch_private.is_mapped(x), _torch_private.is_mapped(y)))
        return (x * y).sum()

    torch.vmap(nested(function), in_dims=(0, None))(torch.ones(2, 2), torch.ones(2))
    torch.func.grad(function)(torch.ones(2), torch.ones(2))

    assert seen == [(True, False), (False, False)]


def test_forward_mode_is_noticed_for_dual_tensors_alone():
    x = torch.ones(2)

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        answers = (
            _torch_private.forward_mode_is_active(),
            _torch_private.differentiates((dual,)),
            _torch_private.differentiates((x,)),
        )

    assert answers == (True, True, False)
    assert not _torch_private.forward_mode_is_active()


def test_below_autograd_no_graph_is_recorded():
    x = torch.ones(2, requires_grad=True)

    with _torch_private.below_autograd():
        y = x * 2

    assert not y.requires_grad


@pytest.mark.parametrize("name", private_names(onnxops_core))
def test_every_private_name_in_use_is_there(name: str) -> None:
    assert found(name) is not None
