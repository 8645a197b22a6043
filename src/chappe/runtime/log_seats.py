"""The nodes that the producers and consumers of a process share: each has a seat, and the last to leave closes up.

A node is shared by those on one machine that meet at the same towers, listen on the same host and do the same:
producers, producers that wait for no store, consumers. Producers that wait for no store have a node of their own, as a
peer that does not keep up holds back what they send for longer. One with an identity is alone at its node: its journal
is synced under the node's lock, and a stalled disk would stop the others.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from chappe.core import Deliver, Effect
from chappe.data.topic import Filter, shown
from chappe.defaults import FULL_PEER_WAIT_LIVE_S, FULL_PEER_WAIT_S
from chappe.errors import MemberStopped, StorageError, TimedOut, UsageError
from chappe.log.consumer import LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.events import ConnectionRefused, IdentityClash, Stopped
from chappe.log.member import LogProducers, OfPart, PartBroken, ProducingMember
from chappe.log.messages import PeerSubscriptions
from chappe.log.producer import JournalBatch, JournalTrim, LogProducer
from chappe.log.traffic import Reading
from chappe.permissions.rules import PRODUCE, STORE
from chappe.runtime.driver import Task
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.meeting import AtForwarders, AtTowers, Meeting
from chappe.runtime.worker import CALLBACKS, DISKS, Lane
from chappe.security import Keys, LogSecurity
from chappe.system import machine, settings, time
from chappe.system.forking import own
from chappe.transports.addresses import ForwarderAddress, TowerAddress
from chappe.transports.gate import check_listening, gate_of, keys_of

logger = logging.getLogger(__name__)

SEATS_MAX: Final = 1_000  # of one node: its peers bound what one connection may subscribe to
LOOK_S: Final = 0.02  # how often who waits to meet others looks for what nobody tells
M = TypeVar("M", ProducingMember, ConsumingMember)


class SeatUser(Protocol):
    """A producer or consumer, to its node; all is called with the lock held, and must be quick and not call back."""

    def report(self, event: object) -> None: ...

    def deliver(self, messages: Any) -> None:
        """Take ``Records``, ``ClockRead`` or ``StoredTo`` of the part."""

    def carry_out(self, job: JournalBatch | JournalTrim) -> None:
        """Let the journal do a job. Raises as it does."""


class SeatPorts(LogPorts, Generic[M]):
    """A node that producers, or consumers, have seats at."""

    def __init__(self, member: M, where: Where, full_peer_wait_s: float) -> None:
        self.member: M = member
        self.seats: dict[str, Seat[M]] = {}  # by their parts' addresses
        self.taken: set[str] = set()  # addresses of those that have a seat, or are about to
        self.refused: ConnectionRefused | None = None  # told once, also to seats that come later
        super().__init__(member, where.meeting(), on_report=ignore, full_peer_wait_s=full_peer_wait_s)

    def has_room(self, address: str) -> bool:
        """Return True if a part with this address may have a seat; two copies of one identity meet as strangers."""
        return len(self.taken) < SEATS_MAX and address not in self.taken

    def deliver(self, effect: Deliver) -> None:
        self.seats[effect.to].user.deliver(effect.messages)

    def at_once(self, job: JournalBatch | JournalTrim) -> bool:
        """Return True: the sender syncs the journal, and trimming takes no time."""
        return True

    def carry_out(self, job: JournalBatch | JournalTrim) -> None:
        self.seats[job.address].user.carry_out(job)

    def done(self, job: JournalBatch | JournalTrim, outcome: StorageError | None, now: float) -> Sequence[Effect]:
        assert isinstance(self.member, ProducingMember)
        return self.member.handle_done(job, outcome, now)

    def report(self, event: object) -> None:
        if isinstance(event, OfPart):
            seat = self.seats[event.address]
            if isinstance(event.event, PartBroken):
                seat.halt(event.event.error)
            else:
                seat.user.report(event.event)
        elif isinstance(event, IdentityClash):
            if event.address in self.seats:
                self.seats[event.address].user.report(event)
        else:
            if isinstance(event, ConnectionRefused):
                self.refused = event
            for seat in list(self.seats.values()):
                seat.user.report(event)


def ignore(event: object) -> None: ...


_guard = threading.Lock()  # who shares what; never held while a node is closed
_open: dict[object, SeatPorts[Any]] = {}  # the node of each kind that has room


def _share(key: object, address: str, make: Callable[[], SeatPorts[M]]) -> SeatPorts[M]:
    key = (machine.current(), key)
    with _guard:
        shared: SeatPorts[M] | None = _open.get(key)
        if shared is None or shared.driver.turns.halted is not None or not shared.has_room(address):
            shared = make()
            shared.start()
            _open[key] = shared
        shared.taken.add(address)
        return shared


def _forked() -> None:
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it
    _open.clear()


os.register_at_fork(after_in_child=_forked)


class Seat(Generic[M]):
    """A producer's or consumer's place at its node. Made by ``producing`` and ``consuming``; ``start`` begins."""

    def __init__(self, ports: SeatPorts[M], address: str, *, identity: bool = False) -> None:
        own(self)
        self._address = address
        self._identity = identity
        self._journal: Lane | None = None
        self.node: SeatPorts[M] = ports
        self._driver = ports.driver
        self._member: M = ports.member
        self._callbacks: Lane | None = None
        self._halted: str | None = None
        self.closed = False  # it was left
        self.part: LogProducers | LogConsumer | None = None
        self.user: SeatUser
        self.lock = ports.driver.lock
        self.discovery = ports.discovery

    @property
    def subscriptions(self) -> PeerSubscriptions:
        assert isinstance(self._member, ProducingMember)
        return self._member.subscriptions

    def start(
        self,
        part: LogProducers | LogConsumer,
        user: SeatUser,
        *,
        name: str,
        reading: Callable[[int], Reading] | None = None,
    ) -> None:
        """Let the node carry ``part``.

        Args:
            name: For people.
            reading: Returns committed positions, at most so many; called with the lock held.
        """
        self.part = part
        self.user = user
        traffic = self.node.core.traffic
        with self.lock:
            self.node.seats[part.address] = self
            traffic.names[part.address] = name
            if reading is not None:
                traffic.readers[part.address] = reading
            now = time.monotonic()
            if isinstance(self._member, ProducingMember):
                assert isinstance(part, LogProducers)
                effects = self._member.add(part, now, self._identity)
            else:
                assert isinstance(part, LogConsumer)
                effects = self._member.add(part, now)
            if self.node.refused is not None and not self.discovery.tower:
                user.report(self.node.refused)
            if (told := self.discovery.told) is not None:
                user.report(told)
            self._driver.run(self._driver.do, effects)

    def close(self) -> None:
        """Leave the node; the last one closes it. Safe to call twice."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self._driver.run(self._leave)
        for lane in (self._journal, self._callbacks):
            if lane is not None:
                lane.close(None)
        with _guard:
            self.node.taken.remove(self._address)
            last = not self.node.taken
            if last:
                for key in [key for key, shared in _open.items() if shared is self.node]:
                    del _open[key]
        if last:
            self._driver.close()

    def _leave(self) -> None:
        if self.part is not None:
            address = self.part.address
            self._driver.do(self._member.remove(address, time.monotonic()))
            del self.node.seats[address]
            self.node.core.traffic.names.pop(address, None)
            self.node.core.traffic.readers.pop(address, None)

    def add_topic(self, partition: LogProducer) -> None:
        """Let the producer write one more topic; the lock is held."""
        assert isinstance(self._member, ProducingMember)
        assert isinstance(self.part, LogProducers)
        self._driver.perform(self._member.add_topic(self.part, partition, time.monotonic()))
        self.tell()

    def subscribe(self, wanted: Filter) -> None:
        """Add topics to those that the consumer wants; the lock is held."""
        assert isinstance(self._member, ConsumingMember)
        assert isinstance(self.part, LogConsumer)
        self._driver.do(self._member.subscribe(self.part, wanted, time.monotonic()))
        self.tell()

    def unsubscribe(self, wanted: Filter) -> None:
        """Remove topics from those that the consumer wants; the lock is held."""
        assert isinstance(self._member, ConsumingMember)
        assert isinstance(self.part, LogConsumer)
        self._driver.do(self._member.unsubscribe(self.part, wanted, time.monotonic()))
        self.tell()

    # -- driving --------------------------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        """Carry out effects of a call of the part; the lock is held."""
        self._driver.perform(self._member.carry(self.part, effects))  # type: ignore[arg-type]

    def do(self, effects: Sequence[Effect]) -> None:
        """Carry out effects, and those that follow; threads that wait for them are told."""
        self._driver.run(self._driver.do, self._member.carry(self.part, effects))  # type: ignore[arg-type]

    def gathered(self, task: Task, at: float) -> None:
        self._driver.gathered(task, at)

    def pump(self, timeout_s: float, until: Callable[[], bool]) -> None:
        """Drive until ``until()``, which is called with the lock held, or this long; not with the lock held."""
        self._driver.turns.wait(lambda: self.closed or self._halted is not None or until(), timeout_s)

    def wait_until(
        self, check: Callable[[], None], ready: Callable[[], bool], missing: Callable[[str], str], timeout: float | None
    ) -> None:
        """Wait until ``ready``, which is called with the lock held; ``check`` raises the errors of every call. Raises
        TimedOut: ``missing`` says what is not there.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self.lock:
                check()
                if ready():
                    return
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOut(missing(f"within {timeout:g} s"))
            self.pump(min(left, LOOK_S), ready)

    def serve(self) -> None:
        self._driver.turns.serve()

    def later(self, function: Callable[[], None]) -> None:
        """Call functions soon, in order, on another thread, without the lock; ``close`` waits for them."""
        with self.lock:
            if self._callbacks is None:
                self._callbacks = Lane(CALLBACKS, self._driver.run)
        self._callbacks.do(function)

    def on_disk(self, function: Callable[[], None]) -> None:
        """Call a function on a thread that may wait for a disk, with the lock held; the lock is held."""
        if self._journal is None:
            self._journal = Lane(DISKS, self._driver.run)
        self._journal.do(lambda: self._driver.run(function))

    def tell(self) -> None:
        """Note that others may wait for a change, or that work is due earlier; the lock is held."""
        self._driver.turns.news = True
        self._driver.turns.tell()
        self._driver.turns.look_again()

    @property
    def choked(self) -> bool:
        return self.node.choked

    def published(self) -> Callable[[], bool]:
        return self.node.published()

    # -- its end --------------------------------------------------------------------------------------

    @property
    def halted(self) -> str | None:
        return self._halted or self._driver.turns.halted

    def check(self) -> None:
        if self._halted is not None:
            raise MemberStopped(self._halted)
        self._driver.turns.check()

    def halt(self, error: Exception) -> None:
        """Report a defect of this part to its user; the other parts of the node go on."""
        logger.error("the member stopped", exc_info=error, extra={"defect": True})
        with self.lock:
            if self.halted is None:
                self._halted = f"the member stopped because of a defect: {error!r}; close it, and make another one"
                self.user.report(Stopped(self._halted))
                self.tell()


@dataclass(frozen=True, slots=True)
class Where:
    """How members meet, as their users say it: through towers, or at forwarders alone."""

    towers: tuple[TowerAddress, ...] = ()
    listen: str = ""
    forwarders: tuple[ForwarderAddress, ...] = ()
    said: str = field(default="", compare=False)
    keys: Keys | None = None

    @classmethod
    def parse(
        cls,
        tower: str | None = None,
        listen: str | None = None,
        forwarders: str | Sequence[str] | None = None,
        security: LogSecurity = None,
    ) -> Where:
        """Fill in missing arguments from the settings (``chappe.system.settings``).

        Raises UsageError for an invalid address or identity, and for listening beyond localhost without ``security``.
        """
        keys = keys_of(security)
        if tower is None and forwarders is None:
            forwarders = settings.forwarders()
        if forwarders is not None:
            found = ForwarderAddress.parse_many(forwarders)
            if not found:
                raise UsageError("no forwarder is named: HOST:PORT is wanted, or several of these")
            return cls(forwarders=tuple(found), said=",".join(map(str, found)), keys=keys)
        tower, listen = settings.tower(tower), settings.listen(listen)
        check_listening(security, listen, "program")
        return cls(tuple(TowerAddress.parse_many(tower)), listen, said=tower, keys=keys)

    def meeting(self) -> Meeting:
        gate = gate_of(self.keys)
        return AtForwarders(self.forwarders, gate) if self.forwarders else AtTowers(self.towers, self.listen, gate)

    def require(self, verb: str, topic: str, *, prefix: bool = False) -> None:
        """Raise NotPermitted if we may not do this with a topic, or all of a prefix, or forwarders may not.

        Records go to all forwarders or none, see ``PublishingSocket``; a consumer needs one.
        """
        gate = gate_of(self.keys)
        if gate is None:
            return
        gate.require(verb, topic, prefix=prefix)
        refusal: UsageError | None = None
        for each in self.forwarders:
            try:
                gate.require_server(gate.server(STORE, each.host, each.name), STORE, topic, prefix=prefix)
            except UsageError as error:
                refusal = refusal or error
            else:
                if verb != PRODUCE:
                    return
        if refusal is not None:
            raise refusal

    def __str__(self) -> str:
        return self.said

    @property
    def kind(self) -> str:
        return "forwarder" if self.forwarders else "tower"

    @property
    def named(self) -> str:
        return f"the {self.kind}{'s' if len(self.forwarders) > 1 else ''} at {self}"

    @property
    def command(self) -> str:
        """The command that starts a process which keeps records."""
        return "chappe forward" if self.forwarders else "chappe store DIRECTORY"

    def doubt(self, topics: Iterable[str]) -> str:
        """Return advice on what to look at if nobody keeps records of these topics."""
        gate = gate_of(self.keys)
        alone = None if gate is None else next((each for each in topics if not gate.anybody(STORE, each)), None)
        if gate is not None and alone is not None:
            return f"by version {gate.version} of the permissions nobody may store {shown(alone)!r}"
        if self.forwarders:
            return f"is one of {self.named} running?" if len(self.forwarders) > 1 else f"is {self.named} running?"
        return "is a store running and connected to the same tower?"

    def nobody(self, when: str, refused: ConnectionRefused | None = None) -> str:
        """The sentence for a member that cannot meet anybody; ``refused`` if it lacks the right keys."""
        if refused is not None:
            return str(refused)
        command = "chappe forward" if self.forwarders else "chappe up"
        return f"no {self.kind} answers at {self} {when}; start one with: {command}"


def producing(address: str, name: str, where: Where, *, live: bool, identity: bool) -> Seat[ProducingMember]:
    """Return a seat for a producer.

    Args:
        address: Of its partitions.
        name: Of the node, if it has to be made.
        live: Whether it waits for no store.
        identity: Whether it goes on with one, and has a journal.
    """
    wait_s = FULL_PEER_WAIT_LIVE_S if live else FULL_PEER_WAIT_S
    key = (ProducingMember, where, live, address if identity else None)
    shared = _share(key, address, lambda: SeatPorts(ProducingMember(name), where, wait_s))
    return Seat(shared, address, identity=identity)


def consuming(address: str, name: str, where: Where) -> Seat[ConsumingMember]:
    key = (ConsumingMember, where)
    return Seat(_share(key, address, lambda: SeatPorts(ConsumingMember(name), where, FULL_PEER_WAIT_S)), address)
