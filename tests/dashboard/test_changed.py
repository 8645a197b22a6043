"""What has changed, on the page: short visits are one row, and what is looked for stays in the address."""

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


def test_short_commands_are_one_row_that_counts_them(crowd: str, page: Page) -> None:
    page.goto(f"{crowd}/health")
    visits = rows(page, "History of statuses").filter(has_text="came and left")

    expect(visits).to_contain_text(re.compile(r"producers produce.*came and left ([3-9]|\d\d+) times since \d\d:"))
    expect(visits).to_have_count(1)


def test_what_is_looked_for_stays_in_the_address(crowd: str, page: Page, seen: Seen) -> None:
    page.goto(f"{crowd}/health?change=came%20and%20left&of=producers")
    expect(page.get_by_label("Change contains")).to_have_value("came and left")
    expect(rows(page, "History of statuses")).to_have_count(1)

    page.get_by_label("Change contains").fill("no such change")
    expect(page.get_by_text("nothing like that has changed")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/health\?change=no%20such%20change&of=producers$"))
    page.reload()

    expect(page.get_by_label("Change contains")).to_have_value("no such change")
    expect(page.get_by_text("nothing like that has changed")).to_be_visible()
    page.get_by_label("Change contains").fill("")
    expect(rows(page, "History of statuses").first).to_contain_text("producers produce")
    expect(page).to_have_url(re.compile(r"/health\?of=producers$"))
    page.get_by_role("link", name="Health").click()
    expect(page).to_have_url(re.compile(r"/health$"))
    page.get_by_label("Of", exact=True).click()
    page.locator(".q-menu .q-item", has_text="producers").click()
    expect(page).to_have_url(re.compile(r"/health\?of=producers$"))
    assert seen.errors == []
