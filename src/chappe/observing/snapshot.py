"""The snapshot contract: what a dashboard, or whoever else looks, is told of a running system.

Every value is plain, frozen and goes to JSON as it is (``to_json``). Times are microseconds since 1970 UTC, rates are
per second, None is *nobody knows*: an observer is a member among others, and guesses nothing. Names are shown as they
come from others; whoever shows them has to escape them.

A source looks at one kind of member and hands in an ``ObservedPart``; the observer (``chappe.observing.observer``)
merges parts into a ``SystemSnapshot``. Both are bounded: what is left out is counted and said.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal[
    "tower", "store", "producers", "consumers", "member", "endpoint", "original", "map server", "pipeline", "group",
    "gateway", "chain server", "witness", "this dashboard",
]  # fmt: skip
LinkKind: TypeAlias = Literal["introduces", "records", "mesh", "reads", "copies", "asks"]
Level: TypeAlias = Literal["good", "warning", "failed"]

MEMBERS_MAX: Final = 5_000  # of one source; the first ones are kept
LINKS_MAX: Final = 20_000
TOPICS_SHOWN: Final = 500  # of a snapshot, those that changed last
NAMES_MAX: Final = 50  # writers, stores and readers of one topic
PROBLEMS_MAX: Final = 200
HISTORY_MAX: Final = 1_000  # changes of statuses that are remembered
SHORT: Final = 8  # characters of an address beside a label


class ObservedMember(msgspec.Struct, frozen=True):
    """Somebody who takes part.

    Args:
        id: Unique, and the same as long as the member lives.
        kind: What it does.
        name: Its name for people.
        address: Where it is reached; empty where nobody told.
        status: One word, such as ``there``, ``silent``, ``running``.
        level: Whether that is as it should be.
        facts: More to show, as pairs of a name and a text.
        named: Whether somebody gave it its name; else that is made of its port or id.
    """

    id: str
    kind: Kind
    name: str
    address: str = ""
    status: str = "there"
    level: Level = "good"
    facts: tuple[tuple[str, str], ...] = ()
    named: bool = True


def witness(at: str) -> ObservedMember:
    """The witness of a pair, at ``[NAME@]HOST:PORT`` as its servers name it: none asks it while they see each other."""
    place = at.rpartition("@")[2]
    asked = "while the servers of a pair do not see each other: whether it answers shows only then"
    return ObservedMember(f"witness {place}", "witness", place, at, "known", facts=(("asked", asked),))


class ObservedLink(msgspec.Struct, frozen=True):
    """A connection, or who introduces whom, between two members by their ids.

    Args:
        sent: Frames, or records, that went from the first to the second since it exists; None: nobody told.
        received: The other way.
        sent_per_s: Filled in by the observer, of the last seconds.
        received_per_s: The same.
        sent_bytes: As ``sent``, in bytes; None also where frames alone are counted.
        received_bytes: The same.
        sent_bytes_per_s: Filled in by the observer, as the other rates.
        received_bytes_per_s: The same.
        waiting: Messages held back at the first, as the second takes less than is sent.
        waiting_back: The same at the second.
        tls: Whether it is encrypted; None: nobody told.
        every_s: How often its counters are looked at, in seconds; 0: at each look.
        note: Such as ``original``, ``dialled``, ``only one end tells of it``.
    """

    ends: tuple[str, str]
    kind: LinkKind
    sent: int | None = None
    received: int | None = None
    sent_per_s: float | None = None
    received_per_s: float | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None
    waiting: int = 0
    waiting_back: int = 0
    tls: bool | None = None
    every_s: float = 0.0
    note: str = ""


class ObservedReader(msgspec.Struct, frozen=True):
    """Somebody who reads a topic and tells how far: a group of consumers, or a query.

    Args:
        kind: ``group`` keeps its positions on this machine; ``consumer`` told them itself, from elsewhere.
        lag: How many records it is behind what stores have.
        position: Sum of the offsets that it has committed, over the partitions that stores have; None: nobody told.
        left_out: Partitions that it has not told of, since it has too many: those where it is behind least.
    """

    name: str
    kind: Literal["group", "consumer", "pipeline"]
    lag: int
    position: int | None = None
    left_out: int = 0


class ObservedTopic(msgspec.Struct, frozen=True):
    """A topic over all stores that answer.

    Args:
        partitions: How many there are.
        records: Kept now.
        end: Sum of the ends of all partitions: how many there ever were.
        bytes: Kept, of one copy.
        oldest: Time of the first record that is kept; 0: none is.
        newest: Time of the last one.
        writers: Its partitions by name; each belongs to one producer. At most ``NAMES_MAX``.
        names: What people call the producers of ``writers``, in their order; empty where nobody told.
        stores: Ids of the members that hold it.
        readers: Those who tell how far they are.
        retention: What stores keep of it, in words; empty: nobody told.
        live: Whether somebody listens to it live just now; None: nobody knows.
        per_s: Records a second over the last seconds; filled in by the observer.
    """

    name: str
    partitions: int
    records: int
    end: int
    bytes: int
    oldest: int = 0
    newest: int = 0
    writers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    readers: tuple[ObservedReader, ...] = ()
    retention: str = ""
    live: bool | None = None
    per_s: float = 0.0

    @property
    def lag(self) -> int:
        """The lag of the reader that is furthest behind."""
        return max((each.lag for each in self.readers), default=0)


class ObservedStore(msgspec.Struct, frozen=True):
    """A data store of the mesh, a shared map, or a chain.

    Args:
        masters: Ids of the endpoints, or servers, that decide; of a chain its head.
        copies: Ids of the endpoints that have a clone; of a map nobody tells; of a chain the others, in their order.
        entries: How many there are, where the master told; else None.
        ages: Of each of the copies for how many seconds it has not been up to date, 0 if it is; None: nobody told.
        note: How it is, where that is known.
        mend: The command that starts a master which is missed, where that is known.
    """

    kind: Literal["data store", "map", "chain"]
    name: str
    masters: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    entries: int | None = None
    note: str = ""
    ages: tuple[float | None, ...] = ()
    mend: str = ""


class ObservedLag(msgspec.Struct, frozen=True):
    """The lag of a query behind one topic: records, and about how many bytes they have at the stores.

    ``seconds`` is the age of the moment at which the topic ended where the query is now; None if unknown.
    """

    topic: str
    records: int
    seconds: float | None
    bytes: int = 0


class ObservedQuery(msgspec.Struct, frozen=True):
    """One streaming query of a pipeline after its newest batch; totals since its run began.

    Rates are in rows a second, ``state_bytes`` is Spark's own estimate. ``watermark`` is ISO 8601 in UTC, or empty.
    ``late_rows`` were left out because they came after the watermark.
    """

    name: str = msgspec.field(name="query")
    batch: int = -1
    at: str = ""
    batch_rows: int = 0
    batch_s: float = 0.0
    rows_in_s: float = 0.0
    rows_processed_s: float = 0.0
    rows: int = 0
    batches: int = 0
    late_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str = ""
    lag: tuple[ObservedLag, ...] = ()

    @property
    def lag_records(self) -> int:
        """The records behind, of all topics together."""
        return sum(each.records for each in self.lag)

    @property
    def lag_s(self) -> float | None:
        """The seconds behind in the topic that lags most; None if that is unknown for any that lags."""
        seconds = [each.seconds for each in self.lag]
        return None if None in seconds else max((each for each in seconds if each is not None), default=0.0)


class ObservedPipeline(msgspec.Struct, frozen=True):
    """A pipeline that runs on this machine, or ended there with an ``error``, and when."""

    name: str
    stage: str
    pid: int
    since: str
    updated: str
    file: str
    page: str = ""  # Spark's own page, where it tells of one
    log: str = ""
    queries: tuple[ObservedQuery, ...] = ()
    error: str = ""
    error_at: str = ""


class HealthProblem(msgspec.Struct, frozen=True):
    """A problem, in a sentence, and its remedy. ``key`` stays the same as long as it is the same problem."""

    key: str
    level: Level
    text: str
    mend: str
    since: int = 0


class StatusChange(msgspec.Struct, frozen=True):
    """A change of a status: who, and what became of it.

    ``kind`` is the member's, or ``health`` for a problem. Several visits of the same visitor are one change with the
    time of the last one: ``times`` of them, the first one ``since``.
    """

    at: int
    level: Level
    who: str
    text: str
    kind: str = ""
    times: int = 1
    since: int = 0


class ObservedPart(msgspec.Struct, frozen=True):
    """The picture of one source at one look.

    ``topics`` are those that changed since its last look, ``gone`` those that are no more; all else is whole. ``notes``
    say what was sampled or left out, in sentences; for ``waited_s`` of the look nothing was done, as somebody did not
    answer.
    """

    members: tuple[ObservedMember, ...] = ()
    links: tuple[ObservedLink, ...] = ()
    topics: tuple[ObservedTopic, ...] = ()
    gone: tuple[str, ...] = ()
    keepings: tuple[ObservedStore, ...] = ()
    pipelines: tuple[ObservedPipeline, ...] = ()
    problems: tuple[HealthProblem, ...] = ()
    notes: tuple[str, ...] = ()
    waited_s: float = 0.0


class SystemSnapshot(msgspec.Struct, frozen=True):
    """Everything at one moment.

    Args:
        at: When it was made.
        looks: How many looks of sources are in it; it only rises.
        topics: The ones that changed last, ``TOPICS_SHOWN`` at most, by name.
        topics_total: How many are known.
        history: The newest changes of statuses, newest first.
        notes: What was sampled or left out.
        awaited: Sources that have not seen all of their members yet: an empty list means nothing meanwhile.
    """

    at: int
    looks: int
    members: tuple[ObservedMember, ...]
    links: tuple[ObservedLink, ...]
    topics: tuple[ObservedTopic, ...]
    topics_total: int
    keepings: tuple[ObservedStore, ...]
    pipelines: tuple[ObservedPipeline, ...]
    problems: tuple[HealthProblem, ...]
    history: tuple[StatusChange, ...]
    notes: tuple[str, ...]
    awaited: tuple[str, ...] = ()


def readable(text: str) -> str:
    """A name from somebody else as text that any encoder takes: bytes that are not UTF-8 as ``\\x`` and two digits."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def called(label: str, address: str) -> str:
    """A member's label with the beginning of its address, or that alone if it has no label."""
    short = readable(address)[:SHORT]
    return f"{label} ({short})" if label else short


def to_json(snapshot: SystemSnapshot) -> bytes:
    """The snapshot as one line of JSON."""
    return msgspec.json.encode(snapshot, enc_hook=_refuse)


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is not part of the contract")
