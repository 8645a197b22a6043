"""Reads that wait until it is sure that they miss nothing: see ``ReadingRounds``."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class WaitingRead:
    """A read.

    Args:
        client: Who is answered.
        token: Its number.
        query: What is asked.
        round: Answers to this question or a later one count.
        need: The entry up to which the state has to be applied; -1: the tail is asked.
    """

    client: Hashable
    token: int
    query: bytes
    round: int
    need: int


class ReadingRounds:
    """One question for all reads that came before it: whether a majority has voted for nothing newer.

    Args:
        most: So many wait at most.
        bytes_max: Of the queries of those that wait.
    """

    def __init__(self, most: int, bytes_max: int) -> None:
        self._most = most
        self._bytes_max = bytes_max
        self._bytes = 0
        self._reads: deque[WaitingRead] = deque()
        self._known: set[tuple[Hashable, int]] = set()  # whose they are, and their tokens
        self._votes: set[int] = set()
        self._passed = 0  # the newest round that a majority answered
        self.round = 0
        self.asking = False

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, client: Hashable, token: int, query: bytes, need: int) -> bool:
        """One more, which counts on the next question; one that waits already stays. False: there is no room."""
        if (client, token) in self._known:
            return True
        if len(self._reads) >= self._most or self._bytes + len(query) > self._bytes_max:
            return False
        self._bytes += len(query)
        self._known.add((client, token))
        self._reads.append(WaitingRead(client, token, query, self.round + 1, need))
        return True

    def ask(self) -> bool:
        """Whether to begin a round."""
        if self.asking or not self._reads or self._reads[-1].round <= self.round:
            return False
        self.round += 1
        self.asking = True
        self._votes = set()
        return True

    @property
    def stuck(self) -> bool:
        """Whether the tail's answer was lost."""
        return not self.asking and bool(self._reads) and self._reads[0].need < 0

    def again(self) -> None:
        """The configuration has changed, or an answer was lost: all are asked for anew."""
        self.asking = False
        self._passed = self.round
        for each in self._reads:
            each.round, each.need = self.round + 1, -1

    def vote(self, place: int, round_: int, majority: int) -> None:
        """A server has voted for nothing newer."""
        if not self.asking or round_ != self.round:
            return
        self._votes.add(place)
        if len(self._votes) >= majority:
            self.asking = False
            self._passed = self.round

    def committed(self, round_: int, committed: int) -> None:
        """The tail says what was committed when it was asked."""
        for each in self._reads:
            if each.need < 0 and each.round <= round_:
                each.need = committed

    def ready(self, applied: int) -> list[WaitingRead]:
        """Take those that may be answered now; in the order in which they came."""
        found = []
        while self._reads:
            first = self._reads[0]
            if first.round > self._passed or not 0 <= first.need <= applied:
                break
            found.append(self._reads.popleft())
            self._known.discard((first.client, first.token))
            self._bytes -= len(first.query)
        return found

    def clear(self) -> list[WaitingRead]:
        """Take all: nobody can answer them here."""
        found = list(self._reads)
        self._reads.clear()
        self._known.clear()
        self._bytes = 0
        self.asking = False
        return found
