"""Passes over the finished model.

Each pass is an :class:`onnx_ir.passes.InPlacePass`: one walk over the nodes, the model changed in place, the result
says whether it was. What a pass puts in place of a group of nodes computes the same by the ONNX specification; where a
condition cannot be proven from the graph, the group stays as it is.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.exporting.finish.attention import FoldAttentionHeads, FoldRepeatedHeads
from onnxops_decomp.exporting.finish.functions import HoistWeightTransposes, as_model
from onnxops_decomp.exporting.finish.gathering import FuseGatheredRows
from onnxops_decomp.exporting.finish.gelu import FuseGelu
from onnxops_decomp.exporting.finish.normalization import FuseRMSNormalization
from onnxops_decomp.exporting.finish.products import FuseGemm
from onnxops_decomp.exporting.finish.rotary import FuseRotaryEmbedding
from onnxops_decomp.exporting.finish.small_weights import FoldSmallWeights
from onnxops_decomp.exporting.finish.weights import DeduplicateInitializers, FoldWeightTransposes
from onnxops_decomp.passes import FoldBatchNormalization
from onnxops_decomp.passes.matching import drop_unused_weights
from onnxops_decomp.runtimes import target_passes

__all__ = ["PASSES", "finish_model"]

PASSES: tuple[type[ir.passes.InPlacePass], ...] = (
    FoldWeightTransposes,
    FoldSmallWeights,
    FuseGemm,
    FoldBatchNormalization,
    FuseGelu,
    FuseRMSNormalization,
    FuseRotaryEmbedding,
    FoldRepeatedHeads,
    FoldAttentionHeads,
    FuseGatheredRows,
    DeduplicateInitializers,
)


_OF_WEIGHTS = (FoldWeightTransposes, FoldSmallWeights, FoldBatchNormalization, DeduplicateInitializers)


def finish_model(model: ir.Model, target: str | None = None, *, folds_weights: bool = True) -> None:
    """Run all passes in order, those of the target last.

    Weights come first; heads are folded once their keys and values have been. Without ``folds_weights`` the weights
    stay as the model has them.
    """
    own = [each for each in PASSES if folds_weights or each not in _OF_WEIGHTS]
    passes = (*own, *(() if target is None else target_passes(target)))
    if folds_weights:
        HoistWeightTransposes()(model)
    for each in passes:
        each()(model)
    for function in model.functions.values():
        with as_model(model, function) as body:
            for each in passes:
                each()(body)
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
    drop_unused_weights(model.graph)
