"""An endpoint of the mesh with its data stores: its connections, its files and its users.

Whoever publishes writes to the sockets at once, and whoever waits for messages reads them (``turns``); what a
socket does not take waits in the core's bounded outboxes. Dialling never blocks. A durable master's backend commits on
a lane of its own: one commit is under way while the next one gathers. All but what stands under "from any thread" runs
with the lock held.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from chappe.core import Close, Deliver, Dial, Effect, Flush, Report, Resolve, Send
from chappe.defaults import CLOSE_FLUSH_S, CLOSE_S, HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_SPARED_S, HANDSHAKES_MAX
from chappe.errors import Address
from chappe.kv.backend import Backend
from chappe.member import MeshMember, StoreCommit
from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.events import EndpointHalted
from chappe.mesh.forwarding.group_keys import OfferKeys
from chappe.mesh.links.greetings import DropConn, Fault, Hello, VersionSelect, parse_greeting
from chappe.mesh.messages import COMMAND
from chappe.mesh.rules import COMMAND_HEAD, MeshRules, OfferRules
from chappe.runtime.commits import commit
from chappe.runtime.dials import Dials
from chappe.runtime.driver import SYSTEM_CLOCK, Driver, Ports
from chappe.runtime.listening import Listeners, listening_socket
from chappe.runtime.mesh_rules import RulesWatch
from chappe.system import time
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


class EndpointUsers(Protocol):
    """The users of an endpoint, as its ports know them; all is called with the lock held."""

    def deliver(self, number: int, found: list[Any]) -> None:
        """Take messages for a subscriber, or changes for those who watch a data store."""

    def resolve(self, ticket: int, outcome: object) -> None: ...

    def report(self, event: object) -> None: ...


class ChainProposer(Protocol):
    """Proposes commands to a server of a chain: see ``runtime.kv_chain``."""

    def propose(self, commands: Sequence[bytes]) -> None:
        """Propose commands to the chain, if the server is its head; never waits."""


class MeshPorts(Ports):
    """The sockets of an endpoint.

    Args:
        users: Referred to weakly.
        security: Of its connections; None for plain ones.
        rules: The permissions; None if nobody is asked.
        sealing: Seals and opens messages of sealed topics; None where nobody can.
    """

    eager: ClassVar[bool] = False

    def __init__(
        self,
        core: EndpointCore,
        users: EndpointUsers,
        security: Contexts | None,
        rules: RulesWatch | None = None,
        sealing: MeshSealing | None = None,
    ) -> None:
        self.core = core
        self.member = MeshMember(core, SYSTEM_CLOCK)
        self.member.reporting.tls = security is not None
        Driver(self.member, self, "endpoint")
        self.turns = self.driver.turns
        self.lock = self.driver.lock
        self.backends: dict[int, Backend] = {}  # of data stores, by their numbers
        self.chains: dict[int, ChainProposer] = {}  # likewise
        self.tapped: Callable[[int, list[bytes]], None] | None = None  # is shown what comes, while somebody looks
        self.alarm_at = math.inf  # then ``alarm`` is called once, for whoever set it
        self.alarm: Callable[[], object] = lambda: None
        self._users = weakref.ref(users)
        self._security = security
        self._bindings = Bindings(frozenset() if security is None else security.ids | {core.own_id})
        # What is gathered, or read at once, has half of the room for a peer; what is passed on meanwhile has the rest.
        self._half_bytes = core.peer_bytes_max // 2
        self.gatherer = WriteGatherer(self, core.peer_messages_max // 2, self._half_bytes)
        self._links: dict[int, TcpLink] = {}
        self._closing: dict[int, TcpLink] = {}  # being flushed; the core has forgotten them
        self._broken: list[tuple[int, str]] = []  # links that could not be written to, and why; the core hears it soon
        self._young: dict[int, float] = {}  # accepted, not established: since when, the oldest first
        self._held: dict[int, TcpLink] = {}  # not read, as what they bring has nowhere to go ...
        self._held_look_at = math.inf  # ... for now
        self._holds = core.router.holds
        self._turned = 0  # how often publishers were to wait or to go on, or the network changed, at the last look
        self._drained: dict[int, int] = {}  # messages that full subscribers took of which the core has not heard ...
        self._drained_at = -math.inf  # ... since then
        self.unfinished = Unfinished()
        self._listeners = Listeners(self.turns, self)
        self._dials = Dials(self.turns, self)
        self._last_conn = 0  # of connections that came in
        self._rules = rules
        if rules is not None:
            core.router.refusals.heard = self._refused
            self.driver.perform(self._with_rules(rules.rules))
        self.sealing = sealing
        if sealing is not None:
            core.router.opens = sealing.open
            self.member.seals = sealing.seal_commands
            sealing.allows = self._allows
        self.driver.start()

    # -- from any thread ------------------------------------------------------------------------------

    def runs(self) -> bool:
        """False on an endpoint that is closed or halted. Raises UsageError: in a callback while the node is busy."""
        self.turns.check_caller()
        return not self.turns.closed and self.turns.halted is None

    def do(self, effects: Sequence[Effect]) -> None:
        self.driver.do(self.member.take(effects, time.monotonic()))
        self.turns.tell()

    def advance(self, to_ns: int) -> None:
        """Advance the simulated time of data stores, as ``Member.advance``. Raises MemberStopped."""
        with self.lock:
            if not self.turns.closed:
                self.turns.check()
                self.driver.do(self.member.advance(to_ns, time.monotonic()))
                self.turns.tell()

    def look_again_at(self, due: float) -> None:
        self.turns.look_again_at(due)

    def send_soon(self, flushes: Sequence[Flush], now: float, size: int = 0) -> None:
        """Write a published message to its sockets, perhaps a moment later with others; the lock is held."""
        self.gatherer.add(flushes, size)
        self.gatherer.soon(now)

    @property
    def links(self) -> int:
        return len(self._links)

    def keep_up(self) -> None:
        """Read what came back, without the lock, in the thread that writes much: so it and the node's wait less."""
        if self.gatherer.many:
            self.gatherer.many = False
            self.turns.serve()

    def listen(self, host: str, port: int) -> int:
        """Accept connections; return the port. Raises MemberStopped, AddressInUse, UsageError: no host of ours."""
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
        """Seal and open nothing from now on: sealed messages are passed on as they are."""
        with self.lock:
            self.sealing = self.core.router.opens = self.member.seals = None

    def _allows(self, name: str, topic: bytes, command: bytes) -> str:
        """Return the verb that an identity lacks for a sealed command, which neighbours could not judge."""
        rules = self.core.router.rules
        return "" if rules is None else rules.sending(name, COMMAND, topic, command[:COMMAND_HEAD])

    def _refused(self, name: str, verb: str, topic: bytes, count: int) -> None:
        rules = self.core.router.rules
        if audited.on and rules is not None:
            why = rules.refusal(name) or rules.why_not(name, verb, topic.removesuffix(b"*"))
            audited.note(name, verb, topic.decode(errors="backslashreplace"), why, count)

    def forked(self) -> None:
        """Close our copies of the sockets in a child, so that peers notice when the parent ends."""
        inherited: list[socket.socket | TcpLink] = [*self._listeners.sockets, *self._links.values()]
        for each in (*inherited, *self._closing.values()):
            each.close()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Say goodbye to all peers, wait for their answers at most ``timeout_s``, release everything."""
        with self.lock:
            if self.turns.closed:
                return
            self._open_no_more()
            if self.runs():
                self.do(self.core.shutdown(time.monotonic()))
        try:
            self.turns.wait(lambda: not self._links and not self._closing and not self._broken, timeout_s)
        finally:
            self.driver.close()

    # -- effects --------------------------------------------------------------------------------------

    def flush(self, effect: Flush) -> None:
        link = self._links.get(effect.link)
        if link is not None and not link.writing:
            try:
                self._write(link)
            except LinkLost as error:  # messages of this peer among further effects come before the news
                self._drop(link)
                self._broken.append((link.number, str(error)))
                self.turns.look_again()

    def deliver(self, effect: Deliver) -> None:
        users = self._users()
        if users is not None:
            users.deliver(effect.to, effect.messages)

    def resolve(self, effect: Resolve) -> None:
        users = self._users()
        if users is not None:
            users.resolve(effect.ticket, effect.outcome)

    def report(self, event: object) -> None:
        users = self._users()
        if users is not None:
            users.report(event)

    def dial(self, effect: Dial) -> None:
        self._dials.begin(effect.link, *effect.address)

    def send(self, effect: Send) -> None:
        chain = self.chains.get(effect.to)
        if chain is not None:  # not closed by what was carried out just before
            chain.propose(effect.message)

    def disk(self, job: object) -> Hashable:
        """Return the data store: each has a disk of its own."""
        return job.number if isinstance(job, StoreCommit) else None

    def carry_out(self, job: object) -> object:
        if isinstance(job, StoreCommit):
            return commit(self.backends[job.number], job.commit)
        assert self._rules is not None
        if isinstance(job, OfferRules):
            return self._rules.take(job.raw)
        assert isinstance(job, OfferKeys)
        return self._rules.keys is not None and self._rules.keys.take(job.group, job.raw)

    def done(self, job: object, outcome: Any, now: float) -> Sequence[Effect]:
        if isinstance(job, StoreCommit):
            self.turns.news = True  # there may be room again
            return self.member.handle_done(job, outcome, now)
        if not outcome or self._rules is None:
            return ()
        return self._with_rules(self._rules.look()) if isinstance(job, OfferRules) else self._with_keys()

    def release(self) -> None:
        for link in (*self._links.values(), *self._closing.values()):
            link.close()
        self._links.clear()
        self._closing.clear()
        self._open_no_more()

    def halted(self, reason: str) -> None:
        """Close all links, so that peers notice at once; data stores refuse every call."""
        self.member.halt()
        for link in (*self._links.values(), *self._closing.values()):
            self._drop(link)
        self._open_no_more()
        self.report(EndpointHalted(reason))

    def _open_no_more(self) -> None:
        self._listeners.close()
        self._dials.close()

    # -- reading, with the lock held ------------------------------------------------------------------

    def fill(self, number: int, full: bool, beyond: bool, stop: bool) -> None:
        """Note that a subscriber that blocks is full, or has room again; ``stop``: read nothing, as so much waits."""
        self.core.handle_full(number, full, beyond, time.monotonic())
        if stop or self.member.paused:
            self.pause(number, stop)
        self.turns.look_again()

    def pause(self, number: int, on: bool) -> None:
        """Stop reading from peers, as a subscriber here takes no more, or read again."""
        now = time.monotonic()
        was = self.member.paused
        self.member.handle_full(number, on, now)
        if was and not self.member.paused and not self.turns.closed:
            self._read_again(now)

    def drained(self, number: int, count: int) -> None:
        """Note that a full subscriber has taken so many messages; the core hears of them together."""
        self._drained[number] = self._drained.get(number, 0) + count
        now = time.monotonic()
        if now >= self._drained_at + DRAINED_S:  # for each message it would cost as much as the message
            self._drained_at = now
            for each in self._drained:
                self.core.handle_taken(each, now)
            if self.member.paused:
                self.core.drained(sum(self._drained.values()), now)
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
            self.core.heard(link.number, now)  # it cannot be heard, so its silence means nothing
            if not self.core.holds_back(link.number, now):
                del self._held[link.number]
                self.unfinished.begin_again(link, now)
                if not self.member.paused:
                    link.reading = True
                    self._watch(link)
        self._held_look_at = now + HELD_LOOK_S if self._held else math.inf

    def flushed(self) -> None:
        turned = self._holds.turned + self.core.router.settled
        if turned != self._turned:
            self._turned = turned
            self.turns.news = True

    def ready(self, what: TcpLink, mask: int) -> None:
        if what.lost:  # by what was handled just before
            return
        try:
            if mask & _READ:
                if what.closing_at is not None:
                    what.receive()  # only to notice that it is closed
                elif self.member.paused and what.established:
                    what.reading = False
                    self._watch(what)
                else:
                    self._read(what)
            if mask & _WRITE and not what.lost:
                self._write(what)
        except LinkLost as error:
            self._lose(what, str(error))

    def _read(self, link: TcpLink) -> None:
        was_handshaking = link.handshaking
        for _ in range(READS_MAX):
            if not link.receive():
                break
            if was_handshaking:
                self._write(link)  # TLS has something to say, and perhaps what waited for it
                was_handshaking = link.handshaking
                if link.key is not None and not was_handshaking:
                    self.core.secured(link.number, link.key, link.named, link.identity)
            frames = link.frames(self.core.messages_max(link.number), self._half_bytes)
            if not frames:
                self.core.heard(link.number, time.monotonic())
            while frames:
                if not link.established and self._security is not None:
                    self._check_id(link, frames[0])
                if self.tapped is not None and link.established:
                    self.tapped(link.number, frames)
                now = time.monotonic()
                self.driver.perform(self.member.handle_frames(link.number, frames, now))
                if link.lost or link.closing_at is not None:
                    return
                if not link.established:
                    self._look_whether_established(link)
                if not link.more:
                    break
                frames = link.frames(self.core.messages_max(link.number), self._half_bytes)
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

    def _write(self, link: TcpLink) -> None:
        before = link.sent_bytes
        waiting = not link.send(self.core.take)
        if link.writing and link.sent_bytes != before:
            self.core.moved(link.number, time.monotonic())
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

    def room_for_more(self) -> bool:
        return len(self._young) < HANDSHAKES_MAX or self._make_room(time.monotonic())

    def accepted(self, sock: socket.socket, address: Any) -> None:
        self._last_conn += 1
        link = self._add(sock, self._last_conn, None)
        if link is not None:
            logger.debug("connection %d comes from %s, port %s", link.number, address[0], address[1])
            self._young[link.number] = time.monotonic()
            self._begin(link, (address[0], address[1]))

    def dialled(self, dial: Attempt, sock: socket.socket) -> None:
        link = self._add(sock, dial.number, dial.host)
        if link is None:
            dial.reason = "the connection broke"
            self.not_dialled(dial)
        else:
            logger.debug("connection %d goes to %s, port %s", link.number, dial.host, dial.port)
            self._begin(link, (dial.host, dial.port))

    def not_dialled(self, dial: Attempt) -> None:
        logger.debug("no connection to %s, port %s: %s", dial.host, dial.port, dial.reason)
        self._gone(dial.number, dial.reason)

    def _make_room(self, now: float) -> bool:
        """Close the connection that is the longest in its handshake, if that is long for one."""
        number, since = next(iter(self._young.items()))
        if now < since + HANDSHAKE_SPARED_S:
            return False
        self._lose(self._links[number], "its handshake takes long, and others wait")
        return True

    def _add(self, sock: socket.socket, number: int, host: str | None) -> TcpLink | None:
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

    def _begin(self, link: TcpLink, address: Address) -> None:
        effects = self.member.handle_link(link.number, address, time.monotonic())
        try:
            link.start()
            self.driver.perform(effects)
            if not link.lost:
                self._write(link)
        except LinkLost as error:
            self._lose(link, str(error))

    def close_link(self, effect: Close) -> None:
        link = self._links.pop(effect.link, None)
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
        """Report a broken link to the core, unless the core closed it."""
        told = link.number not in self._links
        self._drop(link)
        if not told:
            self._gone(link.number, reason)

    def _gone(self, number: int, reason: str) -> None:
        logger.debug("connection %d is over: %s", number, reason)
        self.driver.perform(self.member.handle_gone(number, reason, time.monotonic()))

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
        self._young.pop(conn, None)

    # -- time -----------------------------------------------------------------------------------------

    def next_timeout(self) -> float:
        if self._broken:
            return -math.inf
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

    def handle_timeout(self, now: float) -> None:
        if now >= self.gatherer.due:
            self.gatherer.at_once()
        while self._broken:
            self._gone(*self._broken.pop(0))
        if now >= self._listeners.due:
            self._listeners.go_on()
        if now >= self._held_look_at:
            self._look_at_held(now)
        if now >= self.alarm_at:
            self.alarm_at = math.inf
            self.alarm()
        if self._rules is not None and now >= self._rules.due:
            self.driver.perform([*self._with_keys(), *self._with_rules(self._rules.look())])
        if self.sealing is not None and now >= self.sealing.due:
            opened = self.core.deliver_opened(self.sealing.look(), now)
            self.driver.perform(self.member.take(opened, now))
            self.driver.perform([Report(each) for each in self.sealing.untold()])
        for link in self.unfinished.too_late(now):
            self._lose(link, f"it has begun a message and not finished it in {now - (link.begun_at or now):.0f} s")
        self._dials.handle_timeout(now)
        for link in [each for each in self._closing.values() if now >= (each.closing_at or 0.0)]:
            self._drop(link)

    def _with_rules(self, rules: MeshRules | None) -> list[Effect]:
        if rules is None:
            return []
        effects = self.core.set_rules(rules, time.monotonic())
        return [*self.member.take(effects, time.monotonic()), *self._with_keys()]

    def _with_keys(self) -> Sequence[Effect]:
        here = None if self._rules is None or self._rules.keys is None else self._rules.keys.look()
        if here is None:
            return ()
        return self.member.take(self.core.set_keys(here, time.monotonic()), time.monotonic())
