"""The entry point: :func:`export_folder`."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from onnx_fx_export.api import ONNXProgram, export
from onnx_fx_export.errors import InvalidArgumentError, SaveError
from onnx_fx_export.generation.config import CONFIG_FILE, MODEL_FILE, context_length, genai_config
from onnx_fx_export.generation.decoder import DecoderGraph, LayerCache, cache_layers, example, parameter_names
from onnx_fx_export.generation.loading import loaded
from onnx_fx_export.generation.requirements import genai, onnxruntime
from onnx_fx_export.generation.verifying import Compared, counts_padding, verify_folder
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import in_mode, share_caches

__all__ = ["GenerationFolder", "export_folder"]

_OPSET = 23
_RIGHT_PADDING = (
    "The model has sliding windows, and ONNX Runtime GenAI puts the padding of a batch behind the prompts, where it "
    "counts in the windows. Generate batches of prompts of equal length, or use engine='onnxruntime', which pads on "
    "the left."
)
_ENGINES = ("genai", "onnxruntime")
_NEEDED = {"input_ids", "attention_mask", "past_key_values", "use_cache"}


@dataclasses.dataclass(frozen=True)
class GenerationFolder:
    """A folder that was written.

    Attributes:
        path: The folder.
        files: Its files, each with its size in bytes.
        nodes: How many nodes the graph has.
        seconds: How long each stage took.
        compared: What was compared with the model's own ``generate``; empty without ``verify``.
    """

    path: Path
    files: dict[str, int]
    nodes: int
    seconds: dict[str, float]
    compared: list[Compared]


def export_folder(
    model: Any,
    out: str | os.PathLike[str],
    precision: Literal["fp32"] = "fp32",
    engine: Literal["genai", "onnxruntime"] = "genai",
    verify: bool = True,
    *,
    logits: Literal["last", "all"] = "last",
    tokenizer: Any = None,
    progress: Callable[[str], None] | None = None,
) -> GenerationFolder:
    """Write a language model as a folder that an engine runs.

    One graph reads prompts and goes on from them: a batch of at least 1, any number of new tokens, a cache of any
    number of earlier ones, none included, and prompts that are padded on the left. Positions follow from the mask.
    The folder holds the model file, its weights, ``genai_config.json`` with the settings of the model's generation,
    and the files of the tokenizer.

    Args:
        model: A model of transformers that can generate, or the path of a folder that ``save_pretrained`` wrote.
            It is not changed.
        out: The folder to write; there must be none yet.
        precision: Precision of weights and arithmetic. A module has to have it; a folder is read in it.
        engine: What is to run the folder: ``"genai"`` is ONNX Runtime GenAI, ``"onnxruntime"`` is
            :class:`~onnx_fx_export.generation.Generator` over plain ONNX Runtime. For GenAI, attention whose mask is
            proven to be the causal one, in a window or not, is written as ``GroupQueryAttention`` with a cache that
            grows in place; padding then stands behind the prompts, where this engine puts it.
        verify: Whether the engine generates 64 tokens after prompts of 1, 7 and 100 tokens, and after a padded batch of
            3, all of which have to be those of the model's own ``generate``.
        logits: Whether the graph computes logits for the last position alone or for all new ones.
        tokenizer: A tokenizer of transformers whose files are written too. By default that of the path, or none with a
            module; ``False`` writes the folder of a path without one.
        progress: Called with the name of each stage as it begins.

    Returns:
        What was written.

    Raises:
        InvalidArgumentError: If the model cannot generate, its cache is of an unknown kind, or an option has no such
            value, the model another dtype, or the path lacks a weight or the tokenizer.
        MissingRuntimeError: If a package of the extra ``generation`` is not installed.
        SaveError: If there is such a folder already, or it cannot be written.
        RuntimeSupportError: If the engine cannot load what was written.
        VerificationError: If a token or a logit differs.
        OnnxExporterError: Whatever :func:`onnx_fx_export.export` raises. No folder is left behind in any case.

    Example:
        >>> export_folder(model, "llama")  # doctest: +SKIP
    """
    _check_choice("precision", precision, ("fp32",))
    _check_choice("engine", engine, _ENGINES)
    _check_choice("logits", logits, ("last", "all"))
    stages = _Stages(progress)
    path = Path(out)
    if path.exists():
        raise SaveError(f"The folder {path} is there already; remove it, or write to another one.")
    if verify:
        _ = genai() if engine == "genai" else onnxruntime()
    if isinstance(model, str | os.PathLike):
        stages.begin("load")
        model, tokenizer = loaded(Path(model), tokenizer)
    _check_model(model)
    _check_dtype(model)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
            written = Path(beside) / path.name
            written.mkdir()
            with in_mode(model, torch.onnx.TrainingMode.EVAL):
                stages.begin("export")
                layers = cache_layers(model)
                nodes = _write(_Request(model, layers, engine, logits == "last", tokenizer), written, stages)
                compared: list[Compared] = []
                if verify:
                    stages.begin("verify")
                    compared = verify_folder(model, written, engine, layers, stages.tell)
            stages.end()
            os.replace(written, path)
    except OSError as error:
        raise SaveError(f"The folder {path} cannot be written: {error.strerror or error}.") from error
    files = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
    return GenerationFolder(path, files, nodes, stages.seconds, compared)


class _Stages:
    """Tells of the stages as they begin, and measures them."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self.seconds: dict[str, float] = {}
        self.tell = progress or (lambda _: None)
        self._stage, self._start = "", 0.0

    def begin(self, stage: str) -> None:
        """Begin a stage, which ends the one before it."""
        self.end()
        self._stage, self._start = stage, time.perf_counter()
        self.tell(stage)

    def end(self) -> None:
        """End the stage."""
        if self._stage:
            self.seconds[self._stage] = time.perf_counter() - self._start
        self._stage = ""


