"""The machine of ordered topics: which partitions there are, and where each ends.

It is what a chain of servers replicates. Commands come from many writers, and the chain's log puts them into one order;
here each batch gets the offsets at which its partition ends. That is all of the state: the records go to a ``Keeper``,
which has them written into the member's store. So a snapshot is small, however much was appended. What a store lets go
of by its retention is its own affair. Beside that the state has what queries have staged and not committed (``homes``).

A partition's name is made of random bytes that came with the command that created its topic, so a topic that is created
anew is never taken for an old one. It says of itself that it is ordered (``is_ordered``): nobody else's records are
taken for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple, Protocol, assert_never

import msgspec

from chappe.data.topic import check_topic, decode_topic
from chappe.errors import ProtocolError, UsageError
from chappe.log.batch import Batch, rebase
from chappe.log.ordered.commands import (
    ANY,
    Answer,
    Append,
    Appended,
    BeginRun,
    CommitRows,
    Conflict,
    Create,
    DropRows,
    Layout,
    Part,
    Refused,
    StageRows,
    decode_command,
    decode_query,
    encode,
)
from chappe.log.ordered.homes import Homes
from chappe.log.ordered.homes import Snapshot as HomesSnapshot

ALL_PARTITIONS_MAX: Final = 100_000  # of all topics of a chain
MADE_OF_A_NAME: Final = 5  # the version of a UUID that is not random


def is_ordered(partition: str) -> bool:
    """Return True if a partition's name says that a chain writes it: those of producers are random."""
    return len(partition) == 32 and partition[12] == str(MADE_OF_A_NAME)


class Placed(NamedTuple):
    topic: str
    partition: str
    batch: Batch


class PartitionEnd(NamedTuple):
    topic: str
    partition: str
    next: int


class Keeper(Protocol):
    """Where the records go, in order; and how far that is, as ``replication.chain.replica`` asks for it."""

    @property
    def settled(self) -> int:
        """Everything with a mark up to this one is on disk."""
        ...

    @property
    def full(self) -> bool:
        """True if much is not on disk yet."""
        ...

    @property
    def complete(self) -> bool:
        """True if every record of the restored state is there."""
        ...

    def mark(self) -> int:
        """Return the mark of the batch that was placed last."""
        ...

    def place(self, placed: Placed) -> None: ...

    def begin(self, ends: Sequence[PartitionEnd]) -> None:
        """Get the records of a restored state from wherever they are."""
        ...


