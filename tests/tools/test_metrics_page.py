"""The page of numbers, and what is built on them, name numbers that there are."""

from __future__ import annotations

from tools.metrics import PAGE, page


def test_the_page_has_every_number_as_the_sources_name_it() -> None:
    assert PAGE.read_text() == page(), "run python -m tools.metrics"
