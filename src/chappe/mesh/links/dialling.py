"""Whom an endpoint dials, and when again."""

from __future__ import annotations

from typing import Final

from chappe.core import Report
from chappe.deadlines import Deadlines
from chappe.errors import Address, ChappeError, PeeringError
from chappe.mesh.actions import Action, Dial, Resolve

_STOOD_S: Final = 1.0  # a peering that was lost earlier than this is not dialled again at once
_STALE_S: Final = 0.5  # first pause while the peer still believes in a connection that is gone; then twice as long


class Target:
    """An address that is dialled, or is peered with.

    ``dial`` is set while it is being connected, ``conn`` from then on, ``peer_id`` while the peering stands; then
    ``conn`` is None if it stands over another connection.
    """

    __slots__ = ("address", "conn", "dial", "peer_id", "retry_s", "stale_s", "tickets")

    def __init__(self, address: Address, retry_s: float) -> None:
        self.address = address
        self.retry_s = retry_s
        self.tickets: list[int] = []  # of those who wait for the peering
        self.dial: int | None = None
        self.conn: int | None = None
        self.peer_id: bytes | None = None
        self.stale_s = _STALE_S


class Dialling:
    """All targets."""

    def __init__(self) -> None:
        self.targets: dict[Address, Target] = {}
        self._dials: dict[int, Target] = {}
        self.retries: Deadlines[Address] = Deadlines()  # when which target is dialled again
        self._last_dial = 0

    def peer(self, address: Address, retry_s: float | None, ticket: int, now: float) -> list[Action]:
        """Begin to dial; None or 0 as ``retry_s`` for a single attempt. The last call decides on further attempts."""
        target = self.targets.get(address)
        if target is not None:
            target.retry_s = retry_s or 0.0
            if target.peer_id is not None:
                return [Resolve(ticket, target.peer_id)]
            target.tickets.append(ticket)
            return self._dial(target) if address in self.retries else []
        target = self.targets[address] = Target(address, retry_s or 0.0)
        target.tickets.append(ticket)
        return self._dial(target)

    def of_peer(self, peer_id: bytes) -> list[Target]:
        """The targets that are peered with an endpoint."""
        return [each for each in self.targets.values() if each.peer_id == peer_id]

    def answered(self, dial: int) -> Target | None:
        """A dial has come to an end; None if nobody wants it any more."""
        target = self._dials.pop(dial, None)
        if target is not None:
            target.dial = None
        return target

    def stand(self, target: Target, peer_id: bytes, conn: int | None) -> list[Action]:
        """The peering stands, over the connection ``conn`` or over another one."""
        target.conn = conn
        target.peer_id = peer_id
        target.stale_s = _STALE_S
        tickets, target.tickets = target.tickets, []
        return [Resolve(ticket, peer_id) for ticket in tickets]

    def failed(self, target: Target, error: PeeringError, final: bool, stale: bool, now: float) -> list[Action]:
        """An attempt failed; ``final`` if another one would fail too.

        ``stale`` if only because the peer has not noticed yet that a former connection is gone: it will soon.
        """
        target.conn = None
        actions: list[Action] = [Report(error)]
        if target.retry_s > 0 and not final:
            pause_s = min(target.stale_s, target.retry_s) if stale else target.retry_s
            self.retries.set(target.address, now + pause_s)
            target.stale_s = 2 * target.stale_s if stale else _STALE_S
            return actions
        self._forget(target)
        again = type(error)  # raising an error changes it: each caller gets a copy
        return actions + [Resolve(each, again(str(error), error.address, error.peer_id)) for each in target.tickets]

    def lost(self, target: Target, stood_s: float, now: float) -> list[Action]:
        """The peering ended after ``stood_s`` seconds, not because we wanted it: dial again, if that is wanted."""
        target.conn = None
        target.peer_id = None
        if target.retry_s <= 0:
            self._forget(target)
            return []
        if stood_s < _STOOD_S:
            self.retries.set(target.address, now + target.retry_s)
            return []
        return self._dial(target)

    def remove(self, target: Target, outcome: ChappeError) -> list[Action]:
        """Dial it no more; whoever waits for it gets ``outcome``."""
        self._forget(target)
        if target.dial is not None:
            self._dials.pop(target.dial, None)
        tickets, target.tickets = target.tickets, []
        return [Resolve(each, outcome) for each in tickets]

    def handle_timeout(self, now: float) -> list[Action]:
        """Dial whom it is time for."""
        return [action for each in self.retries.due(now) for action in self._dial(self.targets[each])]

    def _forget(self, target: Target) -> None:
        self.targets.pop(target.address, None)
        self.retries.clear(target.address)

    def _dial(self, target: Target) -> list[Action]:
        self._last_dial += 1
        self.retries.clear(target.address)
        target.dial = self._last_dial
        self._dials[self._last_dial] = target
        return [Dial(self._last_dial, *target.address)]
