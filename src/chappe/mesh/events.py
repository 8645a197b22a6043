"""Events about an endpoint's peers, which the application gets in the order in which they happened.

Statuses have the numbers of Broker's status codes. Failures come as the errors themselves (``PeeringError`` and those
under it in ``chappe.errors``), which have the numbers of its error codes. The text of each is a sentence for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from chappe.errors import Address


@dataclass(frozen=True, slots=True)
class Status:
    """A change of the endpoint with ``peer_id``; ``code`` is Broker's number for it."""

    code: ClassVar[int] = 0
    _text: ClassVar[str] = ""

    peer_id: bytes

    @property
    def id(self) -> str:
        return str(UUID(bytes=self.peer_id))

    def __str__(self) -> str:
        return f"{self._text} {self.id}"


@dataclass(frozen=True, slots=True)
class LinkStatus(Status):
    """A status of a direct peer. ``address`` is what was dialled, or where it dialled from; ``reason`` may be empty."""

    address: Address
    reason: str = ""

    def __str__(self) -> str:
        host, port = self.address
        why = f": {self.reason}" if self.reason else ""
        return f"{self._text} {self.id} at {host}:{port}{why}"


@dataclass(frozen=True, slots=True)
class PeerAdded(LinkStatus):
    """A handshake succeeded; messages of the peer follow."""

    code: ClassVar[int] = 1
    _text: ClassVar[str] = "peered with"


@dataclass(frozen=True, slots=True)
class PeerRefused(LinkStatus):
    """Somebody with a valid certificate may not take part by the permissions, or stated an id that is in the mesh with
    another key; told once for each key and reason."""

    _text: ClassVar[str] = "refused to peer with"


@dataclass(frozen=True, slots=True)
class RefusedByPeer(LinkStatus):
    """A peer that dialled us refuses us and says why; told once for each reason."""

    _text: ClassVar[str] = "was refused by"


@dataclass(frozen=True, slots=True)
class LinkEnded(LinkStatus):
    """A peering is over.

    ``lost``: messages that waited for the peer and are thrown away. ``unconfirmed``: messages that were sent, of which
    it is not known whether the peer got them.
    """

    lost: int = 0
    unconfirmed: int = 0

    def __str__(self) -> str:
        told = LinkStatus.__str__(self)
        if self.lost:
            told += f"; {self.lost} messages that waited for it are lost"
        if self.unconfirmed:
            told += f"; the last {self.unconfirmed} that were sent may not have arrived"
        return told


@dataclass(frozen=True, slots=True)
class PeerRemoved(LinkEnded):
    """We ended the peering: by ``unpeer``, or because the peer took less than was sent. Nothing of it follows."""

    code: ClassVar[int] = 2
    _text: ClassVar[str] = "removed the peering with"


@dataclass(frozen=True, slots=True)
class PeerLost(LinkEnded):
    """The connection broke, the peer closed it, or was silent for too long. Nothing of it follows.

    ``left``: the peer said goodbye, and had everything that was sent to it before we answered.
    """

    code: ClassVar[int] = 3
    _text: ClassVar[str] = "lost the peering with"

    left: bool = False


@dataclass(frozen=True, slots=True)
class EndpointDiscovered(Status):
    """There is a path to the endpoint, directly or through others. Comes before ``PeerAdded``."""

    code: ClassVar[int] = 4
    _text: ClassVar[str] = "discovered endpoint"


@dataclass(frozen=True, slots=True)
class EndpointUnreachable(Status):
    """The last path to the endpoint is gone."""

    code: ClassVar[int] = 5
    _text: ClassVar[str] = "no path is left to endpoint"


@dataclass(frozen=True, slots=True)
class PeerBlocked(Status):
    """Messages came back through an original: nothing passes between us and it for ``seconds``, to cut the loop."""

    seconds: float
    _text: ClassVar[str] = "messages run in a loop through"

    def __str__(self) -> str:
        return f"{self._text} {self.id}: nothing passes to or from it for {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class DefectContained:
    """Something that came over a connection brought a defect of ours to light; the connection was closed.

    ``frames`` is the beginning of what was being handled. Please report it.
    """

    address: Address
    error: Exception
    frames: bytes

    def __str__(self) -> str:
        host, port = self.address
        return (
            f"a defect was met in what came from {host}:{port}, whose connection was closed: {self.error!r};"
            f" it began with {self.frames.hex()}"
        )


