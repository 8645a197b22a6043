"""What can be reached through one neighbour, found from link states."""

from __future__ import annotations

from collections.abc import Mapping

from chappe.mesh.filters import NOTHING, Filter
from chappe.mesh.link_states import KnownEndpoint


class Side:
    """What can be reached through a neighbour, and through others that it reaches.

    Args:
        peer: The neighbour.
        own: The endpoint that looks.
        known: All link states that it has.
    """

    __slots__ = ("_known", "_own", "endpoints", "filter", "forwarding", "listed", "originals")

    def __init__(self, peer: bytes, own: bytes, known: Mapping[bytes, KnownEndpoint]) -> None:
        self._own = own
        self._known = known
        self.forwarding: set[bytes] = set()
        self.endpoints = {peer}  # those too that do not forward
        self.listed: set[bytes] = set()  # whom those that forward name as neighbours, whether it is confirmed or not
        self.originals: dict[bytes, dict[bytes, Filter]] = {}  # original: who is linked to it, and what it wants
        self.filter: Filter = NOTHING
        made = known.get(peer)
        if made is not None and made.forwards:
            self.forwarding.add(peer)
            self._go_on(peer, made)

    def add(self, origin: bytes, made: KnownEndpoint) -> set[bytes]:
        """What can be reached besides, with a link state that only adds."""
        found: set[bytes] = set()
        if origin not in self.endpoints:
            if not any(origin in self._known[each].chappe for each in made.chappe & self.forwarding):
                return found
            found.add(origin)
            self.endpoints.add(origin)
            if made.forwards:
                self.forwarding.add(origin)
        return found | self._go_on(origin, made) if origin in self.forwarding else found

    def _go_on(self, at: bytes, known: KnownEndpoint) -> set[bytes]:
        """Add what can be reached over an endpoint here that forwards; returns whom."""
        found: set[bytes] = set()
        edge = [(at, known)]
        while edge:
            at, known = edge.pop()
            self.listed |= known.chappe
            for original, wanted in known.originals:
                if original != self._own:
                    self.originals.setdefault(original, {})[at] = wanted
            for each in known.chappe - self.endpoints:
                beyond = self._known.get(each)
                if beyond is None or at not in beyond.chappe:
                    continue
                self.endpoints.add(each)
                found.add(each)
                if beyond.forwards:
                    self.forwarding.add(each)
                    edge.append((each, beyond))
        return found