@dataclass(slots=True)
class _OrderedTopic:
    name: str
    seed: bytes
    parts: list[str]
    nexts: list[int]


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Topics in the order of their names, each with its seed and its partitions' ends; and the queries' state."""

    topics: list[tuple[bytes, bytes, list[int]]]
    homes: HomesSnapshot


class OrderedLog:
    """The replicated machine; ``keeper`` gets the records. Its methods never raise: they answer ``Refused``."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._topics: dict[bytes, _OrderedTopic] = {}
        self._count = 0  # of all partitions
        self.homes = Homes(self._has)
        self.now_us = 0  # of the command that is done: see ``replication.chain.replica.TimedMachine``

    def apply(self, command: bytes) -> bytes:
        return encode(self._apply(command))

    def read(self, query: bytes) -> bytes:
        try:
            wanted = decode_query(query)
        except ProtocolError as error:
            return encode(Refused(str(error)))
        return encode(self._layout(self._topics.get(wanted.topic)))

    def snapshot(self) -> bytes:
        """Return the whole state, without the records."""
        topics = [(raw, each.seed, each.nexts) for raw, each in sorted(self._topics.items())]
        return msgspec.msgpack.encode(_Snapshot(topics, self.homes.snapshot()))

    def restore(self, state: bytes) -> None:
        """Return to the state of a snapshot; the keeper is told which records it means."""
        found = msgspec.msgpack.decode(state, type=_Snapshot) if state else _Snapshot([], HomesSnapshot([], []))
        self._topics = {raw: _topic(raw, seed, nexts) for raw, seed, nexts in found.topics}
        self.homes.restore(found.homes)
        self._count = sum(len(each.parts) for each in self._topics.values())
        self._keeper.begin(
            [PartitionEnd(each.name, *part) for each in self._topics.values()
             for part in zip(each.parts, each.nexts, strict=True)]
        )  # fmt: skip

    # -- for the chain: see ``replication.chain.replica`` ---------------------------------------------------

    @property
    def settled(self) -> int:
        return self._keeper.settled

    @property
    def full(self) -> bool:
        return self._keeper.full

    @property
    def complete(self) -> bool:
        return self._keeper.complete

    def mark(self) -> int:
        return self._keeper.mark()

    # -- parts ------------------------------------------------------------------------------------------------

    def _apply(self, raw: bytes) -> Answer:
        try:
            command = decode_command(raw)
        except ProtocolError as error:
            return Refused(str(error))
        match command:
            case Create():
                return self._create(command)
            case Append():
                return self._append(command)
            case BeginRun():
                return self.homes.begin(command, self.now_us)
            case StageRows():
                return self.homes.stage(command, self.now_us)
            case CommitRows():
                return self._commit(command)
            case DropRows():
                return self.homes.drop(command, self.now_us)
        assert_never(command)

    def _create(self, command: Create) -> Answer:
        found = self._topics.get(command.topic)
        if found is None:
            try:
                check_topic(decode_topic(command.topic))  # members could not publish what is none, and would stop
            except UsageError as error:
                return Refused(str(error))
            if self._count + command.partitions > ALL_PARTITIONS_MAX:
                return Refused(f"the chain has {self._count:,} partitions, of {ALL_PARTITIONS_MAX:,} that are possible")
            found = self._topics[command.topic] = _topic(command.topic, command.seed, [0] * command.partitions)
            self._count += command.partitions
        elif len(found.parts) != command.partitions:
            return Refused(f"topic {found.name!r} has {len(found.parts)} partitions, and keeps them")
        return self._layout(found)

    def _append(self, command: Append) -> Answer:
        topic, index = self._topics.get(command.topic), command.partition
        if topic is None or index >= len(topic.parts):
            return _missing(command)
        end = topic.nexts[index]
        if command.expected not in (ANY, end):
            return Conflict(end)
        try:
            batch = Batch.parse(rebase(command.body, end), check=False)
        except ProtocolError as error:
            return Refused(f"the records are damaged: {error}")
        topic.nexts[index] = batch.next
        self._keeper.place(Placed(topic.name, topic.parts[index], batch))
        return Appended(end, batch.next)

    def _commit(self, command: CommitRows) -> Answer:
        """All rows of a batch of a query, or none: nothing is placed before all have their offsets."""
        pieces = self.homes.commit(command, self.now_us)
        if not isinstance(pieces, list):
            return pieces
        ends: dict[tuple[bytes, int], int] = {}
        placed: list[Placed] = []
        for piece in pieces:
            key, topic = (piece.topic, piece.partition), self._topics[piece.topic]
            try:
                batch = Batch.parse(rebase(piece.body, ends.get(key, topic.nexts[piece.partition])), check=False)
            except ProtocolError as error:
                return Refused(f"the rows are damaged: {error}")
            ends[key] = batch.next
            placed.append(Placed(topic.name, topic.parts[piece.partition], batch))
        for (raw, index), end in ends.items():
            self._topics[raw].nexts[index] = end
        for each in placed:
            self._keeper.place(each)
        return self.homes.committed(command)

    def _has(self, topic: bytes, partition: int) -> bool:
        found = self._topics.get(topic)
        return found is not None and partition < len(found.parts)

    def _layout(self, topic: _OrderedTopic | None) -> Layout:
        if topic is None:
            return Layout(())
        return Layout(tuple(Part(*each) for each in zip(topic.parts, topic.nexts, strict=True)))


def _topic(raw: bytes, seed: bytes, nexts: list[int]) -> _OrderedTopic:
    return _OrderedTopic(decode_topic(raw), seed, [_name(raw, seed, index) for index in range(len(nexts))], nexts)


def _name(topic: bytes, seed: bytes, index: int) -> str:
    made_of = sha256(seed + index.to_bytes(4, "big") + topic).digest()
    return uuid.UUID(bytes=made_of[:16], version=MADE_OF_A_NAME).hex.upper()


def _missing(command: Append) -> Refused:
    return Refused(f"there is no partition {command.partition} of topic {decode_topic(command.topic)!r}")
