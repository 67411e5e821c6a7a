"""The sizes that a graph for generation has to be right for."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from onnx_fx_export.api import ONNXProgram
from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.config import TOKENS
from onnxops_decomp.exporting import parsed_size, value_of_size

__all__ = ["check_sizes", "own_bounds"]

# Batch, new tokens, tokens before them, and how long what was encoded is. A capture takes it that something is before;
# a graph that joins what is before with what is new serves the first step as well.
_CALLS = ((1, 1, 1, 1), (1, 2, 1, 2), (3, 11, 2, 5), (2, 3, 5, 7), (1, 1, 9, 4), (3, 1, 12, 12))
# A multiple of all numbers of patches that become one token.
_PATCHES = 144
# A sound that is long enough to be read, and how many of them one may be that is not too long.
_SAMPLES, _SOUNDS = 4000, 12
_BOUNDS_WARNING = "The model is right for only some of the declared sizes"


@contextlib.contextmanager
def own_bounds() -> Iterator[None]:
    """Keep quiet about bounds of sizes: :func:`check_sizes` refuses those that generation cannot live with."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_BOUNDS_WARNING, category=UserWarning)
        yield


def check_sizes(program: ONNXProgram, name: str, length: int, own: Sequence[Mapping[str, int]] = ()) -> None:
    """Make sure that a graph is right for first steps and later ones, up to the length of the context.

    Args:
        program: The graph, whose dynamic dimensions have the names that graphs for generation have.
        name: What the model is called.
        length: The most tokens that it takes.
        own: Sizes of dimensions that no other graphs have, by their names; these alone are tried then.

    Raises:
        InvalidArgumentError: If its code decides by a size, so that the graph is right for some sizes only.
    """
    graph = program.model.graph
    for sizes in own or _usual(graph, length):
        shapes = {
            str(value.name): [dim if isinstance(dim, int) else _size(str(dim.value), sizes) for dim in value.shape]
            for value in graph.inputs
            if value.shape is not None
        }
        try:
            program.constraints.check(graph, shapes)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{name} decides by sizes how it computes, and one graph cannot serve first and later steps: {error}"
            ) from error


def _usual(graph: ir.Graph, length: int) -> Iterator[dict[str, int]]:
    """Yield sizes of dimensions by their names."""
    whole = ((1, length - 1, 1, length), (1, 1, length - 1, length))
    steps = [value.shape[1] for value in graph.inputs if value.name in TOKENS and value.shape is not None]
    for batch, several, past, encoded in (*_CALLS, *whole):
        new = next((step for step in steps if isinstance(step, int)), several)
        if new + past > length:
            continue
        yield {
            "batch_size": batch,
            "sequence_length": new,
            "past_sequence_length": past,
            "total_sequence_length": past + new,
            "encoder_sequence_length": min(encoded, length),
            "image_token_count": encoded,
            "image_count": encoded,
            "chunk_count": several + 1,
            "block_count": encoded + 1,
            "sample_count": _SAMPLES * min(encoded, _SOUNDS),
            "patch_count": _PATCHES * encoded,
            "rows": encoded + 1,
            "columns": new + 1,
        }


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    """Return the size of a dimension, which is named, or a sum of others."""
    tree = parsed_size(dim)
    assert tree is not None, dim
    return int(value_of_size(tree, sizes))
