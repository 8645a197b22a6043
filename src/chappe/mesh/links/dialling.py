"""The addresses that an endpoint dials, and the times of further attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from chappe.core import Dial, Effect, Report, Resolve
from chappe.deadlines import Deadlines
from chappe.errors import Address, ChappeError, PeeringError

_STOOD_S: Final = 1.0  # a peering that was lost earlier than this is not dialled again at once
_STALE_S: Final = 0.5  # first pause while the peer still believes in a connection that is gone; then twice as long


@dataclass(frozen=True)
class Retry:
    """When an address is dialled again after an attempt has failed.

    The first pause is ``pause_s``. Each further one is twice as long, up to ``pause_max_s``, and then shortened at
    random by up to half, so that endpoints which lost the same peer do not all come back at once.
    """

    pause_s: float = 0.0  # 0: one attempt, and none after a peering was lost
    pause_max_s: float = 0.0  # up to pause_s: all pauses are pause_s
    attempts: int | None = None  # so many in a row may fail; None: any number


ONCE: Final = Retry()


class Target:
    """An address that is dialled, or is peered with. ``dial`` is set while it is being connected, ``conn`` from then
    on, ``peer_id`` while the peering stands; then ``conn`` is None if it stands over another connection.
    """

    __slots__ = ("address", "conn", "dial", "failures", "peer_id", "retry", "stale_s", "tickets")

    def __init__(self, address: Address, retry: Retry) -> None:
        self.address = address
        self.retry = retry
        self.failures = 0  # attempts in a row
        self.tickets: list[int] = []  # of those who wait for the peering
        self.dial: int | None = None
        self.conn: int | None = None
        self.peer_id: bytes | None = None
        self.stale_s = _STALE_S


class PeerDialling:
    def __init__(self, endpoint_id: bytes) -> None:
        self._endpoint_id = endpoint_id
        self.targets: dict[Address, Target] = {}
        self._dials: dict[int, Target] = {}
        self.retries: Deadlines[Address] = Deadlines()  # when which target is dialled again
        self._last_link = 0  # of dials all are below 0, of connections that came in none

    def peer(self, address: Address, retry: Retry, ticket: int) -> list[Effect]:
        """Begin to dial. The last call decides on further attempts."""
        target = self.targets.get(address)
        if target is not None:
            target.retry = retry
            target.failures = 0
            if target.peer_id is not None:
                return [Resolve(ticket, target.peer_id)]
            target.tickets.append(ticket)
            return self._dial(target) if address in self.retries else []
        target = self.targets[address] = Target(address, retry)
        target.tickets.append(ticket)
        return self._dial(target)

    def of_peer(self, peer_id: bytes) -> list[Target]:
        return [each for each in self.targets.values() if each.peer_id == peer_id]

    def answered(self, dial: int) -> Target | None:
        """Return the target of a dial that has come to an end; None if nobody wants it any more."""
        target = self._dials.pop(dial, None)
        if target is not None:
            target.dial = None
        return target

    def stand(self, target: Target, peer_id: bytes, conn: int | None) -> list[Effect]:
        """Note that the peering stands, over the connection ``conn`` or over another one."""
        target.conn = conn
        target.peer_id = peer_id
        target.stale_s = _STALE_S
        target.failures = 0
        tickets, target.tickets = target.tickets, []
        return [Resolve(ticket, peer_id) for ticket in tickets]

    def failed(self, target: Target, error: PeeringError, final: bool, stale: bool, now: float) -> list[Effect]:
        """Note that an attempt failed; ``final`` if another one would fail too.

        ``stale`` if only because the peer has not noticed yet that a former connection is gone: it will soon.
        """
        target.conn = None
        target.failures += 1
        exhausted = target.retry.attempts is not None and target.failures >= target.retry.attempts
        if target.retry.pause_s > 0 and not final and not exhausted:
            pause_s = self._pause_s(target)
            self.retries.set(target.address, now + (min(target.stale_s, pause_s) if stale else pause_s))
            target.stale_s = 2 * target.stale_s if stale else _STALE_S
            return [Report(error)]
        self._forget(target)
        text = (
            f"{error}; given up after {target.failures} attempts" if target.failures > 1 and not final else str(error)
        )

        def told() -> PeeringError:
            """Return a copy: raising an error changes it, so each caller gets its own."""
            made = type(error)(text, error.address, error.peer_id).coded(error.code)
            made.last = True
            return made

        return [Report(told()), *(Resolve(each, told()) for each in target.tickets)]

    def _pause_s(self, target: Target) -> float:
        retry = target.retry
        if retry.pause_max_s <= retry.pause_s:
            return retry.pause_s
        pause_s = min(retry.pause_s * 2.0 ** min(target.failures - 1, 63), retry.pause_max_s)
        lot = crc32(b"%b %d %d" % (self._endpoint_id, target.address[1], target.failures)) / 2**32
        return pause_s * (1 - lot / 2)

    def lost(self, target: Target, stood_s: float, now: float) -> list[Effect]:
        """Dial again, if that is wanted, after a peering that ended unwanted after ``stood_s`` seconds."""
        target.conn = None
        target.peer_id = None
        if target.retry.pause_s <= 0:
            self._forget(target)
            return []
        if stood_s < _STOOD_S:
            self.retries.set(target.address, now + target.retry.pause_s)
            return []
        return self._dial(target)

    def remove(self, target: Target, outcome: ChappeError) -> list[Effect]:
        """Dial it no more; callers that wait for it get ``outcome``."""
        self._forget(target)
        if target.dial is not None:
            self._dials.pop(target.dial, None)
        tickets, target.tickets = target.tickets, []
        return [Resolve(each, outcome) for each in tickets]

    def handle_timeout(self, now: float) -> list[Effect]:
        return [action for each in self.retries.due(now) for action in self._dial(self.targets[each])]

    def _forget(self, target: Target) -> None:
        self.targets.pop(target.address, None)
        self.retries.clear(target.address)

    def _dial(self, target: Target) -> list[Effect]:
        self._last_link -= 1
        self.retries.clear(target.address)
        target.dial = self._last_link
        self._dials[self._last_link] = target
        return [Dial(self._last_link, target.address)]
