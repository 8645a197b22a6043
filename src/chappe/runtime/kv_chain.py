"""Joins a server of a chain to the data store on an endpoint whose state the chain has.

The two have a lock each, and nobody waits for one with the other held: messages from either to the other go over a
lane, in order. A whole state goes in steps, and the endpoint does other things in between. Changes that the endpoint
has not taken are bounded: beyond the bound, it gets the whole state instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from chappe.defaults import MIB
from chappe.kv.chained.core import Place
from chappe.kv.chained.fed import Did, Fed, WholeRows, WholeState, steps
from chappe.kv.chained.machine import StoreMachine
from chappe.runtime.chain_ports import ChainServerPorts
from chappe.runtime.worker import CALLBACKS, Lane, Post

logger = logging.getLogger(__name__)

NEWS_BYTES_MAX: Final = 64 * MIB  # of commits that the endpoint has not taken; then it gets the whole state instead.
# While it takes a whole state: or as much as it has taken of that, else a large one would begin again without end
CLOSE_S: Final = 2.0
News: TypeAlias = object  # what the chain has committed, where this server is in it, or an event
Take: TypeAlias = Callable[[Sequence[News]], None]


class ChainLink:
    """The link of a server to an endpoint. It hears the machine at once, and keeps the changes until ``begin``."""

    def __init__(self, machine: StoreMachine) -> None:
        self._machine = machine
        self._guard = threading.Lock()
        self._news: list[News] = []
        self._bytes = 0
        self._steps: Iterator[Fed] | None = None  # of a whole state, which comes before other commits
        self._stepped = 0  # bytes of it that were taken
        self._on_its_way = False  # a lane will take what there is
        self._server: ChainServerPorts | None = None
        self._up: Lane | None = None  # to the endpoint
        self._down: Lane | None = None  # to the chain
        self._take: Take | None = None
        self._place = Place()
        machine.hear(self._fed)

    def serve(self, server: ChainServerPorts) -> None:
        self._server = server
        server.link = self
        self._down = Lane(CALLBACKS, server.driver.run)

    def begin(self, post: Post, take: Take) -> None:
        """Call ``take``, by ``post``, with the state and its changes."""
        self._take = take
        self._up = Lane(CALLBACKS, post)
        with self._guard:
            self._hurry()

    def close(self) -> None:
        for lane in (self._up, self._down):
            if lane is not None:
                lane.close(CLOSE_S)

    def reported(self, event: object) -> None:
        """Take an event of the server; its lock is held."""
        self._add(event, 0)

    def look(self) -> None:
        """Check whether the server has another place; called after each of its steps, with its lock held."""
        server = self._server
        assert server is not None
        core = server.core
        halted = server.driver.turns.halted
        place = Place(core.head, core.member, core.why if halted is None else halted)
        if place != self._place:
            self._place = place
            self._add(place, 0)

    def _fed(self, fed: Fed | WholeState) -> None:
        size = fed.size if isinstance(fed, Did) else 0
        with self._guard:
            late = self._bytes + size > max(NEWS_BYTES_MAX, self._stepped)
        if late:
            fed = self._machine.whole()
        if isinstance(fed, WholeState):
            self._begin_whole(fed)
        else:
            self._add(fed, size)

    def _begin_whole(self, whole: WholeState) -> None:
        with self._guard:
            self._news = [each for each in self._news if not isinstance(each, Fed)]
            self._bytes = self._stepped = 0
            self._steps = steps(whole)
            self._hurry()

    def _add(self, news: News, size: int) -> None:
        with self._guard:
            self._news.append(news)
            self._bytes += size
            self._hurry()

    def _hurry(self) -> None:
        if (self._news or self._steps is not None) and self._up is not None and not self._on_its_way:
            self._on_its_way = True
            self._up.do(self._taken, self._take)

    def _taken(self) -> list[News]:
        """Return the endpoint's next changes: one step of a whole state, or all; those that are not commits at once."""
        with self._guard:
            self._on_its_way = False
            whole = self._steps
        step = None if whole is None else next(whole, None)  # decodes, so nobody is to wait for it
        with self._guard:
            if self._steps is not whole:
                return []  # a newer one
            if step is None:
                self._steps = None
                news, self._news = self._news, []
                self._bytes = self._stepped = 0
                return news
            news = list(takewhile(lambda each: not isinstance(each, Fed), self._news))
            del self._news[: len(news)]
            self._stepped += step.size if isinstance(step, WholeRows) else 0
            self._hurry()
            return [*news, step]

    def propose(self, commands: Sequence[bytes]) -> None:
        """Propose commands to the chain, if the server is its head; never waits."""
        if self._down is not None:
            self._down.do(lambda: commands, self._propose)

    def _propose(self, commands: Sequence[bytes]) -> None:
        server = self._server
        assert server is not None
        for each in commands:
            server.core.propose(each)
        server.driver.do(())
