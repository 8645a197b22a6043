"""Of searches that overlap the newest counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from tests.waiting import PATIENCE_S

from chappe.dashboard.pages.topic_records import Searches, SearchOutcome
from chappe.errors import UsageError


def until_told(go_on: threading.Event, found: str) -> Callable[[], str]:
    def look() -> str:
        assert go_on.wait(PATIENCE_S)
        return found

    return look


def test_an_older_search_that_ends_later_changes_nothing() -> None:
    async def play() -> None:
        searches: Searches[str] = Searches()
        go_on = threading.Event()
        older = asyncio.create_task(searches.find(until_told(go_on, "older")))
        while not searches.running:
            await asyncio.sleep(0)

        assert await searches.find(lambda: "newer") == SearchOutcome("newer")
        assert searches.running
        go_on.set()
        assert await older is None
        assert not searches.running

    asyncio.run(play())


def test_one_that_cannot_be_begun_counts_as_the_newest() -> None:
    async def play() -> None:
        searches: Searches[str] = Searches()
        go_on = threading.Event()
        older = asyncio.create_task(searches.find(until_told(go_on, "older")))
        while not searches.running:
            await asyncio.sleep(0)

        assert searches.refuse("no moment") == SearchOutcome(None, "no moment")
        go_on.set()
        assert await older is None

    asyncio.run(play())


def test_what_goes_wrong_is_told_in_its_own_words_and_the_next_one_can_run() -> None:
    def refused() -> str:
        raise UsageError("too long")

    async def play() -> None:
        searches: Searches[str] = Searches()

        assert await searches.find(refused) == SearchOutcome(None, "too long")
        assert not searches.running
        assert await searches.find(lambda: "found") == SearchOutcome("found")

    asyncio.run(play())
