"""Keeps the parameters of blocks that seem to repeat others away from torch.export, which spends much on each.

A block whose class, parameters and plain attributes are those of an earlier one will most likely be a copy of that. So
torch.export does not see its parameters: the graph gets them afterwards. Whoever reads one of them while the model
runs, the block itself included if it turns out to be no copy, makes the capture start anew with all of them.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from onnxops_decomp.exporting import is_without_data, plain_fake

__all__ = ["ParametersNeededError", "WithheldParameters"]

# What modules of one class often differ in: whether something is on, which of some kinds it is.
_TELLING = (bool, str, type(None))


class ParametersNeededError(Exception):
    """Parameters of blocks that are not copies, or that other code reads, were kept away from torch.export."""


class WithheldParameters:
    """The parameters of blocks that seem to repeat others.

    Args:
        model: The model.
        blocks: The blocks that may be captured once, by path.
        structures: What two of them need in common to be compared at all, by path; None if nothing is.
        captured: How many of equal blocks are captured, and keep theirs.

    Attributes:
        names: The names in the model of the parameters of each such block, by path of the block.
        needed: Whether somebody read one of them.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        blocks: Mapping[str, torch.nn.Module],
        structures: Mapping[str, Hashable],
        captured: int = 1,
    ) -> None:
        self.names: dict[str, list[str]] = {}
        self.needed = False
        self._model, self._blocks = model, blocks
        self._all = dict(model.named_parameters(remove_duplicate=False))
        self._twins: dict[str, str] = {}
        counts = Counter(map(id, self._all.values()))
        shared = {name for name, parameter in self._all.items() if counts[id(parameter)] > 1}
        kept: dict[Hashable, list[list[str]]] = {}
        for path, block in blocks.items():
            if any(path.startswith(f"{outer}.") for outer in blocks):
                continue
            names = [f"{path}.{name}" for name, _ in block.named_parameters(remove_duplicate=False)]
            if structures[path] is None or not shared.isdisjoint(names):
                continue
            twins = kept.setdefault((structures[path], _telling(block)), [])
            if len(twins) < captured:
                twins.append(names)
            else:
                self.names[path] = names
                self._twins.update(zip(names, twins[0], strict=True))

    def capture(self, run: Callable[[], torch.export.ExportedProgram]) -> torch.export.ExportedProgram:
        """Capture the model without these parameters.

        Raises:
            ParametersNeededError: If they were read.
        """
        try:
            with self._away():
                program = run()
        except Exception as error:
            if self.needed:
                raise ParametersNeededError from error
            raise
        held = (*program.constants.values(), *program.state_dict.values())
        if self.needed or not _memory(held).isdisjoint(_memory(self._all[name] for name in self._twins)):
            raise ParametersNeededError
        return program

    def add_to(self, program: torch.export.ExportedProgram) -> dict[str, torch.fx.Node]:
        """Give a program these parameters as torch.export does, in place, and return its parameters by name."""
        if not self._twins:
            return {}
        signature = program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs if spec.kind is InputKind.PARAMETER}
        placeholders = program.graph.find_nodes(op="placeholder")
        found = {str(specs[node.name].target): node for node in placeholders if node.name in specs}
        following = next(node for node in program.graph.nodes if node.name not in specs)
        for name in reversed(self._all):
            if name in self._twins:
                found[name] = _placeholder(following, found[self._twins[name]], name)
            following = found.get(name, following)
        others = [spec for spec in signature.input_specs if spec.kind is not InputKind.PARAMETER]
        own = [InputSpec(InputKind.PARAMETER, TensorArgument(node.name), name) for name, node in found.items()]
        position = {node.name: index for index, node in enumerate(program.graph.find_nodes(op="placeholder"))}
        signature.input_specs[:] = sorted((*own, *others), key=lambda spec: position[spec.arg.name])
        known = program.state_dict
        own_state = {name: one for name, one in self._all.items() if name in known or name in self._twins}
        state = {**own_state, **known}
        program.state_dict.clear()
        program.state_dict.update(state)
        return found

    @contextlib.contextmanager
    def _away(self) -> Iterator[None]:
        """Take the parameters from their modules, and note who reads them while the model runs."""
        inside = [module for path in self.names for module in self._blocks[path].modules()]
        kept = {id(module): (module, module._parameters) for module in inside}
        running = [False]

        def enter(*_: Any) -> None:
            running[0] = True

        def leave(*_: Any) -> None:
            running[0] = False

        hooks = [
            self._model.register_forward_pre_hook(enter, prepend=True),
            self._model.register_forward_hook(leave, always_call=True),
        ]
        try:
            for module, parameters in kept.values():
                module.__dict__["_parameters"] = _Absent(parameters, self.refuse, running)
            yield
        finally:
            for module, parameters in kept.values():
                module.__dict__["_parameters"] = parameters
            for hook in hooks:
                hook.remove()

    def refuse(self) -> NoReturn:
        """Give up to withhold parameters."""
        self.needed = True
        raise ParametersNeededError


class _Absent(dict[str, Any]):
    """What a module has for its parameters meanwhile: none for torch.export, and an error for code of the model.

    Names that are registered without a parameter stay.
    """

    def __init__(self, parameters: Mapping[str, Any], refuse: Callable[[], NoReturn], running: list[bool]) -> None:
        self._away = {name for name, parameter in parameters.items() if parameter is not None}
        self._refuse, self._running = refuse, running
        super().__init__(dict.fromkeys(parameters.keys() - self._away))

    def __contains__(self, name: object) -> bool:
        if name in self._away:
            self._refuse()
        return super().__contains__(name)

    def _check(self) -> None:
        if self._away and self._running[0]:
            self._refuse()


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a dictionary that code of the model must not call."""

    @functools.wraps(method)
    def called(self: _Absent, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return method(self, *args, **kwargs)

    return called


for _name in ("__iter__", "__len__", "__getitem__", "__setitem__", "__reduce_ex__", "get", "items", "keys", "values"):
    setattr(_Absent, _name, _checked(getattr(dict, _name)))


def _memory(held: Iterable[Any]) -> set[int]:
    """Return where tensors begin in memory."""
    return {one.data_ptr() for one in held if isinstance(one, torch.Tensor) and not is_without_data(one)} - {0}


def _telling(block: torch.nn.Module) -> Hashable:
    """Return the attributes of a block by which it probably computes something of its own."""
    return tuple(
        (path, name, value)
        for path, module in block.named_modules(remove_duplicate=False)
        for name, value in vars(module).items()
        if isinstance(value, _TELLING)
    )


def _placeholder(following: torch.fx.Node, twin: torch.fx.Node, name: str) -> torch.fx.Node:
    """Put a parameter before a node, with the metadata of its twin and memory of its own."""
    graph, like = following.graph, twin.meta["val"]
    with graph.inserting_before(following):
        node = graph.placeholder("p_" + re.sub(r"[^a-zA-Z0-9]", "_", name.lower()))
    node.target = node.name
    made = plain_fake(like.fake_mode, like.shape, like.stride(), like.dtype, like.device)
    node.meta = {**twin.meta, "val": made.requires_grad_(like.requires_grad)}
    return node
