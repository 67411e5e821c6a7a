"""Models whose weights stay in their files until they are written."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.experts import SCALES, JoinedExperts
from onnx_fx_export.generation.groups import GroupedLinear, matrix_of
from onnx_fx_export.generation.loading import loaded
from onnx_fx_export.generation.merged_weights import MergedOnDisk
from onnx_fx_export.weights.unallocated import enable_fake_mode
from onnxops_decomp.exporting import Converted, ONNXProgram, apply_weights

__all__ = ["StreamedModel", "streamed"]

# Of stand-ins for weights: small enough for many layers, one after the other.
_LARGEST = 0.05
# Elements from one stand-in to the next: kernels want their operands at multiples of some bytes.
_APART = 64

# Where classes of transformers name what they keep in float32, if the others are in half precision.
_KEPT_IN_SINGLE = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")


@dataclasses.dataclass(frozen=True)
class StreamedModel:
    """A model without weights, and where they are.

    Attributes:
        model: The model, whose parameters are on the meta device, in the dtype that is written.
        source: The same model with the weights of the checkpoint, in its own dtype: views of the mapped files.
    """

    model: Any
    source: Any
    _pools: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def put_stand_ins(self) -> None:
        """Let the model run: all its weights become views of the same random numbers.

        What torch.export assumes of sizes is then compared with the model, as for one that has its weights. The memory
        is that of the largest weight.
        """
        modules = self.model.modules()
        places = [(m, name, tensor) for m in modules for name, tensor in _tensors(m) if tensor.is_meta]
        pools: dict[torch.dtype, torch.Tensor] = {}
        for dtype in {tensor.dtype for _, _, tensor in places}:
            tensors = {id(tensor): tensor for _, _, tensor in places if tensor.dtype == dtype}
            most = max(tensor.numel() for tensor in tensors.values()) + _APART * len(places)
            pools[dtype] = _random_numbers(most, dtype)
        self._pools.extend(pools.values())
        made: dict[int, torch.Tensor] = {}
        for module, name, tensor in places:
            if id(tensor) not in made:
                # Each begins elsewhere: what begins at one place is one tied weight.
                begin, pool = _APART * len(made), pools[tensor.dtype]
                view = pool[begin : begin + tensor.numel()].view(tensor.shape)
                made[id(tensor)] = torch.nn.Parameter(view, False) if isinstance(tensor, torch.nn.Parameter) else view
            setattr(module, name, made[id(tensor)])

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Let the model run for a while, as :meth:`put_stand_ins` does; afterwards its weights are on paper again."""
        held = [(m, name, tensor) for m in self.model.modules() for name, tensor in _tensors(m) if tensor.is_meta]
        count = len(self._pools)
        self.put_stand_ins()
        try:
            yield
        finally:
            for module, name, tensor in held:
                setattr(module, name, tensor)
            del self._pools[count:]

    def fill(self, program: ONNXProgram, module: torch.nn.Module) -> None:
        """Give a program its weights, which are read and converted when it is saved.

        Args:
            program: What the module was exported to.
            module: A module that holds the model, or parts of it.

        Raises:
            InvalidArgumentError: If a weight does not fit.
        """
        weights: dict[int, torch.Tensor | Converted] = {}
        for path, own in self.model.named_modules():
            for name, tensor in _tensors(own):
                if self._stands_in(tensor):
                    weights[id(tensor)] = _weight(own, self.source.get_submodule(path), name)
        named = {
            f"{path}.{name}".lstrip("."): weights[id(tensor)]
            for path, part in module.named_modules(remove_duplicate=False)
            for name, tensor in _tensors(part)
            if id(tensor) in weights
        }
        apply_weights(program.model, named, cast=True)
        self._check_filled(program)

    def _check_filled(self, program: ONNXProgram) -> None:
        """Refuse a program that still refers to a number that only stood in.

        Raises:
            InvalidArgumentError: If a weight was not found again.
        """
        for value in program.model.graph.initializers.values():
            leaves = () if value.const_value is None else _leaves(value.const_value)
            if any(self._stands_in(getattr(leaf, "raw", None)) for leaf in leaves):
                raise InvalidArgumentError(
                    f"The weight {value.name} was not found in the checkpoint. Load the model and pass it instead."
                )

    def _stands_in(self, tensor: Any) -> bool:
        """Tell whether a tensor is a view of the random numbers."""
        pools = (pool.untyped_storage().data_ptr() for pool in self._pools)
        return isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() in pools


