"""The way of a call: read the model, make its graph, make the module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import fx

from onnxops_decomp.files.mapped import read_mapped
from onnxops_decomp.importing.errors import ModelImportError
from onnxops_decomp.importing.graph import GraphImport, Root
from onnxops_decomp.importing.module import ImportedModule

__all__ = ["read_model", "to_torch"]


def to_torch(model: onnx.ModelProto | ir.Model | str | os.PathLike[str], *, trainable: bool = False) -> fx.GraphModule:
    """Return a module that computes what an ONNX model computes.

    The graph has one call for each node. Its inputs are those of the model without the initializers, in order; it
    returns one value, or a tuple of several. Sequences are lists, an absent optional is None, strings are arrays of
    NumPy. Elements of 4 and 2 bits are held one per ``int8``, ``uint8`` or (floats) ``float32``.

    Initializers of floats are parameters, others and the statistics of ``BatchNormalization`` buffers, under their
    names in the file. Weights of a file, and of external data beside it, are mapped into memory, not read; writing to
    them does not write to the file, which must not be overwritten in place as long as the module is in use.

    ``module.to(device)`` moves all that the file holds. What is made of no tensor (sizes as a tensor, ``Range``,
    ``ConstantOfShape``, windows, random numbers) is made on torch's default device when the module runs: call a module
    elsewhere than on the CPU under ``with torch.device(device):``.

    Args:
        model: A model, or the path of one.
        trainable: Whether the parameters require gradients.

    Returns:
        The module. ``module.code`` is its code, ``module.meta["onnx"]`` what the file says of itself, and the metadata
        ``"onnx"`` of each node of the graph names the node of the file.

    Raises:
        ModelImportError: If the model cannot be read, or holds something that the importer does not know.

    Source: ONNX IR specification, https://onnx.ai/onnx/repo-docs/IR.html
    """
    read = read_model(model, mapped=True)
    try:
        with torch.device("cpu"):  # where the weights are, whatever torch's default device is
            root = Root(read, trainable)
            graph = _graph(root, read.graph)
    except ModelImportError:
        raise
    except Exception as error:  # whatever reading tensors and types of a broken file raises
        raise ModelImportError(f"The model cannot be imported: {type(error).__name__}: {error}") from error
    module = ImportedModule(root.module, graph, "ImportedModule")
    module.meta["onnx"] = _facts(read)
    module.train(False)
    return module


def _graph(root: Root, source: ir.Graph) -> fx.Graph:
    """Return the graph of a model's main graph."""
    made = GraphImport(root, None, root.module)
    made.sources.add(source)
    made.inputs(source.inputs)
    made.nodes(source)
    results = made.outputs(source.outputs)
    made.graph.output(results[0] if len(results) == 1 else tuple(results))
    return made.graph


def read_model(model: Any, mapped: bool = False) -> ir.Model:
    """Return a model in any of its forms as one of onnx-ir.

    Args:
        model: A model, or the path of one.
        mapped: Whether large weights of a file may stay in it, as tensors of external data.

    Raises:
        ModelImportError: If it cannot be read.
    """
    try:
        if isinstance(model, ir.Model):
            return model
        if isinstance(model, onnx.ModelProto):
            return ir.from_proto(model)
        path = Path(model)
        return (read_mapped(path) if mapped else None) or ir.load(path)
    except Exception as error:
        raise ModelImportError(f"The model cannot be read: {type(error).__name__}: {error}") from error


def _facts(model: ir.Model) -> dict[str, Any]:
    return {
        "opset_imports": dict(model.opset_imports),
        "ir_version": model.ir_version,
        "producer_name": model.producer_name,
        "producer_version": model.producer_version,
        "domain": model.domain,
        "model_version": model.model_version,
        "doc_string": model.doc_string,
        "metadata_props": dict(model.metadata_props),
        "graph_name": model.graph.name,
        "inputs": [value.name for value in model.graph.inputs if not value.is_initializer()],
        "outputs": [value.name for value in model.graph.outputs],
    }
