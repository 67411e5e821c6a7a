"""The page on the options of an export says what the table says by which both exporters check their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.skipif(not PAGES.is_dir(), reason="the pages are only in the repository")
def test_the_page_on_options_is_current() -> None:
    from tools.option_table import PAGE, text

    assert PAGE.read_text() == text(), "run python -m tools.option_table"
