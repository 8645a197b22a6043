"""The keys of groups travel from neighbour to neighbour, as permissions do (``handing_on``).

Each says which versions it has of those that it wants: to who has said that it has permissions, when it takes other
keys, and every few seconds. Who hears an older one sends what comes after it, who hears a newer one says its own
version, and so asks for it. So whatever is lost comes again, and nobody has to be believed: the driver looks at the
authority's signatures. Members want the groups to which they belong, forwarders all: others are behind them.

The payload of a frame::

    0  [version u64, u8 length and name of a group]...    ; versions
    1  u8 length and name of a group  lines of its file   ; what comes after a version

Newer permissions travel from neighbour to neighbour, so that a revocation that one endpoint knows counts for all.

Each says its version to its neighbours: when a link comes, when it takes another one, and every few seconds. Who hears
an older one sends its file, who hears a newer one says its own version, and so asks for it. So whatever is lost comes
again, and nobody has to be believed: the driver looks at the authority's signature before anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from chappe.compiled import Frozen
from chappe.core import Effect, Persist
from chappe.defaults import TTL
from chappe.errors import ProtocolError
from chappe.mesh.links.link import Link
from chappe.mesh.messages import GROUP_KEYS, NOBODY, PERMISSIONS, RESERVED_TOPIC, pack_message
from chappe.mesh.rules import MeshRules, OfferRules
from chappe.permissions.text import FILE_BYTES_MAX, GROUPS_MAX

SAY_S: Final = 5.0  # between two words on the version
SEND_S: Final = (
    0.9  # between two of the same kind over one link: a file has up to a MiB, a signature takes milliseconds
)
_VERSION: Final = struct.Struct(">Q")


class HandingOn:
    """Exchanges permissions with the neighbours of one endpoint; it sends nothing without rules."""

    def __init__(self, own: bytes, links: dict[bytes, Link], put: Callable[[Link, bytes], None]) -> None:
        self.due = inf  # when ``say`` has something to do
        self._own = own
        self._links = links
        self._put = put
        self._rules: MeshRules | None = None
        self._asked_at = -inf
        self._sent_at: dict[int, float] = {}  # by connection: a file
        self._offered_at: dict[int, float] = {}

    def set_rules(self, rules: MeshRules | None, now: float) -> list[Effect]:
        self._rules = rules if rules is not None and rules.raw else None
        self.due = inf if self._rules is None else now
        self._asked_at = -inf
        return self.say(now)

    def link_up(self, link: Link) -> None:
        if self._rules is not None and link.chappe:
            self._say(link, self._rules)

    def link_down(self, link: Link) -> None:
        self._sent_at.pop(link.conn, None)
        self._offered_at.pop(link.conn, None)

    def say(self, now: float) -> list[Effect]:
        rules = self._rules
        if now < self.due or rules is None:
            return []
        self.due = now + SAY_S
        links = [link for link in self._links.values() if link.chappe]
        for link in links:
            self._say(link, rules)
        return [link.flush for link in links]

    def hear(self, link: Link, payload: bytes, now: float) -> list[Effect]:
        if not _VERSION.size <= len(payload) <= _VERSION.size + FILE_BYTES_MAX:
            raise ProtocolError(f"permissions of {len(payload)} bytes are cut off or too large")
        rules = self._rules
        if rules is None:
            return []
        [version] = _VERSION.unpack_from(payload)
        ours, conn = rules.permissions.version, link.conn
        if len(payload) > _VERSION.size:
            if version > ours and now >= self._offered_at.get(conn, -inf) + SEND_S:
                self._offered_at[conn] = now
                return [Persist(OfferRules(payload[_VERSION.size :]))]
        elif version > ours and now >= self._asked_at + SEND_S:
            self._asked_at = now
            self._say(link, rules)
            return [link.flush]
        elif version < ours and now >= self._sent_at.get(conn, -inf) + SEND_S and not link.outbox.crowded:
            self._sent_at[conn] = now
            self._put(link, self._pack(rules, rules.raw))
            return [link.flush]
        return []

    def _say(self, link: Link, rules: MeshRules) -> None:
        if not link.outbox.crowded:
            self._put(link, self._pack(rules))

    def _pack(self, rules: MeshRules, raw: bytes = b"") -> bytes:
        payload = _VERSION.pack(rules.permissions.version) + raw
        return pack_message(self._own, NOBODY, PERMISSIONS, TTL, RESERVED_TOPIC, payload)


OFFERS_MAX: Final = 40  # of one neighbour in a second: a signature takes a part of a millisecond, a digest more
SENT_BYTES_MAX: Final = 4 << 20  # to one neighbour in a second; it asks again for the rest
_SAID: Final = 0
_LINES: Final = 1
_GROUP: Final = struct.Struct(">QB")


class OfferKeys(Frozen, frozen=True):
    """A job for the disk: take a group's new, signed lines from another member; outcome: its keys, None if refused."""

    group: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class KeysHere:
    """The keys of groups that an endpoint has.

    Attributes:
        versions: Of each group that the permissions have; 0 where there are no keys.
        mine: The groups to which it belongs.
        after: What comes after a version of a group, to be handed on; not all of it if it is much.
    """

    versions: Mapping[str, int]
    mine: frozenset[str]
    after: Callable[[str, int], bytes]


def pack_versions(versions: Iterable[tuple[str, int]]) -> bytes:
    parts = [bytes([_SAID])]
    for group, version in versions:
        name = group.encode()
        parts += (_GROUP.pack(version, len(name)), name)
    return b"".join(parts)


def pack_lines(group: str, lines: bytes) -> bytes:
    name = group.encode()
    return bytes([_LINES, len(name)]) + name + lines


