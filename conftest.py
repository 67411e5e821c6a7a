"""What every package's tests share: a case that old neighbours cannot run is left out, with the release that can."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from importlib import metadata

import pytest

pytest_plugins = ["round_trips"]

# The releases by which the packages' tables are measured. With these, nothing is left out.
MEASURED_ONNX, MEASURED_RUNTIME = (1, 23), (1, 31)
# What ONNX Runtime says of opsets and files that are newer than itself. A kernel that it lacks is no such case: models
# are written for the installed release.
_UNLOADABLE = re.compile(
    r"Opset \d+ is under development"
    r"|Unsupported model IR version: \d+"
    r"|No Op registered for \w+ with domain_version of \d+"
)
_UNKNOWN_OPSET = re.compile(
    r"Opset \d+ is newer than the installed onnx"
    r"|The evaluator of onnx \S+ has no \w+"
    r"|\w+_\d+\._run\(\) got an unexpected keyword argument '\w+'"
)


def _older(distribution: str, measured: tuple[int, int]) -> bool:
    try:
        major, minor = metadata.version(distribution).split(".")[:2]
    except metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) < measured


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _too_old(error: BaseException) -> str:
    """What the installed onnx or ONNX Runtime lacks for this case, or an empty string."""
    for distribution, measured, pattern in (
        ("onnx", MEASURED_ONNX, _UNKNOWN_OPSET),
        ("onnxruntime", MEASURED_RUNTIME, _UNLOADABLE),
    ):
        if _older(distribution, measured):
            for cause in _causes(error):
                if found := pattern.search(str(cause)):
                    return f"{distribution} {metadata.version(distribution)}: {found.group()}"
    return ""


def _left_out_where_too_old() -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        if reason := _too_old(error):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _left_out_where_too_old())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _left_out_where_too_old())