def streamed(folder: Path, tokenizer: Any, dtype: torch.dtype, beside: Path) -> tuple[StreamedModel | None, Any]:
    """Return a model whose weights stay in the files of a folder, and its tokenizer.

    There is no such model where transformers makes other weights of the files than it makes for the configuration
    alone, as it does of quantized ones.

    Args:
        folder: A folder that ``save_pretrained`` wrote.
        tokenizer: As for :func:`~onnx_fx_export.generation.loading.loaded`.
        dtype: The dtype of the model; the weights are converted to it.
        beside: Where there is room for what transformers joins of several weights, such as those of experts.

    Raises:
        InvalidArgumentError: If the folder cannot be loaded.
    """
    with MergedOnDisk(beside):
        source, tokenizer = loaded(folder, tokenizer, "auto")
    config = copy.deepcopy(source.config)
    _set_dtype(config, dtype)
    with enable_fake_mode(), _default_dtype(dtype):
        model = type(source)(config).eval()
        _keep_single(model, dtype)
    state = source.state_dict()
    if _shapes(model.state_dict()) != _shapes(state):
        return None, tokenizer
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in state:  # the others are computed by the model itself
                buffer.copy_(state[name])
    model.generation_config = source.generation_config
    return StreamedModel(model, source), tokenizer


def _set_dtype(config: Any, dtype: torch.dtype) -> None:
    """Let a configuration and those of the parts of its model say of which dtype their weights are."""
    config.dtype = dtype
    for name in getattr(config, "sub_configs", ()):
        if (part := getattr(config, name, None)) is not None:
            _set_dtype(part, dtype)


def _keep_single(model: Any, dtype: torch.dtype) -> None:
    """Give the weights float32 that transformers reads so, whatever the dtype of the others is, in place.

    Classes of transformers name them by parts of names, in which ``*`` stands for anything.
    """
    if dtype == torch.float32:
        return
    wanted = [part for kept in _KEPT_IN_SINGLE for part in getattr(model, kept, None) or ()]
    names = re.compile("|".join(part.replace("*", ".*") for part in wanted) or r"\b\B")
    for path, module in model.named_modules():
        for name, tensor in _tensors(module):
            if tensor.dtype == dtype and names.search(f"{path}.{name}".lstrip(".")):
                single = tensor.float()
                setattr(module, name, torch.nn.Parameter(single) if isinstance(tensor, torch.nn.Parameter) else single)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Size, bool]]:
    return {name: (tensor.shape, tensor.is_floating_point()) for name, tensor in state.items()}


def _tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters and buffers of a module alone."""
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _random_numbers(count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8).to(dtype)
    return torch.empty(count, dtype=dtype).uniform_(-_LARGEST, _LARGEST, generator=generator)


def _leaves(tensor: ir.TensorProtocol) -> list[ir.TensorProtocol]:
    """Return what a tensor is computed of, or itself."""
    sources = getattr(tensor, "sources", ())
    return [leaf for source in sources for leaf in _leaves(source)] if sources else [tensor]


def _weight(module: torch.nn.Module, source: torch.nn.Module, name: str) -> torch.Tensor | Converted:
    """Return the tensor of a module of the checkpoint's model, or what a module in its place makes of it."""
    dtype = next(tensor.dtype for _, tensor in _tensors(module) if tensor.is_floating_point())
    conversions = module.conversions(dtype) if isinstance(module, GroupedLinear | JoinedExperts) else {}
    if name not in conversions:
        tensor: torch.Tensor = getattr(source, name)
        return tensor.detach()
    matrix = matrix_of(source) if isinstance(module, GroupedLinear) else getattr(source, name.removesuffix(SCALES))
    assert matrix is not None
    return Converted(matrix.detach(), conversions[name])
