"""A public name that the reference leaves out is noticed."""

from __future__ import annotations

import zlib
from types import ModuleType

from tools.doc_coverage import described, missing

HEAD = b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# The remainder is compressed\n"


def package() -> ModuleType:
    module = ModuleType("sample")
    exec("def first(): pass\n\ndef second(): pass\n\nNUMBER = 1\n", module.__dict__)
    module.__dict__["__all__"] = ["NUMBER", "first", "second"]
    return module


def test_python_names_of_an_inventory_are_read() -> None:
    entries = b"sample.first py:function 1 page.html#$ -\nsome-label std:label -1 page.html Title\n"

    assert described(HEAD + zlib.compress(entries)) == {"sample.first"}


def test_a_function_that_is_not_described_is_reported_and_a_number_is_not() -> None:
    assert list(missing(package(), {"sample.first"})) == ["sample.second is public and not in the reference"]
    assert list(missing(package(), {"sample.first", "sample.second"})) == []
