"""Changes from a dashboard that was started with ``--allow-changes``: each change says first what is lost by it.

A change is planned, which looks and changes nothing, and then carried out, if the person who has read what is lost
still wants it. What it is allowed is decided by those who are asked: stores, masters and servers ask the permissions.
All of it blocks, and is for threads that may.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from chappe import Admin, Producer
from chappe.api.identity import state_directory
from chappe.api.mesh.endpoint import Endpoint
from chappe.dashboard.entries import Entries, EntryRow, typed
from chappe.dashboard.pages.words import size
from chappe.dashboard.sources.log import LogSource
from chappe.data.markup import many
from chappe.data.topic import check_topic, encode_topic
from chappe.errors import ChappeError, TimedOut, UsageError
from chappe.log.queries import Answer, Request, SeekAnswer, SeekRequest
from chappe.reading.offsets import Key, KnownPartition
from chappe.security import LogSecurity
from chappe.storage.positions import Positions
from chappe.transports.queries import StoreClient

logger = logging.getLogger("chappe")

ANSWER_S: Final = 10.0  # a store removes files before it answers
WRITE_S: Final = 10.0
READERS_NAMED: Final = 5
NOTHING: Final = "Nothing is lost."


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that somebody may want.

    Args:
        title: What it is.
        loses: What is lost by it, in sentences.
        verb: What is on the button.
        carry_out: Does it, and returns what was done. Raises ChappeError.
        harmless: Whether nothing is lost.
    """

    title: str
    loses: str
    verb: str
    carry_out: Callable[[], str]
    harmless: bool = False


