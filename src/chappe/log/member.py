"""The parts that one node carries: any number of producers, or any number of consumers, over one set of sockets.

Each part keeps the address that it has. Topics and addresses are subscribed to once, for however many parts want them,
and a message goes to the parts that it concerns, found by a look into a dictionary. Reports
of a part come as ``OfPart``.

Producers and consumers are not mixed in one node: a consumer that is not read may leave messages in the queue, and
acknowledgements would wait behind them. So nodes say in their address what they carry, and those with nothing to say to
each other do not connect.

A part that raises is carried no more (``PartBroken``); the others keep what was done with them. What either kind adds
is below, and in ``consuming``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from chappe.core import Ask, Clock, Effect, Publish, Report, Subscribe
from chappe.data.topic import encode_topic
from chappe.deadlines import Deadlines
from chappe.errors import ProtocolError, StorageError
from chappe.log.answering import KeptBytes
from chappe.log.beacon import PRODUCING
from chappe.log.messages import Ack, AskClock, ClockTold, Fetch, GetHeads, Message, PeerSubscriptions, Stored
from chappe.log.producer import STORES, JournalBatch, JournalTrim, LogProducer, questions_for, subscriptions_of
from chappe.log.queries import Answer

AT_ONCE: Final = 64  # parts whose time-outs are handled in one go: nobody waits longer for the lock
REQUESTS: Final = 1 << 32  # numbers of requests that each part has; the first are the node's


@dataclass(frozen=True, slots=True)
class OfPart:
    """An event of one of the parts: the one with this address."""

    address: str
    event: object


@dataclass(frozen=True, slots=True)
class PartBroken:
    """A part met a defect, and the node carries it no more; the others go on."""

    error: Exception


class CarriedPart(Protocol):
    address: str

    def start(self, now: float) -> list[Effect]: ...

    def handle_timeout(self, now: float) -> list[Effect]: ...

    def next_timeout(self) -> float: ...


P = TypeVar("P", bound=CarriedPart)


class Carrying(Generic[P]):
    """Carrying of parts, as nodes of both kinds do it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._parts: dict[str, P] = {}
        self._due: Deadlines[str] = Deadlines()  # as of ``_look``
        self._told: dict[str, P] = {}  # whose next time-out may be another one since
        self._wanted: dict[bytes, int] = {}  # prefix -> parts that want it
        self._wants: dict[str, dict[bytes, None]] = {}  # of each part
        self._numbers: dict[str, int] = {}  # of parts that ask stores
        self._numbered: dict[int, P] = {}
        self._last_number = 0
        self._now = 0.0  # when a part was last told something

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def paused(self) -> bool:
        return False

    @property
    def carries(self) -> list[str]:
        return list(self._parts)

    def start(self, now: float) -> list[Effect]:
        """Do nothing: everything is told of each part as it is added."""
        return []

    def carry(self, part: P, actions: Sequence[Effect]) -> list[Effect]:
        """Return a part's actions as actions of the node; its next time-out is looked at when that is asked for."""
        address = part.address
        if address not in self._parts:
            return []
        self._told[address] = part
        carried: list[Effect] = []
        for action in actions:
            kind = type(action)
            if kind is Publish:
                carried.append(action)
            elif isinstance(action, Subscribe):
                carried += (
                    self._want(address, action.prefix) if action.on else self._want_no_more(address, action.prefix)
                )
            elif isinstance(action, Ask):
                number = self._number(part) * REQUESTS + action.ticket
                carried.append(Ask(action.to, number, action.request))
            elif isinstance(action, Report):
                carried.append(Report(OfPart(address, action.event)))
            else:
                carried.append(action)
        return carried

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        """Do nothing: only consumers ask stores."""
        return []

    def flush(self, now: float) -> list[Effect]:
        """Do nothing: only consumers gather."""
        return []

    def remove(self, address: str, now: float) -> list[Effect]:
        """Carry a part no more, and end subscriptions that no other part wants."""
        if self._parts.pop(address, None) is None:
            return []
        self._due.clear(address)
        self._told.pop(address, None)
        self._numbered.pop(self._numbers.pop(address, 0), None)
        actions: list[Effect] = []
        for prefix in list(self._wants[address]):
            actions += self._want_no_more(address, prefix)
        del self._wants[address]
        return actions

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due of some parts; ``next_timeout`` tells if there are more."""
        self._look()
        actions: list[Effect] = []
        for address in self._due.due(now, AT_ONCE):
            part = self._parts[address]
            actions += self._tell(part, _time_out, part, now, now=now)
        return actions

    def next_timeout(self) -> float:
        self._look()
        return self._due.next

    def _look(self) -> None:
        """Note when parts that were told something are due next."""
        while self._told:
            address, part = next(iter(self._told.items()))
            del self._told[address]
            try:
                self._due.set(address, part.next_timeout())
            except Exception:
                self._due.set(address, -math.inf)  # ``_time_out`` raises it again, and ends the part alone

    def invariants(self) -> list[str]:
        wanted = Counter(prefix for wants in self._wants.values() for prefix in wants)
        if wanted == self._wanted and self._wants.keys() == self._parts.keys():
            return []
        return [f"parts want {wanted}, counted is {self._wanted}"]

    def _begin(self, part: P, now: float) -> list[Effect]:
        assert part.address not in self._parts
        self._parts[part.address] = part
        self._wants[part.address] = {}
        return self._tell(part, part.start, now, now=now)

    def _tell(self, part: P, method: Callable[..., list[Effect]], *args: object, now: float) -> list[Effect]:
        """Call a part. An exception ends it alone, except ProtocolError, which is the sender's fault."""
        self._now = now
        try:
            return self.carry(part, method(*args))
        except ProtocolError:
            raise
        except Exception as error:
            return [*self.remove(part.address, now), Report(OfPart(part.address, PartBroken(error)))]

    def _want(self, address: str, prefix: bytes) -> list[Effect]:
        wants = self._wants[address]
        if prefix in wants:
            return []
        wants[prefix] = None
        count = self._wanted[prefix] = self._wanted.get(prefix, 0) + 1
        return [Subscribe(prefix)] if count == 1 else []

    def _want_no_more(self, address: str, prefix: bytes) -> list[Effect]:
        wants = self._wants[address]
        if prefix not in wants:
            return []
        del wants[prefix]
        self._wanted[prefix] -= 1
        if self._wanted[prefix]:
            return []
        del self._wanted[prefix]
        return [Subscribe(prefix, False)]

    def _number(self, part: P) -> int:
        number = self._numbers.get(part.address)
        if number is None:
            number = self._numbers[part.address] = self._last_number = self._last_number + 1
            self._numbered[number] = part
        return number


