"""Events that the log's cores report to the application: each is one sentence when printed."""

from __future__ import annotations

from dataclasses import dataclass

from chappe.data.topic import shown


@dataclass(frozen=True, slots=True)
class TowerLost:
    """No tower has echoed our beacons for a while; members known so far stay connected."""

    def __str__(self) -> str:
        return "no tower answers; members known so far stay connected, new ones cannot be found; still trying"


@dataclass(frozen=True, slots=True)
class TowerFound:
    """A tower echoes our beacons (again)."""

    def __str__(self) -> str:
        return "connected to a tower"


@dataclass(frozen=True, slots=True)
class ForwarderLost:
    """A forwarder has not been heard for a while; others go on without it."""

    at: str

    def __str__(self) -> str:
        return f"no forwarder answers at {self.at}; still trying"


@dataclass(frozen=True, slots=True)
class ForwarderFound:
    """A forwarder is heard (again)."""

    at: str

    def __str__(self) -> str:
        return f"connected to the forwarder at {self.at}"


@dataclass(frozen=True, slots=True)
class IdentityClash:
    """Another living member uses our address; ``identity`` is the name under which we go on, where that is known."""

    address: str
    endpoint: str
    identity: str = ""

    def __str__(self) -> str:
        partition = shown(self.address)
        named = f"{self.identity} (partition {partition[:8]})" if self.identity else partition
        return f"another producer with the identity {named} is alive at {self.endpoint}"


@dataclass(frozen=True, slots=True)
class IdentityBehind:
    """Others know offsets that our journal lacks; they may have dropped ``sent`` records published before we knew."""

    topic: str
    partition: str
    next: int
    held: int
    sent: int = 0

    def __str__(self) -> str:
        sent = f"; {self.sent} records sent before this was known may be lost" if self.sent else ""
        return (
            f"others know partition {shown(self.partition)} of topic {self.topic!r} up to offset {self.held - 1}, and "
            f"this identity knows of {self.next} records only: it was restored from an old copy, or another copy of it "
            "is in use. What it sends would be taken for a repeat, so nothing is sent: go on with a new identity, "
            f"or with the newest copy of this one{sent}"
        )


@dataclass(frozen=True, slots=True)
class OffsetsEvent:
    """Something happened to offsets ``first``..``last`` of a partition."""

    topic: str
    partition: str
    first: int
    last: int

    def _told(self, what: str) -> str:
        of = f"of topic {self.topic!r}, partition {shown(self.partition)}"
        return f"records {self.first} to {self.last} {of}{what}"


@dataclass(frozen=True, slots=True)
class RecordsMissing(OffsetsEvent):
    """They cannot be had at the moment; everybody is asked until they are lost, or here."""

    def __str__(self) -> str:
        return self._told(", cannot be read at the moment; stores and producer are asked again")


@dataclass(frozen=True, slots=True)
class RecordsUnconfirmed(OffsetsEvent):
    """A store has them on disk, but fewer than ``min_acks`` do: they come when enough have."""

    min_acks: int

    def __str__(self) -> str:
        return self._told(f", wait until {self.min_acks} stores have them on disk; start as many, or ask for fewer")


@dataclass(frozen=True, slots=True)
class RecordsLost(OffsetsEvent):
    """They could not be had from anyone and were skipped."""

    reason: str

    def __str__(self) -> str:
        return self._told(f", are lost: {self.reason}")


@dataclass(frozen=True, slots=True)
class JournalDamaged(OffsetsEvent):
    """These offsets are damaged in the journal of a producer with an identity; all other records in it are sent."""

    def __str__(self) -> str:
        return self._told(
            " are damaged in the journal of this identity: those that no store has are lost; restore the journal from "
            "a backup, if there is one that has them and nothing new was sent since"
        )


@dataclass(frozen=True, slots=True)
class LastValuesRefused:
    """No store tells the newest record of each key of a topic: all of it is read instead."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} is read from its beginning instead of the newest record of each key: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class NoLastValues:
    """A topic has records, and none of them is the newest of a key: only new records are read."""

    topic: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no newest record per key: its records have no keys, or all keys were deleted; "
            "only new records are read, so begin with the earliest to read all of them"
        )


@dataclass(frozen=True, slots=True)
class DamageFound(OffsetsEvent):
    """They are damaged on disk; they are fetched from another store if one has them."""

    reason: str

    def __str__(self) -> str:
        return self._told(f", are damaged on disk ({self.reason})")


@dataclass(frozen=True, slots=True)
class DamageHealed(OffsetsEvent):
    """They were damaged, and were fetched again from another store."""

    def __str__(self) -> str:
        return self._told(", are whole again")


@dataclass(frozen=True, slots=True)
class PartitionsLeftOut:
    """A store lists more partitions than a consumer takes from one: it reads only those that it knows. Told once."""

    store: str
    partitions_max: int

    def __str__(self) -> str:
        return (
            f"the store {shown(self.store)} lists more than {self.partitions_max:,} partitions, and no more are "
            "read: subscribe to fewer topics, or let retention remove old ones"
        )


@dataclass(frozen=True, slots=True)
class TopicAbsent:
    """No store lists a wanted topic, and nobody publishes to it; ``similar``: topics of nearly that name.

    Told once for each topic that is wanted by its whole name, a second after a store has listed what it has.
    """

    topic: str
    similar: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.similar))
        others = f"; {names} {'is' if len(self.similar) == 1 else 'are'} there" if names else ""
        return f"nobody has a topic {self.topic!r} yet{others}; still waiting for it"


@dataclass(frozen=True, slots=True)
class PositionBeyondEnd:
    """A committed position is beyond ``end``, the end of its partition at all stores; its producer is absent.

    Reported once. The position is not committed again.
    """

    topic: str
    partition: str
    position: int
    end: int

    def __str__(self) -> str:
        return (
            f"the committed position {self.position} of topic {self.topic!r}, partition {shown(self.partition)}, is "
            f"beyond its end at all stores, {self.end}: its producer died with what was not stored, or the position or "
            "a store was replaced; seek() goes to where it is to be read from"
        )


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The wanted offset is not within ``first``..``next``; ``strict`` if the user named it."""

    topic: str
    partition: str
    offset: int
    first: int
    next: int
    strict: bool = False

    def __str__(self) -> str:
        return (
            f"offset {self.offset} of topic {self.topic!r}, partition {shown(self.partition)}, is out of range: "
            f"offsets {self.first} to {self.next - 1} are there"
        )


