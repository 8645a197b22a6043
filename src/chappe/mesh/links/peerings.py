"""The peerings of an endpoint: how its connections become links, and how they end. ``heartbeats`` has how they live."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import partial
from math import inf
from typing import Final, Literal
from uuid import UUID

from chappe.core import Close, Effect, Report, Resolve
from chappe.deadlines import Deadlines
from chappe.defaults import BINDINGS_MAX, CLOSE_FLUSH_S, DEFECT_FRAME_BYTES, UNPEER_S
from chappe.errors import Address, Closed, PeerIncompatible, PeerInvalid, PeerUnavailable
from chappe.mesh.events import DefectContained, PeerAdded, PeerLost, PeerRefused, PeerRemoved, RefusedByPeer
from chappe.mesh.forwarding.boxes import Outbox
from chappe.mesh.forwarding.routing import Router
from chappe.mesh.links.dialling import PeerDialling, Retry, Target
from chappe.mesh.links.greetings import Code
from chappe.mesh.links.handshake import Established, Failed, PeerHandshake, Redundant, SendFrame, Step, Wake
from chappe.mesh.links.heartbeats import HEARTBEAT, Heartbeats
from chappe.mesh.links.link import EndpointOptions, Link, PeerInfo
from chappe.mesh.links.peers import PeerStatus, PeerTable
from chappe.mesh.messages import ASKED, BYE, NOBODY, PING, Message, pack_ping, pack_pong, ping_token
from chappe.mesh.rules import JOIN, MeshRules

_FINAL: Final = {Code.PEER_INCOMPATIBLE: PeerIncompatible, Code.PEER_INVALID: PeerInvalid}  # dialling again is no use
_TOLD: Final = frozenset(Code)  # of these a handshake may fail
_STALE: Final = frozenset({Code.REDUNDANT, Code.LOGIC_ERROR})  # it believes in a connection that we know to be gone

What = Literal["greet", "order", "leave", "empty", "await"]
Ended = type[PeerLost] | type[PeerRemoved]


class Peerings:
    """Connections, from the first byte to the last. ``links`` are those that live, by connection."""

    def __init__(self, own_id: bytes, options: EndpointOptions, now: float) -> None:
        self.links: dict[int, Link] = {}
        self.router = Router(own_id, options, self._handle_ping, self._contain, now)
        self.own_id = own_id
        self._options = options
        self._table = PeerTable()
        self._dialling = PeerDialling(own_id)
        self._deadlines: Deadlines[tuple[What, int]] = Deadlines()  # of connections, and of calls by their tickets
        self._closing: dict[int, Link] = {}  # only to be emptied
        self._awaited: dict[int, bytes] = {}  # ticket: peer
        self.heartbeats = Heartbeats(own_id, options.heartbeat_s, self.router.congestion)
        self._refused: OrderedDict[tuple[bytes, bytes, str], None] = OrderedDict()  # id, key and reason, if reported
        self._closed = False
        self._byes = 0
        self._leaving: dict[int, float] = {}  # connections on which no goodbye was said yet, and since when it is due

    # -- connections ------------------------------------------------------------------------------

    def handle_link(self, conn: int, address: Address, now: float) -> list[Effect]:
        """Note a connection that came in (0 or more) or was dialled (below 0); its TLS stands, or will."""
        if conn >= 0:
            if self._closed:
                return [Close(conn, "the endpoint is being closed")]
            return self._open(conn, address, None, now)
        target = self._dialling.answered(conn)
        if target is None:
            return [Close(conn, "nobody wants it any more")]
        target.conn = conn
        return self._open(conn, target.address, target, now)

    def secured(self, conn: int, key: bytes, named: Collection[bytes], identity: str = "") -> None:
        """Note that the TLS of a connection stands; nothing that came over it was handed in yet.

        Args:
            key: 16 bytes that tell the key of the peer's certificate from others.
            named: The endpoint ids that the certificate names.
            identity: That it names.
        """
        link = self.links.get(conn)
        if link is not None:
            link.key, link.named, link.identity = key, named, identity

    def set_rules(self, rules: MeshRules | None, now: float) -> list[Effect]:
        """Take other permissions, or an expiry: cut the links of peers that may not take part any more."""
        self.router.judge.rules = rules
        self._refused.clear()
        actions: list[Effect] = []
        for link in list(self.links.values()) if rules is not None else ():
            why = self._forbidden(link)
            if why and link.established_at is not None and not link.ended:
                self.router.refusals.add(link.identity, JOIN)
                actions += self._end(link, PeerRemoved, why, now)
        actions += self.router.set_rules(rules, now)
        return actions + self._resolve_awaited() + self._say_goodbyes()

    def _forbidden(self, link: Link, stated: bytes = NOBODY) -> str:
        """Return why a peer may not take part; empty if it may."""
        rules = self.router.rules
        return "" if rules is None else rules.refusal(link.identity, link.named, stated)

    def _refusal(self, conn: int, peer_id: bytes) -> tuple[Code, str] | None:
        """Return why a peer is not taken, or not with the id that it states; its certificate's ids are not refused."""
        link = self.links[conn]
        why = self._forbidden(link, peer_id)
        if why:
            self.router.refusals.add(link.identity, JOIN)
            return Code.PEER_UNAVAILABLE, why
        if not link.key or peer_id in link.named or not self.router.topology.has_other_key(peer_id, link.key):
            return None
        # dialling again helps once the other is gone
        return Code.LOGIC_ERROR, f"the endpoint id {UUID(bytes=peer_id)} is in the mesh with another key"

    def _dial_failed(
        self, target: Target, code: int | None, reason: str, peer_id: bytes | None, now: float
    ) -> list[Effect]:
        host, port = target.address
        kind = _FINAL.get(Code(code)) if code in _FINAL else None
        error = (kind or PeerUnavailable)(f"cannot peer with {host}:{port}: {reason}", target.address, peer_id)
        if code in _TOLD:
            error.coded(Code(code))
        return self._dialling.failed(target, error, kind is not None, code in _STALE, now)

    def _open(self, conn: int, address: Address, target: Target | None, now: float) -> list[Effect]:
        options = self._options
        wanted = self.router.subscriptions.filter
        refusal = partial(self._refusal, conn)
        version_max = options.version_max
        handshake = PeerHandshake(conn, self.own_id, target is not None, wanted, self._table, now, version_max, refusal)
        bounds = options.peer_messages_max, options.peer_bytes_max, options.peer_policy, options.peer_surplus
        outbox = Outbox(*bounds)
        link = Link(conn, address, target, handshake, outbox, now)
        self.links[conn] = link
        self._deadlines.set(("greet", conn), handshake.due())
        return self._do(link, handshake.start(), now)

    def _greet(self, link: Link, body: bytes, now: float) -> list[Effect]:
        try:
            return self._do(link, link.handshake.take(body), now)
        except Exception as defect:
            return self._contain(link, defect, body, now)

    def _do(self, link: Link, steps: Sequence[Step], now: float, broken: bool = False) -> list[Effect]:
        actions: list[Effect] = []
        for step in steps:
            match step:
                case SendFrame(frame):
                    link.outbox.put_control(frame)
                    actions.append(link.flush)
                case Established():
                    actions += self._established(link, step, now)
                case Failed(code, reason):
                    actions += self._forget(link, reason, now, broken)
                    actions += self._report_refused(link, step)
                    if link.target is not None:
                        actions += self._dial_failed(link.target, code, reason, link.handshake.peer_id, now)
                case Redundant(peer_id):
                    actions += self._forget(link, "there is another connection to this peer", now, broken)
                    if link.target is not None:
                        actions += self._redundant(link.target, peer_id, now)
                case Wake(conns):
                    actions += self._wake(conns, now)
        return actions

    def _report_refused(self, link: Link, failed: Failed) -> list[Effect]:
        """Report a refused peer once, though it tries again."""
        peer_id = link.handshake.peer_id
        told = failed.told and link.target is None  # who dialled hears it anyway
        if not (failed.refused or told) or peer_id is None or (peer_id, link.key, failed.reason) in self._refused:
            return []
        self._refused[peer_id, link.key, failed.reason] = None
        if len(self._refused) > BINDINGS_MAX:
            self._refused.popitem(last=False)
        if told:
            return [Report(RefusedByPeer(peer_id, link.address, failed.reason))]
        return [Report(PeerRefused(peer_id, link.address, failed.reason))]

    def _wake(self, conns: Sequence[int], now: float) -> list[Effect]:
        actions: list[Effect] = []
        for conn in conns:
            link = self.links.get(conn)
            if link is not None and link.established_at is None:
                actions += self._do(link, link.handshake.wake(), now)
        return actions

    def _forget(self, link: Link, reason: str, now: float, broken: bool) -> list[Effect]:
        """Forget a connection that is of no further use; ``broken`` if the driver said so."""
        link.ended = True
        self.links.pop(link.conn, None)
        self._deadlines.clear(("greet", link.conn))
        self._deadlines.clear(("leave", link.conn))
        self._deadlines.clear(("order", link.conn))
        self._leaving.pop(link.conn, None)
        if broken:
            return []
        self._closing[link.conn] = link
        self._deadlines.set(("empty", link.conn), now + CLOSE_FLUSH_S)
        return [Close(link.conn, reason)]

    def _redundant(self, target: Target, peer_id: bytes, now: float) -> list[Effect]:
        """Give up a dialled connection: another one has the peer, or will have it in a moment."""
        conn = self._table.connection(peer_id)
        link = None if conn is None else self.links.get(conn)
        if link is None:
            return self._dialling.lost(target, 0.0, now)
        target.peer_id = peer_id
        target.conn = None
        return [] if link.established_at is None else self._dialling.stand(target, peer_id, None)

    def _established(self, link: Link, step: Established, now: float) -> list[Effect]:
        self._deadlines.clear(("greet", link.conn))
        peer_id = link.peer_id = step.peer_id
        link.chappe = step.version > 1
        link.established_at = now
        self.heartbeats.begin(link, now)
        self._table.peered(peer_id)
        sent = link.handshake.filter_sent
        assert sent is not None
        actions = self.router.link_up(link, step.peer_filter, sent, now)
        actions.append(Report(PeerAdded(peer_id, link.address)))
        if link.target is not None:
            actions += self._dialling.stand(link.target, peer_id, link.conn)
        for target in self._dialling.of_peer(peer_id):
            if target is not link.target:
                actions += self._dialling.stand(target, peer_id, None)
        actions += self._resolve_awaited()
        if self._closed:
            actions += self._leave(link, now)
        return actions

    def handle_gone(self, conn: int, reason: str, now: float) -> list[Effect]:
        """Note that a connection is gone: the peer closed it, it broke, its input was refused, or a dial failed.
        ``reason``: a part of a sentence.
        """
        link = self.links.get(conn)
        if link is None:
            target = self._dialling.answered(conn)
            if target is not None:
                return self._dial_failed(target, None, reason, None, now)
            self._closed_at_last(conn)
            return []
        if link.established_at is None:
            return self._do(link, link.handshake.end(reason), now, broken=True)
        return self._end(link, PeerLost, reason, now, broken=True)

    def _end(self, link: Link, ended: Ended, reason: str, now: float, broken: bool = False) -> list[Effect]:
        assert link.established_at is not None
        # After a goodbye what waits is still sent, as long as the connection takes it.
        discarded = broken or link.bye is None
        unconfirmed = max(0, link.outbox.messages - link.confirmed)
        # It had all that was sent, if nothing was put behind the goodbye.
        left = (link.left and link.outbox.accepted <= link.confirmed) or (link.bye is not None and not unconfirmed)
        followed, lost = self.router.link_down(link, discarded, left, now)
        status: PeerLost | PeerRemoved = ended(link.peer_id, link.address, reason, lost, unconfirmed)
        if link.bye is not None:
            status = PeerRemoved(link.peer_id, link.address, "", lost, unconfirmed)
        elif link.left and ended is PeerLost:
            status = PeerLost(link.peer_id, link.address, "it said goodbye", lost, unconfirmed, left=True)
        actions = self._forget(link, status.reason or "the peering was ended", now, broken)
        actions.append(Report(status))
        actions += followed
        woken = self._table.release(link.conn, link.peer_id)
        actions += [Resolve(ticket, True) for ticket in link.tickets]
        gone = PeerUnavailable("the peering ended before the peer answered", link.address, link.peer_id)
        actions += [Resolve(ticket, gone) for ticket in link.pings.values()]
        for target in self._dialling.of_peer(link.peer_id):
            actions += self._dialling.lost(target, now - link.established_at, now)
        return actions + self._wake(woken, now)

    def _contain(self, link: Link, defect: Exception, frame: bytes, now: float) -> list[Effect]:
        """End the link that brought a defect of ours to light and no other one, or raise the defect."""
        if not self._options.contains:
            raise defect
        actions: list[Effect] = [Report(DefectContained(link.address, defect, frame[:DEFECT_FRAME_BYTES]))]
        if link.ended:
            return actions
        why = f"what came from it met a defect of ours ({type(defect).__name__})"
        if link.established_at is None:
            return actions + self._do(link, link.handshake.end(why), now)
        return actions + self._end(link, PeerLost, why, now)

    # -- what the application asks for ------------------------------------------------------------

    def peer(self, host: str, port: int, retry: Retry, ticket: int, now: float) -> list[Effect]:
        """Dial until a peering stands, and again whenever it is lost, as ``retry`` says.

        Resolves to the peer's id, or to PeerUnavailable, PeerIncompatible, PeerInvalid or Closed. Errors that another
        attempt would meet again end the dialling; each failed attempt is reported too.
        """
        if self._closed:
            return [Resolve(ticket, Closed("the endpoint was closed"))]
        return self._dialling.peer((host, port), retry, ticket)

    def unpeer(self, host: str, port: int, ticket: int, now: float) -> list[Effect]:
        """End the peering with an address after what was published before has arrived, and dial it no more.

        Resolves to True once it ended, ``UNPEER_S`` later at most, or to PeerInvalid (reported too).
        """
        address = (host, port)
        link = self._linked(address)
        if link is not None:
            link.tickets.append(ticket)
            # At once: if the same is dialled again meanwhile, that is a new wish.
            for each in self._dialling.of_peer(link.peer_id):
                self._dialling.remove(each, Closed("the peering was ended"))
            return self._leave(link, now)
        target = self._dialling.targets.get(address)
        if target is None:
            text = f"cannot end a peering with {host}:{port}: there is none"
            return [Report(PeerInvalid(text, address)), Resolve(ticket, PeerInvalid(text, address))]
        why = PeerUnavailable("dialling was ended by unpeer", address)
        actions = self._dialling.remove(target, why)
        begun = None if target.conn is None else self.links.get(target.conn)
        if begun is not None:
            begun.target = None
            actions += self._do(begun, begun.handshake.end("dialling was ended by unpeer"), now)
        return [*actions, Resolve(ticket, True)]

    def _linked(self, address: Address) -> Link | None:
        target = self._dialling.targets.get(address)
        wanted = None if target is None else target.peer_id
        for link in self.links.values():
            if link.established_at is not None and (link.address == address or link.peer_id == wanted):
                return link
        return None

    def _leave(self, link: Link, now: float) -> list[Effect]:
        """Say goodbye, once earlier publications need not wait any longer to keep their order."""
        if link.bye is not None or link.conn in self._leaving:
            return []
        self._leaving[link.conn] = now
        if self.router.trees.order.waits:
            self._deadlines.set(("order", link.conn), now + UNPEER_S / 2)
            return []
        return self._say_goodbyes()

    def _hurry(self, conn: int, now: float) -> Sequence[Effect]:
        """Send publications from before a goodbye that have waited long enough for their turn or for room."""
        last = self._leaving[conn] + 3 * UNPEER_S / 4
        if now >= last:
            return self.router.send_all()
        self._deadlines.set(("order", conn), last)
        return self.router.send_all(now)

    def _say_goodbyes(self) -> list[Effect]:
        """Say goodbye to all peers that are left, if nothing waits any more that is to go before."""
        if not self._leaving or self.router.trees.order.waits:
            return []
        links = [(self.links[conn], asked_at) for conn, asked_at in self._leaving.items()]
        self._leaving.clear()
        confirmed = self.router.confirm()
        for link, asked_at in links:
            self._deadlines.clear(("order", link.conn))
            self._byes += 1
            link.bye = ping_token(BYE, self._byes)
            self._deadlines.set(("leave", link.conn), asked_at + UNPEER_S)
            link.outbox.put_control(pack_ping(self.own_id, link.peer_id, link.bye))
        return [*confirmed, *[link.flush for link, _ in links]]

    def await_peer(self, peer_id: bytes, timeout_s: float | None, ticket: int, now: float) -> list[Effect]:
        """Resolve to True once ``peer_id`` can be reached, over whatever way, and its filter is known.

        Resolves to False after ``timeout_s`` or at the end.
        """
        if self._is_there(peer_id):
            return [Resolve(ticket, True)]
        if self._closed:
            return [Resolve(ticket, False)]
        self._awaited[ticket] = peer_id
        if timeout_s is not None:
            self._deadlines.set(("await", ticket), now + timeout_s)
        return []

    def _resolve_awaited(self) -> list[Effect]:
        """Resolve calls that wait for an endpoint that is there now."""
        if not self._awaited:
            return []
        found = [ticket for ticket, peer_id in self._awaited.items() if self._is_there(peer_id)]
        for ticket in found:
            del self._awaited[ticket]
            self._deadlines.clear(("await", ticket))
        return [Resolve(ticket, True) for ticket in found]

    def _is_there(self, peer_id: bytes) -> bool:
        return self._table.status(peer_id) is PeerStatus.PEERED or self.router.topology.reaches(peer_id)

    def ping(self, peer_id: bytes, ticket: int, now: float) -> list[Effect]:
        """Resolve to True once the direct peer has answered a ping, or to PeerInvalid or PeerUnavailable."""
        for link in self.links.values():
            if link.established_at is not None and link.peer_id == peer_id:
                asked = ping_token(ASKED, ticket)
                link.pings[asked] = ticket
                if not link.outbox.put_control(pack_ping(self.own_id, peer_id, asked)):
                    self.router.outboxes.overflowed[link.conn] = link
                return [link.flush]
        return [Resolve(ticket, PeerInvalid(f"{UUID(bytes=peer_id)} is not a direct peer", None, peer_id))]

    def peers(self) -> list[PeerInfo]:
        """Return the direct peers, then the addresses that are being dialled."""
        found = [link.info() for link in self.links.values() if link.established_at is not None]
        for target in list(self._dialling.targets.values()):
            if target.conn is None and target.peer_id is None:
                status = PeerStatus.CONNECTING if target.dial is not None else PeerStatus.DISCONNECTED
                found.append(PeerInfo(None, target.address, status, True))
            elif target.conn is not None and target.peer_id is None:
                found.append(PeerInfo(None, target.address, PeerStatus.CONNECTING, True))
        return found

    def shutdown(self, now: float) -> list[Effect]:
        """Say goodbye to all peers; each ``Close`` follows its answer, ``UNPEER_S`` later at most."""
        self._closed = True
        actions: list[Effect] = []
        for target in list(self._dialling.targets.values()):
            actions += self._dialling.remove(target, Closed("the endpoint was closed"))
        for ticket in self._awaited:
            self._deadlines.clear(("await", ticket))
            actions.append(Resolve(ticket, False))
        self._awaited.clear()
        for link in list(self.links.values()):
            if link.established_at is None:
                link.target = None
                actions += self._do(link, link.handshake.end("the endpoint was closed"), now)
            else:
                actions += self._leave(link, now)
        return actions

    # -- signs of life ----------------------------------------------------------------------------

    def _handle_ping(self, link: Link, message: Message, now: float) -> list[Effect]:
        if message.kind != PING:
            if link.bye is not None and message.payload == link.bye:
                link.confirmed = link.outbox.messages
                return self._end(link, PeerRemoved, "", now)
            if message.payload.startswith(HEARTBEAT):
                self.heartbeats.answered(link, message.payload, now)
                return []
            asked = link.pings.pop(message.payload, None)
            return [] if asked is None else [Resolve(asked, True)]
        if message.payload.startswith(BYE):
            link.left = True
            link.confirmed = link.outbox.accepted  # it waits until it has our answer, and so all before that
        token, put = message.payload, link.outbox.put_control
        if link.chappe and token.startswith(HEARTBEAT):
            if self.router.congestion.claimed(link, token.removeprefix(HEARTBEAT), now):
                self.heartbeats.claims(now)
            token, put = self.heartbeats.answer(token, now), link.outbox.put_first
        if not put(pack_pong(self.own_id, link.peer_id, token)):
            self.router.outboxes.overflowed[link.conn] = link
        return [link.flush]

    def _drop_overflowed(self, now: float) -> list[Effect]:
        """End the links that took so little that nothing more can be kept for them."""
        actions: list[Effect] = []
        for link in list(self.router.outboxes.overflowed.values()):
            actions += self._end(link, PeerRemoved, "it took less than was sent", now)
        return actions

    def _take_last(self, conn: int, bytes_max: int) -> list[bytes]:
        if conn not in self._closing:
            return []
        frames = self._closing[conn].outbox.take(bytes_max)
        if not frames:
            del self._closing[conn]
            self._deadlines.clear(("empty", conn))
        return frames

    def _closed_at_last(self, conn: int) -> None:
        if conn in self._closing:
            self._deadlines.clear(("empty", conn))
            self.router.give_up(self._closing.pop(conn))

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due at ``now``; called too early it does nothing."""
        actions = self._drop_overflowed(now)
        for what, number in self._deadlines.due(now):
            if what == "empty":
                self._closed_at_last(number)
            elif what == "await":
                if self._awaited.pop(number, None) is not None:
                    actions.append(Resolve(number, False))
            elif what == "order":
                actions += self._hurry(number, now)
            elif number in self.links:
                link = self.links[number]
                actions += (
                    self._do(link, link.handshake.tick(now), now)
                    if what == "greet"
                    else self._end(link, PeerRemoved, "", now)
                )
        if now >= self.heartbeats.due():
            actions += self._beat(now)
        actions += [*self._dialling.handle_timeout(now), *self.router.handle_timeout(now)]
        return actions + self._resolve_awaited() + self._say_goodbyes()

    def next_timeout(self) -> float:
        if self.router.outboxes.overflowed:
            return -inf
        retry_at, router_at = self._dialling.retries.next, self.router.next_timeout()
        return min(self._deadlines.next, self.heartbeats.due(), retry_at, router_at)

    def _beat(self, now: float) -> list[Effect]:
        links = [each for each in self.links.values() if each.established_at is not None]
        actions, silent = self.heartbeats.beat(links, now)
        self.router.outboxes.overflowed.update({each.conn: each for each in links if each.outbox.overflowed})
        for link in silent:
            seconds = now - max(link.heard_at, link.moved_at)
            actions += self._end(link, PeerLost, f"nothing came from it for {seconds:.1f} s", now)
        return actions
