"""Reports of a node of the log to somebody who looks: counters of traffic, names, committed positions.

Every listener of a publishing socket gets the same, so a publisher cannot say how much goes to whom; a receiver
can, by the address that each message names: a partition's, a consumer's, or the id of a store. Each node counts what
it takes so, and what stores answer it, and tells which addresses it carries itself; an observer that asked all of them
has both ways of every link. Frames that wait for a peer whose queue is full wait for all, and are one number; a node
that takes nothing at present says so, which tells for whom.

It also names the members that it carries, with labels for people (``data.label``), and tells how far those among them
that are consumers with an identity have committed. Labels prove nothing: with keys the identity in the endpoint is who
a node is.

Questions go to one node, and are answered ``ANSWERS_MAX`` times a second; where there are permissions, only to members
that may ``administer`` all topics. DIRECT-RECORD and DIRECT-HEAD name the partition, whoever sends them, and are not
counted.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from heapq import nlargest
from itertools import islice
from typing import Annotated, Final

import msgspec

from chappe.data.label import is_label
from chappe.data.topic import decode_topic, encode_topic
from chappe.errors import ProtocolError, UsageError
from chappe.log.messages import Ack, AskTraffic, Head, Message, RecordMessage, TrafficTold
from chappe.log.queries import Name, Offset
from chappe.log.sources import Key

FORMAT: Final = 1
ANSWERS_MAX: Final = 20  # a second; further questions are not answered
SENDERS_MAX: Final = 10_000  # addresses that are counted apart; beyond them all are counted anew, from 0
ROWS_MAX: Final = 1_000  # addresses of each kind in an answer: those with the most bytes, and the first that it carries
READERS_MAX: Final = 100  # consumers in an answer whose positions are told, the first ones
POSITIONS_MAX: Final = 1_000  # in an answer, of all its readers; each has its share
IDENTITY_MAX: Final = 100  # characters of an identity of positions
KEPT_BYTES: Final = 8  # of the digest that says where positions are kept

_LONE: Final = re.compile("[\ud800-\udfff]")  # stands for a byte that is not UTF-8

OFFSET_MAX: Final = 2**63 - 1
Row = tuple[str, int, int]  # from whom, messages, bytes


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """How far a consumer with an identity has committed.

    Args:
        address: Of the consumer.
        identity: Its name in the directory where its positions are kept.
        kept: A digest of that directory: another node that uses the same one recognizes it.
        left_out: Partitions with a position beyond those that are told.
        positions: Topic, partition and the offset that is next; those that are furthest behind.
    """

    address: str
    identity: Annotated[str, msgspec.Meta(max_length=IDENTITY_MAX)]
    kept: bytes
    left_out: Offset
    positions: tuple[tuple[Name, Name, Offset], ...]

    def committed(self) -> dict[Key, int]:
        return {(decode_topic(topic), decode_topic(part)): offset for topic, part, offset in self.positions}


class TrafficReport(msgspec.Struct, frozen=True, array_like=True):
    """An answer; counters only rise, except where a node was counted anew.

    Args:
        format: Of the answer.
        carries: Addresses under which the node speaks.
        came: What it took, by the address in the message.
        answered: What stores answered it, by the endpoint of their queries; and, as a third count, how often it asked.
        waiting: Frames that wait for peers whose queues are full.
        full: Whether it takes nothing at present.
        names: Labels by address, of the node and of the members that it carries.
        readers: Consumers that have committed positions.
    """

    format: int
    carries: tuple[str, ...]
    came: tuple[Row, ...]
    answered: tuple[tuple[str, int, int, int], ...]
    waiting: int
    full: bool
    names: tuple[tuple[str, str], ...]
    readers: tuple[Reading, ...]


_decoder: Final = msgspec.msgpack.Decoder(TrafficReport)


def parse_report(teller: str, body: bytes) -> TrafficReport:
    """Return a node's answer of itself and whom it carries, without a newer format's rest. Raises ProtocolError."""
    try:
        report = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no report of what passes: {error}") from None
    counts = [count for row in (*report.came, *report.answered) for count in row[1:]]
    if any(not isinstance(each, int) or each < 0 for each in (report.waiting, *counts)):
        raise ProtocolError("traffic report: invalid number")
    carries = report.carries[:ROWS_MAX]
    own = {teller, *carries}
    return msgspec.structs.replace(
        report,
        carries=carries,
        came=report.came[:ROWS_MAX],
        answered=report.answered[:ROWS_MAX],
        names=tuple([each for each in report.names[:ROWS_MAX] if each[0] in own and is_label(each[1])]),
        readers=tuple(_within_bounds([each for each in report.readers if each.address in own])),
    )


def _within_bounds(readers: Iterable[Reading]) -> Iterator[Reading]:
    left = POSITIONS_MAX
    for each in islice(readers, READERS_MAX):
        cut = max(0, len(each.positions) - left)
        left -= len(each.positions) - cut
        yield msgspec.structs.replace(
            each, positions=each.positions[: len(each.positions) - cut], left_out=min(each.left_out + cut, OFFSET_MAX)
        )


def where_kept(host: str, directory: str) -> bytes:
    """Return the digest by which a directory of positions is known again, on the same machine."""
    return blake2b(f"{host}\0{directory}".encode("utf-8", "surrogateescape"), digest_size=KEPT_BYTES).digest()


def reading_of(
    address: str, identity: str, kept: bytes, committed: Mapping[Key, int], heads: Mapping[Key, int], most: int
) -> Reading:
    """Return a consumer's positions in the partitions furthest behind, a bounded number. ``heads``: ends it knows."""
    furthest = nlargest(most, committed.items(), key=lambda each: heads.get(each[0], 0) - each[1])
    positions = []
    for (topic, part), offset in furthest:
        with suppress(UsageError):  # a user may commit what no partition can be called, or no offset can be
            positions.append((encode_topic(topic), encode_topic(part), min(offset, OFFSET_MAX)))
    return Reading(address, identity, kept, len(committed) - len(positions), tuple(positions))


