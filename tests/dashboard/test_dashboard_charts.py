"""Charts of a topic over minutes, an hour and a day, and the small ones in the list, in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.browsing import Seen, crowded, rows
from tests.web.test_browser import CHROMIUM, MISSING

pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]


@pytest.fixture(scope="module")
def crowd() -> Iterator[str]:
    with crowded() as url:
        yield url


def test_a_span_of_charts_is_chosen_and_remembered_for_all_topics(crowd: str, page: Page, seen: Seen) -> None:
    page.goto(f"{crowd}/topics?topic=topic-000003")
    expect(page.get_by_role("button", name="5 minutes")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="1 hour").click()
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")
    page.wait_for_function("localStorage.getItem('chappe.charts') === '1 hour'")

    page.goto(f"{crowd}/topics?topic=topic-000004")

    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("canvas")).to_have_count(2)
    assert seen.errors == []


def test_the_list_of_topics_draws_the_rate_of_those_that_are_written(crowd: str, page: Page) -> None:
    page.goto(f"{crowd}/topics")
    written = rows(page, "Topics").filter(has_text="topic-000003")
    expect(written.get_by_label("rate of the last five minutes")).to_be_visible()
    expect(written.locator("polyline")).to_have_attribute("points", re.compile(r"^(\d+,\d+ ?)+87,\d+$"))

    page.get_by_label("Topic contains").fill("topic-054321")

    expect(rows(page, "Topics")).to_have_count(1)
    expect(rows(page, "Topics").get_by_label("rate of the last five minutes")).to_be_hidden()
