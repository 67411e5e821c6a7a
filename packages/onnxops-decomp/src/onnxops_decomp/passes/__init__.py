"""Passes over a finished model that both exporters run.

Each pass is an :class:`onnx_ir.passes.InPlacePass`: one walk over the nodes, the model changed in place, the result
says whether it was. What a pass puts in place of nodes computes the same by the ONNX specification; where a condition
cannot be proven from the graph, the nodes stay as they are.
"""

from __future__ import annotations

from onnxops_decomp.passes.batch_normalization import FoldBatchNormalization
from onnxops_decomp.passes.derived import ComputedTensor, DerivedTensor

__all__ = ["ComputedTensor", "DerivedTensor", "FoldBatchNormalization"]
