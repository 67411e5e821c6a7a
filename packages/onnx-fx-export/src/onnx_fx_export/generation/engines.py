"""The engines that run a folder, each as one function from prompts to the tokens that follow them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onnx_fx_export.errors import RuntimeSupportError
from onnx_fx_export.generation.config import ADAPTER_SUFFIX
from onnx_fx_export.generation.generator import Generator, Tokens
from onnx_fx_export.generation.kinds import Batch
from onnx_fx_export.generation.requirements import genai
from onnx_fx_export.generation.senses.seeing import Eyes

__all__ = ["Engine", "engine_of"]

# Takes prompts, how many tokens of a result stand before the generated ones, how many to generate, and the name of an
# adapter or None.
Engine = Callable[[Batch, int, int, str | None], Tokens]


def engine_of(name: str, folder: Path, generator: Generator) -> Engine:
    """Return an engine that generates the most likely tokens.

    Args:
        name: ``"genai"`` or ``"onnxruntime"``.
        folder: The folder.
        generator: The generator over plain ONNX Runtime, for that engine.

    Raises:
        RuntimeSupportError: If the engine cannot load the folder; the engine raises it where it cannot run it.
    """
    if name == "genai":
        return _genai(folder, generator)

    def run(batch: Batch, prefix: int, new: int, adapter: str | None) -> Tokens:
        """Generate with plain ONNX Runtime."""
        tokens = generator.generate(**batch.inputs, max_new_tokens=new, min_new_tokens=new, adapter=adapter)
        return tokens[:, prefix:]

    return run


def _genai(folder: Path, generator: Generator) -> Engine:
    og = genai()
    try:
        model = og.Model(str(folder))
        adapters = og.Adapters(model)
        for path in folder.glob(f"*{ADAPTER_SUFFIX}"):
            adapters.load(str(path), path.name.removesuffix(ADAPTER_SUFFIX))
    except Exception as error:  # whatever the engine raises
        raise RuntimeSupportError(f"ONNX Runtime GenAI cannot load the folder: {error}") from error

    def run(batch: Batch, prefix: int, new: int, adapter: str | None) -> Tokens:
        """Generate with ONNX Runtime GenAI."""
        try:
            active = None if adapter is None else (adapters, adapter)
            started = _started(og, model, generator, batch, prefix + new, active)
            for _ in range(new):
                started.generate_next_token()
        except Exception as error:  # whatever the engine raises
            raise RuntimeSupportError(f"ONNX Runtime GenAI cannot run the folder: {error}") from error
        rows = range(len(batch.lengths))
        return np.stack([started.get_sequence(row) for row in rows]).astype(np.int64)[:, prefix : prefix + new]

    return run


def _started(
    og: Any, model: Any, generator: Generator, batch: Batch, total: int, active: tuple[Any, str] | None
) -> Any:
    """Return GenAI's generator when it has read the prompts; it pads on the right and knows padding by its token."""
    parameters = og.GeneratorParams(model)
    total = max(total, generator.window or 0)
    parameters.set_search_options(
        do_sample=False, num_beams=1, num_return_sequences=1, repetition_penalty=1.0, no_repeat_ngram_size=0,
        max_length=total, min_length=total, batch_size=len(batch.lengths),
    )  # fmt: skip
    started = og.Generator(model, parameters)
    if active is not None:
        started.set_active_adapter(*active)
    if "input_features" in batch.inputs:
        started.set_model_input("audio_features", batch.inputs["input_features"])
        tokens = generator.first_tokens(len(batch.lengths))
    else:
        order = np.argsort(1 - batch.inputs["attention_mask"], axis=1, kind="stable")
        tokens = np.take_along_axis(batch.inputs["input_ids"], order, 1)
    if generator.eyes:
        started.set_inputs(_named(og, generator.eyes, tokens, batch))
    else:
        started.append_tokens(tokens.astype(np.int32))
    return started


def _named(og: Any, eyes: Eyes, tokens: Tokens, batch: Batch) -> Any:
    """Return prompts and images as GenAI takes them."""
    named = og.NamedTensors()
    named["input_ids"] = tokens.astype(np.int32)
    for name in eyes.vision.declared.keys() & batch.inputs.keys():
        named[name] = eyes.vision.cast(name, batch.inputs[name])
        named["num_image_tokens"] = eyes.is_image(tokens).sum().reshape(1)
    return named
