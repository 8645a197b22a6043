"""A browser, and a page of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.dashboard.browsing import Seen, watched
from tests.waiting import PATIENCE_S
from tests.web.test_browser import ARGUMENTS, CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield made
        made.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def page(browser: Browser, seen: Seen) -> Iterator[Page]:
    expect.set_options(timeout=PATIENCE_S * 1000)
    made = watched(browser.new_page(viewport={"width": 1280, "height": 860}), seen)
    yield made
    made.close()