@dataclass(frozen=True, slots=True)
class HookFailed:
    """A hook of this endpoint raised, or has not returned for so long that publications no longer wait for it."""

    hook: str
    reason: str

    def __str__(self) -> str:
        return f"the hook {self.hook} failed: {self.reason}"


@dataclass(frozen=True, slots=True)
class EndpointHalted:
    """The endpoint stopped because of a defect: it refuses every call, and its connections are closed."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class MessagesDropped:
    """Messages were dropped; comes at most once a second for each place. ``where`` names place and reason."""

    where: str
    count: int

    def __str__(self) -> str:
        return f"dropped {self.count} messages {self.where}"


@dataclass(frozen=True, slots=True)
class MessagesRefused:
    """Messages of a sealed topic were not delivered, as they could not be opened; comes at most once a second for each
    topic. ``reason`` is that of the last one."""

    topic: bytes
    count: int
    reason: str

    def __str__(self) -> str:
        return f"refused {self.count} messages of topic {self.topic.decode(errors='replace')!r}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MessagesMalformed:
    """Messages that ``read_arrow`` took could not be decoded; comes at most once a second for each subscriber.
    ``topic`` and ``reason`` are those of the first one."""

    topic: bytes
    count: int
    reason: str

    def __str__(self) -> str:
        topic = self.topic.decode(errors="replace")
        return f"left out {self.count} messages that cannot be decoded, the first of topic {topic!r}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LostElsewhere:
    """Another endpoint, ``place``, dropped messages on their way to ``towards``: ours, or some that were for us.

    It may be ourselves, where no way led to ``towards`` any more.

    ``origin`` is who published them; it and ``towards`` are all zero where several are meant. Comes at most once a
    second for each place, topic and reason. ``topic`` is the beginning of theirs; empty where several are meant.
    """

    place: bytes
    towards: bytes
    origin: bytes
    count: int
    reason: str
    topic: bytes = b""

    def __str__(self) -> str:
        place = UUID(bytes=self.place)
        published = f" published by {UUID(bytes=self.origin)}" if any(self.origin) else ""
        way = f" on their way to {UUID(bytes=self.towards)}," if any(self.towards) else ""
        topic = f" to {self.topic.decode(errors='replace')}" if self.topic else ""
        return f"{place} dropped {self.count} messages{topic}{published}{way} {self.reason}"


@dataclass(frozen=True, slots=True)
class SubscriptionRefused:
    """By new permissions nothing that begins with ``topic`` is sent to us any more; ``reason`` says why."""

    topic: bytes
    verb: str
    reason: str

    def __str__(self) -> str:
        return f"gets nothing more of {self.topic.decode(errors='replace')!a}: we may not {self.verb} it, {self.reason}"


@dataclass(frozen=True, slots=True)
class RecordingStopped:
    """Nothing more is recorded: the folder cannot be written to any more. The endpoint goes on."""

    directory: str
    reason: str

    def __str__(self) -> str:
        return f"stopped recording into {self.directory}: {self.reason}; the endpoint goes on"


@dataclass(frozen=True, slots=True)
class RecordingIncomplete:
    """Messages were left out of a recording; comes at most once a second, and at its end."""

    directory: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} messages are not in the recording in {self.directory}: more is published than it takes"


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that a subscriber should have had, and does not get.

    ``missing`` of them, which ``origin`` published to ``topic``: an endpoint id, and the topic as text. Both are empty
    for what could not be told apart. It is below 0 if messages that were told as missing came late after all, as they
    can over two paths: so the sum over all gaps is what is missing.
    """

    origin: str
    topic: str
    missing: int

    def __str__(self) -> str:
        count = abs(self.missing)
        whose = f"of endpoint {self.origin} to {self.topic!r}" if self.origin else "of several publishers"
        what, are = ("message", "is") if count == 1 else ("messages", "are")
        came = "came late and " if self.missing < 0 else ""
        return f"{count} {what} {whose} {came}{are} {'not ' if came else ''}missing"
