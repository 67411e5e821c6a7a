"""The pytest plugin: the ``assert_onnx_close`` fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from onnx_verify.comparing.verdict import Verdict


class AssertOnnxClose(Protocol):
    """The function behind the fixture; the arguments are those of :func:`onnx_verify.compare`."""

    def __call__(
        self, reference: Any, candidate: Any, inputs: Any = "random", tolerance: Any = None, **options: Any
    ) -> Verdict:
        """Compare; a disagreement fails the test with the verdict as the message."""


def onnx_close(
    reference: Any, candidate: Any, inputs: Any = "random", tolerance: Any = None, **options: Any
) -> Verdict:
    """Compare, and fail the running test if the models disagree, naming the first wrong node where it can.

    Args:
        reference: what is right, as for :func:`onnx_verify.compare`.
        candidate: what is tested.
        inputs: input sets, or ``"random"``.
        tolerance: as for :func:`onnx_verify.compare`.
        **options: further arguments of :func:`onnx_verify.compare`.

    Returns:
        The verdict, which is true.

    Raises:
        OnnxVerifyError: if a side cannot be run, which is an error and no failure.
    """
    __tracebackhide__ = True
    from onnx_verify.comparing.comparison import compare

    verdict = compare(reference, candidate, inputs, tolerance, **options)
    if not verdict.ok:
        pytest.fail(f"{verdict}{_first_wrong_node(reference, candidate, inputs, tolerance)}", pytrace=False)
    return verdict


def _first_wrong_node(reference: Any, candidate: Any, inputs: Any, tolerance: Any) -> str:
    """Return where the fault is, for two models whose nodes can be compared; nothing otherwise."""
    from onnx_verify.errors import OnnxVerifyError
    from onnx_verify.models.model import is_model_like
    from onnx_verify.search.find import find_mismatch

    program = getattr(candidate, "exported_program", None)
    if not is_model_like(candidate) and program is None:
        return ""
    right = reference if is_model_like(reference) else program
    if right is None:
        return ""
    try:
        found = find_mismatch(candidate, inputs, reference=right, tolerance=tolerance).first
    except OnnxVerifyError:
        return ""
    return f"\n{found}" if found is not None else ""


@pytest.fixture
def assert_onnx_close() -> AssertOnnxClose:
    """Return a function that fails the test unless two models agree; see :func:`onnx_close`."""
    return onnx_close
