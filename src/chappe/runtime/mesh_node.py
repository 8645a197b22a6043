"""A mesh node: one member's core, an endpoint with its data stores, on its sockets.

Whoever publishes writes to the sockets at once, and whoever waits for messages reads them (``turns``); what a
socket does not take waits in the core's bounded outboxes. Dialling never blocks. All but what stands
under "from any thread" runs with the lock held.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from chappe.core import Report
from chappe.defaults import CLOSE_FLUSH_S, CLOSE_S, HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_SPARED_S, HANDSHAKES_MAX
from chappe.member import Action, Member, Serve
from chappe.mesh.actions import Action as MeshAction
from chappe.mesh.actions import Close, Deliver, Dial, Flush, OfferKeys, OfferRules, Resolve
from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.events import EndpointHalted
from chappe.mesh.forwarding.group_keys import KeysHere
from chappe.mesh.links.greetings import DropConn, Fault, Hello, VersionSelect, parse_greeting
from chappe.mesh.messages import COMMAND
from chappe.mesh.rules import COMMAND_HEAD, MeshRules
from chappe.runtime.dials import Dials
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.listening import Listeners, listening_socket
from chappe.runtime.mesh_rules import RulesWatch
from chappe.runtime.turns import Ready, Turns
from chappe.system import time
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.dialling import Attempt
from chappe.transports.gathering import WriteGatherer
from chappe.transports.refusals import audited
from chappe.transports.tcp import TOO_MUCH, LinkLost, TcpLink, Unfinished
from chappe.transports.tls import Bindings, Contexts

if TYPE_CHECKING:
    from chappe.sealing.in_mesh import MeshSealing

logger = logging.getLogger(__name__)

HELD_LOOK_S: Final = 0.02  # how often it is looked whether links that were held back may be read again
DRAINED_S: Final = 0.02  # how often the core hears what a full subscriber takes; it tells others far less often
READS_MAX: Final = 8  # reads from one socket before the others get their turn
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class MeshNode:
    """Runs one endpoint.

    Args:
        security: What its connections are made of; None for plain ones.
        rules: Who may do what; None if nobody is asked.
        sealing: Seals and opens what is in sealed topics; None where nobody can.
        perform: What to do with ``Deliver``, ``Resolve`` and ``Report``; called with the lock held.
    """

    def __init__(
        self,
        core: EndpointCore,
        security: Contexts | None,
        perform: dict[type, Callable[[Any], None]],
        rules: RulesWatch | None = None,
        sealing: MeshSealing | None = None,
    ) -> None:
        own(self)
        need_descriptors()
        assert {Deliver, Resolve, Report} <= set(perform)
        self.core = core
        self.member = Member(core, SYSTEM_CLOCK)
        self.member.reporting.tls = security is not None
        self.served: dict[int, Callable[[Serve], None]] = {}  # who serves data stores of the member, by number
        self.tapped: Callable[[int, list[bytes]], None] | None = None  # is shown what comes, while somebody looks
        self.alarm_at = math.inf  # then ``alarm`` is called once, for whoever set it
        self.alarm: Callable[[], object] = lambda: None
        self.turns = Turns(self._handle, self._due, self._halted)
        self.lock = self.turns.lock
        self._security = security
        self._bindings = Bindings(frozenset() if security is None else security.ids | {core.own_id})
        self._perform: dict[type, Callable[[Any], None]] = {
            Flush: self._flush,
            Close: self._close_link,
            Dial: lambda action: self._dials.begin(action.dial, action.host, action.port),
            Serve: self._serve,
            OfferRules: self._offer_rules,
            OfferKeys: self._offer_keys,
            **perform,
        }
        self.gatherer = WriteGatherer(self._flush, self.turns.look_again_at, core.peer_messages_max)
        self._links: dict[int, TcpLink] = {}
        self._closing: dict[int, TcpLink] = {}  # being flushed; the core has forgotten them
        self._young: dict[int, float] = {}  # accepted, not established: since when, the oldest first
        self._held: dict[int, TcpLink] = {}  # not read, as what they bring has nowhere to go ...
        self._held_look_at = math.inf  # ... for now
        self._turned = 0  # how often publishers were to wait or to go on, when it was looked last
        self._drained: dict[int, int] = {}  # messages that full subscribers took of which the core has not heard ...
        self._drained_at = -math.inf  # ... since then
        self.unfinished = Unfinished()
        self._listeners = Listeners(self.turns, self._room_for_more, self._accepted)
        self._dials = Dials(self.turns, self._dialled, self._not_dialled)
        self._next_conn = 1
        self._rules = rules
        if rules is not None:
            core.router.refusals.heard = self._refused
            self._take_rules(rules.rules)
        self.sealing = sealing
        if sealing is not None:
            core.router.opens = sealing.open
            self.member.seals = sealing.seal_commands
            sealing.allows = self._allows
        self.turns.start()

    # -- from any thread ------------------------------------------------------------------------------

    def call(self, method: Callable[..., Sequence[MeshAction]], *args: Any) -> None:
        """Make one call into the core and carry out its answer; nothing happens on a node that is closed or halted."""
        self.turns.check_caller()
        with self.lock:
            if not self.turns.closed and self.turns.halted is None:
                self.perform(self._ask(method, *args))
                self.turns.tell()
                self.turns.look_again()

    def advance(self, to_ns: int) -> None:
        """Advance the simulated time of data stores: see ``Member.advance``.

        Raises:
            MemberStopped: A defect has stopped the node.
        """
        with self.lock:
            if not self.turns.closed:
                self.turns.check()
                self.perform(self.member.advance(to_ns, time.monotonic()))
                self.turns.tell()
                self.turns.look_again()

    def _ask(self, method: Callable[..., Sequence[MeshAction]], *args: Any) -> Sequence[Action]:
        return self.member.call(method, *args, now=time.monotonic())

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order; the lock is held."""
        table = self._perform
        for action in actions:
            table[type(action)](action)

    def send_soon(self, flushes: Sequence[Flush], now: float) -> None:
        """Write a published message to its sockets, perhaps a moment later with others; the lock is held."""
        self.gatherer.add(flushes)
        self.gatherer.soon(now)

    @property
    def links(self) -> int:
        """How many connections there are."""
        return len(self._links)

    def keep_up(self) -> None:
        """After a write, without the lock: read what has come back, in the thread that writes much.

        Otherwise the node's thread does, and the two wait for each other more than they do.
        """
        if self.gatherer.many:
            self.gatherer.many = False
            self.turns.serve()

    def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port.

        Raises:
            MemberStopped: A defect has stopped the node.
            AddressInUse: Somebody listens there.
            UsageError: The host is not one of this machine.
        """
        sock = listening_socket(self.turns.machine, host, port)
        with self.lock:
            try:
                self.turns.check()
                self._listeners.add(sock)
            except BaseException:
                sock.close()
                raise
            found: int = sock.getsockname()[1]
            return found

    def pass_sealed(self) -> None:
        """Seal and open nothing from now on: what is sealed is passed on as it is."""
        with self.lock:
            self.sealing = self.core.router.opens = self.member.seals = None

    def _allows(self, name: str, topic: bytes, command: bytes) -> str:
        """The verb that an identity lacks for a command that was sealed, so that neighbours could not look."""
        rules = self.core.router.rules
        return "" if rules is None else rules.sending(name, COMMAND, topic, command[:COMMAND_HEAD])

    def _refused(self, name: str, verb: str, topic: bytes, count: int) -> None:
        rules = self.core.router.rules
        if audited.on and rules is not None:
            why = rules.refusal(name) or rules.why_not(name, verb, topic.removesuffix(b"*"))
            audited.note(name, verb, topic.decode(errors="backslashreplace"), why, count)

    def forked(self) -> None:
        """We are a child's copy: without its sockets, so that peers notice when the parent ends."""
        inherited: list[socket.socket | TcpLink] = [*self._listeners.sockets, *self._links.values()]
        for each in (*inherited, *self._closing.values()):
            each.close()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Say goodbye to all peers, wait for their answers at most ``timeout_s``, release everything."""
        with self.lock:
            if self.turns.closed:
                return
            self._open_no_more()
        self.call(self.core.shutdown)
        try:
            self.turns.wait(lambda: not self._links and not self._closing, timeout_s)
        finally:
            self.turns.stop()
            with self.lock:
                for link in (*self._links.values(), *self._closing.values()):
                    link.close()
                self._links.clear()
                self._closing.clear()
                self._dials.close()
                self.turns.release()

    def _open_no_more(self) -> None:
        self._listeners.close()
        self._dials.close()

    def _halted(self, reason: str) -> None:
        """A defect stopped us; the lock is held. Peers see at once that we are gone, data stores refuse every call."""
        self.member.halt()
        for link in (*self._links.values(), *self._closing.values()):
            self._drop(link)
        self._open_no_more()
        self.perform((Report(EndpointHalted(reason)),))

    # -- reading, with the lock held ------------------------------------------------------------------

    def fill(self, number: int, full: bool, beyond: bool, stop: bool) -> None:
        """A subscriber that blocks is full, or has room again; ``stop``: so much waits that nothing is to be read."""
        self.core.handle_full(number, full, beyond, time.monotonic())
        if stop or self.member.paused:
            self.pause(number, stop)
        self.turns.look_again()

    def pause(self, number: int, on: bool) -> None:
        """Nothing is to be read from peers, as somebody here takes no more, or it is read again."""
        now = time.monotonic()
        was = self.member.paused
        self.member.handle_full(number, on, now)
        if was and not self.member.paused and not self.turns.closed:
            self._read_again(now)

    def drained(self, number: int, count: int) -> None:
        """A subscriber that is full has taken so many messages; the core hears of them together."""
        self._drained[number] = self._drained.get(number, 0) + count
        now = time.monotonic()
        if now >= self._drained_at + DRAINED_S:  # for each message it would cost as much as the message
            self._drained_at = now
            for each in self._drained:
                self.core.handle_taken(each, now)
            if self.member.paused:
                self.core.handle_drained(sum(self._drained.values()), now)
            self._drained.clear()
            self.turns.look_again()

    def _read_again(self, now: float) -> None:
        for link in self._links.values():
            self.unfinished.begin_again(link, now)
            if not link.reading and link.number not in self._held:
                link.reading = True
                self._watch(link)
        self.turns.look_again()

    def _hold_back(self, link: TcpLink, now: float) -> bool:
        if not self.core.holds_back(link.number, now):
            return False
        link.reading = False
        self._watch(link)
        self._held[link.number] = link
        self._held_look_at = now + HELD_LOOK_S
        return True

    def _look_at_held(self, now: float) -> None:
        for link in list(self._held.values()):
            self.core.handle_heard(link.number, now)  # it cannot be heard, so its silence means nothing
            if not self.core.holds_back(link.number, now):
                del self._held[link.number]
                self.unfinished.begin_again(link, now)
                if not self.member.paused:
                    link.reading = True
                    self._watch(link)
        self._held_look_at = now + HELD_LOOK_S if self._held else math.inf

    def _handle(self, ready: Ready) -> None:
        for key, mask in ready:
            data = key.data
            if type(data) is TcpLink:
                if not data.lost:  # by what was handled just before
                    self._serve_link(data, mask)
            else:
                data(mask)
        now = time.monotonic()
        if now >= self._own_due():
            self._own_timeouts(now)
        if now >= self.member.next_timeout():
            self.perform(self.member.handle_timeout(now))
        if self.core.turned != self._turned:
            self._turned = self.core.turned
            self.turns.news = True

    def _serve_link(self, link: TcpLink, mask: int) -> None:
        try:
            if mask & _READ:
                if link.closing_at is not None:
                    link.receive()  # only to notice that it is closed
                elif self.member.paused and link.established:
                    link.reading = False
                    self._watch(link)
                else:
                    self._read(link)
            if mask & _WRITE and not link.lost:
                self._write(link)
        except LinkLost as error:
            self._lose(link, str(error))

    def _read(self, link: TcpLink) -> None:
        was_handshaking = link.handshaking
        for _ in range(READS_MAX):
            if not link.receive():
                break
            if was_handshaking:
                self._write(link)  # TLS has something to say, and perhaps what waited for it
                was_handshaking = link.handshaking
                if link.key is not None and not was_handshaking:
                    self.core.handle_secured(link.number, link.key, link.named, link.identity)
            frames = link.frames(self.core.messages_max(link.number))
            if not frames:
                self.core.handle_heard(link.number, time.monotonic())
            while frames:
                if not link.established and self._security is not None:
                    self._check_id(link, frames[0])
                if self.tapped is not None and link.established:
                    self.tapped(link.number, frames)
                now = time.monotonic()
                self.perform(self.member.handle_frames(link.number, frames, now))
                if link.lost or link.closing_at is not None:
                    return
                if not link.established:
                    self._look_whether_established(link)
                if not link.more:
                    break
                frames = link.frames(self.core.messages_max(link.number))
            if link.established and (self.member.paused or self._hold_back(link, time.monotonic())):
                break
            if link.drained:
                break
        if link.established and (link.unfinished or link.counted):
            self._note_unfinished(link)

    def _note_unfinished(self, link: TcpLink) -> None:
        self.unfinished.note(link, time.monotonic())
        slow = self.unfinished.surplus(time.monotonic())
        if slow is link:
            raise LinkLost(TOO_MUCH)
        if slow is not None:
            self._lose(slow, TOO_MUCH)
        if link.begun_at is not None:
            self.turns.look_again_at(link.too_late_at())

    def _serve(self, action: Serve) -> None:
        serve = self.served.get(action.number)
        if serve is not None:  # not closed by what was carried out just before
            serve(action)

    def _check_id(self, link: TcpLink, body: bytes) -> None:
        """Raise LinkLost if the peer says that it has an id that is not for its certificate."""
        try:
            greeting = parse_greeting(body)
        except Fault:
            return  # the core says what is wrong
        if not isinstance(greeting, Hello | VersionSelect | DropConn) or greeting.sender == self.core.own_id:
            return
        link.stated = greeting.sender
        refusal = self._bindings.refusal(link.stated, link.named, link.key)
        if refusal is not None:
            raise LinkLost(refusal)
        if link.named:
            for other in [each for each in self._links.values() if each.stated == link.stated and not each.named]:
                self._lose(other, "the certificate of another peer names the endpoint id that it had claimed")

    def _look_whether_established(self, link: TcpLink) -> None:
        link.bytes_max = self.core.frame_bytes_max(link.number)
        if link.bytes_max > HANDSHAKE_FRAME_BYTES_MAX:
            link.established = True
            if link.key is not None and not link.named and link.stated is not None:
                self._bindings.peered(link.stated, link.key)
            self._grown(link.number)

    # -- writing --------------------------------------------------------------------------------------

    def _flush(self, action: Flush) -> None:
        link = self._links.get(action.conn)
        if link is not None and not link.writing:
            try:
                self._write(link)
            except LinkLost as error:
                self._lose(link, str(error))

    def _write(self, link: TcpLink) -> None:
        before = link.sent_bytes
        waiting = not link.send(self.core.take)
        if link.writing and link.sent_bytes != before:
            self.core.handle_moved(link.number, time.monotonic())
            self.turns.news = True  # a publisher may have room again, though more waits
        if waiting is not link.writing:
            link.writing = waiting
            self._watch(link)
            self.turns.news = True
        if self._held:
            self._look_at_held(time.monotonic())
        if link.closing_at is not None and not waiting:
            self._drop(link)

    def _watch(self, link: TcpLink) -> None:
        mask = (_READ if link.reading else 0) | (_WRITE if link.writing else 0)
        if not mask:
            if link.watched:
                self.turns.unregister(link)
        elif link.watched:
            self.turns.modify(link, mask, link)
        else:
            self.turns.register(link, mask, link)
        link.watched = bool(mask)

    # -- links come and go ----------------------------------------------------------------------------

    def _room_for_more(self) -> bool:
        return len(self._young) < HANDSHAKES_MAX or self._make_room(time.monotonic())

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        link = self._add(sock, None)
        if link is not None:
            logger.debug("connection %d comes from %s, port %s", link.number, address[0], address[1])
            self._young[link.number] = time.monotonic()
            self._begin(link, self._ask(self.core.handle_accepted, link.number, (address[0], address[1])))

    def _dialled(self, dial: Attempt, sock: socket.socket) -> None:
        link = self._add(sock, dial.host)
        if link is None:
            dial.reason = "the connection broke"
            self._not_dialled(dial)
        else:
            logger.debug("connection %d goes to %s, port %s", link.number, dial.host, dial.port)
            self._begin(link, self._ask(self.core.handle_dialled, link.number, dial.number, (dial.host, dial.port)))

    def _not_dialled(self, dial: Attempt) -> None:
        logger.debug("no connection to %s, port %s: %s", dial.host, dial.port, dial.reason)
        self.perform(self._ask(self.core.handle_dial_failed, dial.number, dial.reason))

    def _make_room(self, now: float) -> bool:
        """Give up the connection that is the longest in its handshake, if that is long for one."""
        number, since = next(iter(self._young.items()))
        if now < since + HANDSHAKE_SPARED_S:
            return False
        self._lose(self._links[number], "its handshake takes long, and others wait")
        return True

    def _add(self, sock: socket.socket, host: str | None) -> TcpLink | None:
        number = self._next_conn
        self._next_conn += 1
        try:
            link = TcpLink(sock, number, self._security, host)
        except (OSError, ValueError) as error:  # it broke already, or TLS does not take the name of the host
            sock.close()
            logger.info("a connection was given up: %s", error)
            return None
        link.bytes_max = HANDSHAKE_FRAME_BYTES_MAX
        self._links[number] = link
        self._watch(link)
        return link

    def _begin(self, link: TcpLink, actions: Sequence[Action]) -> None:
        try:
            link.start()
            self.perform(actions)
            if not link.lost:
                self._write(link)
        except LinkLost as error:
            self._lose(link, str(error))

    def _close_link(self, action: Close) -> None:
        link = self._links.pop(action.conn, None)
        if link is None:
            return
        logger.debug("connection %d is closed", link.number)
        self._grown(link.number)
        self._held.pop(link.number, None)
        self.unfinished.forget(link)
        link.reading = True  # to notice that it is closed
        link.closing_at = time.monotonic() + CLOSE_FLUSH_S
        self._closing[link.number] = link
        self._watch(link)
        try:
            self._write(link)
        except LinkLost:
            self._drop(link)

    def _lose(self, link: TcpLink, reason: str) -> None:
        """A link broke: tell the core, unless it was the core that closed it."""
        told = link.number not in self._links
        logger.debug("connection %d is over: %s", link.number, reason)
        self._drop(link)
        if not told:
            self.perform(self._ask(self.core.handle_closed, link.number, reason))

    def _drop(self, link: TcpLink) -> None:
        if link.lost:
            return
        link.lost = True
        if link.watched:
            self.turns.unregister(link)
            link.watched = False
        link.close()
        self._links.pop(link.number, None)
        self._closing.pop(link.number, None)
        self._held.pop(link.number, None)
        self.unfinished.forget(link)
        self._grown(link.number)
        self.turns.news = True

    def _grown(self, conn: int) -> None:
        """The handshake of a connection is complete."""
        self._young.pop(conn, None)

    # -- time -----------------------------------------------------------------------------------------

    def _due(self) -> float:
        return min(self.member.next_timeout(), self._own_due())

    def _own_due(self) -> float:
        due = min(self._listeners.due, self._held_look_at, self.gatherer.due, self.alarm_at)
        if self._rules is not None:
            due = min(due, self._rules.due)
        if self.sealing is not None:
            due = min(due, self.sealing.due)
        if self.unfinished.links:
            due = min(due, self.unfinished.due())
        if self._dials.under_way:
            due = min(due, self._dials.due())
        for link in self._closing.values():
            due = min(due, link.closing_at or 0.0)
        return due

    def _own_timeouts(self, now: float) -> None:
        if now >= self.gatherer.due:
            self.gatherer.at_once()
        if now >= self._listeners.due:
            self._listeners.go_on()
        if now >= self._held_look_at:
            self._look_at_held(now)
        if now >= self.alarm_at:
            self.alarm_at = math.inf
            self.alarm()
        if self._rules is not None and now >= self._rules.due:
            self._look_at_rules(self._rules)
        if self.sealing is not None and now >= self.sealing.due:
            self.perform(self._ask(self.core.deliver_opened, self.sealing.look()))
            self.perform([Report(each) for each in self.sealing.untold()])
        for link in self.unfinished.too_late(now):
            self._lose(link, f"it has begun a message and not finished it in {now - (link.begun_at or now):.0f} s")
        self._dials.handle_timeout(now)
        for link in [each for each in self._closing.values() if now >= (each.closing_at or 0.0)]:
            self._drop(link)

    def _look_at_rules(self, watch: RulesWatch) -> None:
        if watch.keys is not None:  # before the permissions that need them
            self._take_keys(watch.keys.look())
        self._take_rules(watch.look())

    def _offer_rules(self, action: OfferRules) -> None:
        if self._rules is not None:
            self._take_rules(self._rules.offer(action.raw))

    def _take_rules(self, rules: MeshRules | None) -> None:
        if rules is not None:
            self.perform(self._ask(self.core.set_rules, rules))
            if self._rules is not None and self._rules.keys is not None:  # they may name other groups
                self._take_keys(self._rules.keys.look())

    def _offer_keys(self, action: OfferKeys) -> None:
        if self._rules is not None and self._rules.keys is not None:
            self._take_keys(self._rules.keys.offer(action.group, action.raw))

    def _take_keys(self, here: KeysHere | None) -> None:
        if here is not None:
            self.perform(self._ask(self.core.set_keys, here))
