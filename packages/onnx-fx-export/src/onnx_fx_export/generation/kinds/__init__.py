"""Kinds of models: the graphs that a folder holds, its configuration, and the prompts that it is compared on."""

from onnx_fx_export.generation.kinds.base import Batch, Kind, Part
from onnx_fx_export.generation.kinds.choosing import kind_of, senses_of

__all__ = ["Batch", "Kind", "Part", "kind_of", "senses_of"]