def _time_out(part: CarriedPart, now: float) -> list[Effect]:
    """Do what is due of a part; raise also what its next time-out raises."""
    actions = part.handle_timeout(now)
    part.next_timeout()
    return actions


class LogProducers:
    """The partitions that one member writes: one for each topic, all with its address.

    A partition is named by its topic and its address, and every message carries both, so one member is the producer of
    several topics over one set of sockets. ``subscriptions`` are the node's, where several producers share them.
    """

    def __init__(self, address: str, subscriptions: PeerSubscriptions | None = None, *, clock: Clock) -> None:
        self.address = address
        self.clock = clock  # for each partition, too
        self.subscriptions = PeerSubscriptions() if subscriptions is None else subscriptions  # for each partition, too
        self.kept = KeptBytes()  # likewise
        self._parts: dict[str, LogProducer] = {}
        self._started = False

    @property
    def kept_bytes(self) -> int:
        return self.kept.total

    def partitions(self) -> list[LogProducer]:
        return list(self._parts.values())

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def stores(self) -> int:
        return self.subscriptions.count(STORES)

    @property
    def wanted(self) -> bool:
        return any(each.wanted for each in self._parts.values())

    def add(self, part: LogProducer, now: float) -> list[Effect]:
        assert part.address == self.address
        assert part.topic not in self._parts
        self._parts[part.topic] = part
        if self._started:
            part.begin(now)
            return [questions_for(part.topic)]
        return []

    def start(self, now: float) -> list[Effect]:
        self._started = True
        for part in self._parts.values():
            part.begin(now)
        return [*subscriptions_of(self.address), *map(questions_for, self._parts)]

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Take an acknowledgement, a request for records that a member missed, or a question for the time here."""
        match message:
            case AskClock(_, asker, number):
                return [Publish(ClockTold(asker, self.address, self.address, number, self.clock.wall_ns() // 1000))]
            case Stored() | Ack() | Fetch():
                part = self._parts.get(message.subject)
                return [] if part is None else part.handle_message(message, now)
            case GetHeads():
                return [action for part in self._parts.values() for action in part.handle_message(message, now)]
        return []

    def handle_done(self, job: JournalBatch | JournalTrim, outcome: StorageError | None, now: float) -> list[Effect]:
        return self._parts[job.topic].handle_done(job, outcome, now)

    def handle_timeout(self, now: float) -> list[Effect]:
        actions: list[Effect] = []
        for part in self._parts.values():
            if now >= part.next_timeout():
                actions += part.handle_timeout(now)
        return actions

    def next_timeout(self) -> float:
        return min([each.next_timeout() for each in self._parts.values()], default=math.inf)

    def invariants(self) -> list[str]:
        kept = sum(each.kept_bytes for each in self._parts.values())
        found = [] if kept == self.kept.total else [f"{self.kept.total} kept bytes are counted, {kept} are kept"]
        return found + [wrong for each in self._parts.values() for wrong in each.invariants()]


class Claims(Protocol):
    def claim(self, identity: str, now: float) -> list[Effect]:
        """Tell everybody that we go on with an identity."""

    def disclaim(self, identity: str) -> list[Effect]: ...


class ProducingMember(Carrying[LogProducers]):
    """Carries producers; no other node has its ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(PRODUCING + name)
        self.subscriptions = PeerSubscriptions()  # to be given to each producer
        self._topics: dict[bytes, dict[str, LogProducer]] = {}  # topic -> its partitions here, by address
        self._sorted: list[bytes] = []  # these topics
        self._identities: dict[str, None] = {}
        self.claims: Claims | None = None  # of the node, if anybody hears of them

    # -- the parts ------------------------------------------------------------------------------------

    def add(self, part: LogProducers, now: float, identity: bool = False) -> list[Effect]:
        """Carry one more producer; if it goes on with an identity, others are told so."""
        assert part.subscriptions is self.subscriptions
        actions = self._begin(part, now)
        if not identity:
            return actions
        self._identities[part.address] = None
        return actions if self.claims is None else [*actions, *self.claims.claim(part.address, now)]

    def add_topic(self, part: LogProducers, partition: LogProducer, now: float) -> list[Effect]:
        raw = encode_topic(partition.topic)
        if raw not in self._topics:
            self._topics[raw] = {}
            insort(self._sorted, raw)
        self._topics[raw][part.address] = partition
        return self.carry(part, part.add(partition, now))

    def remove(self, address: str, now: float) -> list[Effect]:
        part = self._parts.get(address)
        for partition in () if part is None else part.partitions():
            raw = encode_topic(partition.topic)
            del self._topics[raw][address]
            if not self._topics[raw]:
                del self._topics[raw]
                del self._sorted[bisect_left(self._sorted, raw)]
        actions = super().remove(address, now)
        if address in self._identities:
            del self._identities[address]
            actions += [] if self.claims is None else self.claims.disclaim(address)
        return actions

    # -- the world ------------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        self.subscriptions.change(prefix, on)
        if prefix[:1] == b"R" and on:
            concerned = self._starting(prefix[1:])
        elif prefix in (b"", b"M", STORES) or (prefix[:1] in (b"W", b"E") and on):
            concerned = self._starting(b"")
        else:
            return []
        return self._tell_each(concerned, lambda each: each.listened(prefix, on, now), now)

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        match message:
            case Stored() | Ack() | Fetch() | AskClock():
                part = self._parts.get(message.topic)
                return [] if part is None else self._tell(part, part.handle_message, message, now, now=now)
            case GetHeads(prefix):
                concerned = self._starting(encode_topic(prefix))
                return self._tell_each(concerned, lambda each: each.handle_message(message, now), now)
        return []

    def handle_done(self, job: JournalBatch | JournalTrim, outcome: StorageError | None, now: float) -> list[Effect]:
        part = self._parts.get(job.address)
        return [] if part is None else self._tell(part, part.handle_done, job, outcome, now, now=now)

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        """Do nothing: the subscriptions of a node that left end by themselves."""
        return []

    def _tell_each(
        self, partitions: Iterable[LogProducer], method: Callable[[LogProducer], list[Effect]], now: float
    ) -> list[Effect]:
        actions: list[Effect] = []
        for partition in partitions:
            actions += self._tell(self._parts[partition.address], method, partition, now=now)
        return actions

    def _starting(self, prefix: bytes) -> list[LogProducer]:
        found: list[LogProducer] = []
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            raw = self._sorted[index]
            if not raw.startswith(prefix):
                break
            found += self._topics[raw].values()
        return found
