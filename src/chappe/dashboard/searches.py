"""Searches of one page that overlap: the one that was begun last counts, whichever ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from chappe.errors import ChappeError

T = TypeVar("T")


class SearchOutcome(NamedTuple, Generic[T]):
    """The result of a search, or the ``problem`` that prevented it."""

    found: T | None
    problem: str = ""


class Searches(Generic[T]):
    """Runs searches in threads; all methods are called in one loop."""

    def __init__(self) -> None:
        self._begun = self._running = 0

    @property
    def running(self) -> bool:
        """True while some have not ended, those that do not count any more included."""
        return self._running > 0

    async def find(self, look: Callable[[], T]) -> SearchOutcome[T] | None:
        """Call ``look`` in a thread; None if another search was begun, or refused, before it ended."""
        number = self._next()
        self._running += 1
        try:
            outcome: SearchOutcome[T] = SearchOutcome(await asyncio.to_thread(look))
        except (ChappeError, OSError) as error:
            outcome = SearchOutcome(None, str(error))
        finally:
            self._running -= 1
        return outcome if number == self._begun else None

    def refuse(self, problem: str) -> SearchOutcome[T]:
        """A search that cannot be begun; those before it do not count any more."""
        self._next()
        return SearchOutcome(None, problem)

    def _next(self) -> int:
        self._begun += 1
        return self._begun
