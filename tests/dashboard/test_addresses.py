"""Addresses of what is chosen on a page: shared, opened directly, gone back to; and titles of tabs."""

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


def test_a_choice_of_a_topic_is_an_address_that_is_opened_reloaded_and_gone_back_from(
    crowd: str, page: Page, seen: Seen
) -> None:
    page.goto(f"{crowd}/topics")
    expect(page).to_have_title("Topics · chappe")
    page.get_by_label("Topic contains").fill("topic-054321")
    expect(rows(page, "Topics")).to_have_count(1)

    rows(page, "Topics").first.locator("td").nth(3).click()

    expect(page).to_have_url(re.compile(r"/topics\?topic=topic-054321#chosen$"))
    expect(page).to_have_title("topic-054321 · Topics · chappe")
    heading = page.locator(".title", has_text="topic-054321")
    expect(heading).to_be_visible()
    expect(page.get_by_label("Topic contains")).to_have_value("topic-054321")  # a choice keeps what was looked for
    page.reload()
    expect(heading).to_be_visible()
    expect(page).to_have_title("topic-054321 · Topics · chappe")
    page.get_by_role("link", name="Topics").click()
    expect(heading).to_have_count(0)
    expect(page).to_have_title("Topics · chappe")
    expect(page).to_have_url(re.compile(r"/topics$"))  # which may follow its title
    page.go_back()
    expect(heading).to_be_visible()
    page.get_by_role("link", name="Health").click()
    expect(page).to_have_title("Health · chappe")
    expect(page).to_have_url(re.compile(r"/health$"))
    page.go_back()
    expect(heading).to_be_visible()
    assert seen.errors == []


def test_a_row_is_a_link_for_another_tab(crowd: str, page: Page) -> None:
    page.goto(f"{crowd}/topics")
    page.get_by_label("Topic contains").fill("topic-054321")
    expect(rows(page, "Topics")).to_have_count(1)
    with page.context.expect_page() as other:
        rows(page, "Topics").first.get_by_role("link").click(modifiers=["Control"])

    expect(other.value).to_have_title("topic-054321 · Topics · chappe")
    expect(page).to_have_title("Topics · chappe")
    other.value.close()


def test_a_member_is_opened_by_its_address_and_chosen_by_key(crowd: str, page: Page) -> None:
    page.goto(f"{crowd}/?member=e777")
    expect(page).to_have_title("endpoint e777 · Map · chappe")
    expect(page.get_by_text("10.0.0.2:9999").first).to_be_visible()

    page.get_by_label("Find a member").fill("e778")
    expect(rows(page, "Members")).to_have_count(1)
    rows(page, "Members").first.focus()
    page.keyboard.press("Enter")

    expect(page).to_have_title("endpoint e778 · Map · chappe")
    expect(page).to_have_url(re.compile("member=e778$"))
    page.goto(f"{crowd}/?member=nobody")
    expect(page.get_by_text("This member has left.")).to_be_visible()


def test_a_chain_is_opened_by_its_address_and_leads_to_its_servers(crowd: str, page: Page, seen: Seen) -> None:
    page.goto(f"{crowd}/stores?kind=chain&name=ledger")
    expect(page).to_have_title("chain ledger · Data stores and maps · chappe")
    servers = rows(page, "Servers")
    expect(servers).to_have_count(2)
    expect(servers.nth(1)).to_contain_text("tail")
    expect(servers.nth(1)).to_contain_text("7")
    expect(page.get_by_label("Key or value contains")).to_be_hidden()

    servers.first.get_by_role("link").click()

    expect(page).to_have_title("chain server a · Map · chappe")
    page.go_back()
    expect(servers).to_have_count(2)
    page.get_by_role("button", name="Close").click()
    expect(servers.first).to_be_hidden()
    expect(page).to_have_title("Data stores and maps · chappe")
    assert seen.errors == []


def test_an_address_that_is_markup_is_shown_as_text(crowd: str, page: Page, seen: Seen) -> None:
    hostile = "</title><script>alert(1)</script>&\"'"
    page.goto(f"{crowd}/topics?topic=%3C/title%3E%3Cscript%3Ealert(1)%3C/script%3E%26%22%27")

    expect(page.locator(".title", has_text=hostile)).to_be_visible()
    expect(page).to_have_title(f"{hostile} · Topics · chappe")
    assert seen.errors == []