def parse_keys(payload: bytes) -> dict[str, int] | tuple[str, bytes]:
    """Return versions by group, or a group and lines of its file. Raises ProtocolError."""
    kind, at = payload[:1], 1
    if kind == bytes([_LINES]):
        end = 2 + (payload[1] if len(payload) > 1 else 0)
        if not end < len(payload) <= end + FILE_BYTES_MAX:
            raise ProtocolError(f"keys of a group, {len(payload)} bytes, are cut off or too large")
        return payload[2:end].decode(errors="replace"), payload[end:]
    if kind != bytes([_SAID]):
        raise ProtocolError("keys of groups are of an unknown kind")
    found: dict[str, int] = {}
    for _ in range(GROUPS_MAX):
        if at == len(payload):
            break
        if at + _GROUP.size > len(payload):
            raise ProtocolError("versions of keys are cut off")
        version, length = _GROUP.unpack_from(payload, at)
        at += _GROUP.size + length
        found[payload[at - length : at].decode(errors="replace")] = version
    if at != len(payload):
        raise ProtocolError("versions of keys are cut off or too many")
    return found


class KeysHandingOn:
    """Exchanges keys of groups with the neighbours of one endpoint; it sends nothing without keys.

    Args:
        links: All links by peer.
        put: Puts a control frame for a link.
        forwards: Whether the endpoint passes on what is not for it.
    """

    def __init__(
        self, own: bytes, links: dict[bytes, Link], put: Callable[[Link, bytes], None], forwards: Callable[[], bool]
    ) -> None:
        self.due = inf  # when ``say`` has something to do
        self._own = own
        self._links = links
        self._put = put
        self._forwards = forwards
        self._here: KeysHere | None = None
        self._asked: dict[str, tuple[int, float]] = {}  # which version was asked from, and when; by group
        self._met: dict[int, _Neighbour] = {}  # by connection: those that have permissions

    def set_keys(self, here: KeysHere, now: float) -> list[Effect]:
        self._here = here
        self._asked = {group: asked for group, asked in self._asked.items() if group in here.versions}
        self.due = now if here.versions else inf
        return self.say(now)

    def meet(self, link: Link) -> list[Effect]:
        """Note that a neighbour has mentioned permissions, so it knows keys of groups."""
        if link.conn in self._met:
            return []
        self._met[link.conn] = _Neighbour()
        return self._say(link)

    def link_down(self, link: Link) -> None:
        self._met.pop(link.conn, None)

    def say(self, now: float) -> list[Effect]:
        if now < self.due:
            return []
        self.due = now + SAY_S
        links = [link for link in self._links.values() if link.conn in self._met]
        return [action for link in links for action in self._say(link)]

    def hear(self, link: Link, payload: bytes, now: float) -> list[Effect]:
        said, here, neighbour = parse_keys(payload), self._here, self._met.get(link.conn)
        if here is None or neighbour is None:
            return []
        neighbour.begin(now)
        if isinstance(said, tuple):
            group, lines = said
            if self._wants(here, group) and neighbour.offers < OFFERS_MAX:
                neighbour.offers += 1
                return [Persist(OfferKeys(group, lines))]
            return []
        ours = [(group, version, here.versions[group]) for group, version in said.items() if group in here.versions]
        sent = [self._send(link, neighbour, here, group, their, now) for group, their, our in ours if their < our]
        asked = [(group, our) for group, their, our in ours if their > our and self._asks(here, group, our, now)]
        if asked:
            self._put(link, self._pack(pack_versions(asked)))
        return [link.flush] if asked or any(sent) else []

    def _asks(self, here: KeysHere, group: str, version: int, now: float) -> bool:
        """Return whether to ask for the lines after a version; only one neighbour is asked at a time."""
        before, at = self._asked.get(group, (-1, -inf))
        if not self._wants(here, group) or (before == version and now < at + SEND_S):
            return False
        self._asked[group] = version, now
        return True

    def _send(self, link: Link, neighbour: _Neighbour, here: KeysHere, group: str, version: int, now: float) -> bool:
        """Send the lines after a version, unless that was just done, or too much is on its way."""
        before, at = neighbour.sent.get(group, (-1, -inf))
        if link.outbox.crowded or neighbour.bytes >= SENT_BYTES_MAX or (before == version and now < at + SEND_S):
            return False
        lines = here.after(group, version)
        if not lines:
            return False
        neighbour.sent[group] = version, now
        neighbour.bytes += len(lines)
        self._put(link, self._pack(pack_lines(group, lines)))
        return True

    def _wants(self, here: KeysHere, group: str) -> bool:
        return group in here.versions and (group in here.mine or self._forwards())

    def _say(self, link: Link) -> list[Effect]:
        here = self._here
        wanted = [] if here is None else [each for each in here.versions.items() if self._wants(here, each[0])]
        if not wanted or link.outbox.crowded:
            return []
        self._put(link, self._pack(pack_versions(wanted)))
        return [link.flush]

    def _pack(self, payload: bytes) -> bytes:
        return pack_message(self._own, NOBODY, GROUP_KEYS, TTL, RESERVED_TOPIC, payload)


class _Neighbour:
    """The traffic of a neighbour in its current second."""

    __slots__ = ("begun", "bytes", "offers", "sent")

    def __init__(self) -> None:
        self.begun = -inf
        self.offers = 0
        self.bytes = 0
        self.sent: dict[str, tuple[int, float]] = {}  # what comes after which version, and when; by group

    def begin(self, now: float) -> None:
        if now >= self.begun + 1.0:
            self.begun, self.offers, self.bytes = now, 0, 0
