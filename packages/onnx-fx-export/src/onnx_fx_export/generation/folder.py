"""The entry point: :func:`export_folder`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from onnx_fx_export.api import ONNXProgram, export
from onnx_fx_export.errors import CaptureError, InvalidArgumentError, OnnxExporterError, SaveError
from onnx_fx_export.generation.adapters import Adapters, adapters_of, without_wrapper
from onnx_fx_export.generation.caches import check_windows, sliding_window
from onnx_fx_export.generation.config import CONFIG_FILE, first_context, unapplied_settings
from onnx_fx_export.generation.experts import joined_experts
from onnx_fx_export.generation.frequencies import settled_frequencies
from onnx_fx_export.generation.kinds import Kind, Part, kind_of, senses_of
from onnx_fx_export.generation.loading import loaded
from onnx_fx_export.generation.operators.convolutions import TRANSLATIONS as OF_CONVOLUTIONS
from onnx_fx_export.generation.operators.experts import TRANSLATIONS as OF_EXPERTS
from onnx_fx_export.generation.operators.last_token import TRANSLATIONS as OF_LAST_TOKENS
from onnx_fx_export.generation.operators.linear_attention import TRANSLATIONS as OF_LINEAR_ATTENTION
from onnx_fx_export.generation.operators.padding import TRANSLATIONS as OF_PADDING
from onnx_fx_export.generation.operators.recurrences import recurrences_as_operators
from onnx_fx_export.generation.quantization import BITS, Quantization, quantized, quantized_error
from onnx_fx_export.generation.requirements import genai, onnxruntime
from onnx_fx_export.generation.shared_weights import save_together
from onnx_fx_export.generation.sizes import check_sizes, own_bounds
from onnx_fx_export.generation.streaming import StreamedModel, streamed
from onnx_fx_export.generation.trials import check_place
from onnx_fx_export.generation.verifying import Compared, verify_folder
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import DivideWideProducts, FuseSkipNormalization, in_mode, share_caches

__all__ = ["GenerationFolder", "export_folder"]

_OPSET = 23
_TRANSLATIONS = {**OF_EXPERTS, **OF_LAST_TOKENS, **OF_LINEAR_ATTENTION, **OF_CONVOLUTIONS, **OF_PADDING}
_RIGHT_PADDING = (
    "The model has sliding windows, biases by position or places in images, and ONNX Runtime GenAI pads a batch after "
    "the prompts, "
    "where the padding counts as part of them. Generate batches of prompts of equal length, or use "
    "engine='onnxruntime', which pads on the left."
)
_READS_PADDING = (
    "{0} counts padding before a prompt as part of the text, in its own generate, too: generate batches of prompts of "
    "equal length."
)
_SENSES = (
    "{0} also reads {1}, which so far its folder has no graph for{3}: it is written as a model that reads {2} alone."
)
_OTHER_FREQUENCIES = (
    "For texts of more than {0} tokens this model uses other position frequencies, from the first token on, and a "
    "cache filled by fewer tokens does not hold them: the folder takes at most {0} tokens."
)
_UNAPPLIED = (
    "The generation_config of the model sets {0}, which engine={1!r} does not apply as generate does: what follows a "
    "prompt may differ from the model's own generate, which is compared without such settings."
)
_ENDS_AT_PADDING = (
    "The generation_config of the model has no eos_token_id, and ONNX Runtime GenAI ends a text at the padding token "
    "then, which is {0}: set the token that ends a text, or use engine='onnxruntime', which goes on."
)
_PENALIZED_PADDING = (
    "ONNX Runtime GenAI counts padding among the tokens that repetition_penalty makes less likely, and the padding "
    "token of the model, {0}, also ends a text: generate batches of prompts of equal length, or set another "
    "pad_token_id."
)
_PRECISIONS = ("fp32", "fp16", "int8", "int4")
_ENGINES = ("genai", "onnxruntime")
_COMPARED = 100


@dataclasses.dataclass(frozen=True)
class GenerationFolder:
    """A folder that was written.

    Attributes:
        path: The folder.
        files: Its files, each with its size in bytes.
        nodes: How many nodes the graphs have.
        seconds: How long each stage took.
        compared: What was compared with the model's own ``generate``; empty without ``verify``.
        quantization: What rounding the weights has changed, if they were rounded.
    """

    path: Path
    files: dict[str, int]
    nodes: int
    seconds: dict[str, float]
    compared: list[Compared]
    quantization: Quantization | None = None


def export_folder(
    model: Any,
    out: str | os.PathLike[str],
    precision: Literal["fp32", "fp16", "int8", "int4"] = "fp32",
    engine: Literal["genai", "onnxruntime"] = "genai",
    verify: bool = True,
    *,
    logits: Literal["last", "all"] = "last",
    tokenizer: Any = None,
    adapters: bool = False,
    windowed_caches: bool = False,
    progress: Callable[[str], None] | None = None,
) -> GenerationFolder:
    """Write a language model as a folder that an engine runs.

    One graph reads prompts and goes on from them: a batch of at least 1, any number of new tokens, a cache of any
    number of earlier ones, none included, and prompts that are padded on the left. Positions follow from the mask.
    A model with an encoder, for text (T5, BART, Marian), sounds (Whisper, Moonshine) or an image (TrOCR, Donut), has a
    graph for that, too, which computes once what the decoder attends to. One that sees (LLaVA, Mistral 3, Qwen3-VL) or
    hears (Voxtral, Qwen2-Audio) has a graph for images or sounds and one for embeddings. One whose layers keep states
    of one size (Mamba, Jamba, Qwen3-Next) reads a token at each step; where its code for prompts works in chunks, as
    that of Mamba 2 does, or an operator stands for it, as for that of the others, it has a graph for prompts, too. The
    folder holds the model files, their weights, ``genai_config.json`` with the settings of the model's generation, and
    the files of the tokenizer. What several graphs read, such as an embedding, is stored once.

    Args:
        model: A model of transformers that can generate, with LoRA adapters of peft or without, or the path of a folder
            that ``save_pretrained`` wrote. It is not changed. Without ``verify`` the weights of a folder are not
            loaded: each is read, converted and written, a part at a time, so that the model may be larger than memory.
            Or another module with the same calling convention: its forward takes ``input_ids``, ``attention_mask`` and
            ``past_key_values``, a ``DynamicCache``, and returns ``logits``. The longest text
            (``max_position_embeddings``) and the tokens that end one are those of its ``config`` and
            ``generation_config``, if it has them.
        out: The folder to write; there must be none yet.
        precision: ``"fp32"`` or ``"fp16"`` for weights and arithmetic; a module has to have this precision, a folder is
            read in it; weights that transformers keeps in float32 stay so. ``"int8"`` or ``"int4"`` rounds the weights
            of linear layers and of experts to the nearest integers, with a scale for each 32 columns (of experts in
            int8, for each row), and computes in float32. The result says how far that is from the model; the tokens are
            compared with those of the rounded model.
        engine: What is to run the folder: ``"genai"`` is ONNX Runtime GenAI, ``"onnxruntime"`` is
            :class:`~onnx_fx_export.generation.Generator` over plain ONNX Runtime. For GenAI, attention whose mask is
            proven to be the causal one, in a window or not, is written as ``GroupQueryAttention`` with a cache that
            grows in place; padding then stands behind the prompts, where this engine puts it.
        verify: Whether the engine generates 64 tokens after prompts of 1, 7 and 100 tokens, and after a padded batch of
            3, all of which have to be those of the model's own ``generate``, or the most likely ones by the forward of
            a module that is none of transformers.
        logits: Whether the graph computes logits for the last position alone or for all new ones.
        tokenizer: A tokenizer or processor of transformers whose files are written too. By default that of the path,
            or none with a module; ``False`` writes the folder of a path without one.
        adapters: Whether the LoRA adapters of the model become files ``NAME.onnx_adapter``, which the engine loads by
            name (GenAI's ``Adapters``, :meth:`~onnx_fx_export.generation.Generator.generate`); without one of them the
            folder is the model without adapters. By default those that are active are part of the model.
        windowed_caches: Whether layers with sliding windows keep no more tokens than their windows hold, for
            ``engine="genai"``. Long texts take less memory and are continued faster. GenAI then asks for a
            ``max_length`` of at least the window, does not search with beams, and goes back (``rewind_to``) only until
            a text is longer than the window.
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
    _check_options(precision, engine, logits, tokenizer, windowed_caches, progress)
    stages = _Stages(progress)
    dtype = torch.float16 if precision == "fp16" else torch.float32
    path = _place(out)
    if verify:
        _ = genai() if engine == "genai" else onnxruntime()
    stream: StreamedModel | None = None
    if isinstance(model, str | os.PathLike):
        stages.begin("load")
        model, tokenizer, stream = _from_folder(Path(model), tokenizer, dtype, None if verify else path)
    kind = _kind_of(without_wrapper(model), precision, stream)
    model = kind.model
    own_adapters = adapters_of(model) if adapters else Adapters()
    _check_weights(model, dtype, precision, on_paper=stream is not None)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
            written = Path(beside) / path.name
            written.mkdir()
            rounded = _rounded(kind, precision, stages, stream)
            with in_mode(model, torch.onnx.TrainingMode.EVAL), rounded as quantization:
                kind = _run_by(engine, kind)
                request = _Request(kind, engine, logits == "last", tokenizer, stream, own_adapters, windowed_caches)
                nodes = _write(request, written, stages)
                compared: list[Compared] = []
                if verify:
                    stages.begin("verify")
                    compared = verify_folder(kind, written, engine, stages.tell, own_adapters.names)
            stages.end()
            os.replace(written, path)
    except OSError as error:
        # Where a model file could not be written, its place beside the folder is gone by now.
        cause = error.__cause__ if isinstance(error, SaveError) and isinstance(error.__cause__, OSError) else error
        raise SaveError(f"The folder {path} cannot be written: {cause.strerror or cause}.") from error
    files = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
    return GenerationFolder(path, files, nodes, stages.seconds, compared, quantization)


def _from_folder(
    folder: Path, tokenizer: Any, dtype: torch.dtype, out: Path | None
) -> tuple[Any, Any, StreamedModel | None]:
    """Return the model of a folder, its tokenizer, and where the weights are if they are to stay in files.

    Args:
        folder: The folder.
        tokenizer: A tokenizer, ``False`` for none, ``None`` for that of the folder.
        dtype: The dtype of the model.
        out: Beside what temporary files may be, if the weights are to stay in files.
    """
    if out:
        stream, tokenizer = streamed(folder, tokenizer, dtype, out.absolute().parent)
        if stream is not None:
            return stream.model, tokenizer, stream
    return *loaded(folder, tokenizer, dtype), None


def _kind_of(model: Any, precision: str, stream: StreamedModel | None) -> Kind:
    """Return the kind of a model, which may be found by a trial."""
    if stream and precision not in BITS:
        stream.put_stand_ins()
    # What is rounded is rounded on paper.
    with stream.standing_in() if stream and precision in BITS else contextlib.nullcontext():
        return kind_of(model)


def _run_by(engine: str, kind: Kind) -> Kind:
    """Return the kind of a model for an engine, which may run it in another form.

    Raises:
        InvalidArgumentError: If the engine runs none.
    """
    if engine != "genai":
        return kind
    kind = kind.for_genai()
    if kind.genai_type is None:
        raise _unknown_to_genai(kind)
    return kind


@contextlib.contextmanager
def _rounded(
    kind: Kind, precision: str, stages: _Stages, stream: StreamedModel | None
) -> Iterator[Quantization | None]:
    """Let a model compute with rounded weights where the precision is one of integers, and be ready to be run."""
    if precision not in BITS:
        if stream:
            stream.put_stand_ins()
        yield None
        return
    stages.begin("quantize")
    before = None if stream else kind.sample_logits(_COMPARED)
    with quantized(kind.model, BITS[precision]) as (layers, left):
        if stream:
            stream.put_stand_ins()
        if before is None:
            yield Quantization(layers, left, None, None)
        else:
            yield Quantization(layers, left, *quantized_error(before, kind.sample_logits(_COMPARED)))


class _Stages:
    """Reports the stages as they begin, and measures them."""

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

    kind: Kind
    engine: str
    last_logits: bool
    tokenizer: Any
    stream: StreamedModel | None
    adapters: Adapters
    windowed: bool

    def program(self, part: Part) -> ONNXProgram:
        """Export a graph, with its weights."""
        with self.adapters.as_factors(part.module), joined_experts(part.module, on_paper=self.stream is not None):
            return self._exported(part)

    def _exported(self, part: Part) -> ONNXProgram:
        if self.stream:
            self.stream.put_stand_ins()
        by_operators = recurrences_as_operators(part.module) if part.section else contextlib.nullcontext()
        with own_bounds(), settled_frequencies(part.module, self.kind.context_length()), by_operators:
            program = export(
                part.module,
                part.args,
                dynamic_shapes=part.dynamic_shapes,
                input_names=part.input_names,
                opset_version=_OPSET,
                target="onnxruntime",
                widen_bfloat16=True,
                custom_translation_table=_TRANSLATIONS,
                strategy=None if part.section is None else "non-strict",
            )
        if part.reads_steps:
            FuseSkipNormalization()(program.model)
            DivideWideProducts()(program.model)
        check_sizes(program, type(self.kind.model).__name__, self.kind.context_length(), part.sizes)
        inputs = program.model.graph.inputs
        for value in [value for value in inputs if value.name in part.optional and not value.uses()]:
            inputs.remove(value)
        if self.stream:
            self.stream.fill(program, part.module)
        return program


def _write(request: _Request, folder: Path, stages: _Stages) -> int:
    """Write all files of a folder; return the number of nodes."""
    _check_caches(request)
    kind, config = request.kind, request.kind.config()
    programs: dict[str, ONNXProgram] = {}
    parts = kind.parts(last_logits=request.last_logits)
    if request.adapters.names:
        parts = [part for part in parts if part.needed or not config["model"].pop(part.section, None)]
    _warn(kind, request.engine)
    if request.engine == "genai" and not kind.stop:
        warn_user(_ENDS_AT_PADDING.format(kind.pad))
        kind.stop = [kind.pad]
        config["model"]["eos_token_id"] = kind.pad
    if request.adapters.names and len(parts) > 1:
        raise InvalidArgumentError(
            f"{type(kind.model).__name__} has several graphs, and adapter files belong to one graph: merge the "
            "adapters into the model (merge_and_unload), or leave adapters out."
        )
    for part in parts:
        stages.begin(f"export {part.file}")
        try:
            program = programs[part.file] = request.program(part)
        except OnnxExporterError as error:
            _check_left_out(part, kind, error)
            stages.tell(f"leave out {part.file}: {str(error).splitlines()[0].rstrip(':')}")
            del config["model"][part.section]
            continue
        if request.engine == "genai" and kind.shares_caches:
            config["search"]["past_present_share_buffer"] = _share_caches(program, kind, forget=request.windowed)
            if request.windowed:
                config["model"]["decoder"]["sliding_window"] = sliding_window(kind.model, program.model.graph)
        request.adapters.make_inputs(program, part.module)
        request.adapters.save(part.module, folder)
    stages.begin("save")
    if len(programs) > 1:
        save_together(folder, {file: program.model for file, program in programs.items()})
    else:
        for file, program in programs.items():
            program.save(folder / file, external_data=True)
    _write_settings(request, folder, {CONFIG_FILE: config, **kind.settings()})
    return sum(1 for program in programs.values() for _ in program.model.graph.all_nodes())


def _check_left_out(part: Part, kind: Kind, error: OnnxExporterError) -> None:
    """Raise what is wrong with a graph, unless a folder can do without it.

    Raises:
        InvalidArgumentError: If the code of the model does what no graph holds.
    """
    if part.section is not None and not part.needed:
        return
    if isinstance(error, CaptureError):
        raise InvalidArgumentError(
            f"{type(kind.model).__name__} cannot be written as a folder for generation: no graph holds all that its "
            f"code makes of {' and '.join(kind.reads)}. {error}"
        ) from error
    raise error


def _warn(kind: Kind, engine: str) -> None:
    """Warn of what an engine does otherwise than the model."""
    name = type(kind.model).__name__
    if kind.reads_padding:
        warn_user(_READS_PADDING.format(name))
    if missing := [sense for sense in senses_of(kind.model) if sense not in kind.reads]:
        why = f" ({kind.unheard})" if kind.unheard else ""
        warn_user(_SENSES.format(name, " and ".join(missing), " and ".join(kind.reads), why))
    if first := first_context(kind.model):
        warn_user(_OTHER_FREQUENCIES.format(first))
    if ignored := unapplied_settings(kind.model, engine):
        warn_user(_UNAPPLIED.format(", ".join(ignored), engine))
    penalty = getattr(kind.model.generation_config, "repetition_penalty", None)
    if engine == "genai" and penalty not in (None, 1.0) and kind.pad in (kind.stop or [kind.pad]):
        warn_user(_PENALIZED_PADDING.format(kind.pad))
    if engine == "genai" and not kind.shares_caches and kind.counts_padding(kind.context_length()):
        warn_user(_RIGHT_PADDING)


def _write_settings(request: _Request, folder: Path, settings: dict[str, dict[str, Any]]) -> None:
    """Write the files beside the graphs: settings by their names, and those of the tokenizer."""
    for file, content in settings.items():
        (folder / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    try:
        request.kind.model.generation_config.save_pretrained(folder)
    except ValueError as error:  # what contradicts itself is not saved
        raise InvalidArgumentError(f"The model's generation_config cannot be saved: {error}") from error
    if request.tokenizer:
        try:
            request.tokenizer.save_pretrained(folder)
        except Exception as error:  # tokenizers written in Rust have no errors of their own
            raise SaveError(f"The tokenizer cannot be saved: {error}") from error


def _share_caches(program: ONNXProgram, kind: Kind, *, forget: bool) -> bool:
    """Let the cache grow in place where the masks allow it; warn where padding would be read then."""
    length = kind.context_length()
    shares = share_caches(program.model, "input_ids", "attention_mask", length, forget=forget)
    if shares:
        kind.pad_behind(program.model)
    if kind.moved_by_padding if shares else kind.counts_padding(length):
        warn_user(_RIGHT_PADDING)
    return shares


def _place(out: Any) -> Path:
    """Return where a folder will be written, checked before anything is loaded.

    Raises:
        InvalidArgumentError: If it is no path.
        SaveError: If it already exists, or its parent does not.
    """
    if not isinstance(out, str | os.PathLike):
        raise InvalidArgumentError(f"out={type(out).__name__} is no path. Pass the model first, then the folder.")
    path = Path(out)
    if "\0" in str(path):
        raise InvalidArgumentError(f"out={str(path)!r} is no path: it has a character that no name may have.")
    if os.path.lexists(path):
        raise SaveError(f"The folder {path} already exists; remove it, or write to another one.")
    if not path.absolute().parent.is_dir():
        raise SaveError(f"The folder {path} cannot be written: its parent does not exist.")
    return path


def _check_caches(request: _Request) -> None:
    """Refuse caches that the engine cannot run; the model may have stand-ins for its weights, but none on paper."""
    kind = request.kind
    kind.check_masks()
    if request.windowed:
        check_windows(kind.model, kind.layers if kind.shares_caches else [], kind.context_length())
    if request.engine == "genai":
        if any(layer.index is not None for layer in kind.layers):
            raise _unknown_to_genai(kind, ": it keeps an index of tokens beside keys and values")
        shapes = sorted({shape for layer in kind.layers for shape in (layer.key, layer.value)})
        if len(shapes) > 1:
            raise _unknown_to_genai(kind, f": it keeps keys and values of different shapes, (heads, width) {shapes}")


def _unknown_to_genai(kind: Kind, why: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(
        f"ONNX Runtime GenAI cannot run {type(kind.model).__name__}{why}. Pass engine='onnxruntime' for the Generator "
        "of this package (--engine onnxruntime on the command line)."
    )


def _check_weights(model: Any, dtype: torch.dtype, precision: str, *, on_paper: bool) -> None:
    """Refuse models that compute in another dtype than the one that is written, or elsewhere than on the CPU.

    Some models keep weights in float32 when they are loaded in half precision (routers of experts, layers of T5).
    """
    if not on_paper:
        check_place(model)
    found = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    if other := sorted(map(str, found - ({dtype, torch.float32} if dtype in found else {dtype}))):
        cast = "half()" if dtype == torch.float16 else "float()"
        raise InvalidArgumentError(
            f"The model has weights of {', '.join(other)}, and precision={precision!r} is written of {dtype}: give its "
            f"{cast}, or the path of its folder, which is read in {dtype}."
        )


def _check_options(
    precision: Any, engine: Any, logits: Any, tokenizer: Any, windowed_caches: Any, progress: Any
) -> None:
    _check_choice("precision", precision, _PRECISIONS)
    _check_choice("engine", engine, _ENGINES)
    _check_choice("logits", logits, ("last", "all"))
    if windowed_caches and engine != "genai":
        raise InvalidArgumentError(f"windowed_caches=True is for engine='genai'; leave it out for {engine!r}.")
    if progress is not None and not callable(progress):
        raise InvalidArgumentError(f"progress={progress!r} cannot be called. Pass a function of the stage's name.")
    if tokenizer and not hasattr(tokenizer, "save_pretrained"):
        raise InvalidArgumentError(
            f"tokenizer={tokenizer!r} is no tokenizer or processor of transformers. Pass what AutoTokenizer loads."
        )


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidArgumentError(f"{name}={value!r} is not known; it can be {', '.join(map(repr, known))}.")
