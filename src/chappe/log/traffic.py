"""What a node of the log tells of what passes between it and others, to somebody who looks: counters.

Whoever listens to a publishing socket gets the same, so who publishes cannot say how much goes to whom; who takes it
can, by the address that each message names: a partition's, a consumer's, or the id of a store. Each node counts what
it takes so, and what stores answer it, and tells which addresses it carries itself; who asked all of them has both
ways of every link. What waits for a peer whose queue is full waits for all, and is one number; who takes nothing at
present says so, which tells for whom.

Questions go to one node, and are answered ``ANSWERS_MAX`` times a second; where there are permissions, only to who may
``administer`` all topics. DIRECT-RECORD and DIRECT-HEAD name the partition whoever sends them, and are not counted.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

import msgspec

from chappe.errors import ProtocolError
from chappe.log.messages import Ack, AskTraffic, Head, Message, RecordMessage, TrafficTold

FORMAT: Final = 1
ANSWERS_MAX: Final = 20  # a second; further questions are not answered
SENDERS_MAX: Final = 10_000  # addresses that are counted apart; beyond them all are counted anew, from 0
ROWS_MAX: Final = 1_000  # addresses of each kind in an answer: those with the most bytes, and the first that it carries

_LONE: Final = re.compile("[\ud800-\udfff]")  # stands for a byte that is not UTF-8

Row = tuple[str, int, int]  # from whom, messages, bytes


class Report(msgspec.Struct, frozen=True, array_like=True):
    """An answer; counters only rise, but where a node was counted anew.

    Args:
        format: Of the answer.
        carries: Under which addresses the node speaks.
        came: What it took, by the address in the message.
        answered: What stores answered it, by the endpoint of their queries; and, as a third count, how often it asked.
        waiting: Frames that wait for peers whose queues are full.
        full: Whether it takes nothing at present.
    """

    format: int
    carries: tuple[str, ...]
    came: tuple[Row, ...]
    answered: tuple[tuple[str, int, int, int], ...]
    waiting: int
    full: bool


_decoder: Final = msgspec.msgpack.Decoder(Report)


def parse_report(body: bytes) -> Report:
    """An answer's content; what a newer format has at its end is passed over. Raises ProtocolError."""
    try:
        report = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no report of what passes: {error}") from None
    counts = [count for row in (*report.came, *report.answered) for count in row[1:]]
    if any(not isinstance(each, int) or each < 0 for each in (report.waiting, *counts)):
        raise ProtocolError("a report of what passes has a number that is none")
    return report


class Traffic:
    """Counts for one node."""

    def __init__(self) -> None:
        self._came: dict[str, list[int]] = {}
        self._stores: dict[str, list[int]] = {}
        self._told: deque[float] = deque(maxlen=ANSWERS_MAX)

    def took(self, message: Message, size: int) -> None:
        """A message has come."""
        if isinstance(message, Ack) or (isinstance(message, RecordMessage | Head) and message.direct):
            return
        counts = self._came.get(message.address) or self._new(self._came, message.address)
        counts[0] += 1
        counts[1] += size

    def asked(self, store: str) -> None:
        """A store was asked, at the endpoint of its queries."""
        (self._stores.get(store) or self._new(self._stores, store))[2] += 1

    def answered(self, store: str, size: int) -> None:
        """It has answered."""
        counts = self._stores.get(store) or self._new(self._stores, store)
        counts[0] += 1
        counts[1] += size

    def answer(
        self, question: AskTraffic, carries: Iterable[str], waiting: int, full: bool, now: float
    ) -> TrafficTold | None:
        """The answer to a question; None for none, as there are too many."""
        if len(self._told) == ANSWERS_MAX and now - self._told[0] < 1.0:
            return None
        self._told.append(now)
        came = nlargest(ROWS_MAX, _texts(self._came), key=lambda each: each[1][1])
        stores = nlargest(ROWS_MAX, _texts(self._stores), key=lambda each: each[1][1])
        report = Report(
            FORMAT,
            tuple(islice(carries, ROWS_MAX)),
            tuple([(address, counts[0], counts[1]) for address, counts in came]),
            tuple([(store, *counts) for store, counts in stores]),  # type: ignore[misc]
            waiting,
            full,
        )
        return TrafficTold(question.address, question.topic, question.number, msgspec.msgpack.encode(report))

    def _new(self, counted: dict[str, list[int]], address: str) -> list[int]:
        if len(counted) >= SENDERS_MAX:
            counted.clear()
        counts = counted[address] = [0, 0, 0]
        return counts


def _texts(counted: dict[str, list[int]]) -> Iterator[tuple[str, list[int]]]:
    """Leave out addresses that are not UTF-8: others choose them, and MessagePack has no text for them."""
    return (each for each in counted.items() if each[0].isascii() or not _LONE.search(each[0]))
