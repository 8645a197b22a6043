"""Topics as an administrator sees and changes them: at all stores, those that are away included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

from chappe.api.faces import Closeable
from chappe.api.log.looking import LogWatch
from chappe.api.times import as_micros
from chappe.data.topic import Filter, check_topic, decode_topic, encode_topic, similar
from chappe.errors import ChappeError, ProtocolError, TimedOut, UnknownTopic, UsageError
from chappe.log.catalogue import EVER, RETENTION, merged, retention_of
from chappe.log.queries import CatalogueAnswer, CatalogueRequest, Setting, TopicAnswer, TopicChange, TopicEntry
from chappe.log.storage import Retention
from chappe.reading.topic import reached
from chappe.reading.topics import TopicSummary
from chappe.reading.view import StoresView
from chappe.security import LogSecurity
from chappe.system import settings
from chappe.transports.queries import StoreClient

NAMES_S: Final = 1.0  # for optional facts
A = TypeVar("A", TopicAnswer, CatalogueAnswer)


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """The outcome of a change of a topic.

    Attributes:
        records: How many were forgotten, at the store that forgot most.
        stores: Ids of the stores that have the change on disk; at least one. All others take it from them.
        away: Query endpoints of stores that do not answer; they take it before they serve again.
        refused: Query endpoints of stores that did not take it, and why.
    """

    topic: str
    records: int
    stores: tuple[str, ...]
    away: tuple[str, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as all stores together have it.

    Attributes:
        partitions: How many it has.
        records: How many are kept; where stores hold different parts, an upper bound.
        bytes: On disk, of one copy.
        oldest: Of the timestamps, in microseconds since 1970 UTC; None if nothing is kept.
        newest: The same.
        producers: Names of the producers that are there, by partition.
        stores: Ids of the stores that hold any of it.
        retention: How much each of these keeps of it, by id; None if it does not tell.
        settings: The settings that all stores agree on.
        changed: When they were last changed, in microseconds since 1970 UTC; None if never.
    """

    topic: str
    partitions: int
    records: int
    bytes: int
    oldest: int | None
    newest: int | None
    producers: Mapping[str, str]
    stores: tuple[str, ...]
    retention: Mapping[str, Retention | None]
    settings: Mapping[str, Setting] = field(default_factory=dict)
    changed: int | None = None


