"""The log: who a tower knows, what passes between them, what stores hold, how far groups on this machine have read.

Stores are asked what changed since the last look, once a second by one question each, so what does not change costs
nothing. What a store does not answer within three seconds is left out and asked again later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from chappe.api.log.looking import LogMember, LogWatch
from chappe.dashboard.pages.words import duration, size
from chappe.dashboard.sources.log_readers import Labels, LogReaders
from chappe.dashboard.sources.passing import NodeIds, Passing
from chappe.data.topic import Filter
from chappe.errors import TimedOut
from chappe.log.traffic import TrafficReport
from chappe.observing.snapshot import (
    NAMES_MAX,
    HealthProblem,
    ObservedLink,
    ObservedMember,
    ObservedPart,
    ObservedReader,
    ObservedTopic,
    called,
    readable,
)
from chappe.reading.offsets import Key, KnownPartition
from chappe.reading.selection import Selection
from chappe.reading.topics import TopicSummary
from chappe.reading.view import StoresView
from chappe.security import LogSecurity
from chappe.system import machine, started

GONE_S: Final = 5.0  # a store that is not heard for so long has left ...
MISSED_S: Final = 600.0  # ... and is missed for so long


class Missed:
    """The missed stores of one system; ``note`` is called after each look. Pure.

    A store that was killed is silent at first; some seconds later nobody hears its beacon any more either. It stays one
    that does not answer then: only a store that was heard to the end has left of its own will."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}  # by store id: its endpoint, and when it was last there
        self._silent: set[str] = set()  # endpoints that did not answer, and have not since

    def note(self, there: Mapping[str, str], away: Collection[str], answering: Collection[str], now: float) -> None:
        """Note what a look has found.

        Args:
            there: Whose beacons are heard: ids, and where they are asked.
            away: Where stores do not answer.
            answering: Where they do.
            now: Monotonic seconds.
        """
        self._seen |= {store_id: (endpoint, now) for store_id, endpoint in there.items()}
        self._seen = {each: (at, seen) for each, (at, seen) in self._seen.items() if now - seen < MISSED_S}
        heard = set(there.values())
        self._silent |= {each for each in away if each in heard}
        self._silent &= {at for at, _ in self._seen.values()}
        self._silent -= set(answering)

    def silent(self) -> list[str]:
        """Return the endpoints of stores that do not answer, with a beacon or without."""
        return sorted(self._silent)

    def left(self, now: float) -> list[tuple[str, str]]:
        """Return the ids and former endpoints of stores that left."""
        return [
            (store_id, at)
            for store_id, (at, seen) in self._seen.items()
            if now - seen > GONE_S and at not in self._silent
        ]


NAMED_S: Final = 1.5  # a node that is new is shown once it has told its name, at the latest after this long
KEPT_S: Final = 10.0  # what a node told counts for so long behind the time at which it is asked again

_CARRIES: Final = {"producers": "partitions", "consumers": "carries"}