class Traffic:
    """Counts for one node; its owner fills in ``names``, labels, and ``readers``, consumers' positions, by address."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.readers: dict[str, Callable[[int], Reading]] = {}
        self._came: dict[str, list[int]] = {}
        self._stores: dict[str, list[int]] = {}
        self._told: deque[float] = deque(maxlen=ANSWERS_MAX)

    def took(self, message: Message, size: int) -> None:
        if isinstance(message, Ack) or (isinstance(message, RecordMessage | Head) and message.direct):
            return
        counts = self._came.get(message.address) or self._new(self._came, message.address)
        counts[0] += 1
        counts[1] += size

    def asked(self, store: str) -> None:
        (self._stores.get(store) or self._new(self._stores, store))[2] += 1

    def answered(self, store: str, size: int) -> None:
        counts = self._stores.get(store) or self._new(self._stores, store)
        counts[0] += 1
        counts[1] += size

    def answer(
        self, question: AskTraffic, carries: Iterable[str], waiting: int, full: bool, now: float
    ) -> TrafficTold | None:
        if len(self._told) == ANSWERS_MAX and now - self._told[0] < 1.0:
            return None
        self._told.append(now)
        came = nlargest(ROWS_MAX, _texts(self._came), key=lambda each: each[1][1])
        stores = nlargest(ROWS_MAX, _texts(self._stores), key=lambda each: each[1][1])
        report = TrafficReport(
            FORMAT,
            tuple(islice(carries, ROWS_MAX)),
            tuple([(address, counts[0], counts[1]) for address, counts in came]),
            tuple([(store, *counts) for store, counts in stores]),  # type: ignore[misc]
            waiting,
            full,
            tuple(islice(self.names.items(), ROWS_MAX)),
            self._readings(),
        )
        return TrafficTold(question.address, question.topic, question.number, msgspec.msgpack.encode(report))

    def _readings(self) -> tuple[Reading, ...]:
        tellers = list(islice(self.readers.values(), READERS_MAX))
        return tuple([tell(POSITIONS_MAX // len(tellers)) for tell in tellers])

    def _new(self, counted: dict[str, list[int]], address: str) -> list[int]:
        if len(counted) >= SENDERS_MAX:
            counted.clear()
        counts = counted[address] = [0, 0, 0]
        return counts


def _texts(counted: dict[str, list[int]]) -> Iterator[tuple[str, list[int]]]:
    """Leave out addresses that are not UTF-8: others choose them, and MessagePack has no text for them."""
    return (each for each in counted.items() if each[0].isascii() or not _LONE.search(each[0]))
