"""What one node carries: any number of producers, or any number of consumers, over one set of sockets.

Each part keeps the address that it has. Topics and addresses are subscribed to once, for however many parts want them,
and what arrives goes to those whom it concerns, found by a look into a dictionary. What is reported
of a part comes as ``OfPart``.

Producers and consumers are not mixed in one node: a consumer that is not read may leave messages in the queue, and
acknowledgements would wait behind them. So nodes say in their address what they carry, and those with nothing to say to
each other do not connect.

A part that raises is carried no more (``PartBroken``); what was done with the others stands. What either kind adds is
in ``producing`` and ``consuming``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from chappe.core import Ask, Effect, Publish, Report, Subscribe
from chappe.deadlines import Deadlines
from chappe.errors import ProtocolError
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
    """A core that a node carries."""

    address: str

    def start(self, now: float) -> list[Effect]:
        """Begin."""

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due."""

    def next_timeout(self) -> float:
        """When something is due."""


P = TypeVar("P", bound=CarriedPart)


class Carrying(Generic[P]):
    """What nodes of both kinds have in common."""

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
        """Whether messages are to be left in the queue."""
        return False

    @property
    def carries(self) -> list[str]:
        """The addresses under which it speaks, beside its own."""
        return list(self._parts)

    def start(self, now: float) -> list[Effect]:
        """Begin: everything is told of each part as it is added."""
        return []

    def carry(self, part: P, actions: Sequence[Effect]) -> list[Effect]:
        """What a part answered, as actions of the node; its next time-out is looked at when that is asked for."""
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
        """A store answered: only those are asked that consume."""
        return []

    def flush(self, now: float) -> list[Effect]:
        """Deliver what was gathered: only what consumes gathers."""
        return []

    def remove(self, address: str, now: float) -> list[Effect]:
        """Carry a part no more: what nobody else wants is not subscribed to any longer."""
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
        """When something of a part is due."""
        self._look()
        return self._due.next

    def _look(self) -> None:
        """See when parts are due next that were told something."""
        while self._told:
            address, part = next(iter(self._told.items()))
            del self._told[address]
            try:
                self._due.set(address, part.next_timeout())
            except Exception:
                self._due.set(address, -math.inf)  # ``_time_out`` raises it again, and ends the part alone

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
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
        """Call a part. What it raises is its own end, but for ProtocolError, which is the sender's fault."""
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
    """What is due of a part; raises also what its next time-out does."""
    actions = part.handle_timeout(now)
    part.next_timeout()
    return actions
