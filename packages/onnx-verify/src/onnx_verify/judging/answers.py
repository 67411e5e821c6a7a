"""What several engines say of the same model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_verify.comparing.comparison import compare_outputs
from onnx_verify.errors import MissingDependencyError, ModelRunError
from onnx_verify.inputs.sets import InputSet
from onnx_verify.models.model import LoadedModel
from onnx_verify.running.engines import engine, engine_names
from onnx_verify.running.runtimes import Backend, Outputs
from onnx_verify.values.tolerance import ToleranceLike

__all__ = ["Answer", "answers_of", "stands_alone", "usable_engines"]


@dataclass
class Answer:
    """What one engine makes of a model.

    Attributes:
        engine: its name.
        outputs: its outputs for each input set; empty if it does not run the model.
        error: why it does not.
        agrees_with: the other engines that give the same.
    """

    engine: str
    outputs: list[Outputs]
    error: str = ""
    agrees_with: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the engine runs the model."""
        return not self.error


def usable_engines() -> list[str]:
    """Return the names of the engines that are installed: ONNX Runtime and the reference evaluator first."""
    found = ["ort", "reference"]
    for name in engine_names():
        try:
            engine(name)
        except MissingDependencyError:
            continue
        found.append(name)
    return found


def answers_of(
    model: LoadedModel, sets: Sequence[InputSet], engines: Sequence[str], tolerance: ToleranceLike = None
) -> list[Answer]:
    """Run a model in several engines and compare each with each."""
    answers = [_answer(model, sets, name) for name in engines]
    for answer in answers:
        others = [each for each in answers if each is not answer and each.runs and answer.runs]
        answer.agrees_with = tuple(each.engine for each in others if _agree(each, answer, tolerance))
    return answers


def _answer(model: LoadedModel, sets: Sequence[InputSet], name: str) -> Answer:
    try:
        runtime = Backend.parse(name).load(model)
        return Answer(name, [runtime.run(each) for each in sets])
    except ModelRunError as error:
        return Answer(name, [], str(error))


def _agree(one: Answer, other: Answer, tolerance: ToleranceLike) -> bool:
    pairs = zip(one.outputs, other.outputs, strict=True)
    return all(compare_outputs(expected, actual, "", tolerance).ok for expected, actual in pairs)


def stands_alone(answers: Sequence[Answer]) -> str | None:
    """Return the engine that disagrees with all others, which agree with each other; None if there is none."""
    running = [answer for answer in answers if answer.runs]
    alone = [answer for answer in running if not answer.agrees_with]
    if len(running) < 3 or len(alone) != 1:
        return None
    others = {answer.engine for answer in running} - {alone[0].engine}
    agree = all({*answer.agrees_with, answer.engine} == others for answer in running if answer is not alone[0])
    return alone[0].engine if agree else None
