"""Newer permissions travel from neighbour to neighbour, so that a revocation that one endpoint knows counts for all.

Each says its version to its neighbours: when a link comes, when it takes another one, and every few seconds. Who hears
an older one sends its file, who hears a newer one says its own version, and so asks for it. So whatever is lost comes
again, and nobody has to be believed: the driver looks at the authority's signature before anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf
from typing import Final

from chappe.core import Effect, Persist
from chappe.defaults import TTL
from chappe.errors import ProtocolError
from chappe.mesh.links.link import Link
from chappe.mesh.messages import NOBODY, PERMISSIONS, RESERVED_TOPIC, pack_message
from chappe.mesh.rules import MeshRules, OfferRules
from chappe.permissions.text import FILE_BYTES_MAX

SAY_S: Final = 5.0  # between two words on the version
SEND_S: Final = (
    0.9  # between two of the same kind over one link: a file has up to a MiB, a signature takes milliseconds
)
_VERSION: Final = struct.Struct(">Q")


class HandingOn:
    """Of one endpoint; without rules it says nothing.

    Args:
        links: All links by peer.
        put: Puts a control frame for a link.
    """

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
        """Others are in force: say so."""
        self._rules = rules if rules is not None and rules.raw else None
        self.due = inf if self._rules is None else now
        self._asked_at = -inf
        return self.say(now)

    def link_up(self, link: Link) -> None:
        """A link stands."""
        if self._rules is not None and link.chappe:
            self._say(link, self._rules)

    def link_down(self, link: Link) -> None:
        """A link ended."""
        self._sent_at.pop(link.conn, None)
        self._offered_at.pop(link.conn, None)

    def say(self, now: float) -> list[Effect]:
        """Say our version, if it is time."""
        rules = self._rules
        if now < self.due or rules is None:
            return []
        self.due = now + SAY_S
        links = [link for link in self._links.values() if link.chappe]
        for link in links:
            self._say(link, rules)
        return [link.flush for link in links]

    def hear(self, link: Link, payload: bytes, now: float) -> list[Effect]:
        """A neighbour says its version, or sends its file."""
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
