"""Reports of an endpoint's own links and data stores for observers of the network: counters and ages.

Link states say who is linked to whom, and travel to everybody, so nothing is in them that changes all the time. Who
wants to know how much goes over links asks their ends one by one, with a message that is meant for one endpoint, and
is answered so. Every endpoint of chappe listens, and announces nothing of it; it answers ``ANSWERS_MAX`` questions a
second, and where there are permissions only who may ``administer`` all topics. Questions and answers are values of the
mesh, as everything that is published is: a vector of the format and a number that the answer repeats; of an answer
also whether the endpoint has TLS; of each link the id of the peer, frames sent and received, messages that wait for it
and were dropped; of each master and clone the name, whether it is the master, entries, and how old its data are; and,
where the question names a data store, of entries of its master those that expire next: key, and seconds left. A clone
does not know that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

from chappe.data.binary import decode, encode
from chappe.data.values import Value
from chappe.errors import InvalidData, ProtocolError
from chappe.mesh.filters import ASK_LINKS
from chappe.mesh.links.link import PeerInfo

__all__ = ["ASK_LINKS", "LINKS_TOLD", "LinkReport", "LinksReport", "Reporting", "StoreReport", "ask", "parse_report"]

LINKS_TOLD: Final = b"<$>/links/told"
FORMAT: Final = 1
ANSWERS_MAX: Final = 20  # a second; further questions are not answered
ROWS_MAX: Final = 1_000  # links in an answer, the first ones by id, and data stores
NAME_MAX: Final = 1_000  # characters
LIVES_MAX: Final = 1_000  # entries that expire, in an answer, ...
LIVES_BYTES_MAX: Final = 256 * 1024  # ... and so many bytes of their keys
NUMBER_MAX: Final = (1 << 63) - 1


class LinkReport(NamedTuple):
    """One link, as one of its ends counts; ``peer`` is the id of the other. Counters only rise while a link lasts."""

    peer: str
    sent: int
    received: int
    waiting: int
    dropped: int

    @staticmethod
    def of(peer: PeerInfo) -> LinkReport:
        """Make it of an endpoint's own link."""
        return LinkReport(peer.id or "", peer.sent, peer.received, peer.buffered, peer.dropped)


class StoreReport(NamedTuple):
    """A master or clone, of itself; ``age_s``: how long it has not been up to date."""

    name: str
    master: bool
    entries: int
    age_s: float


class LinksReport(NamedTuple):
    """An answer, to the question with this ``number``. ``tls`` is None if the endpoint does not know; ``lives`` are
    keys of the data store that was named, and the seconds that they have left.
    """

    number: int
    tls: bool | None
    links: tuple[LinkReport, ...]
    stores: tuple[StoreReport, ...]
    lives: tuple[tuple[Value, float], ...] = ()


def ask(number: int, store: str = "") -> bytes:
    return encode((FORMAT, number, store) if store else (FORMAT, number))


def named(payload: bytes) -> str:
    """Return the data store that a question names; empty for none."""
    try:
        found = _values(payload)
    except ProtocolError:
        return ""
    return found[2] if len(found) > 2 and isinstance(found[2], str) else ""


def parse_report(payload: bytes) -> LinksReport:
    """Parse an answer; a newer format's additions are ignored. Raises ProtocolError."""
    found = _values(payload)
    if len(found) < 5 or not (found[2] is None or isinstance(found[2], bool)):
        raise ProtocolError("no report of links")
    links = tuple([LinkReport(_name(row), *(_count(each) for each in row[1:5])) for row in _rows(found[3], 5)])
    stores = []
    for row in _rows(found[4], 4):
        age_s = row[3]
        if not isinstance(row[1], bool) or not isinstance(age_s, float) or not 0 <= age_s < math.inf:
            raise ProtocolError("a report of data stores has something else in it")
        stores.append(StoreReport(_name(row), row[1], _count(row[2]), age_s))
    lives = []
    for row in _rows(found[5], 2) if len(found) > 5 and isinstance(found[5], tuple) else ():
        if not isinstance(row[1], float) or not 0 <= row[1] < math.inf:
            raise ProtocolError("a report of entries has something else in it")
        lives.append((row[0], row[1]))
    return LinksReport(_count(found[1]), found[2], links, tuple(stores), tuple(lives))


def _rows(found: object, least: int) -> list[tuple[Any, ...]]:
    if not isinstance(found, tuple) or not all(isinstance(row, tuple) and len(row) >= least for row in found):
        raise ProtocolError("a report has something else than rows in it")
    return list(found[:ROWS_MAX])


def _name(row: tuple[Any, ...]) -> str:
    if not isinstance(row[0], str) or len(row[0]) > NAME_MAX:
        raise ProtocolError("report of links: invalid name")
    return row[0]


class Reporting:
    def __init__(self) -> None:
        self.tls: bool | None = None  # as its driver says
        self._answered: deque[float] = deque(maxlen=ANSWERS_MAX)

    def answer(
        self,
        payload: bytes,
        peers: Iterable[PeerInfo],
        stores: Iterable[StoreReport],
        now: float,
        lives: Iterable[tuple[Value, float]] = (),
    ) -> bytes:
        """Return the payload of a question's answer; empty for none, as it is not a question or there are too many.

        A question of a newer format is answered in this one.
        """
        if len(self._answered) == ANSWERS_MAX and now - self._answered[0] < 1.0:
            return b""
        try:
            number = _count(_values(payload)[1])
        except (ProtocolError, IndexError):
            return b""
        self._answered.append(now)
        there = sorted((each for each in peers if each.peer_id is not None), key=lambda each: each.peer_id or b"")
        rows = tuple([tuple(LinkReport.of(each)) for each in there[:ROWS_MAX]])
        kept = tuple([tuple(each) for each in islice(stores, ROWS_MAX) if len(each.name) <= NAME_MAX])
        return encode((FORMAT, number, self.tls, rows, kept, _cut(lives)))


def _cut(lives: Iterable[tuple[Value, float]]) -> tuple[tuple[Value, float], ...]:
    rows = []
    room = LIVES_BYTES_MAX
    for key, left_s in islice(lives, LIVES_MAX):
        room -= len(encode(key))
        if room < 0:
            break
        rows.append((key, left_s))
    return tuple(rows)


def _values(payload: bytes) -> tuple[Any, ...]:
    try:
        found = decode(payload)
    except InvalidData as error:
        raise ProtocolError(f"no report of links: {error}") from None
    if not isinstance(found, tuple) or not found:
        raise ProtocolError("no report of links")
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise ProtocolError("report of links: invalid number")
    return int(value)
