"""Questions to a store and its answers: reading in bulk, request by request.

FETCH and DIRECT-RECORD go over publish/subscribe, where a slow reader loses messages; these go over a
DEALER/ROUTER pair, one bounded answer for one request, so a reader takes as fast as it can and no faster.
Used by consumers catching up, by stores healing each other, by Spark and by the command line.

A request is two frames: a request id of eight bytes, then msgpack; for STAGE a third frame, the batch. The answer
is the same id, msgpack, and for READ one further frame for each batch.

The second half is the exactly-once sink (``log.exactly_once``): rows are staged at one store, the sink's home, and
a commit makes exactly the attempts that it names visible in one step. The third part is what consumer groups
(``log.groups``) keep at stores, the fourth what administrators change of topics (``log.catalogue``).

Topics and addresses travel as bytes: an original producer's need not be UTF-8.

Source: chappe's own; the original has nothing like it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, get_args

import msgspec

from chappe.data.topic import Filter, decode_topic, encode_topic
from chappe.defaults import (
    ATTEMPTS_MAX,
    CATALOGUE_FLOORS_MAX,
    CATALOGUE_PAGE,
    CATALOGUE_SETTINGS_MAX,
    GROUP_FILTERS_MAX,
    GROUP_PAGE,
    GROUPS_MAX,
    HEADS_PAGE,
    HOLES_TOLD_MAX,
    READ_BYTES,
    SINK_NAME_MAX,
    TOPIC_BYTES_MAX,
)
from chappe.errors import ProtocolError, UsageError
from chappe.log.storage import Hole, PartitionInfo

# Of questions and answers. A reader passes over additions of a newer format at the end, and takes the default for
# fields that an older one lacks; a question of a kind that is not known is answered as UNKNOWN.
FORMAT: Final = 1

# What a message may hold; anything else does not decode.
Name = Annotated[bytes, msgspec.Meta(max_length=TOPIC_BYTES_MAX)]
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
OffsetOrNone = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=SINK_NAME_MAX)]  # a sink, a run, a store id
Attempt = tuple[Offset, Offset]  # task, attempt
Setting = bool | Number | float | Text
Settings = Annotated[dict[Text, Setting], msgspec.Meta(max_length=CATALOGUE_SETTINGS_MAX)]
Staged = tuple[Offset, Offset, Offset, Offset]  # task, attempt, pieces, rows


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Batches of one partition from ``offset`` on; the first one contains it.

    ``bare``: their offsets and timestamps are enough, as ``log.batch.bare`` has them; a store may send all the same.
    """

    topic: Name
    partition: Name
    offset: Number
    bytes_max: Number = READ_BYTES  # of what is stored
    bare: bool = False


class HeadsRequest(msgspec.Struct, frozen=True, array_like=True, tag="heads"):
    """Partitions of topics starting with ``topic_prefix`` that changed after ``since``, oldest change first.

    A store says its address and the version of its catalogue, which the one that is asked takes first.
    """

    topic_prefix: Name
    since: Number = 0
    limit: Number = HEADS_PAGE
    format: Offset = FORMAT
    store: Text = ""
    catalogue: OffsetOrNone = -1


