"""What the kinds of models have in common."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from onnx_fx_export.generation.caches import LayerCache
from onnx_fx_export.generation.config import context_length, stop_tokens, vocabulary
from onnx_fx_export.generation.requirements import transformers
from onnx_fx_export.generation.trials import running

__all__ = ["Batch", "Kind", "Part", "Tokens"]

Tokens = npt.NDArray[np.int64]
Inputs = dict[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One graph of a folder, and the call that it is exported with.

    Attributes:
        file: The name of its file.
        module: What is exported.
        args: An example of a call.
        dynamic_shapes: Which of its dimensions are dynamic.
        input_names: Names of the inputs, if the parameters of the module do not give them.
        optional: Inputs that are left out of a graph that does not read them.
        reads_steps: Whether the graph reads a token at a time, most of the time.
        section: What the configuration calls a graph that a folder can do without: one that cannot be captured by the
            plain way is left out.
        needed: Whether the folder is wrong without it nevertheless.
        sizes: Sizes of its dimensions that it has to be right for, by their names, if they are others than usually.
    """

    file: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    dynamic_shapes: tuple[Any, ...]
    input_names: list[str] | None = None
    optional: frozenset[str] = frozenset()
    reads_steps: bool = True
    section: str | None = None
    needed: bool = False
    sizes: tuple[Mapping[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Batch:
    """Prompts that are continued together.

    Attributes:
        lengths: How long each prompt is.
        inputs: All of them, padded, by the names of the model's parameters.
        rows: Each of them alone, without padding.
    """

    lengths: tuple[int, ...]
    inputs: Inputs
    rows: list[Inputs]


class Kind(abc.ABC):
    """How models of one kind are written, and compared with what was written.

    Attributes:
        model: A model of transformers.
        parameters: What its forward has to take.
        main_inputs: What its forward may read in the first place.
        genai_type: What ONNX Runtime GenAI calls such a model, or None if it runs none.
        shares_caches: Whether keys and values may be written as a cache that grows in place.
        unit: What the lengths of prompts count.
        reads: What its graphs read.
        unheard: Why no graph reads the sounds that the model reads, if it is known.
    """

    genai_type: str | None = None
    shares_caches: ClassVar = False
    parameters: ClassVar[set[str]]
    main_inputs: ClassVar[tuple[str, ...]]
    unit = "tokens"
    reads: tuple[str, ...] = ("text",)
    unheard: str = ""

    def __init__(self, model: Any) -> None:
        self.model = model

    def check_masks(self) -> None:  # noqa: B027 - most kinds have nothing to check
        """Refuse a model whose cache forgets what its masks let a token see."""

    def for_genai(self) -> Kind:
        """Return how the model is written for ONNX Runtime GenAI, which may run it in another form."""
        return self

    @functools.cached_property
    def stop(self) -> list[int]:
        """The tokens that end a text; an engine may have others than the model."""
        return stop_tokens(self.model)[0]

    @property
    def pad(self) -> int:
        """The token that fills up a batch."""
        return stop_tokens(self.model)[1]

    @property
    @abc.abstractmethod
    def layers(self) -> list[LayerCache]:
        """What the layers of the decoder keep of the tokens that they have read."""

    @abc.abstractmethod
    def parts(self, *, last_logits: bool) -> list[Part]:
        """Return the graphs of a folder; the decoder is the last one."""

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Return what an engine has to know of the model."""

    def counts_padding(self, length: int) -> bool:
        """Tell whether padding between the tokens of a text of ``length`` tokens changes what follows."""
        return any(layer.window is not None and layer.window < length for layer in self.layers)

    @property
    def reads_padding(self) -> bool:
        """Whether padding before a text changes what the model itself makes of it, whatever the mask says."""
        return False

    @property
    def moved_by_padding(self) -> bool:
        """Whether padding between the tokens of a text changes what the model makes of it, windows aside."""
        return False

    def pad_behind(self, model: ir.Model) -> bool:
        """Leave out of the decoder's graph what padding before tokens needs alone; tell whether there was something."""
        return False

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return what else an engine has to know, by the names of files."""
        return {}

    def longer(self) -> list[tuple[int, ...]]:
        """Return lengths of batches that are compared beside the usual ones."""
        return []

    @abc.abstractmethod
    def batch(self, lengths: tuple[int, ...]) -> Batch:
        """Return random prompts of these lengths, without tokens that mean something to an engine."""

    @abc.abstractmethod
    def extended(self, row: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> dict[str, torch.Tensor]:
        """Return the inputs by which the model goes on from a prompt and the tokens (T,) that follow it."""

    @abc.abstractmethod
    def prefix(self, batch: Batch) -> int:
        """Return how many tokens of each result stand before the generated ones."""

    def generate(self, inputs: Mapping[str, torch.Tensor], new: int) -> Tokens:
        """Return what the model's own ``generate`` finds, the most likely token at each step: (``new``,), int64."""
        result = self.continued(inputs, new)
        answer: Tokens = result[0, result.shape[1] - new :].numpy()
        return answer

    def continued(self, inputs: Mapping[str, torch.Tensor], new: int) -> torch.Tensor:
        """Return all that the model's own ``generate`` returns: (1, T), int64, with ``new`` tokens at the end."""
        settings = transformers().GenerationConfig(
            do_sample=False, max_new_tokens=new, min_new_tokens=new, eos_token_id=self.stop or None,
            pad_token_id=self.pad, use_cache=True,
        )  # fmt: skip
        with running(self.model), _plain_search(self.model):
            return self._search(dict(inputs), settings)

    def _search(self, inputs: dict[str, torch.Tensor], settings: Any) -> torch.Tensor:
        result: torch.Tensor = self.model.generate(**inputs, generation_config=settings)
        return result

    def logits(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the model's own logits (T, vocabulary) for a prompt alone, float32."""
        with running(self.model):
            result: torch.Tensor = self.model(**inputs).logits
        return result[0].float()

    def sample_logits(self, length: int) -> torch.Tensor:
        """Return the model's own logits (T, vocabulary) for ``length`` random tokens, float32."""
        (row,) = self.batch((1,)).rows
        return self.logits(self.extended(row, *self.draw((length,))))

    def draw(self, lengths: Sequence[int]) -> list[Tokens]:
        """Return random tokens that mean nothing to an engine."""
        usual = np.setdiff1d(np.arange(self.vocabulary()), self.special())
        random = np.random.default_rng(0)
        return [random.choice(usual, length) for length in lengths]

    def vocabulary(self) -> int:
        """Return how many tokens the model reads and has logits for."""
        return vocabulary(self.model)

    def special(self) -> list[int]:
        """Return the tokens that mean something to an engine."""
        return [*self.stop, self.pad]

    def context_length(self) -> int:
        """Return the most tokens that a sequence may have."""
        return context_length(self.model)


@contextlib.contextmanager
def _plain_search(model: Any) -> Iterator[None]:
    """Let ``generate`` take nothing of the settings that a model comes with: each is about another search."""
    own = model.generation_config
    kept = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    model.generation_config = transformers().GenerationConfig(**{name: getattr(own, name) for name in kept})
    try:
        yield
    finally:
        model.generation_config = own
