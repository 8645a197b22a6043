"""The rights of each member: asked for everything that comes over a connection with keys, before a core sees it.

The sockets tell a guard who is at the other end: the identity that was let in, or the one whose key was
dialled. It never believes what a message says of its sender.

===================================  ==========================================================================
records, heads                       who hands them on may ``produce`` the topic, or to a consumer ``store`` it; those
                                     of an ordered partition come from stores of its chain: he may ``store`` it
FETCH                                who asks may ``consume`` or ``store`` the topic, and is whom the answer goes to
acknowledgements, and what is on     who sends them may ``store`` the topic
a store's disk
a subscription to records            to what of it who subscribes may ``consume`` or ``store``, and to nothing else
a subscription to what is meant      of one identity at a time, so that nobody hears what another one asked for
for one address
what stores say of themselves        who says it may ``store`` something
what a clock shows                   who asks may ``consume`` or ``store`` something; who says it may ``produce`` or
                                     ``store`` something
what passes                          who asks may ``administer`` all topics; who tells may do anything in the log
beacons                              who sends one names itself, and may do something in the log; who claims the
                                     identity of a producer may ``produce`` something
===================================  ==========================================================================

``asks`` has the rights for queries. Without keys there is no guard, and nothing is asked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from chappe.data.topic import Filter, decode_topic, encode_topic, shown
from chappe.log.messages import (
    Ack,
    AskClock,
    AskTraffic,
    BatchMessage,
    ClockTold,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    OnDisk,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
    TrafficTold,
)
from chappe.log.ordered.machine import is_ordered
from chappe.log.queries import (
    Answer,
    CatalogueAnswer,
    CatalogueRequest,
    ErrorAnswer,
    GroupAnswer,
    GroupBeat,
    GroupList,
    GroupRequest,
    GroupSet,
    HeadsAnswer,
    HeadsRequest,
    LastAnswer,
    LastRequest,
    ReadAnswer,
    ReadRequest,
    Request,
    SeekAnswer,
    SeekRequest,
    Stage,
    TopicAnswer,
    TopicChange,
    filters_of,
)
from chappe.permissions.rules import ADMINISTER, AND, CONSUME, PRODUCE, STORE, Decisions, Verbs

DENIED: Final = "denied"  # the kind of an ErrorAnswer: asking again changes nothing
READERS: Final[Verbs] = (CONSUME, STORE)
LISTERS: Final[Verbs] = (CONSUME, STORE, PRODUCE, ADMINISTER)  # who may know that a topic is there, and how far it goes
STORES: Final[Verbs] = (STORE,)
PRODUCERS: Final[Verbs] = (PRODUCE,)
ADMINISTRATORS: Final[Verbs] = (ADMINISTER,)
ANNOUNCE: Final = "announce"  # what a beacon does; every identity may, for itself
GIVERS: Final[Verbs] = (PRODUCE, STORE)  # from whom a consumer takes records
# Of the version up to which somebody knows what a store has: its own bits, which begin with microseconds since 1970,
# and above them the sum of two numbers that change with the rules of the store and with those of who asks. What was
# left out by former rules is asked for again.
VERSION_BITS: Final = 52
RULES_BITS: Final = 11


@dataclass(frozen=True, slots=True)
class LogRefusal:
    """An identity may not do something; ``topic`` is a prefix if ``prefix``, and empty if none is named."""

    who: str
    verb: str
    topic: str
    why: str
    prefix: bool = False

    def __str__(self) -> str:
        what = f" {shown(self.topic)!r}" if self.topic else ""
        if self.prefix:
            what = f" all topics that begin with{what}" if self.topic else " all topics"
        return f"{self.who} may not {self.verb}{what}: {self.why}"


class Guard:
    """Judges messages to one member. ``takes``: peers need one of these rights to hand us records."""

    def __init__(
        self, decisions: Callable[[], Decisions], refused: Callable[[LogRefusal], None], takes: Verbs = GIVERS
    ) -> None:
        self._decisions = decisions
        self._refused = refused
        self._takes = takes
        self._judged_by: Decisions | None = None
        self._changes = 0  # of what is decided, as far as it was seen
        self._boxes: dict[bytes, list[str]] = {}  # what is meant for one address: who listens, once for each time
        self._sorted: list[bytes] = []  # these

    # -- beacons --------------------------------------------------------------------------------------

    def announces(self, who: str, named: str, verbs: Verbs) -> bool:
        """True if a beacon of ``who`` names itself and has one of these rights for some topic."""
        if named != who:
            self._refused(LogRefusal(who, ANNOUNCE, "", f"its beacon names {named or 'nobody'}"))
            return False
        return self._may_somewhere(who, verbs)

    def may_announce(self, who: str, verbs: Verbs) -> bool:
        """True if an identity named by a tower has one of these rights for some topic; refusals are not reported."""
        return bool(who) and self._decisions().may_somewhere(who, verbs)

    # -- messages -------------------------------------------------------------------------------------

    def message(self, who: str, message: Message) -> Message | None:
        """Return the part of a message that its sender may say: all of it as a rule, or nothing."""
        match message:
            case BatchMessage() | RecordMessage() | Head():
                takes = STORES if is_ordered(message.address) else self._takes  # a store publishes for its chain
                return message if self._may(who, takes, message.subject) else None
            case Fetch(_, requester, subject):
                return message if self._may(who, READERS, subject) and self._answers_to(who, requester) else None
            case Stored() | Ack():
                return message if self._may(who, STORES, message.subject) else None
            case OnDisk():
                return message if self._may(who, STORES, message.topic) else None
            case GetHeads(prefix):
                return message if self._may_all(who, prefix) else None
            case ConsumerHello(_, _, subjects):
                wanted = tuple(each for each in subjects if self._may_all(who, each))
                return message if wanted == subjects else replace(message, subjects=wanted)
            case StoreHello() | StoreInfo():
                return message if self._may_somewhere(who, STORES) else None
            case AskClock(_, requester):
                return message if self._may_somewhere(who, READERS) and self._answers_to(who, requester) else None
            case ClockTold():
                return message if self._may_somewhere(who, GIVERS) else None
            case AskTraffic():  # a dashboard asks everybody, so that it is not told is no refusal
                return message if self.administers(who) else None
            case TrafficTold():
                return message if self._decisions().may_somewhere(who, (*READERS, *GIVERS)) else None

    def _may(self, who: str, verbs: Verbs, topic: str) -> bool:
        if self._decisions().may(who, verbs, topic):
            return True
        self._tell(who, verbs[0], topic)
        return False

    def _may_all(self, who: str, prefix: str) -> bool:
        """Return True if a member may have a whole prefix; one that may have some of it gets these, unrefused."""
        scopes = self._decisions().scopes(who, READERS, prefix)
        if not scopes:
            self._tell(who, CONSUME, prefix, prefix=True)
        return scopes == ((prefix, False),)

    def _may_somewhere(self, who: str, verbs: Verbs) -> bool:
        if self._decisions().may_somewhere(who, verbs):
            return True
        self._tell(who, verbs[0], "")
        return False

    def _answers_to(self, who: str, requester: str) -> bool:
        """Return True if nobody else hears what is meant for this address."""
        raw = encode_topic(requester)
        for kind in (b"S", b"D"):
            listening = self._boxes.get(kind + raw)
            if listening and who not in listening[0].split(AND):
                self._refused(LogRefusal(who, CONSUME, "", f"it asks in the name of {listening[0]}"))
                return False
        return True

    def _tell(self, who: str, verb: str, topic: str, *, prefix: bool = False) -> None:
        why = self._decisions().why_not(who, verb, topic) if topic and not prefix else "no rule allows it"
        self._refused(LogRefusal(who, verb, topic, why, prefix))

    # -- subscriptions --------------------------------------------------------------------------------

    def scope(self, who: str, prefix: bytes) -> list[bytes]:
        """Return the prefixes to which a member's subscription is narrowed; none if it is not honoured."""
        kind, rest = prefix[:1], prefix[1:]
        decisions = self._decisions()
        if b"\0" in rest:
            return []
        match kind:
            case b"M" | b"R" | b"H" | b"J":
                scopes = decisions.scopes(who, READERS, decode_topic(rest))
                return [kind + encode_topic(text) + (b"\0" if exact else b"") for text, exact in scopes]
            case b"S" | b"D" | b"E" | b"A" | b"K" | b"L" | b"C" | b"Q" | b"U":
                return [prefix] if rest else []
            case b"G" if rest:
                return [prefix + b"\0"] if decisions.may(who, GIVERS, decode_topic(rest)) else []
            case b"W" | b"G":
                return [prefix] if decisions.may_somewhere(who, STORES) else []
            case b"F" | b"T":
                return [prefix] if decisions.may_somewhere(who, GIVERS if rest else STORES) else []
            case b"I":
                return [prefix]
            case b"V" | b"P":  # permissions that are handed on, which the sockets see to
                return [] if rest else [prefix]
            case b"N":  # keys of groups, likewise
                return [prefix]
        return []

    def subscribed(self, who: str, prefix: bytes) -> list[bytes]:
        """Return ``scope``; refuse if nothing is left, or another member listens to messages for one address."""
        scope = self.scope(who, prefix)
        kind, rest = prefix[:1], prefix[1:]
        if not scope:
            records = kind in (b"M", b"R", b"H", b"J")
            asked = kind == b"G" and rest != b""  # by a producer, for the end of its partition
            verb = CONSUME if records or kind in (b"S", b"D", b"E") else PRODUCE if asked else STORE
            self._tell(who, verb, decode_topic(rest) if records or asked else "", prefix=records)
        elif kind in b"SDEAKLCQU" and not self._claim(who, prefix):
            self._refused(LogRefusal(who, CONSUME, "", "it listens to what is meant for somebody else"))
            return []
        return scope

    def unsubscribed(self, prefix: bytes) -> None:
        listening = self._boxes.get(prefix)
        if listening:
            listening.pop()
            if not listening:
                del self._boxes[prefix]
                del self._sorted[bisect_left(self._sorted, prefix)]

    def _claim(self, who: str, prefix: bytes) -> bool:
        """Return True if nobody else listens to this address, or to one that begins so, or that it begins with."""
        listening = self._boxes.get(prefix)
        if listening:
            if listening[0] != who:
                return False
            listening.append(who)
            return True
        for end in range(2, len(prefix)):
            shorter = self._boxes.get(prefix[:end])
            if shorter and shorter[0] != who:
                return False
        for at in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[at].startswith(prefix):
                break
            if self._boxes[self._sorted[at]][0] != who:
                return False
        self._boxes[prefix] = [who]
        insort(self._sorted, prefix)
        return True

    # -- queries --------------------------------------------------------------------------------------

    def asks(self, who: str, request: Request) -> ErrorAnswer | None:
        """Return the refusal of a query to a store; None if the member may ask."""
        decisions = self._decisions()
        match request:
            case ReadRequest() | SeekRequest() | LastRequest():
                verbs, topic = READERS, decode_topic(request.topic)
                allowed = decisions.may(who, verbs, topic)
            case HeadsRequest():
                verbs, topic = READERS, decode_topic(request.topic_prefix)
                allowed = bool(decisions.scopes(who, LISTERS, topic))
            case TopicChange():
                verbs, topic = ADMINISTRATORS, decode_topic(request.topic)
                same = request.entry is None or request.entry.topic == request.topic
                allowed = same and decisions.may(who, verbs, topic)
            case CatalogueRequest():
                verbs, topic = LISTERS, ""
                allowed = decisions.may_somewhere(who, verbs)
            case GroupBeat() | GroupSet() | GroupList():
                verbs, topic = self._of_group(who, request)
                allowed = not verbs
                verbs = verbs or LISTERS
            case Stage():
                verbs, topic = PRODUCERS, decode_topic(request.topic)
                allowed = decisions.may(who, verbs, topic)
            case _:  # sinks are not topics: who may write something may have one
                verbs, topic = PRODUCERS, ""
                allowed = decisions.may_somewhere(who, verbs)
        if allowed:
            return None
        prefix = isinstance(request, HeadsRequest)
        why = decisions.why_not(who, verbs[0], topic) if topic and not prefix else "no rule allows it"
        refusal = LogRefusal(who, verbs[0], topic, why, prefix)
        self._refused(refusal)
        return ErrorAnswer(str(refusal), DENIED)

    def _of_group(self, who: str, request: GroupRequest) -> tuple[Verbs, str]:
        """Return the verbs that a question about groups needs and its sender lacks, with the topic; none if allowed.

        An identity that may consume topics may be in any group of theirs.
        """
        decisions = self._decisions()
        if isinstance(request, GroupList) or (isinstance(request, GroupBeat) and not request.life):
            return (() if decisions.may_somewhere(who, LISTERS) else LISTERS), ""
        rows = request.rows if isinstance(request, GroupSet) else (*request.rows, *request.claims)
        verbs = ADMINISTRATORS if isinstance(request, GroupSet) else READERS
        for topic in {decode_topic(row.topic) for row in rows}:
            if not decisions.may(who, verbs, topic):
                return verbs, topic
        if isinstance(request, GroupSet):
            whole = not request.floor or decisions.may_all(who, ADMINISTRATORS, "")
            return (() if whole else ADMINISTRATORS), ""
        for each in filters_of(request.topics):
            if not _may_filter(decisions, who, verbs, each):
                return verbs, each.name
        return (), ""

    def asked(self, request: Request) -> Request:
        """Return the request to pass to a store: answers that the member got under other rules do not count."""
        if not isinstance(request, HeadsRequest | CatalogueRequest):
            return request
        since = _shifted(request.since, -self._rules())
        return msgspec.structs.replace(request, since=0 if since >> VERSION_BITS else since)

    def told(self, who: str, answer: Answer) -> Answer:
        """Return the part of a store's answer that a member may know, whoever asked."""
        if isinstance(answer, GroupAnswer):
            return self._positions(who, LISTERS, answer)
        if isinstance(answer, CatalogueAnswer):
            return self._catalogue(who, LISTERS, answer)
        return self._listed(who, LISTERS, answer) if isinstance(answer, HeadsAnswer) else answer

    def administers(self, who: str) -> bool:
        """Return True if somebody may know what others were refused."""
        return self._decisions().may_all(who, ADMINISTRATORS, "")

    def answered(self, who: str, answer: Answer) -> Answer:
        """Return the part of a store's answer that is believed: topics that it may ``store``."""
        match answer:
            case HeadsAnswer():
                return self._listed(who, STORES, answer)
            case GroupAnswer():
                return self._positions(who, STORES, answer)
            case CatalogueAnswer():
                return self._catalogue(who, STORES, answer)
            case TopicAnswer():
                if not self._may(who, STORES, decode_topic(answer.entry.topic)):
                    return ErrorAnswer(f"{who} may not store this topic", DENIED)
            case ReadAnswer() | LastAnswer() | SeekAnswer():
                if not self._may(who, STORES, decode_topic(answer.topic)):
                    return ErrorAnswer(f"{who} may not store this topic", DENIED)
        return answer

    def asking(self, who: str, request: Request) -> Request | None:
        """Return the request to put to a store; None if the store may not know of it."""
        if isinstance(request, ReadRequest | SeekRequest | LastRequest | TopicChange):
            return request if self._may(who, STORES, decode_topic(request.topic)) else None
        if isinstance(request, GroupBeat):
            decisions = self._decisions()
            return (
                request
                if all(_may_filter(decisions, who, STORES, each) for each in filters_of(request.topics))
                else None
            )
        if not isinstance(request, HeadsRequest | CatalogueRequest) or not request.since:
            return request
        return msgspec.structs.replace(request, since=_shifted(request.since, -self._rules()))

    def _positions(self, who: str, verbs: Verbs, answer: GroupAnswer) -> GroupAnswer:
        may = self._decisions().may
        rows = [each for each in answer.rows if may(who, verbs, decode_topic(each.topic))]
        return msgspec.structs.replace(answer, rows=rows)

    def _listed(self, who: str, verbs: Verbs, answer: HeadsAnswer) -> HeadsAnswer:
        may = self._decisions().may
        kept = [each for each in answer.partitions if may(who, verbs, decode_topic(each[0]))]
        holes = [each for each in answer.holes if may(who, verbs, decode_topic(each[0]))]
        catalogue = answer.catalogue if answer.catalogue < 0 else _shifted(answer.catalogue, self._rules())
        version = _shifted(answer.version, self._rules())
        return msgspec.structs.replace(answer, partitions=kept, holes=holes, version=version, catalogue=catalogue)

    def _catalogue(self, who: str, verbs: Verbs, answer: CatalogueAnswer) -> CatalogueAnswer:
        may = self._decisions().may
        kept = [each for each in answer.entries if may(who, verbs, decode_topic(each.topic))]
        return msgspec.structs.replace(answer, entries=kept, version=_shifted(answer.version, self._rules()))

    def _rules(self) -> int:
        """Return a number that grows when the rules change, also while nobody runs here."""
        decisions = self._decisions()
        if decisions is not self._judged_by:
            self._judged_by, self._changes = decisions, max(self._changes + 1, decisions.serial)
        return self._changes


def _shifted(version: int, rules: int) -> int:
    """Return a version of which the rules' number is so much higher."""
    found = ((version >> VERSION_BITS) + rules) & ((1 << RULES_BITS) - 1)
    return found << VERSION_BITS | version & ((1 << VERSION_BITS) - 1)


def _may_filter(decisions: Decisions, who: str, verbs: Verbs, wanted: Filter) -> bool:
    """True if somebody may do one of these with all topics that a member of a group wants."""
    return decisions.may_all(who, verbs, wanted.name) if wanted.prefix else decisions.may(who, verbs, wanted.name)