class LogSource:
    """Looks through a tower, or at forwarders.

    Args:
        named: How people call whoever introduces members, in a sentence.
        command: What starts it.
        expected: Whether it has to be there: else nothing is wrong as long as it was never heard.
        groups: Directory of the positions of consumers with an identity; by default this user's.
    """

    name = "log"

    def __init__(
        self,
        tower: str,
        *,
        listen: str,
        forwarders: str | None = None,
        security: LogSecurity = None,
        named: str = "the tower",
        command: str = "chappe up",
        expected: bool = True,
        groups: Path | None = None,
    ) -> None:
        self.mend = f"Start it: {command}"
        self._silent = not expected  # nobody is missed yet
        self._tower, self._named, self._forwarders = tower, named, forwarders
        self._watch = LogWatch(tower, listen=listen, forwarders=forwarders, security=security)
        self._view = StoresView(Selection((Filter("", prefix=True),)), tower=tower, find=self._find, security=security)
        self._partitions: dict[str, dict[str, KnownPartition]] = {}  # by topic
        self._guard = threading.Lock()  # of the partitions, at which viewers look too
        self._raw: dict[str, str] = {}  # names of topics by what people read, where that is not the same
        self._missed = Missed()
        self.stores: list[str] = []  # endpoints, also of those that do not answer; replaced, never changed: thread-safe
        self._shown: dict[str, tuple[ObservedReader, ...]] = {}  # readers of each topic, at the last look
        self._labels = Labels()
        self._since: dict[str, float] = {}  # when each node that is there was seen first
        self.readers = LogReaders(groups if groups is not None else machine.current().data_path() / "consumers")

    def look(self) -> ObservedPart:
        seen = self._watch.members()
        stores = {each.store.endpoint: each for each in seen if each.store is not None}
        self._view.meet(stores)
        away = set(self._view.away)
        began = time.monotonic()
        changed = self._refresh()
        self.stores = sorted(self._view.endpoints)
        now = time.monotonic()
        waited = now - began if set(self._view.away) - away else 0.0
        there = {each.store.store_id: endpoint for endpoint, each in stores.items() if each.store}
        self._missed.note(there, self._view.away, set(self._view.endpoints) - set(self._view.away), now)
        live = self._watch.listened_to()
        nodes = [each.address for each in seen]
        rounds = self._watch.ask(nodes, [each for each in nodes if each not in self._since])
        reports = self._watch.reports(KEPT_S + 2 * rounds)
        self._since = {each: self._since.get(each, now) for each in nodes}
        renamed = self._labels.take(reports)
        self.readers.take(reports, self._labels)
        lags = self.readers.lags(self._partitions)
        names = {topic for topic, _ in changed} | {
            name for name, found in lags.items() if self._shown.get(name) != found
        }
        names |= self._shown.keys() - lags.keys()
        if renamed:
            names |= {topic for topic, parts in self._partitions.items() if not renamed.isdisjoint(parts)}
        self._shown = lags
        gone = [name for name in names if name not in self._partitions]
        held = {endpoint: each.address for endpoint, each in stores.items()}
        topics = [self._topic(name, held, lags.get(name, ()), live) for name in names if name in self._partitions]
        self._silent = self._silent and not self._watch.introduced
        if self._silent:
            return ObservedPart()
        named = [each for each in seen if each.address in reports or now >= self._since[each.address] + NAMED_S]
        members, links = self._picture(named, lags, reports, rounds)
        return ObservedPart(
            members=tuple(members),
            links=tuple(links),
            topics=tuple(topics),
            gone=tuple(readable(each) for each in gone),
            problems=tuple(self._problems()),
            waited_s=waited,
        )

    def held(self, shown: str) -> tuple[str, dict[str, KnownPartition]]:
        """Find a topic by its name for people: return its own name, and what stores have of it. Thread-safe."""
        with self._guard:
            name = self._raw.get(shown, shown)
            return name, dict(self._partitions.get(name, ()))

    def of(self, topic: str) -> dict[str, KnownPartition]:
        with self._guard:
            return dict(self._partitions.get(topic, ()))

    def close(self) -> None:
        self._view.close()
        self._watch.close()

    # -- stores ---------------------------------------------------------------------------------------

    def _find(self, _tower: str) -> list[str]:
        return [each.store.endpoint for each in self._watch.members() if each.store is not None]

    def _refresh(self) -> set[Key]:
        try:
            changed = self._view.refresh()
        except TimedOut:  # none has ever answered: the problems say so
            return set()
        with self._guard:
            for key in changed:
                self._note(key)
        return changed

    def _note(self, key: Key) -> None:
        topic, partition = key
        known = self._view.known.get(key)
        if known is not None:
            self._partitions.setdefault(topic, {})[partition] = known
            if (shown := readable(topic)) != topic:
                self._raw[shown] = topic
        elif topic in self._partitions:
            self._partitions[topic].pop(partition, None)
            if not self._partitions[topic]:
                del self._partitions[topic]
                self._raw.pop(readable(topic), None)

    def _topic(
        self, name: str, held: dict[str, str], readers: tuple[ObservedReader, ...], live: Iterable[str]
    ) -> ObservedTopic:
        parts = self._partitions[name]
        writers = sorted(parts)[:NAMES_MAX]
        found = TopicSummary.of(name, list(parts.values()))
        return ObservedTopic(
            name=readable(name),
            partitions=found.partitions,
            records=found.records,
            end=sum(each.next for each in parts.values()),
            bytes=found.bytes,
            oldest=found.oldest or 0,
            newest=found.newest or 0,
            writers=tuple(readable(each) for each in writers),
            names=tuple(self._labels.of(each) for each in writers),
            stores=tuple(sorted(held[each] for each in found.stores if each in held)[:NAMES_MAX]),
            readers=readers[:NAMES_MAX],
            retention=self._retention(name, found.stores),
            live=any(name.startswith(each) for each in live),
        )

    def _retention(self, topic: str, stores: Iterable[str]) -> str:
        found: dict[str, None] = {}
        for endpoint in stores:
            client = self._view.client(endpoint)
            if client is not None and client.retention is not None:
                found[kept_of(topic, client.retention)] = None
        return ", or at other stores ".join(found)

    # -- the picture ----------------------------------------------------------------------------------

    def _picture(
        self,
        seen: list[LogMember],
        lags: dict[str, tuple[ObservedReader, ...]],
        reports: Mapping[str, TrafficReport],
        rounds: float,
    ) -> tuple[list[ObservedMember], list[ObservedLink]]:
        tower = f"tower {self._tower}"
        kind = "forwarder" if self._forwarders else "tower"
        status = "there" if self._watch.introduced else "silent"
        level = "good" if status == "there" else "failed"
        members = []
        nodes = [
            NodeIds(each.address, *(("", "") if each.store is None else (each.store.store_id, each.store.endpoint)))
            for each in seen
        ]
        passing = Passing(nodes, reports, every_s=rounds, encrypted=self._watch.encrypted)
        observers = {each.address for each in seen if each.role == "member" and passing.told(each.address)}
        beacons = self._watch.beacons()
        if not self._forwarders:
            name = beacons.tower or kind
            members.append(
                ObservedMember(tower, "tower", name, self._tower, status, "good" if level == "good" else "failed")
            )
        links: list[ObservedLink] = []
        away = set(self._view.away)
        stores = [each for each in seen if each.role == "store"]
        for each in seen:
            carries = reports[each.address].carries if each.address in reports else ()
            members.append(self._member(each, away, carries, looks=each.address in observers))
            if not self._forwarders:
                came = beacons.of.get(each.address)
                ends = (tower, each.address)
                links.append(
                    ObservedLink(ends, "introduces", beacons.to_each, came, tls=self._watch.encrypted, note="beacons")
                )
            if each.role in ("producers", "consumers"):
                pairs = [
                    (each.address, s.address) if each.role == "producers" else (s.address, each.address) for s in stores
                ]
                links += [passing.link(pair) for pair in pairs]
        links += passing.further([each.ends for each in links], observers)
        for group in sorted({r.name for readers in lags.values() for r in readers if r.kind == "group"}):
            topics = {topic: r.lag for topic, readers in lags.items() for r in readers if r.name == group}
            facts = tuple(
                (readable(topic), f"{lag:,} records behind") for topic, lag in sorted(topics.items())[:NAMES_MAX]
            )
            members.append(
                ObservedMember(f"group {group}", "group", group, "", "positions are kept on this machine", facts=facts)
            )
            links += [ObservedLink((each.address, f"group {group}"), "reads") for each in stores]
        return members, links

    def _member(self, seen: LogMember, away: set[str], carries: Collection[str], *, looks: bool) -> ObservedMember:
        port, _, identity = seen.endpoint.rpartition(":")[2].partition("#")
        client = None if seen.store is None else self._view.client(seen.store.endpoint)
        label = self._labels.of_node(seen.address, carries) if client is None else client.name
        name = f"{identity}: {label}" if identity and label else identity or label
        if seen.store is not None:
            silent = seen.store.endpoint in away
            if client is not None and name:
                self._labels.note(seen.store.store_id, name)
                self._labels.note(seen.store.endpoint, name)
            name = self._labels.of(seen.store.store_id)
            return ObservedMember(
                seen.address,
                "store",
                called(name, seen.store.store_id),
                seen.endpoint,
                "does not answer" if silent else "there",
                "failed" if silent else "good",
                (("store id", readable(seen.store.store_id)), ("questions at", seen.store.endpoint)),
            )
        named, name = bool(name), name or f"port {port}"
        parts = ", ".join(self._labels.shown(each) for each in list(carries)[:NAMES_MAX])
        return ObservedMember(
            seen.address,
            seen.role,
            f"another dashboard, {name}" if looks else name,
            seen.endpoint,
            facts=(
                ("address", readable(seen.address)),
                *([(_CARRIES[seen.role], parts)] if parts and seen.role in _CARRIES else []),
                *self.readers.commits(seen.address, self._partitions),
            ),
            named=named,
        )

    def _store(self, named: str) -> str:
        kind = "forward" if self._forwarders else "store"
        return started.command(f"store {named}", f"chappe {kind} DIRECTORY, with the options that it had")

    def _problems(self) -> Iterator[HealthProblem]:
        if self._watch.lost:
            yield HealthProblem(
                "no tower",
                "failed",
                f"Nobody answers as {self._named}: members that know each other go on, new ones find nobody.",
                self.mend,
            )
        for store_id, endpoint in self._missed.left(time.monotonic()):
            store = called(self._labels.of(store_id), store_id)
            yield HealthProblem(
                f"left {store_id}",
                "warning",
                f"Store {store}, which was at {endpoint}, has left: what it alone has cannot be read.",
                f"If that was not meant to be, start it again with: {self._store(store_id)}",
            )
        for endpoint in sorted({*self._view.away, *self._missed.silent()}):
            named = f"{label} " if (label := self._labels.of(endpoint)) else ""
            yield HealthProblem(
                f"store {endpoint}",
                "failed",
                f"The store {named}at {endpoint} does not answer: what it alone has cannot be read.",
                f"Look whether its process runs and its disk has room; start it again with: {self._store(endpoint)}",
            )


def kept_of(topic: str, retention: Sequence[tuple[str, float | None, int | None, int | None]]) -> str:
    """Return a store's retention of a topic in words; the first policy that fits counts."""
    for pattern, age_s, limit_bytes, records in retention:
        if Filter.parse(pattern).matches(topic):
            said = [
                *([f"the last {duration(age_s)}"] if age_s is not None else []),
                *([f"{size(limit_bytes)} at most"] if limit_bytes is not None else []),
                *([f"{records:,} records at most"] if records is not None else []),
            ]
            return ", ".join(said) or "everything, for ever"
    return "everything, for ever"
