"""The exceptions of onnx-verify, all rooted in :class:`OnnxVerifyError`."""

from __future__ import annotations


class OnnxVerifyError(Exception):
    """Root of every error that onnx-verify raises on purpose."""


class ModelLoadError(OnnxVerifyError):
    """A model file is missing, broken, unsafe or larger than what was allowed."""


class UnsafeModelError(ModelLoadError):
    """A model refers to data outside its own folder, or to data that its file does not hold."""


class InputError(OnnxVerifyError):
    """The given inputs do not fit the model, or none were given."""


class ModelRunError(OnnxVerifyError):
    """A runtime refused the model or failed while it ran it."""


class MismatchError(OnnxVerifyError):
    """A verdict was asked to raise, and the models disagree."""


class MissingDependencyError(OnnxVerifyError):
    """An optional package is needed for what was asked."""


class SubgraphExportError(OnnxVerifyError):
    """A piece of a TorchScript graph could not be exported."""
