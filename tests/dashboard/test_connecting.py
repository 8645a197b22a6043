"""Pages before the dashboard has seen anything, and before a browser is connected with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.browsing import started
from tests.web.test_browser import CHROMIUM, MISSING

CLAIMS = {  # of each page, that there is nothing
    "": "nobody is known yet",
    "topics": "no topic is known yet",
    "stores": "no data store or map is known",
    "pipelines": "No pipeline of this user runs",
    "health": "is as it should be",
}

pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    """The address of a dashboard whose only source does not end its first look."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent.parent), *sys.path])}
    with started(env, "tests.dashboard.stand_in", "slow") as (_, url):
        yield url


@pytest.mark.parametrize("path", CLAIMS)
def test_a_page_that_is_not_connected_says_so(slow: str, page: Page, path: str) -> None:
    page.route_web_socket("**/*", lambda socket: None)  # which opens, and leads nowhere

    page.goto(slow + path)

    expect(page.get_by_text("connecting to the dashboard ...").first).to_be_visible()
    expect(page.locator("nav", has_text="connecting ...")).to_be_visible()
    expect(page.get_by_text(CLAIMS[path])).to_have_count(0)


@pytest.mark.parametrize("path", CLAIMS)
def test_a_dashboard_that_has_seen_nothing_yet_names_what_it_waits_for(slow: str, page: Page, path: str) -> None:
    page.goto(slow + path)

    if path != "pipelines":  # of which the log knows nothing
        expect(page.get_by_text("connecting to log ...").first).to_be_visible()
        expect(page.get_by_text(CLAIMS[path])).to_have_count(0)
    expect(page.locator("nav", has_text="connecting ...")).to_be_visible()
    expect(page.locator("nav", has_text="all is well")).to_have_count(0)
