"""Reports of servers and clients of shared maps (``core.Report``), beside changes of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

KEYS_TOLD_MAX: Final = 1_000  # in one event
KEYS_SHOWN: Final = 5  # in its text


@dataclass(frozen=True, slots=True)
class MapEvent:
    """Something that happened to a server or client of a shared map."""

    _text: ClassVar[str] = ""

    def __str__(self) -> str:
        return self._text.format(self)


@dataclass(frozen=True, slots=True)
class MapServerFound(MapEvent):
    """A client has what this server has, and follows it."""

    _text = "the map is that of the server at {0.server}, {0.keys:,} keys"

    server: str
    keys: int


@dataclass(frozen=True, slots=True)
class MapServerLost(MapEvent):
    """A client follows this server no more; what it has can be read on."""

    _text = "the server at {0.server} is lost: {0.reason}"

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class MapWritesLost(MapEvent):
    """Confirmed writes of this client are undone: only another server had them.

    That server was alone in a split pair without a witness, or kept nothing on disk.

    Attributes:
        server: The server that is followed now.
        count: The number of keys whose values are gone.
        keys: At most ``KEYS_TOLD_MAX`` of them.
        deleted_count: The number of keys that this client had deleted and that are there again, of those it deleted
            lately (``MapLimits.erased_max``).
        deleted_keys: At most ``KEYS_TOLD_MAX`` of them.
    """

    server: str
    count: int
    keys: tuple[str, ...]
    deleted_count: int = 0
    deleted_keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.count:
            parts.append(f"write {_some(self.count, self.keys)} again")
        if self.deleted_count:
            parts.append(f"delete {_some(self.deleted_count, self.deleted_keys)} again")
        return (
            f"{self.count + self.deleted_count:,} writes that were confirmed are undone, only another server than the "
            f"one at {self.server} had them: {', '.join(parts)}, and give a pair a witness"
        )


def _some(count: int, keys: tuple[str, ...]) -> str:
    more = f" and {count - KEYS_SHOWN:,} more" if count > KEYS_SHOWN else ""
    return f"{', '.join(map(repr, keys[:KEYS_SHOWN]))}{more}"


@dataclass(frozen=True, slots=True)
class MapRefused(MapEvent):
    """A server has another map, by the names that were given to both."""

    _text = "{0.server} has the map {0.name!r}, and not the one that is wanted"

    server: str
    name: str


@dataclass(frozen=True, slots=True)
class MapDenied(MapEvent):
    """A server does not let this program follow the map: the permissions do not allow it."""

    _text = "{0.server} refuses: {0.reason}"

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class MapWriteFailed(MapEvent):
    """A write that nobody waits for was refused."""

    _text = "a write to {0.keys} was refused: {0.reason}"

    keys: str
    reason: str


@dataclass(frozen=True, slots=True)
class MapActive(MapEvent):
    """A server serves clients now. ``taken_over`` are updates that the other server had not passed on."""

    _text = "this server is active; {0.taken_over:,} updates of clients taken over"

    taken_over: int


@dataclass(frozen=True, slots=True)
class MapPassive(MapEvent):
    """A server follows the other one, and serves nobody."""

    _text = "this server is passive"


@dataclass(frozen=True, slots=True)
class MapCopied(MapEvent):
    """A passive server has what the active one has."""

    _text = "this passive server has all {0.keys:,} keys of the active one"

    keys: int


@dataclass(frozen=True, slots=True)
class MapCommitFailed(MapEvent):
    """A server's backend refused a commit; ``lost`` updates of other clients than chappe's are undone, untold."""

    _text = "the backend refused a commit, {0.lost:,} updates of clients of other programs are undone: {0.reason}"

    reason: str
    lost: int


@dataclass(frozen=True, slots=True)
class MapServerFull(MapEvent):
    """Further clients of a server wait until others leave: the system lets its process open no more sockets."""

    _text = (
        "no further client can connect, {0.clients:,} are here: the system lets this process open no more files and "
        "sockets, of which each client takes two; allow it more (ulimit -n {0.wanted})"
    )

    clients: int
    wanted: int


@dataclass(frozen=True, slots=True)
class MapDropped(MapEvent):
    """A server was asked for more at once than its bounds hold."""

    _text = "{0.count:,} {0.what} dropped: more came at once than this server holds"

    what: str
    count: int
