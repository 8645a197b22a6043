"""The home of a sink: the one store that stages its rows and commits them, found before a row is sent.

Every store remembers on disk who the home is. A query that starts again asks them all, so it finds its commits
wherever they are; a home that came back on another port is known by its store id. While the home is only away nobody
chooses another one: what it had committed would be written again.

**A query that begins anew** is told from one that goes on by where its checkpoint lies, and by its name. Spark gives a
query its id with its checkpoint, so with a checkpoint that was deleted it is another query, and would write all its
rows once more. Stores therefore remember for each place of a checkpoint and each name of a query, by topic, which query
wrote last: as sinks of their own, whose run is the id of that query, at every store. A new query of the same place or
name is refused if the other has written anything, until the user names it in ``writeAgain``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from chappe.api.log.discovery import discover
from chappe.errors import ChappeError, Fenced, ProtocolError, TimedOut, UsageError
from chappe.log.queries import FindSink, SinkAnswer
from chappe.reading.fetch import Patience, client_of, forget_client
from chappe.security import LogSecurity
from chappe.transports.queries import StoreClient

logger = logging.getLogger(__name__)

FIND_S: Final = 1.0  # a store that has not answered by then counts as away, for this round
PAUSE_MAX_S: Final = 1.0  # between two rounds over all stores
DISCOVER_S: Final = 2.0  # how long a tower is listened to

_known: dict[tuple[str, LogSecurity], tuple[str, ...]] = {}  # towers: the endpoints that they told


@dataclass(frozen=True, slots=True)
class SinkStores:
    endpoints: tuple[str, ...]  # query endpoints. With ``towers`` those that were there when the write began
    towers: str | None  # asked again for a store that is not where it was
    patience_s: float  # how long a store that is away is waited for
    security: LogSecurity = None  # who we are, if they have keys; without a passphrase

    def looked_up(self) -> SinkStores:
        """Add the stores that the towers know now, if there are towers and they know any."""
        if self.towers is None:
            return self
        found = tuple(each.endpoint for each in discover(self.towers, timeout=DISCOVER_S, security=self.security))
        if found:
            _known[self.towers, self.security] = found
        return replace(self, endpoints=found) if found else self

    def known(self) -> SinkStores:
        """Look stores up once in a process, as towers are slow; before the tasks, so all choose among the same."""
        if self.towers is None:
            return self
        if (self.towers, self.security) not in _known:
            return self.looked_up()
        return replace(self, endpoints=_known[self.towers, self.security])

    def __str__(self) -> str:
        return ", ".join(self.endpoints) or f"the tower {self.towers}"


@dataclass(frozen=True, slots=True)
class Sink:
    name: str  # the same for ever, through all restarts
    run: str  # new with every start; the newest one fences all others
    lasting: bool  # it may come back after days


@dataclass(frozen=True, slots=True)
class Home:
    """The store that stages and commits for a sink, where it was last seen, and the last batch it has committed."""

    store_id: str
    endpoint: str
    committed: int = -1


def ask_all(endpoints: Iterable[str], sink: str, security: LogSecurity = None) -> dict[str, SinkAnswer]:
    """Ask each store about a sink; those that do not answer are left out."""
    found: dict[str, SinkAnswer] = {}
    clients = [StoreClient(endpoint, FIND_S, security) for endpoint in dict.fromkeys(endpoints)]
    try:
        asked = [(client, client.send(FindSink(sink))) for client in clients]
        for client, raw_id in asked:
            try:
                answer, _ = client.receive(raw_id)
                if isinstance(answer, SinkAnswer):
                    found[client.endpoint] = answer
            except (TimedOut, ProtocolError) as error:
                logger.warning("%s", error)
    finally:
        for client in clients:
            client.close()
    return found


def settle(
    stores: SinkStores,
    sink: Sink,
    batch: int,
    *,
    on_first: Callable[[SinkStores], None] = lambda stores: None,
    on_settled: Callable[[SinkStores], None] = lambda stores: None,
) -> Home:
    """Find the sink's home, or choose it, and make this run the current one.

    Args:
        stores: Among these.
        sink: The sink whose home is wanted.
        batch: About to be written. After the first one there is a home somewhere.
        on_first: Called with the stores as they are by now before a home is chosen for a sink that none of them knows.
        on_settled: Called with the stores once there is a home.

    Raises:
        TimedOut: The home, or a store that may know it, is away. Trying again later is safe.
        UsageError: The store with the commits of earlier batches is not among the stores.
        Fenced: Another run took over.
    """
    patience = Patience(stores.patience_s, PAUSE_MAX_S)
    while True:
        answers = ask_all(stores.endpoints, sink.name, stores.security)
        endpoint = _chosen(stores, answers, sink, batch)
        trouble: ChappeError
        if isinstance(endpoint, ChappeError):
            trouble = endpoint
        else:
            if not any(answer.home for answer in answers.values()):
                on_first(stores)
            try:
                home = _attach(endpoint, answers, sink, stores.security)
                on_settled(stores)
                return home
            except (TimedOut, ProtocolError) as error:  # also: another one is the home, which all will say next time
                trouble = error
        if (isinstance(trouble, UsageError) and stores.towers is None) or not patience.pause():
            raise trouble
        stores = stores.looked_up()


def _chosen(stores: SinkStores, answers: dict[str, SinkAnswer], sink: Sink, batch: int) -> str | ChappeError:
    named = _named(answers.values())
    ids = {answer.store_id: endpoint for endpoint, answer in answers.items()}
    away = [endpoint for endpoint in stores.endpoints if endpoint not in answers]
    if named:
        home = _preferred(sink.name, named)
        return ids.get(home) or TimedOut(
            f"the store {home}, which keeps the commits of this query, is not there; start it, and name it in `stores`"
        )
    if not answers:
        return TimedOut(f"no store answers at {stores}; start one or correct the address")
    if away and sink.lasting:
        return TimedOut(
            f"the store at {', '.join(away)} does not answer and may keep the commits of this query; start it, or "
            "leave it out of `stores`"
        )
    if batch > 0:
        return UsageError(
            f"no store at {stores} keeps commits of this query, which is at batch {batch} already; add the store that "
            "does, or begin with a new checkpoint"
        )
    return ids[_preferred(sink.name, ids)]


def _named(answers: Iterable[SinkAnswer]) -> set[str]:
    """Return the stores that may be the home: one that has commits, else all that are named and do not name another."""
    own = {answer.store_id: answer for answer in answers}
    named = {answer.home for answer in own.values() if answer.home}
    agreed = {home for home in named if home not in own or own[home].home == home}
    return {home for home in agreed if home in own and own[home].batch >= 0} or agreed or named


def _preferred(sink: str, store_ids: Iterable[str]) -> str:
    """Return the same one for everybody who knows the same stores, and others for other sinks (rendezvous hashing)."""
    return max(store_ids, key=lambda store_id: hashlib.sha256(f"{sink}\0{store_id}".encode()).digest())


def _attach(endpoint: str, answers: dict[str, SinkAnswer], sink: Sink, security: LogSecurity) -> Home:
    """Tell the home first, then the others. For a sink that nobody knew, all must have it on disk."""
    home = answers[endpoint].store_id
    answer = client_of(endpoint, security).attach_sink(sink.name, sink.run, home, sink.lasting)
    others = [each for each, said in answers.items() if each != endpoint and said.home != home]
    is_new = not any(each.home for each in answers.values())
    for other in others if sink.lasting else ():
        try:
            client_of(other, security).attach_sink(sink.name, sink.run, home, sink.lasting)
        except (TimedOut, ProtocolError):
            if is_new:
                raise
    return Home(home, endpoint, answer.batch)


def found_again(stores: SinkStores, home: Home, sink: str) -> Home:
    """Return the home wherever it answers now. Raises TimedOut after ``patience_s``; trying again later is safe."""
    patience = Patience(stores.patience_s, PAUSE_MAX_S)
    forget_client(home.endpoint, stores.security)
    while True:
        for endpoint, answer in ask_all((home.endpoint, *stores.endpoints), sink, stores.security).items():
            if answer.store_id == home.store_id:
                return Home(home.store_id, endpoint, answer.batch)
        if not patience.pause():
            raise TimedOut(
                f"the store {home.store_id}, which keeps the commits of this query, does not answer (it was at "
                f"{home.endpoint}); start it and run again"
            )
        stores = stores.looked_up()


_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:")  # a place that all machines mean alike


@dataclass(frozen=True, slots=True)
class Origin:
    """Something by which a query is known again, though its checkpoint is gone."""

    name: str  # of the sink that remembers it
    text: str  # what it is, as a part of a sentence

    @classmethod
    def of(cls, kind: str, what: str, topic: str | None) -> Origin:
        """Make one for a query in one topic, or in those that its rows name."""
        digest = hashlib.sha256("\0".join((kind, what, topic or "")).encode("utf-8", "replace")).hexdigest()
        return cls(f"origin {digest}", f"{kind} {what}")


def origins_of(options: Mapping[str, str], topic: str | None) -> tuple[Origin, ...]:
    """Return the origins of the query that Spark gave these options."""
    given = {name.lower(): value for name, value in options.items()}
    found = []
    place = given.get("checkpointlocation")
    if place:
        if not _REMOTE.match(place):
            path = "/" + place[5:].lstrip("/") if place.startswith("file:") else os.path.abspath(place)
            place = f"{platform.node()}:{os.path.normpath(path)}"
        found.append(Origin.of("checkpoint", place.rstrip("/"), topic))
    if given.get("queryname"):
        found.append(Origin.of("name", given["queryname"], topic))
    return tuple(found)


def begin(stores: SinkStores, sink: Sink, batch: int, origins: Sequence[Origin], again: str | None) -> Home:
    """Settle the home of a streaming query; the rows of the query ``again`` may be written once more. Raises
    UsageError: the query began anew, and what it had written is there; or its checkpoint is older than that.
    """
    home = settle(
        stores,
        sink,
        batch,
        on_first=partial(_refuse_repetition, sink=sink, origins=origins, again=again),
        on_settled=partial(_remember, sink=sink, origins=origins),
    )
    refuse_older(home, batch)
    return home


def refuse_older(home: Home, batch: int) -> None:
    """Raise UsageError if a query is about to write what it wrote long ago: Spark repeats the last batch at most."""
    if batch < home.committed:
        raise UsageError(
            f"this query is at batch {batch}, and has committed batch {home.committed} already: its checkpoint is an "
            "older copy; bring back the newest, or begin with a new one"
        )


def repetition(origin: Origin, query: str, batches: str) -> UsageError:
    """Return the reason to refuse a query that begins anew, if another of the same origin has written so much."""
    return UsageError(
        f"a query of the same {origin.text} has written {batches} here, and this one begins anew, as if "
        f"its checkpoint were gone: bring it back, or set `writeAgain` to {query} to write all rows again"
    )


def so_many_batches(count: int) -> str:
    return f"{count} batches" if count > 1 else "a batch"


def _refuse_repetition(stores: SinkStores, *, sink: Sink, origins: Sequence[Origin], again: str | None) -> None:
    for origin in origins:
        before = {answer.run for answer in ask_all(stores.endpoints, origin.name, stores.security).values()}
        for query in sorted(before - {"", sink.name, again}):
            batches = _batches(stores, query)
            if batches:
                raise repetition(origin, query, batches)


def _batches(stores: SinkStores, query: str) -> str:
    """Say what a query has committed, as a part of a sentence; empty for nothing."""
    answers = ask_all(stores.endpoints, query, stores.security).values()
    count = 1 + max((answer.batch for answer in answers), default=-1)
    if count:
        return so_many_batches(count)
    known = {answer.store_id for answer in answers}
    away = {answer.home for answer in answers if answer.home and answer.home not in known}
    return f"to the store {away.pop()}, which is not there," if away else ""


def _remember(stores: SinkStores, *, sink: Sink, origins: Sequence[Origin]) -> None:
    """Note it at every store that answers, before anything is written; the others hear of it with the next run."""
    for origin in origins:
        answers = ask_all(stores.endpoints, origin.name, stores.security)
        if not answers:
            raise TimedOut(f"no store answers at {stores}; start one or correct the address")
        for endpoint, answer in answers.items():
            if answer.run == sink.name:
                continue
            try:
                client_of(endpoint, stores.security).attach_sink(origin.name, sink.name, answer.store_id, True)
            except Fenced:  # a checkpoint that was brought back; the other query stays remembered
                continue
            except ChappeError as error:
                logger.warning("%s", error)
