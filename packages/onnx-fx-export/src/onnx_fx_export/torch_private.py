"""The places where the exporter needs something of torch that it does not offer publicly.

``tests/test_torch_private.py`` notices when torch changes one of them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._higher_order_ops import scan
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

__all__ = ["dynamic_associative_scan", "guard_texts", "is_without_data", "records_modes"]


def guard_texts(program: torch.export.ExportedProgram) -> list[str]:
    """Return the guards on input sizes as Python text over ``L['x'].size()[0]`` (``_guards_code``)."""
    return list(getattr(program, "_guards_code", None) or ())


def is_without_data(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has a shape and no contents (``FakeTensor``, or on the meta device)."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def records_modes(graph_module: torch.fx.GraphModule) -> bool:
    """Tell whether a captured graph switches to ``vmap`` or autocast instead of holding what is computed there."""
    modules = [module for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = {node.target for module in modules for node in module.graph.nodes if node.op == "call_function"}
    autocast = torch.ops.higher_order.wrap_with_autocast in targets
    return autocast or any(getattr(target, "__module__", "") == "torch._functorch.predispatch" for target in targets)


@contextmanager
def dynamic_associative_scan() -> Iterator[None]:
    """Record ``associative_scan`` over a dynamic dimension as ``scan``.

    Its generic mode is a recursion in Python that ends at a length that it knows (``generic_associative_scan``).
    """
    module: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
    generic: Callable[..., Any] = module.generic_associative_scan

    def through_scan(operator: Any, leaves: Sequence[torch.Tensor], **arguments: Any) -> Any:
        if isinstance(leaves[0].shape[0], int):
            return generic(operator, leaves, **arguments)
        # The operator is the user's under vmap, which steps do not need.
        own = inspect.getclosurevars(operator.keywords["combine_fn"]).nonlocals["func"]
        combine = functools.partial(operator.func, **{**operator.keywords, "combine_fn": own})

        def step(carried: list[torch.Tensor], slices: list[torch.Tensor]) -> Any:
            started, *before = carried
            combined = pytree.tree_leaves(combine(*before, *slices))
            results = [torch.where(started, new, first) for new, first in zip(combined, slices, strict=True)]
            return [torch.ones_like(started), *results], [result.clone() for result in results]

        # A flag tells the first step, so that the scan runs over everything, whatever the length is.
        started = torch.zeros((), dtype=torch.bool, device=leaves[0].device)
        before = [leaf[0].clone(memory_format=torch.contiguous_format) for leaf in leaves]
        _, results = scan(step, [started, *before], list(leaves))
        return results

    module.generic_associative_scan = through_scan
    try:
        yield
    finally:
        module.generic_associative_scan = generic
