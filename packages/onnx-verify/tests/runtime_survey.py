"""Runs ONNX's own node cases in an engine, and says of each whether it runs there and is right."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_verify import Backend, InputSet, load_model
from onnx_verify.judging.gaps import Fate

DISTRIBUTIONS = {"ort": "onnxruntime", "reference": "onnx", "openvino": "openvino", "torch": "onnxops-decomp"}
RIGHT, WRONG, REFUSED = "right", "wrong", "refused"
DRAWN = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def name_of(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


@functools.cache
def cases() -> list[Any]:
    """The cases of one node that draw no random numbers."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    single = [case for case in found if len(case.model.graph.node) == 1 and "_expanded" not in case.name]
    return [c for c in single if c.model.graph.node[0].op_type not in DRAWN and "training_dropout" not in c.name]


def array(given: Any) -> Any:
    """Return an input or output of a case as arrays, lists of them, or None."""
    if isinstance(given, onnx.SequenceProto):
        return [array(each) for each in numpy_helper.to_list(given)]
    if isinstance(given, onnx.OptionalProto):
        return array(numpy_helper.to_optional(given))
    if isinstance(given, list):
        return [array(each) for each in given]
    if given is None:
        return None
    return numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)


def flat(value: Any) -> list[Any]:
    """Return the arrays of an output, as onnx-verify gives them: one by one, and nothing for an absent one."""
    if isinstance(value, list):
        return [each for item in value for each in flat(item)]
    return [] if value is None else [value]


def agree(got: Any, want: Any, case: Any) -> bool:
    got = np.asarray(got)
    if got.shape != want.shape or (got.dtype != want.dtype and want.dtype.kind not in "OUST"):
        return False
    if want.dtype.kind in "OUST":
        return bool((got.astype(str) == want.astype(str)).all())
    if want.dtype.kind not in "biufc":
        got, want = got.astype(np.float32), want.astype(np.float32)
    # What cancels out in a sum is as exact as its largest terms.
    largest = float(np.abs(want[np.isfinite(want)]).max(initial=0)) if want.dtype.kind in "fc" else 0.0
    atol = max(case.atol, 1e-5, 1e-6 * largest) if want.dtype.kind in "fc" else 0
    return bool(np.allclose(got, want, rtol=max(case.rtol, 1e-3), atol=atol, equal_nan=True))


def outcome(engine: str, case: Any) -> str:
    """Return whether an engine runs a case and is right."""
    try:
        runtime = Backend.parse(engine).load(load_model(case.model))
        for inputs, outputs in case.data_sets:
            names = [each.name for each in case.model.graph.input]
            feeds = {name: array(each) for name, each in zip(names, inputs, strict=False)}
            made = [value for _, value in runtime.run(InputSet(feeds=feeds))]
            want = flat([array(each) for each in outputs])
            if len(made) != len(want) or not all(agree(a, b, case) for a, b in zip(made, want, strict=True)):
                return WRONG
    except Exception:
        return REFUSED
    return RIGHT


def since(node: onnx.NodeProto, model: onnx.ModelProto) -> int:
    """Return the version of a node's operator."""
    opset = next((each.version for each in model.opset_import if each.domain == node.domain), 1)
    return int(onnx.defs.get_schema(node.op_type, opset, node.domain).since_version)


def version(engine: str) -> str:
    return metadata.version(DISTRIBUTIONS[engine])


def survey(engine: str, each: Callable[[Callable[[Any], str], Sequence[Any]], list[str]]) -> dict[str, Fate]:
    """Return how the cases of each operator fare in an engine.

    Args:
        engine: its name.
        each: what calls a function with each of several items, in processes that may die.
    """
    counts: dict[str, Counter[str]] = {}
    versions: dict[str, int] = {}
    for case, said in zip(cases(), each(functools.partial(outcome, engine), cases()), strict=True):
        node = case.model.graph.node[0]
        counts.setdefault(name_of(node), Counter())[said] += 1
        versions[name_of(node)] = min(versions.get(name_of(node), 1000), since(node, case.model))
    return {
        name: Fate(found.total(), found[RIGHT] + found[WRONG], found[RIGHT], versions[name])
        for name, found in sorted(counts.items())
    }