@dataclass(frozen=True, slots=True)
class WritesRefused:
    """The disk refuses writes; nothing is acknowledged until it takes them again."""

    reason: str

    def __str__(self) -> str:
        return f"writes are refused, nothing acknowledged is lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class WritesResumed:
    """The disk takes writes again."""

    def __str__(self) -> str:
        return "writes are accepted again"


@dataclass(frozen=True, slots=True)
class MachineRefused:
    """The machine refuses something, such as a further file: the work is not done, and is tried again."""

    reason: str

    def __str__(self) -> str:
        return f"the machine refuses what the member needs, and is asked again: {self.reason}"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The member met a defect and does nothing more; every call raises ``MemberStopped``."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class ScrubEnded:
    """A store has read and checked everything that it keeps: so many bytes in so many seconds."""

    bytes: int
    took_s: float

    def __str__(self) -> str:
        return f"everything kept was read and checked: {self.bytes / 1_000_000:,.1f} MB in {self.took_s:,.0f} s"


@dataclass(frozen=True, slots=True)
class RecordsTooOld:
    """Records older than ``max_age_s`` were dropped: ``count``, the oldest ``age_s`` old. Once a second at most."""

    count: int
    age_s: float
    max_age_s: float

    def __str__(self) -> str:
        return (
            f"dropped {self.count} records that were older than {self.max_age_s:g} s when they were taken, the oldest "
            f"{self.age_s:.1f} s: this consumer is too slow"
        )


@dataclass(frozen=True, slots=True)
class RecordsRefused:
    """Records were left out: sealed ones that could not be opened, or values that a codec did not decode.

    It is told at most once a second.

    These are the last of ``count`` since the event before.
    """

    topic: str
    partition: str
    first: int
    last: int
    count: int
    reason: str

    def __str__(self) -> str:
        return (
            f"refused records {self.first} to {self.last} of topic {self.topic!r}, partition {self.partition}: "
            f"{self.reason}; {self.count} refused since this was told last"
        )


@dataclass(frozen=True, slots=True)
class ConnectionRefused:
    """A connection that was dialled is refused for want of the right keys; it is tried again."""

    endpoint: str
    reason: str

    def __str__(self) -> str:
        return f"no connection to {self.endpoint}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PermissionsChanged:
    """Another version of the permissions is in force, or somebody has expired by them."""

    version: int

    def __str__(self) -> str:
        return f"version {self.version} of the permissions is in force"


@dataclass(frozen=True, slots=True)
class QueryDenied:
    """A store does not answer what we ask, as its permissions do not let us know it."""

    endpoint: str
    reason: str

    def __str__(self) -> str:
        return f"the store at {self.endpoint} refuses: {self.reason}"


@dataclass(frozen=True, slots=True)
class ClockAhead:
    """Another store has changes of topics that are stamped ahead of this store's clock; they are not taken yet."""

    store_id: str

    def __str__(self) -> str:
        return (
            f"store {self.store_id} has changes of topics that are stamped ahead of this store's clock, and they are "
            "not taken yet: correct the clock here or there"
        )


@dataclass(frozen=True, slots=True)
class StoreAway:
    """This store was away for longer than deletions are remembered; it serves once another store answers."""

    away_s: float
    kept_s: float

    def __str__(self) -> str:
        return (
            f"this store was away for {self.away_s / 86400:,.1f} days, longer than deletions are remembered "
            f"({self.kept_s / 86400:,.1f} days): it serves once another store answers; start one, or start this one "
            "with a larger --keep-deletions"
        )


@dataclass(frozen=True, slots=True)
class GroupMoved:
    """Partitions of a consumer group are to change hands: for the consumer itself, not for its program."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupRefused:
    """A store does not take what a member of a group says."""

    group: str
    endpoint: str
    reason: str

    def __str__(self) -> str:
        return f"the store at {self.endpoint} keeps nothing of group {shown(self.group)}: {self.reason}"