class TopicAdmin:
    """The topics at a view's stores; its owner closes it. ``producers`` returns names of those there, by partition."""

    def __init__(self, view: StoresView, producers: Callable[[], Mapping[str, str]] = dict) -> None:
        self._view = view
        self._producers = producers

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted: those with partitions, and those that were created.

        A deleted topic is left out, unless something was written to it since. Raises TimedOut if no store answers.
        """
        return sorted(self._there(self.catalogue()))

    def describe(self, topic: str) -> TopicDescription:
        """Return the facts of a topic. Raises UnknownTopic, TimedOut."""
        entry = self._entry(topic)
        keys = [key for key in self._view.known if key[0] == topic]
        found = TopicSummary.of(topic, [self._view.known[key] for key in keys]) if keys else None
        clients = {} if found is None else {each: self._view.client(each) for each in found.stores}
        told: dict[str, StoreClient] = {}
        for client in clients.values():
            if client is not None:
                client.heads(topic)  # with which it tells its retention
                told[client.store_id or client.endpoint] = client
        names = self._producers() if keys else {}
        return TopicDescription(
            topic,
            len(keys),
            0 if found is None else found.records,
            0 if found is None else found.bytes,
            None if found is None else found.oldest,
            None if found is None else found.newest,
            {partition: names[partition] for _, partition in sorted(keys) if partition in names},
            tuple(sorted(told)),
            {store_id: _retention_at(client, topic) for store_id, client in sorted(told.items())},
            entry.settings,
            entry.stamp or None,
        )

    def create(self, topic: str, *, retention: Retention | None = None) -> TopicChanged:
        """Make a topic known before its first record. Raises UsageError if it is there, and as ``set``."""
        if check_topic(topic) in self.topics():
            raise UsageError(f"there is a topic {topic!r} already")
        return self._change(TopicChange(encode_topic(topic), _wire(retention) if retention else {}, create=True))

    def set(self, topic: str, *, retention: Retention | None) -> TopicChanged:
        """Set how much all stores keep of a topic; None: each store keeps what it is configured to keep.

        Of two changes the later one counts, at all stores.

        Raises:
            UnknownTopic: There is no such topic.
            UsageError: The retention is not positive.
            NotPermitted: The permissions do not let us administer the topic.
            TimedOut: No store answers.
            ProtocolError: No store takes it, for another reason.
        """
        self._entry(topic)
        return self._change(TopicChange(encode_topic(topic), _wire(retention), create=True))

    def delete(self, topic: str) -> TopicChanged:
        """Forget all records and settings of a topic, at all stores.

        Stores forget records that they have when they learn of it, and that are stamped before. What is written later
        makes the topic anew; offsets go on. Raises as ``set``.
        """
        self._entry(topic)
        return self._change(TopicChange(encode_topic(topic), delete=True))

    def trim(self, topic: str, *, before: datetime | None = None) -> TopicChanged:
        """Forget batches older than a moment with a time zone; None: all that are there. Raises as ``set``."""
        self._entry(topic)
        before_us = EVER if before is None else as_micros(before)
        if before_us <= 0:
            raise UsageError(f"nothing is older than {before}")
        return self._change(TopicChange(encode_topic(topic), before=before_us))

    def catalogue(self) -> dict[str, TopicEntry]:
        """Return what all stores that answer know of settings, deletions and trims, by topic. Raises TimedOut."""
        self._view.refresh()
        found: dict[str, TopicEntry] = {}
        problem: ChappeError = TimedOut("no store answers")
        answered = False
        for client in self._clients():
            since, more = 0, True
            try:
                while more:
                    answer = _asked(client, CatalogueRequest(since), CatalogueAnswer)
                    since, more = answer.version, answer.more
                    for entry in answer.entries:
                        topic = decode_topic(entry.topic)
                        found[topic] = merged(found.get(topic), entry)
                answered = True
            except ChappeError as error:
                problem = error
        if not answered:
            raise problem
        return found

    # -- inside -----------------------------------------------------------------------------------------------

    def _clients(self) -> list[StoreClient]:
        found = (self._view.client(each) for each in self._view.endpoints)
        return [each for each in found if each is not None]

    def _there(self, catalogue: Mapping[str, TopicEntry]) -> AbstractSet[str]:
        found = {topic for topic, entry in catalogue.items() if entry.stamp and not entry.deleted}
        for (topic, _), known in self._view.known.items():
            if known.next > known.first or topic not in catalogue or not catalogue[topic].deleted:
                found.add(topic)
        return found

    def _entry(self, topic: str) -> TopicEntry:
        """Return what stores agree on for a topic. Raises UnknownTopic if there is none."""
        catalogue = self.catalogue()
        entry = catalogue.get(topic) or TopicEntry(encode_topic(topic))
        there = self._there(catalogue)
        if topic not in there:
            near = similar(topic, there)
            meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; `chappe topics` lists all"
            raise UnknownTopic(f"no store has a topic {topic!r}{meant}")
        return entry

    def _change(self, request: TopicChange) -> TopicChanged:
        """Have one store take a change, one that holds the topic if there is one, and hand it to the others."""
        topic = decode_topic(request.topic)
        holders = {each for key, known in self._view.known.items() if key[0] == topic for each in known.holders}
        taken: TopicAnswer | None = None
        stores, records = [], 0
        problems: dict[str, ChappeError] = {}
        for client in sorted(self._clients(), key=lambda each: each.endpoint not in holders):
            try:
                what = request if taken is None else TopicChange(request.topic, entry=taken.entry)
                answer = _asked(client, what, TopicAnswer)
            except ChappeError as error:
                problems[client.endpoint] = error
                continue
            taken = taken or answer
            stores.append(answer.store_id)
            records = max(records, answer.records)
        if not stores:
            raise next(iter(problems.values()), TimedOut("no store answers"))
        silent = [at for at, error in problems.items() if isinstance(error, TimedOut)]
        refused = {at: str(error) for at, error in problems.items() if at not in silent}
        return TopicChanged(topic, records, tuple(sorted(stores)), tuple(sorted({*silent, *self._view.away})), refused)


class Admin(TopicAdmin, Closeable):
    """Looks at topics and changes them, at all stores.

    A change is answered once at least one store has it on disk; stores hand it to each other when they meet. Use from
    one thread at a time.

    Args:
        tower, stores: Like those of ``read_topic``.
        security: As of ``read_topic``: an identity that may ``administer`` the topics.

    Raises:
        UsageError: An argument is wrong.
        TimedOut: No forwarder answers.
    """

    def __init__(
        self,
        *,
        tower: str | None = None,
        stores: str | Sequence[str] | None = None,
        security: LogSecurity = None,
    ) -> None:
        wanted = reached("*", tower, stores, security)

        def producers() -> dict[str, str]:
            if wanted.towers is None:
                return {}
            with suppress(ChappeError, OSError):
                watch = LogWatch(wanted.towers, listen=settings.listen(None), security=security)
                try:
                    return watch.names(NAMES_S)
                finally:
                    watch.close()
            return {}

        super().__init__(wanted.view(), producers)

    def close(self) -> None:
        """Close the connections to the stores."""
        self._view.close()


def _asked(client: StoreClient, request: TopicChange | CatalogueRequest, kind: type[A]) -> A:
    answer, _ = client.ask(request)
    if not isinstance(answer, kind):
        raise ProtocolError(f"the store at {client.endpoint} answered another question")
    return answer


def _wire(retention: Retention | None) -> dict[str, Setting | None]:
    """Return a retention as settings. Raises UsageError if it says nothing that can be kept."""
    values = (None, None, None) if retention is None else (retention.age_s, retention.bytes, retention.records)
    found: dict[str, Setting | None] = dict(zip(RETENTION, values, strict=True))
    given = {name: each for name, each in found.items() if each is not None}
    if retention is not None and retention_of(given) != retention:
        raise UsageError(f"a retention is an age, a number of bytes or of records, each above 0, and not {retention}")
    return found


def _retention_at(client: StoreClient, topic: str) -> Retention | None:
    if client.retention is None:
        return None
    for pattern, age_s, size, records in client.retention:
        if Filter.parse(pattern).matches(topic):
            return Retention(age_s, size, records)
    return Retention()
