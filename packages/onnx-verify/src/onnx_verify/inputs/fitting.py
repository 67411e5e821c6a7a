"""Generated inputs of sizes that a model can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from onnx_verify.inputs.generate import SIZES, SMALLEST, RandomInputs, dynamic_dims, generate_inputs
from onnx_verify.inputs.sets import InputSet
from onnx_verify.models.model import LoadedModel, ModelLike, ValueSpec, load_model

# Kernels ask for a few elements, networks that halve an image five times for multiples of 32, classifiers for more.
_LARGER = ((16, 24, 40), (64, 96, 160), (224, 256, 320))


def fitting_inputs(
    model: ModelLike | LoadedModel, runs: Callable[[InputSet], bool], spec: RandomInputs | None = None
) -> list[InputSet]:
    """Make input sets as :func:`onnx_verify.generate_inputs` does, but of larger sizes where small ones do not run.

    Kernels, strides and patches bound a size from below, and a signature does not tell by how much. Sizes beside the
    first dimension of an input grow first, for the first is most often the batch.

    Args:
        model: whose graph inputs are filled.
        runs: tells whether a set can be run.
        spec: seed, sizes, ranges; sizes that are given are not changed.

    Returns:
        The sets of the smallest sizes that run; those of the default sizes if none does. The set of sizes 1 is left out
        where it does not run.

    Raises:
        InputError: if an input is not a tensor, or a range or size is given for something that does not exist.
    """
    loaded, asked = load_model(model), spec or RandomInputs()
    usual = generate_inputs(loaded, asked)
    if asked.sizes != SIZES or not dynamic_dims(loaded.inputs):
        return usual
    growing: Sequence[Sequence[int] | Mapping[str, Sequence[int]]] = (SIZES, *_larger_sizes(loaded.inputs))
    for sizes in growing:
        if all(map(runs, generate_inputs(loaded, replace(asked, sizes=sizes, edge_cases=False)))):
            sets = generate_inputs(loaded, replace(asked, sizes=sizes))
            return [each for each in sets if each.label != SMALLEST or runs(each)]
    return usual


def _larger_sizes(inputs: Sequence[ValueSpec]) -> Iterator[dict[str, Sequence[int]]]:
    """Yield sizes by dimension: first those of all but the first dimensions of inputs grow, then all."""
    dims, inner = dynamic_dims(inputs), dynamic_dims(inputs, first=1)
    for growing in dict.fromkeys((tuple(inner), tuple(dims))):
        for larger in _LARGER:
            sizes = [larger if dim in growing else SIZES for dim in dims]
            # Each begins at another place, so that dimensions of one set differ.
            yield {
                dim: (*own[index % 3 :], *own[: index % 3])
                for index, (dim, own) in enumerate(zip(dims, sizes, strict=True))
            }