class SeekRequest(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """The first offset whose batch ends at or after ``timestamp`` (microseconds)."""

    topic: Name
    partition: Name
    timestamp: Number


class LastRequest(msgspec.Struct, frozen=True, array_like=True, tag="last"):
    """The newest record of each key of a topic, in pages: see ``log.last_values``.

    ``table`` 0 asks for the first page; later ones say what the page before said: its table, and its place.
    """

    topic: Name
    table: Offset = 0
    part: Offset = 0
    offset: OffsetOrNone = -1


class TopicEntry(msgspec.Struct, frozen=True, array_like=True):
    """The entry of one topic in the catalogue that stores agree on.

    The settings of the later stamp count. ``deleted``: there are none, as the topic was deleted then. Records from
    before ``before`` are forgotten, batches as a whole, and those below the floors, which name partitions with records
    that were to be forgotten though they are stamped later. Of two trims the later one counts, and the larger floor.
    All times are microseconds since 1970; ``stamp`` and ``trimmed`` say when the settings and the trim were last
    changed, by a clock that never goes back; 0: never.
    """

    topic: Name
    stamp: Offset = 0
    origin: Text = ""  # the store that took the change
    deleted: bool = False
    settings: Settings = {}
    before: Offset = 0
    trimmed: Offset = 0
    floors: Annotated[list[tuple[Name, Offset]], msgspec.Meta(max_length=CATALOGUE_FLOORS_MAX)] = []


class TopicChange(msgspec.Struct, frozen=True, array_like=True, tag="topic-change"):
    """An administrator changes a topic; the answer, a TopicAnswer, comes when all of it is on the store's disk.

    ``settings`` are set, or removed where the value is None; ``create`` makes an entry even if there are none.
    ``delete`` removes all settings and forgets all records. Of ``before``, microseconds since 1970, older records are
    forgotten, batches as a whole; 0: none. Offsets go on from where they are. ``entry`` is nothing of these: it is what
    another store answered, handed on.
    """

    topic: Name
    settings: Annotated[dict[Text, Setting | None], msgspec.Meta(max_length=CATALOGUE_SETTINGS_MAX)] = {}
    create: bool = False
    delete: bool = False
    before: Offset = 0
    entry: TopicEntry | None = None


class CatalogueRequest(msgspec.Struct, frozen=True, array_like=True, tag="catalogue"):
    """Topics that changed in the catalogue of a store after ``since``, the first change in front."""

    since: Offset = 0


class FindSink(msgspec.Struct, frozen=True, array_like=True, tag="find-sink"):
    """Ask what the store knows of a sink; the answer is a SinkAnswer."""

    sink: Text


class AttachSink(msgspec.Struct, frozen=True, array_like=True, tag="attach-sink"):
    """Tell a store which store is the home of a sink; the answer, a SinkAnswer, comes when that is on disk.

    To the home itself: ``run`` becomes the current run, and every earlier one is fenced for ever. A sink that is
    not ``lasting`` may be forgotten ``defaults.SINK_FORGET_S`` after it was last used.
    """

    sink: Text
    run: Text
    home: Text
    lasting: bool


class Stage(msgspec.Struct, frozen=True, array_like=True, tag="stage"):
    """Keep a piece of an attempt's rows, the batch in the next frame, until it is committed or dropped.

    Pieces count from 0, over all topics, and come in their order; one that is there already is not kept twice. The
    answer is a StagedAnswer. Answered pieces survive the death of the store's process, not that of the machine.
    """

    sink: Text
    run: Text
    batch: Offset
    task: Offset
    attempt: Offset
    piece: Offset
    topic: Name


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """Make these attempts, each with all its pieces and rows, visible in one step: in order of their tasks.

    The answer, a CommitAnswer, comes when all of it is on disk and readable. To ask again is safe.
    """

    sink: Text
    run: Text
    batch: Offset
    attempts: Annotated[list[Staged], msgspec.Meta(max_length=ATTEMPTS_MAX)]


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """Forget the staged rows of these attempts; the answer is a StagedAnswer."""

    sink: Text
    run: Text
    batch: Offset
    attempts: Annotated[list[Attempt], msgspec.Meta(max_length=ATTEMPTS_MAX)]


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """The owner of a partition in a group, and the position; of two rows the one with the larger ``rank`` holds.

    ``epoch`` grows with every change of the owner, ``serial`` with every word of one owner. ``owner`` is one life of
    the member ``member``; both are empty where an administrator set the position. ``free``: the owner has let go.
    ``offset`` is the position, the next record to read; -1: where the group's consumers begin. ``at_us``: when it was
    committed, microseconds since 1970.
    """

    topic: Name
    partition: Name
    epoch: Offset
    owner: Text
    member: Text
    serial: Offset
    free: bool
    offset: OffsetOrNone
    at_us: Number

    @property
    def key(self) -> tuple[str, str]:
        return decode_topic(self.topic), decode_topic(self.partition)

    @property
    def rank(self) -> tuple[int, str, int]:
        return self.epoch, self.owner, self.serial


class GroupCrew(msgspec.Struct, frozen=True, array_like=True):
    """One living member of a group: its life, its lasting name, its name for people, and the topics that it wants."""

    life: Text
    member: Text
    name: Text
    topics: Annotated[list[Name], msgspec.Meta(max_length=GROUP_FILTERS_MAX)]


class GroupBeat(msgspec.Struct, frozen=True, array_like=True, tag="group-beat"):
    """A member of a group says that it lives, what it reads and how far it is, and asks what others say.

    An empty ``life`` only asks. ``born_us`` tells which of two lives of one member is the later one. ``table`` and
    ``since`` name what is known of the rows, ``crew`` what is known of the members: the answer has what is newer.
    ``claims`` are partitions that it asks for; ``rows`` what it has, has committed, or lets go of. ``leaves``: this is
    its last word. The answer, a GroupAnswer, comes when all of it is on disk.
    """

    group: Text
    life: Text = ""
    member: Text = ""
    name: Text = ""
    topics: Annotated[list[Name], msgspec.Meta(max_length=GROUP_FILTERS_MAX)] = []
    born_us: Number = 0
    session_ms: Offset = 0
    table: Text = ""
    since: Offset = 0
    crew: Offset = 0
    claims: Annotated[list[GroupRow], msgspec.Meta(max_length=GROUP_PAGE)] = []
    rows: Annotated[list[GroupRow], msgspec.Meta(max_length=GROUP_PAGE)] = []
    leaves: bool = False


class GroupSet(msgspec.Struct, frozen=True, array_like=True, tag="group-set"):
    """An administrator sets positions of a group that has no living member; the answer is a GroupAnswer.

    ``floor``: rows up to this epoch are forgotten for good, as the group is deleted; 0 forgets nothing.
    """

    group: Text
    rows: Annotated[list[GroupRow], msgspec.Meta(max_length=GROUP_PAGE)] = []
    floor: Offset = 0


class GroupList(msgspec.Struct, frozen=True, array_like=True, tag="group-list"):
    """Asks which groups a store knows; the answer is a GroupNames."""


class ReadAnswer(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """The store's range of the partition; the batches follow as frames of their own.

    ``first`` and ``next`` bound what is there; ``known`` is False if it has never seen the partition.
    ``hole_last`` >= 0: the wanted offset up to ``hole_last`` is damaged here. ``ahead``: where the answer to the same
    question for what follows will end, so that what comes after it can be asked for, too; 0: it is not known.
    """

    topic: Name
    partition: Name
    first: Offset
    next: Offset
    known: bool
    hole_last: OffsetOrNone = -1
    ahead: Offset = 0


class HeadsAnswer(msgspec.Struct, frozen=True, array_like=True, tag="heads"):
    """Partitions, and the version to ask from next; ``more`` when the limit cut the answer."""

    partitions: list[tuple[Name, Name, Offset, Offset, Offset, Number, Number, Offset]]
    version: Offset
    more: bool
    scrubbed_us: Offset = 0  # when the store had last read and checked all that it keeps, since 1970; 0: never
    refusals: list[tuple[Text, Text, Offset]] = []  # identity, verb and how often: to who may administer, if since is 0
    format: Offset = FORMAT  # of the store that answers
    retention: list[tuple[Text, float | None, int | None, int | None]] | None = None  # to whom and when as refusals:
    # pattern, age in seconds, bytes, records, in their order; None: it is not said
    name: Text = ""  # of the store, for people, if since is 0
    holes: list[tuple[Name, Name, Offset, Offset]] = []  # first and last of what the partitions lack in between
    store_id: Text = ""  # of the store that answers, which may have taken over the endpoint of another one
    catalogue: OffsetOrNone = -1  # the version of its catalogue; -1: it is too old to have one
    behind: bool = False  # it does not have the catalogue of the store that asks yet, and lists nothing

    def infos(self) -> list[PartitionInfo]:
        """The partitions as the storage port describes them. Raises ProtocolError for names that cannot be."""
        if any(not t or not p or b"\0" in t or b"\0" in p for t, p, *_ in self.partitions):
            raise ProtocolError("partition without a name, or with NUL in it")
        return [PartitionInfo(decode_topic(t), decode_topic(p), *rest) for t, p, *rest in self.partitions]


class SeekAnswer(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """The offset; -1 if the partition is unknown."""

    topic: Name
    partition: Name
    offset: OffsetOrNone


class LastAnswer(msgspec.Struct, frozen=True, array_like=True, tag="last"):
    """Records; each follows as a batch of one, and ``partitions`` says of which partition it is.

    With the first page come the ``cuts``: partition, and the offset from which on records are to be read as ever.
    ``table`` is 0 where there is none: it is being made (``busy``), or it is gone and to be asked for from the first
    page on. ``part`` and ``offset`` are the place of the last record, for the next page if there is ``more``.
    """

    topic: Name
    table: Offset
    cuts: list[tuple[Name, Offset]] = []
    partitions: list[Name] = []
    part: Offset = 0
    offset: OffsetOrNone = -1
    more: bool = False
    busy: bool = False


class TopicAnswer(msgspec.Struct, frozen=True, array_like=True, tag="topic"):
    """The change is on the disk of the store, which has forgotten so many ``records``; ``entry`` is what it has now."""

    entry: TopicEntry
    store_id: Text
    records: Offset


class CatalogueAnswer(msgspec.Struct, frozen=True, array_like=True, tag="catalogue"):
    """Changed topics; ask on from ``version`` if there are ``more``. ``serves``: it does not wait for others itself."""

    version: Offset
    more: bool
    entries: Annotated[list[TopicEntry], msgspec.Meta(max_length=CATALOGUE_PAGE)]
    store_id: Text
    serves: bool


class SinkAnswer(msgspec.Struct, frozen=True, array_like=True, tag="sink"):
    """A sink as the store ``store_id`` knows it.

    ``home`` is the id of the store that keeps its commits, "" if this one never heard of the sink. ``run`` and
    ``batch``, the last committed one (-1: none), are known to the home only.
    """

    store_id: Text
    home: Text
    run: Text
    batch: OffsetOrNone


class StagedAnswer(msgspec.Struct, frozen=True, array_like=True, tag="staged"):
    """The piece is kept, or not needed any more; or (piece -1) the attempts are dropped."""

    piece: OffsetOrNone


class CommitAnswer(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """The batch is committed. ``repeated``: it had been before, and nothing was done.

    ``ends``: topic, partition, first offset of the batch, and the offset after its last.
    """

    batch: Offset
    repeated: bool
    ends: list[tuple[Name, Name, Offset, Offset]]


class GroupAnswer(msgspec.Struct, frozen=True, array_like=True, tag="group"):
    """The rows and members of a group that are newer than the versions named in the question.

    ``table`` names the life of the store that ``since`` and ``crew`` belong to. ``members`` is None where that list is
    known already. ``refused``: places of the claims that are not granted. ``more``: ask on from ``since``.
    """

    table: Text
    since: Offset
    crew: Offset
    floor: Offset
    more: bool
    members: list[GroupCrew] | None
    rows: list[GroupRow]
    refused: list[Offset] = []


class GroupNames(msgspec.Struct, frozen=True, array_like=True, tag="group-names"):
    """Name, living members and partitions of each group."""

    groups: Annotated[list[tuple[Text, Offset, Offset]], msgspec.Meta(max_length=GROUPS_MAX)]


class ErrorAnswer(msgspec.Struct, frozen=True, array_like=True, tag="error"):
    """The store could not answer; ``text`` says why, ``kind`` what to do about it.

    Kinds: ``FENCED`` another run took over; ``MISSING`` a staged piece is not there, run the batch again; ``FULL``
    no room on the disk; ``ELSEWHERE`` this store is not the sink's home; ``UNKNOWN`` this store is too old for the
    question; ``EARLY`` it has just started and will be able to; "" anything else.
    """

    text: str
    kind: Text = ""


FENCED: Final = "fenced"
MISSING: Final = "missing"
FULL: Final = "full"
ELSEWHERE: Final = "elsewhere"
UNKNOWN: Final = "unknown"
EARLY: Final = "early"

SinkRequest: TypeAlias = FindSink | AttachSink | Stage | Commit | Drop
GroupRequest: TypeAlias = GroupBeat | GroupSet | GroupList
TopicRequest: TypeAlias = TopicChange | CatalogueRequest
Request: TypeAlias = ReadRequest | HeadsRequest | SeekRequest | LastRequest | TopicRequest | SinkRequest | GroupRequest
SinkReply: TypeAlias = SinkAnswer | StagedAnswer | CommitAnswer | ErrorAnswer
Answer: TypeAlias = (
    ReadAnswer
    | HeadsAnswer
    | SeekAnswer
    | LastAnswer
    | TopicAnswer
    | CatalogueAnswer
    | SinkAnswer
    | StagedAnswer
    | CommitAnswer
    | GroupAnswer
    | GroupNames
    | ErrorAnswer
)

KINDS: Final = frozenset(str(each.__struct_config__.tag) for each in get_args(Request))
_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)


@dataclass(frozen=True, slots=True)
class QueryReply:
    """The answer to one request, and the batches that go with it; what ``core.Reply`` carries."""

    request_id: bytes
    answer: Answer
    batches: tuple[bytes, ...] = ()


_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def encode_query(message: Request | Answer) -> bytes:
    return _encoder.encode(message)


def decode_request(raw: bytes) -> Request:
    """Raises ProtocolError if the bytes are not a request."""
    try:
        return _requests.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a request: {error}") from error


def unknown_kind(raw: bytes) -> ErrorAnswer | None:
    """Return the answer to a question of a kind that only newer stores know; None if the bytes are not a question."""
    try:
        found = msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, list) or not found or not isinstance(found[0], str) or found[0] in KINDS:
        return None
    text = f"it answers questions of format {FORMAT}, and {found[0][:40]!r} is not one of them: upgrade this store"
    return ErrorAnswer(text, UNKNOWN)


def decode_answer(raw: bytes) -> Answer:
    """Raises ProtocolError if the bytes are not an answer."""
    try:
        return _answers.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not an answer: {error}") from error


def filters_of(topics: Sequence[bytes]) -> list[Filter]:
    """The topics that a member of a group wants. Raises ProtocolError for names that cannot be."""
    try:
        return [Filter.parse(decode_topic(each)) for each in topics]
    except UsageError as error:
        raise ProtocolError(str(error)) from None


def heads_answer(
    infos: Sequence[PartitionInfo],
    since: int,
    limit: int,
    version: int,
    scrubbed_us: int = 0,
    holes: Sequence[Hole] = (),
    store_id: str = "",
    catalogue: int = -1,
) -> HeadsAnswer:
    """Return the answer for ``infos``, which the storage cut at ``limit``; ``scrubbed_us`` as in the storage port.

    It names ``holes`` of the partitions, bounded: beyond ``HOLES_TOLD_MAX`` of one, all the rest of it is one.
    """
    more = len(infos) >= limit
    rows: list[tuple[bytes, bytes, int, int, int, int, int, int]] = []
    for i in infos:
        known = i.first, i.next, i.bytes, i.timestamp_min, i.timestamp_max, i.version
        rows.append((encode_topic(i.topic), encode_topic(i.partition), *known))
    known_to = rows[-1][-1] if more and rows else max(version, since)
    return HeadsAnswer(
        rows,
        known_to,
        more,
        scrubbed_us,
        format=FORMAT,
        holes=_told(infos, holes),
        store_id=store_id,
        catalogue=catalogue,
    )


def _told(infos: Sequence[PartitionInfo], holes: Sequence[Hole]) -> list[tuple[bytes, bytes, int, int]]:
    if not holes:
        return []
    lacking: dict[tuple[str, str], list[tuple[int, int]]] = {(each.topic, each.partition): [] for each in infos}
    for hole in holes:
        known = lacking.get((hole.topic, hole.partition))
        if known is not None:
            known.append((hole.first, hole.last))
    found: list[tuple[bytes, bytes, int, int]] = []
    for info in infos:
        known = sorted(lacking[info.topic, info.partition])
        if len(known) > HOLES_TOLD_MAX:
            known = [*known[: HOLES_TOLD_MAX - 1], (known[HOLES_TOLD_MAX - 1][0], info.next - 1)]
        names = encode_topic(info.topic), encode_topic(info.partition)
        found += [(*names, first, last) for first, last in known]
    return found
