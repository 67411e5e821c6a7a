"""Which value of one model corresponds to which value of another."""

from __future__ import annotations

from difflib import SequenceMatcher

from onnx_verify.errors import InputError
from onnx_verify.models.slicing import Graph
from onnx_verify.search.findings import NodeLabel

MATCHES = ("auto", "names", "position")


def pair_values(reference: Graph, candidate: Graph, match: str = "auto") -> dict[str, str]:
    """Pair the values that two models make.

    Args:
        reference: the graph that is right.
        candidate: the graph that is in question.
        match: ``"names"`` pairs equal names, ``"position"`` nodes of equal type at corresponding places;
            ``"auto"`` takes names if at least half of the smaller model's values share one, and at least half
            of those are made by the same operator; position otherwise.

    Returns:
        The reference's name for each candidate name.

    Raises:
        InputError: if ``match`` is not one of these, or nothing pairs up.
    """
    if match not in MATCHES:
        raise InputError(f"match is {match!r}; it must be one of {', '.join(MATCHES)}")
    shared = {
        name: name
        for name in candidate.producer
        if name in reference.producer and _same_origin(reference, candidate, name)
    }
    smaller = min(len(candidate.producer), len(reference.producer))
    alike = sum(_kind(reference, name) == _kind(candidate, name) for name in shared)
    trusted = 2 * len(shared) >= smaller and 2 * alike >= len(shared)
    pairs = shared if match == "names" or (match == "auto" and trusted) else _by_position(reference, candidate)
    if not pairs and smaller > 1:
        raise InputError(f"no value of the candidate corresponds to one of the reference (match={match!r})")
    return pairs


def _kind(graph: Graph, name: str) -> tuple[str, str]:
    """Return the operator that makes a value."""
    node = graph.nodes[graph.producer[name]]
    return node.domain, node.op_type


def _same_origin(reference: Graph, candidate: Graph, name: str) -> bool:
    """Tell whether the metadata of two values of one name, where both have some, names the same fx node."""
    labels = [NodeLabel.of(graph.nodes[graph.producer[name]]) for graph in (reference, candidate)]
    first, second = (fx_name(label.fx_node) for label in labels)
    return first is None or second is None or first == second


def fx_name(text: str | None) -> str | None:
    """Return the name of an fx node in its own graph.

    torch.onnx gives it with the whole line, ``%name : [...] = ...``; this project's exporters put the operators whose
    nested graph it is in before it, ``cond/name``.
    """
    return text.split(" :")[0].lstrip("%").rpartition("/")[2] if text else None


def _by_position(reference: Graph, candidate: Graph) -> dict[str, str]:
    """Align the two sequences of operator types, and pair the outputs of aligned nodes."""
    theirs_kinds, own_kinds = (
        [(node.domain, node.op_type) for node in graph.nodes] for graph in (reference, candidate)
    )
    matcher = SequenceMatcher(None, theirs_kinds, own_kinds, autojunk=False)
    pairs: dict[str, str] = {}
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            mine = candidate.nodes[block.b + offset].output
            theirs = reference.nodes[block.a + offset].output
            pairs.update((own, other) for own, other in zip(mine, theirs, strict=False) if own and other)
    return pairs