class DashboardChanges:
    """All changes of one dashboard. Use from several threads is safe.

    Args:
        log: Where topics and groups are.
        producer: Makes a producer of a topic, as a context; each write makes one.
        endpoint: Of the mesh.
        entries: What is in data stores and maps.
        security: Who we are to stores.
    """

    def __init__(
        self,
        log: LogSource | None,
        producer: Callable[[str], AbstractContextManager[Producer]],
        endpoint: Endpoint | None,
        entries: Entries,
        *,
        security: LogSecurity = None,
    ) -> None:
        self._log = log
        self._producer = producer
        self._endpoint = endpoint
        self._entries = entries
        self._security = security

    # -- topics ---------------------------------------------------------------------------------------

    def write(self, topic: str, key: str, value: str) -> Planned:
        """Plan a record; a topic that is not there begins with it. Raises UsageError."""
        name, held = self._held(check_topic(topic))
        begins = "" if held else f" No store has a topic {topic} yet: it begins with this record."
        loses = f"{NOTHING}{begins} Whoever reads the topic gets the record, and it cannot be taken back by itself."
        carry_out = partial(self._write, name, key, value)
        return Planned(f"Write a record to {topic}", loses, "Write it", carry_out, harmless=True)

    def _write(self, topic: str, key: str, value: str) -> str:
        with self._producer(topic) as producer:
            producer.send(value, key or None)
            producer.flush(WRITE_S)
        return _done(f"The record is in {topic}.")

    def trim(self, topic: str, before_us: int | None) -> Planned:
        """Plan to remove the records of a topic before a moment, or all of them. Raises UsageError, TimedOut."""
        name, held = self._held(topic)
        if not held:
            raise UsageError(f"No store has the topic {topic} any more.")
        first = {partition: known.first for partition, known in held.items()}
        if before_us is None:
            end = {partition: known.next for partition, known in held.items()}
            what, verb, title = "All", "Delete them", f"Delete all records of {topic}"
        else:
            end = {partition: self._at(name, partition, known, before_us) for partition, known in held.items()}
            what, verb, title = "The oldest", "Trim the topic", f"Trim {topic}"
        lost = sum(max(0, end[partition] - first[partition]) for partition in held)
        bytes_lost = sum(known.record_bytes * max(0, end[p] - first[p]) for p, known in held.items())
        stores = self._log.stores if self._log is not None else []
        sentences = [
            f"{what} {many(lost, 'record')} of {topic}, about {size(bytes_lost)} in each copy, are lost for ever, "
            f"at {many(len(stores), 'store')}.",
            *self._unread(name, held, end),
            "Offsets go on from where they are, and the topic stays in lists. A store that is away forgets them "
            "before it serves again.",
        ]
        carry_out = partial(self._trim, name, before_us, stores)
        return Planned(title, " ".join(sentences), verb, carry_out)

    def _unread(self, topic: str, held: dict[str, KnownPartition], end: dict[str, int]) -> Iterator[str]:
        """Yield sentences on readers that have not read all of it."""
        readers = [] if self._log is None else self._log.readers.all()
        behind = []
        for reader, positions, whole in readers:
            read = {partition: offset for (name, partition), offset in positions.items() if name == topic}
            parts = held if whole else held.keys() & read.keys()
            count = sum(max(0, end[p] - max(held[p].first, read.get(p, held[p].first))) for p in parts)
            if read and count:
                behind.append(f"{reader} has not read {count:,} of them")
        if behind:
            more = f" and {len(behind) - READERS_NAMED:,} more" if len(behind) > READERS_NAMED else ""
            yield f"Of these, {', '.join(behind[:READERS_NAMED])}{more}."

    def _trim(self, topic: str, before_us: int | None, stores: list[str]) -> str:
        with Admin(stores=stores, security=self._security) as admin:
            before = None if before_us is None else datetime.fromtimestamp(before_us / 1e6, UTC)
            done = admin.trim(topic, before=before)
        text = f"{done.records:,} records are gone at {len(done.stores)} of {many(len(stores), 'store')}."
        if done.away:
            text += " The others forget them before they serve again."
        if done.refused:
            raise ChappeError(
                f"{_done(text)} What is left there, readers still get: {'; '.join(done.refused.values())}."
            )
        return _done(text)

    def _ask(self, endpoint: str, request: Request) -> Answer:
        with closing(StoreClient(endpoint, ANSWER_S, self._security)) as client:
            return client.ask(request)[0]

    def _at(self, topic: str, partition: str, known: KnownPartition, at_us: int) -> int:
        if known.next == known.first or at_us <= known.timestamp_min:
            return known.first
        if at_us > known.timestamp_max:
            return known.next
        problem: ChappeError = TimedOut(f"No store that has partition {partition} answers.")
        for endpoint in known.holders:
            try:
                answer = self._ask(endpoint, SeekRequest(encode_topic(topic), encode_topic(partition), at_us))
            except ChappeError as error:
                problem = error
            else:
                return max(known.first, answer.offset) if isinstance(answer, SeekAnswer) else known.first
        raise problem

    def _held(self, topic: str) -> tuple[str, dict[str, KnownPartition]]:
        return (topic, {}) if self._log is None else self._log.held(topic)

    # -- groups ---------------------------------------------------------------------------------------

    def reset(self, group: str, to: str, at_us: int | None = None) -> Planned:
        """Move the positions of a group on this machine.

        Args:
            group: The identity of its consumers.
            to: ``earliest``, ``latest``, or ``moment``.
            at_us: The moment, microseconds since 1970.

        Raises:
            UsageError: There is no such group, or it is not clear where it is to go on.
            TimedOut: A moment was asked for, and no store answers.
        """
        found = {} if self._log is None else self._log.readers.groups()
        if group not in found:
            raise UsageError(f"No group {group} keeps its positions on this machine.")
        if to not in ("earliest", "latest", "moment") or (to == "moment" and at_us is None):
            raise UsageError("A group goes on at the earliest or latest record, or at a moment.")
        positions = found[group]
        wanted: dict[Key, int] = {}
        again = skipped = 0
        for topic in sorted({name for name, _ in positions}):
            for partition, known in self._log.of(topic).items() if self._log is not None else ():
                at = known.first if to == "earliest" else known.next
                if to == "moment" and at_us is not None:
                    at = self._at(topic, partition, known, at_us)
                before = max(known.first, positions.get((topic, partition), known.first))
                again += max(0, before - at)
                skipped += max(0, at - before)
                wanted[topic, partition] = at
        where = {"earliest": "the earliest record", "latest": "the latest record"}.get(to, "that moment")
        loses = [f"The positions that {group} has committed are lost, in {many(len(wanted), 'partition')}."]
        if skipped:
            loses.append(f"It will never read {many(skipped, 'record')} that it has not read yet.")
        if again:
            loses.append(f"It will read {many(again, 'record')} again.")
        loses.append("It has to be stopped meanwhile.")
        carry_out = partial(self._reset, group, wanted, where)
        return Planned(f"Have {group} go on at {where}", " ".join(loses), "Reset the group", carry_out)

    def _reset(self, group: str, wanted: dict[Key, int], where: str) -> str:
        positions = Positions(state_directory("consumers", group, None))
        try:
            positions.commit(wanted)
        finally:
            positions.close()
        return _done(f"Group {group} goes on at {where}, once it is started.")

    # -- data stores and maps -------------------------------------------------------------------------

    def set(self, kind: str, name: str, key: str, value: str) -> Planned:
        """Plan an entry; keys and values of data stores are JSON, or else text. Raises UsageError, and as ``open``."""
        if not key:
            raise UsageError("An entry has a key.")
        opened = self._entries.open(kind, name)
        own = opened.own(key)
        before = opened.value_of(own)
        loses = NOTHING if before is None else f"The value that {key} has now is lost: {before}"
        carry_out = partial(self._do, partial(opened.set, own, value), f"{key} in {kind} {name} is set.")
        return Planned(f"Set {key} in {kind} {name}", loses, "Set it", carry_out, harmless=before is None)

    def erase(self, kind: str, name: str, row: EntryRow) -> Planned:
        """Plan to remove an entry that is there. Raises as ``open``."""
        opened = self._entries.open(kind, name)
        carry_out = partial(self._do, partial(opened.erase, row.own), f"{row.key} in {kind} {name} is deleted.")
        value = opened.value_of(row.own)
        if value is None:
            raise UsageError(f"{row.key} is not there any more.")
        loses = f"The entry {row.key} is lost, for everybody who reads {kind} {name}: {value}"
        return Planned(f"Delete {row.key} from {kind} {name}", loses, "Delete it", carry_out)

    def clear(self, kind: str, name: str) -> Planned:
        """Plan to remove all entries. Raises as ``open``."""
        opened = self._entries.open(kind, name)
        count = opened.find("")[2]
        loses = f"All {count:,} entries of {kind} {name} are lost, for everybody who reads it."
        carry_out = partial(self._do, opened.clear, f"{kind} {name} is empty.".capitalize())
        return Planned(f"Delete all entries of {kind} {name}", loses, "Delete all", carry_out)

    def _do(self, change: Callable[[], object], text: str) -> str:
        change()
        return _done(text)

    # -- the mesh -------------------------------------------------------------------------------------

    def publish(self, topic: str, value: str) -> Planned:
        endpoint = self._endpoint
        if endpoint is None:
            raise UsageError("This dashboard looks at no mesh: start it with --peer HOST:PORT.")
        check_topic(topic)
        read = typed(value)
        loses = f"{NOTHING} Whoever is subscribed to {topic} gets the message, and acts on it as on any other."
        carry_out = partial(
            self._do, partial(endpoint.publish, topic, read), f"The message is on its way to who wants {topic}."
        )
        return Planned(f"Publish to {topic}", loses, "Publish it", carry_out, harmless=True)


def _done(text: str) -> str:
    logger.info("changed from the dashboard: %s", text)
    return text