@dataclasses.dataclass(frozen=True)
class _Request:
    """What is to be written."""

    model: Any
    layers: list[LayerCache]
    engine: str
    last_logits: bool
    tokenizer: Any

    def program(self) -> ONNXProgram:
        """Export the graph."""
        call = example(self.model, self.layers)
        graph = DecoderGraph(self.model, last_logits=self.last_logits)
        return export(graph, call.args, dynamic_shapes=call.dynamic_shapes, opset_version=_OPSET, target="onnxruntime")


def _write(request: _Request, folder: Path, stages: _Stages) -> int:
    """Write all files of a folder; return the number of nodes."""
    model, length = request.model, context_length(request.model)
    config = genai_config(model, request.layers)
    program = request.program()
    shares = request.engine == "genai" and share_caches(program.model, "input_ids", "attention_mask", length)
    config["search"]["past_present_share_buffer"] = shares
    if request.engine == "genai" and not shares and counts_padding(request.layers, length):
        warn_user(_RIGHT_PADDING)
    stages.begin("save")
    program.save(folder / MODEL_FILE, external_data=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    if request.tokenizer:
        request.tokenizer.save_pretrained(folder)
    return sum(1 for _ in program.model.graph.all_nodes())


def _check_dtype(model: Any) -> None:
    """Refuse models that compute in another dtype than the one that is written."""
    other = sorted(
        {str(weight.dtype) for weight in model.parameters() if weight.is_floating_point()} - {"torch.float32"}
    )
    if other:
        raise InvalidArgumentError(
            f"The model has weights of {', '.join(other)}, and precision='fp32' is what can be written: give its "
            "float(), or the path of its folder, which is read in float32."
        )


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidArgumentError(f"{name}={value!r} is not known; it can be {', '.join(map(repr, known))}.")


def _check_model(model: Any) -> None:
    """Refuse what has no ``generate``, or no cache.

    Raises:
        InvalidArgumentError: If the model is such.
    """
    name, is_module = type(model).__name__, isinstance(model, torch.nn.Module)
    can = getattr(model, "can_generate", None)
    if not is_module or can is None or not can():
        raise InvalidArgumentError(
            f"{name} cannot generate. Pass a model of transformers with a language model head, such as "
            "AutoModelForCausalLM loads."
        )
    if model.config.is_encoder_decoder or model.main_input_name != "input_ids":
        raise InvalidArgumentError(f"{name} is more than a decoder of text; so far only those can be written.")
    if missing := sorted(_NEEDED - parameter_names(model)):
        raise InvalidArgumentError(
            f"{name} cannot be written as a folder for generation: its forward has no {', '.join(missing)}."
        )
