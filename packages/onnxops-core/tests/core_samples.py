"""Small calls of every native operator, from which the generic tests are generated."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from onnxops_core.native import NativeOp, native_ops


@dataclasses.dataclass
class Sample:
    """One call of an operator.

    ``args`` are built for a dtype; ``batched`` are the positions of the arguments that vmap maps over.
    """

    op_type: str
    version: int
    label: str
    make: Callable[[torch.dtype], tuple[tuple[Any, ...], dict[str, Any]]]
    differentiable: bool = True
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    unbatched: tuple[int, ...] = ()
    vmap: bool = True
    opcheck: bool = True

    @property
    def op(self) -> NativeOp:
        (found,) = [
            op for op in native_ops().values() if (op.op_type, op.since_version) == (self.op_type, self.version)
        ]
        return found

    @property
    def usual_dtype(self) -> torch.dtype:
        """float32 where the operator has it."""
        return torch.float32 if torch.float32 in self.dtypes else self.dtypes[0]

    def __str__(self):
        return f"{self.op_type}-{self.version}-{self.label}"


SAMPLES: list[Sample] = []


def sample(op_type, version, label, **options):
    def add(make):
        SAMPLES.append(Sample(op_type, version, label, make, **options))
        return make

    return add


def randn(*shape, dtype):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def _attention(dtype, q=(2, 4, 5, 8), k=(2, 2, 6, 8), v=(2, 2, 6, 3)):
    return tuple(randn(*shape, dtype=dtype) for shape in (q, k, v))


@sample("Attention", 23, "grouped")
def _(dtype):
    return _attention(dtype), {"num_outputs": 1}


@sample("Attention", 23, "causal")
def _(dtype):
    # Sizes that torch's fused attention takes.
    return _attention(dtype, v=(2, 2, 6, 8)), {"is_causal": True, "num_outputs": 3}


@sample("Attention", 23, "boolean mask with a dead row", unbatched=(3,))
def _(dtype):
    mask = torch.rand(2, 1, 5, 6) > 0.3
    mask[0, 0, 2] = False
    return (*_attention(dtype), mask), {"is_causal": True, "num_outputs": 1}


@sample("Attention", 23, "float mask, soft cap, scores")
def _(dtype):
    return (*_attention(dtype), randn(4, 5, 4, dtype=dtype)), {"softcap": 1.5, "qk_matmul_output_mode": 1}


@sample("Attention", 23, "past, flat inputs, probabilities")
def _(dtype):
    inputs = _attention(dtype, (2, 3, 16), (2, 3, 8), (2, 3, 6))
    past = randn(2, 2, 4, 4, dtype=dtype), randn(2, 2, 4, 3, dtype=dtype)
    return (*inputs, None, *past), {
        "is_causal": True,
        "q_num_heads": 4,
        "kv_num_heads": 2,
        "qk_matmul_output_mode": 3,
        "scale": 0.3,
    }


@sample("Attention", 23, "past, causal, Y alone")
def _(dtype):
    past = randn(2, 2, 7, 8, dtype=dtype), randn(2, 2, 7, 3, dtype=dtype)
    return (*_attention(dtype), None, *past), {"is_causal": True, "num_outputs": 1, "softcap": 3.0}


@sample("Attention", 24, "valid lengths", unbatched=(6,))
def _(dtype):
    return (*_attention(dtype), None, None, None, torch.tensor([3, 6])), {"is_causal": True, "num_outputs": 1}


@sample("Attention", 25, "windows", unbatched=(6,))
def _(dtype):
    return (*_attention(dtype), None, None, None, torch.tensor([6, 0])), {
        "left_window_size": 2,
        "right_window_size": 1,
        "num_outputs": 1,
    }


@sample("Attention", 25, "left window over a past")
def _(dtype):
    past = randn(2, 2, 7, 8, dtype=dtype), randn(2, 2, 7, 3, dtype=dtype)
    return (*_attention(dtype), None, *past), {"left_window_size": 3, "is_causal": True, "num_outputs": 3}


@sample("RotaryEmbedding", 23, "positions", unbatched=(3,))
def _(dtype):
    return (
        randn(2, 3, 5, 8, dtype=dtype),
        randn(9, 4, dtype=dtype),
        randn(9, 4, dtype=dtype),
        torch.randint(0, 9, (2, 5)),
    ), {}


@sample("RotaryEmbedding", 23, "flat, partial, interleaved")
def _(dtype):
    return (randn(2, 5, 24, dtype=dtype), randn(2, 5, 2, dtype=dtype), randn(2, 5, 2, dtype=dtype)), {
        "interleaved": True,
        "num_heads": 3,
        "rotary_embedding_dim": 4,
    }


@sample("RotaryEmbedding", 23, "partial halves", unbatched=(3,))
def _(dtype):
    return (
        randn(2, 3, 5, 10, dtype=dtype),
        randn(7, 3, dtype=dtype),
        randn(7, 3, dtype=dtype),
        torch.randint(0, 7, (2, 5)),
    ), {"rotary_embedding_dim": 6}


@sample("RMSNormalization", 23, "last dimension")
def _(dtype):
    return (randn(2, 3, 8, dtype=dtype), randn(8, dtype=dtype)), {}


@sample("RMSNormalization", 23, "two dimensions, broadcast scale")
def _(dtype):
    return (randn(2, 3, 8, dtype=dtype), randn(3, 1, dtype=dtype)), {"axis": 1, "epsilon": 0.1}


@sample("LayerNormalization", 17, "last dimension", dtypes=(torch.float16, torch.bfloat16, torch.float32))
def _(dtype):
    return (randn(2, 3, 8, dtype=dtype), randn(8, dtype=dtype), randn(8, dtype=dtype)), {}


@sample("LayerNormalization", 17, "two dimensions, broadcast, no bias")
def _(dtype):
    return (randn(2, 3, 8, dtype=dtype), randn(3, 1, dtype=dtype)), {"axis": -2}


@sample("GroupNormalization", 21, "three groups")
def _(dtype):
    return (randn(2, 6, 4, 5, dtype=dtype), randn(6, dtype=dtype), randn(6, dtype=dtype)), {"num_groups": 3}


@sample("InstanceNormalization", 22, "images")
def _(dtype):
    return (randn(2, 3, 4, 5, dtype=dtype), randn(3, dtype=dtype), randn(3, dtype=dtype)), {"epsilon": 0.01}


@sample("Gelu", 20, "exact")
def _(dtype):
    return (randn(2, 5, dtype=dtype),), {}


@sample("Gelu", 20, "tanh")
def _(dtype):
    return (randn(2, 5, dtype=dtype),), {"approximate": "tanh"}


@sample("Swish", 24, "alpha")
def _(dtype):
    return (randn(2, 5, dtype=dtype),), {"alpha": 1.7}


@sample("Swish", 24, "default")
def _(dtype):
    return (randn(2, 5, dtype=dtype),), {}


@sample("SwiGLU", 28, "default")
def _(dtype):
    return (randn(2, 5, dtype=dtype), randn(2, 5, dtype=dtype)), {}


@sample("SwiGLU", 28, "alpha")
def _(dtype):
    return (randn(2, 5, dtype=dtype), randn(2, 5, dtype=dtype)), {"alpha": 0.5}


@sample("Mish", 22, "plain")
def _(dtype):
    return (randn(2, 5, dtype=dtype),), {}


@sample("HardSwish", 22, "plain")
def _(dtype):
    return (4 * randn(2, 5, dtype=dtype),), {}
