"""Texts that are read in steps of odd sizes, with padding in odd places, and conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onnx_fx_export.generation import Generator

# The mask of a first step, and how many tokens the later ones have.
STEPS = {
    "one token at a time": (np.ones((1, 1), np.int64), [1, 1, 1]),
    "several tokens behind some": (np.ones((1, 3), np.int64), [4, 1, 2]),
    "padding on the left": (np.array([[0] * k + [1] * (7 - k) for k in (0, 2, 5)]), [1, 4, 1]),
    "padding on the right": (np.array([[1, 1, 1, 1], [1, 1, 0, 0]]), [1, 3]),
    "padding in between": (np.array([[1, 1, 0, 0, 1], [1, 0, 1, 1, 1], [0, 0, 1, 0, 1]]), [1, 2]),
    "more than a window": (np.ones((1, 40), np.int64), [20, 1, 3]),
    "more than a window behind padding": (np.array([[0] * k + [1] * (33 - k) for k in (0, 10, 31)]), [20, 1]),
}


def check_steps(model: Any, folder: Any, mask: np.ndarray, more: list[int], tolerance: float) -> None:
    """Compare the logits after each step with the model's own for each row alone, without padding or cache.

    Args:
        model: The model.
        folder: The folder that was written of it.
        mask: 1 for a token and 0 for padding (B, S), int64.
        more: How many tokens the steps behind the first one have.
        tolerance: How far logits may differ, of the largest one.
    """
    random = np.random.default_rng(0)
    tokens = random.integers(3, 60, mask.shape)
    rows = [row[kept == 1] for row, kept in zip(tokens, mask, strict=True)]
    steps = Generator(folder).logits(tokens, mask)
    found = next(steps)
    for new in [None, *more]:
        if new is not None:
            following = random.integers(3, 60, (len(rows), new))
            rows = [np.concatenate([row, own]) for row, own in zip(rows, following, strict=True)]
            found = steps.send(following)
        for row, logits in zip(rows, found, strict=True):
            with torch.no_grad():
                wanted = model(torch.from_numpy(row)[None]).logits[0, -1].float().numpy()
            np.testing.assert_allclose(logits, wanted, atol=tolerance * np.abs(wanted).max(), rtol=0)


def check_conversation(model: Any, folder: Path, answers: list[int]) -> None:
    """Compare what GenAI answers, turn after turn, with the model's own choice after each whole text.

    Args:
        model: The model.
        folder: The folder that was written of it; it is run with another token that ends answers.
        answers: How many tokens are asked for in each turn, of which the first ends earlier: at such a token.
    """
    import onnxruntime_genai as og

    random, text = np.random.default_rng(1), []
    questions = [random.integers(3, 60, 5) for _ in answers]
    stop = _follow(model, questions[0].tolist(), answers[0] - 1)[-1]
    config = og.Config(str(folder))
    config.overlay(json.dumps({"model": {"eos_token_id": stop}}))
    loaded = og.Model(config)
    parameters = og.GeneratorParams(loaded)
    parameters.set_search_options(do_sample=False, max_length=200)
    generator = og.Generator(loaded, parameters)
    for turn, (question, most) in enumerate(zip(questions, answers, strict=True)):
        generator.append_tokens(question.astype(np.int32))
        for _ in range(most):
            generator.generate_next_token()
            if generator.is_done():
                break
        else:
            generator.get_logits()
        wanted = _follow(model, [*text, *question.tolist()], most)
        stopped = stop in wanted
        assert stopped or turn  # the first answer ends at the token
        text = [*text, *question.tolist(), *wanted[: wanted.index(stop) if stopped else most]]
        assert generator.get_sequence(0).tolist() == text


def _follow(model: Any, text: list[int], new: int) -> list[int]:
    """Return the most likely tokens behind a text, each chosen without a cache."""
    text = list(text)
    for _ in range(new):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[-new:]
