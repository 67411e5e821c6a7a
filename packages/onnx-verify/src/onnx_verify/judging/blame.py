"""Who is to blame where engines disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_verify.comparing.comparison import resolve_inputs
from onnx_verify.errors import ModelRunError
from onnx_verify.inputs.generate import RandomInputs
from onnx_verify.inputs.reading import InputsLike
from onnx_verify.inputs.sets import InputSet
from onnx_verify.judging.answers import Answer, answers_of, stands_alone, usable_engines
from onnx_verify.models.model import ModelLike, load_model
from onnx_verify.running.runtimes import Backend
from onnx_verify.search.find import find_mismatch
from onnx_verify.search.findings import NodeMismatch
from onnx_verify.values.tolerance import ToleranceLike

__all__ = ["Blame", "blame"]


@dataclass
class Blame:
    """What several engines say of a model, and of the node on which they part.

    Attributes:
        whole: their answers on the model.
        node: the first node on which two of them disagree, None if they agree on the model or on each node.
        of_node: their answers on that node alone, given the same right values.
        alone: the engine that stands alone, on the node if there is one; None if none does.
    """

    whole: list[Answer]
    node: NodeMismatch | None = None
    of_node: list[Answer] = field(default_factory=list)
    alone: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all engines that run the model agree."""
        running = [answer for answer in self.whole if answer.runs]
        return all(len(answer.agrees_with) == len(running) - 1 for answer in running)

    def __str__(self) -> str:
        """Return the judgment in one sentence."""
        names = [answer.engine for answer in self.whole if answer.runs]
        if self.ok:
            return f"{', '.join(names)} agree"
        where = f" on {self.node.node}" if self.node is not None else ""
        if self.alone is not None:
            others = ", ".join(answer.engine for answer in self.of_node or self.whole if answer.agrees_with)
            return f"{self.alone} stands alone{where}, against {others}"
        return f"the engines disagree{where}, and none stands alone"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values without the arrays."""
        return {
            "ok": self.ok,
            "judgment": str(self),
            "alone": self.alone,
            "engines": [_plain(answer) for answer in self.whole],
            "node": None if self.node is None else self.node.to_dict(),
            "engines_on_node": [_plain(answer) for answer in self.of_node],
        }


def _plain(answer: Answer) -> dict[str, Any]:
    return {"engine": answer.engine, "runs": answer.runs, "error": answer.error, "agrees_with": answer.agrees_with}


def blame(
    model: ModelLike,
    inputs: InputsLike = "random",
    *,
    engines: Sequence[str] | None = None,
    tolerance: ToleranceLike = None,
) -> Blame:
    """Run a model in several engines; where they disagree, find the node and the engine that stands alone on it.

    Args:
        model: an ONNX model in any form.
        inputs: input sets as for :func:`onnx_verify.compare`.
        engines: their names; all that are installed by default.
        tolerance: one tolerance for all values; chosen by dtype otherwise.

    Raises:
        InputError: if the inputs do not fit.
        ModelLoadError: if the model is broken or unsafe.
        ModelRunError: if fewer than two engines run the model.
    """
    loaded = load_model(model)
    chosen = list(engines) if engines is not None else usable_engines()
    sets = resolve_inputs(RandomInputs(edge_cases=False) if inputs == "random" else inputs, loaded)
    whole = answers_of(loaded, sets, chosen, tolerance)
    running = [answer for answer in whole if answer.runs]
    if len(running) < 2:
        errors = "; ".join(answer.error for answer in whole if answer.error)
        raise ModelRunError(f"fewer than two engines run the model, so none can be judged: {errors}")
    result = Blame(whole, alone=stands_alone(whole))
    if result.ok:
        return result
    candidate, reference = _pair(running, result.alone)
    found = find_mismatch(
        loaded,
        list(sets),
        backend=Backend.parse(candidate),
        reference_backend=Backend.parse(reference),
        tolerance=tolerance,
    )
    result.node = found.first
    if result.node is not None and result.node.piece is not None:
        given = [InputSet(feeds=result.node.feeds, label=result.node.sample)]
        result.of_node = answers_of(result.node.piece, given, chosen, tolerance)
        result.alone = stands_alone(result.of_node)
    return result


def _pair(running: Sequence[Answer], alone: str | None) -> tuple[str, str]:
    """Return two engines that disagree, the suspicious one first."""
    suspect = next((a for a in running if a.engine == alone), None) or min(running, key=lambda a: len(a.agrees_with))
    others = (a for a in running if a is not suspect and a.engine not in suspect.agrees_with)
    return suspect.engine, max(others, key=lambda a: len(a.agrees_with)).engine
