"""What is to be captured, and what was."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.state import StateNotes
from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.inputs.examples import separated
from onnx_fx_export.repeats.regions import ModuleClasses
from onnx_fx_export.sizes.facts import SizeFacts
from onnx_fx_export.sizes.questions import SizeQuestion
from onnxops_decomp.exporting import (
    DYNAMIC_NUMBER,
    Example,
    FlatSpecs,
    bound_arguments,
    call_leaves,
    check_numbers,
    for_torch,
    from_dynamic_axes,
    leaf_specs,
    normalized_shapes,
    register_containers,
)

__all__ = ["CaptureRequest", "CapturedProgram", "Stage"]

Stage = Callable[[str], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True)
class CapturedProgram:
    """A captured program, and what is known of it besides what it says itself.

    Attributes:
        program: The program.
        sizes: What is known of the sizes that it is right for.
        state: What is known of its state.
        strategy: The name of the strategy that captured it; None for one that came captured.
        questions: What the model's code asked of sizes; None if that was not noted.
    """

    program: torch.export.ExportedProgram
    sizes: SizeFacts = dataclasses.field(default_factory=SizeFacts)
    state: StateNotes = dataclasses.field(default_factory=StateNotes)
    strategy: str | None = None
    questions: Sequence[SizeQuestion] | None = None


@dataclasses.dataclass(frozen=True)
class CaptureRequest:
    """What is to be captured.

    Attributes:
        model: The module.
        args: Positional example arguments.
        kwargs: Keyword example arguments.
        arguments: Both, by parameter name.
        dynamic_shapes: Declared dynamic dimensions by parameter name, or None.
        output_axes: What ``dynamic_axes`` says of outputs.
        state: What becomes of changes that are not tensors: ``"ignore"`` warns of them, else they are refused.
        repeated_blocks: Classes of modules of which equal ones are captured once; True for the members of lists, None
            for those of which that is proven.
        trial_runs: Whether the model and what is captured of it are compared at other sizes.
        strategy: The name of the only strategy that may be taken; None tries them in order.
        stage: Times a part of the capture under a name.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: Mapping[str, Any]
    dynamic_shapes: Mapping[str, Any] | None
    output_axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    state: str = "error"
    repeated_blocks: ModuleClasses | None = None
    trial_runs: bool = True
    strategy: str | None = None
    stage: Stage = lambda name: contextlib.nullcontext()

    @property
    def example(self) -> Example:
        """The example arguments as they are passed."""
        return self.args, self.kwargs

    @property
    def has_dynamic_numbers(self) -> bool:
        """Whether numbers are declared dynamic."""
        return any(DYNAMIC_NUMBER in spec for spec in self.specs)

    @cached_property
    def specs(self) -> list[dict[int, Any]]:
        """Declared dimensions of each leaf of the call; parameters may stand in another order."""
        declared = self.dynamic_shapes or {}
        specs = {name: leaf_specs(value, declared.get(name)) for name, value in self.arguments.items()}
        positional = len(pytree.tree_leaves(self.args))
        in_order = [spec for parts in specs.values() for spec in parts]
        return in_order[:positional] + [spec for name in self.kwargs for spec in specs[name]]

    def at(self, example: Example, fixed: Collection[tuple[int, int]] = ()) -> CaptureRequest:
        """Return the request for another example.

        Args:
            example: The example, in the structure of this one.
            fixed: Declared dimensions that become static, each as the place of a leaf and an axis.
        """
        args, kwargs = example
        arguments = bound_arguments(self.model.forward, args, kwargs)
        names = [*(name for name in arguments if name not in kwargs), *kwargs]
        left = iter(
            {axis: dim for axis, dim in spec.items() if (leaf, axis) not in fixed}
            for leaf, spec in enumerate(self.specs)
        )
        declared = {name: FlatSpecs(next(left) for _ in pytree.tree_leaves(arguments[name])) for name in names}
        return dataclasses.replace(self, args=args, kwargs=kwargs, arguments=arguments, dynamic_shapes=declared)

    def for_torch(self) -> dict[str, Any] | None:
        """Return the declared dimensions by parameter as torch.export takes them."""
        if self.dynamic_shapes is None:
            return None
        return {
            name: for_torch(value, iter(leaf_specs(value, self.dynamic_shapes.get(name))))
            for name, value in self.arguments.items()
        }

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        *,
        dynamic_shapes: Any,
        dynamic_axes: Any,
        input_names: Sequence[str] | None,
        **others: Any,
    ) -> CaptureRequest:
        """Check the example arguments and bring the declared dimensions to one form.

        Args:
            model: The module.
            args: Positional example arguments.
            kwargs: Keyword example arguments.
            dynamic_shapes: Declared dimensions, as torch.export takes them.
            dynamic_axes: Declared dimensions, as the TorchScript exporter takes them.
            input_names: Names that the user gives the inputs, by which both may refer to them.
            others: Further attributes of the request.

        Raises:
            InvalidArgumentError: If the arguments do not fit the model or the declarations contradict each other.
        """
        if dynamic_shapes is not None and dynamic_axes is not None:
            raise InvalidArgumentError("Give dynamic_shapes or dynamic_axes, not both.")
        register_containers(bound_arguments(model.forward, args, kwargs or {}).values())
        args, kwargs = separated(args, kwargs or {})
        arguments = bound_arguments(model.forward, args, kwargs)
        in_call = {**{name: arguments[name] for name in arguments if name not in kwargs}, **kwargs}
        for leaf in call_leaves(in_call):
            if leaf.is_input:
                check_numbers("Input", leaf.name, leaf.value)
        output_axes: dict[str, Any] = {}
        if dynamic_axes is not None:
            dynamic_shapes, output_axes = from_dynamic_axes(dynamic_axes, in_call, input_names)
        declared = normalized_shapes(dynamic_shapes, arguments, input_names, in_call)
        return cls(model, args, kwargs, arguments, declared, output_axes, **others)
