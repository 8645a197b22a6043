"""The common interface of masters and clones; drivers need not know which they run."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias

from chappe.channel import ChannelConsumer
from chappe.compiled import Frozen
from chappe.core import Clock, Deliver, Effect, Resolve
from chappe.data.convert import to_value
from chappe.data.values import Value
from chappe.defaults import CONFLICTS_MAX, MASTER_CONFLICT_S
from chappe.errors import InvalidOperation, StaleData, StorageError, TimedOut
from chappe.kv import commands as cmd
from chappe.kv.backend import Commit, HistoryRow
from chappe.kv.engine import Change, Engine, Entry, Kind
from chappe.kv.entity import Entity
from chappe.kv.history import KeyHistory, no_history
from chappe.limits import KvLimits

CHAIN: Final = b"chain"  # where the commands of a chain's head are sent, and what it has committed comes from
Reaches: TypeAlias = Callable[[bytes], bool]  # whether there is a path to an endpoint


def new_input(limits: KvLimits, now: float, calm_s: float = 0.0) -> ChannelConsumer[Any]:
    """Return the receiving end of a new channel: a master has one for each writing clone, a clone has one."""
    return ChannelConsumer(
        now=now, search_max_s=math.inf, held_max=limits.held_max, ack_events=limits.ack_events,
        nack_max=limits.nack_max, calm_s=calm_s,
    )  # fmt: skip


class KeyChange(Frozen, frozen=True):
    """A change of a key, for watchers of a store.

    ``value`` is the present one and ``before`` the former one, None where there is none (``kind`` tells that from a
    stored none). ``expiry_ns`` is the one asked for with the write. ``publisher`` is the author, None if unknown.
    ``version`` is the engine's number of the change.
    """

    kind: Kind
    key: Value
    value: Value
    before: Value
    expiry_ns: int | None
    publisher: Entity | None
    version: int


class Notices:
    """Tells watchers of changes, if they are ``wanted``; ``to`` is their name for the driver."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.to: int | None = None

    def tell(self, change: Change, expiry_ns: int | None, publisher: Entity | None, actions: list[Effect]) -> None:
        if self.wanted:
            value = None if change.entry is None else change.entry.value
            before = None if change.before is None else change.before.value
            told = KeyChange(change.kind, change.key, value, before, expiry_ns, publisher, change.version)
            last = actions[-1] if actions else None
            if isinstance(last, Deliver):
                last.messages.append(told)
            else:
                actions.append(Deliver(self.to, [told]))


class Conflicts:
    """Other masters of the name: each is reported once in ``MASTER_CONFLICT_S``, up to a bound."""

    def __init__(self) -> None:
        self._told: dict[Entity, float] = {}

    def is_news(self, other: Entity, now: float) -> bool:
        """Return True if another master that was heard is to be reported."""
        self._told = {each: at for each, at in self._told.items() if now < at + MASTER_CONFLICT_S}
        if other in self._told or len(self._told) >= CONFLICTS_MAX:
            return False
        self._told[other] = now
        return True


def past_rows(role: KvRole, history: KeyHistory, key: Value) -> list[HistoryRow]:
    """Return the latest changes of a key where its history is kept, the oldest first. Raises InvalidOperation."""
    if not history.size:
        raise InvalidOperation(no_history(role.name))
    entry = role.durable(key)
    return history.rows_of(key, entry, 0 if entry is None else role.revision_of(entry))


class KvRole:
    """A master or a clone. Its methods take ``now``, monotonic seconds, and return actions.

    Args:
        clock: The time of day, by which entries expire.
        author: The entity to answer a put_unique apart; nobody for a master.
        immediate: Whether a write is done when its call returns.
        engine: The data, if there are some already.
    """

    kind: Literal["master", "clone"]
    topics: tuple[bytes, ...]  # that it subscribes to

    def __init__(
        self, name: str, entity: Entity, notices: Notices, author: Entity, *, clock: Clock,
        immediate: bool, engine: Engine | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.entity = entity
        self.engine = engine if engine is not None else Engine()
        self.immediate = immediate
        self._clock = clock
        self._notices = notices
        self._author = author
        self._requests = 0
        self._waits: dict[int, float] = {}  # await_idle: until when

    def age_s(self, now: float) -> float:
        """Return for how many seconds it has not been up to date; 0 if it is."""
        return 0.0

    # -- looks --------------------------------------------------------------------------------------------------

    def known_as(self, number: int | None) -> None:
        """Name it for the driver: watchers' changes are delivered to ``number``."""
        self._notices.to = number

    @property
    def notify(self) -> bool:
        return self._notices.wanted

    @notify.setter
    def notify(self, notify: bool) -> None:
        self._notices.wanted = notify

    @property
    def readable(self) -> bool:
        return True

    def unreadable(self) -> StaleData | None:
        return None

    @abstractmethod
    def revision_of(self, entry: Entry) -> int:
        """Return the master's number of an entry's write. Raises InvalidOperation if the master has none."""

    def durable(self, key: Value) -> Entry | None:
        """Return the entry of a key as it is told to others, if there is one."""
        return self.engine.find(key)

    @abstractmethod
    def ask_history(self, ticket: int, key: object, timeout_s: float, now: float) -> list[Effect]:
        """Resolve the ticket with the latest changes of a key, a tuple of ``PastChange``, the oldest first.

        Raises, or resolves it with, InvalidOperation if the master keeps no history; TimedOut after ``timeout_s``.
        """

    @property
    @abstractmethod
    def room(self) -> bool:
        """True if a write is taken now, or refused for another reason than too little room."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """True if no write made here waits for a backend or for a master in reach."""

    @property
    def held_until(self) -> float:
        """When ``handle_timeout`` sends the messages that are held for writes that follow."""
        return math.inf

    def let_go(self) -> list[Effect]:
        return []

    @property
    def leads(self) -> bool:
        """True if its own writes are done here, in the moment of the call."""
        return self.kind == "master"

    @property
    def unconfirmed(self) -> int:
        return 0

    @abstractmethod
    def invariants(self) -> list[str]: ...

    @abstractmethod
    def idle(self) -> bool:
        """Return True if nothing is on its way between it and those in reach, and all writes are done."""

    # -- application: reading -----------------------------------------------------------------------------------

    def get(self, key: object) -> Value:
        """Return the value under a key; raises NoSuchKey or StaleData."""
        stale = self.unreadable()
        if stale is not None:
            raise stale
        return self.engine.get(key if type(key) is str else to_value(key))

    # -- application: writing -----------------------------------------------------------------------------------

    def put(
        self, key: object, value: object, *, now: float, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Effect]:  # fmt: skip
        """Set a value; without ``expiry_ns`` it stays for good, whatever the one before had."""
        return self._write(cmd.Put(to_value(key), to_value(value), expiry_ns, self.entity), ticket, now)

    def put_unique(
        self, key: object, value: object, *, now: float, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Effect]:  # fmt: skip
        """Set a value if there is none; the ticket's outcome is whether it did."""
        self._requests += 1
        key, value = to_value(key), to_value(value)
        command = cmd.PutUnique(key, value, expiry_ns, self._author, self._requests, self.entity)
        return self._write(command, ticket, now)

    def put_if(
        self, key: object, value: object, revision: int | None, *, now: float,
        expiry_ns: int | None = None, ticket: int | None = None,
    ) -> list[Effect]:  # fmt: skip
        """Set a value if nobody has changed it since a revision, None: if there is none. WrongRevision otherwise."""
        command = cmd.PutIf(to_value(key), to_value(value), expiry_ns, revision or 0, self.entity)
        return self._write(command, ticket, now)

    def erase_if(
        self, key: object, revision: int, *, now: float, ticket: int | None = None
    ) -> list[Effect]:  # fmt: skip
        """Remove a key if nobody has changed it since a revision. WrongRevision otherwise."""
        return self._write(cmd.EraseIf(to_value(key), revision, self.entity), ticket, now)

    def erase(self, key: object, *, now: float, ticket: int | None = None) -> list[Effect]:
        return self._write(cmd.Erase(to_value(key), self.entity), ticket, now)

    def add(
        self, key: object, value: object, init: int, *, now: float, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Effect]:  # fmt: skip
        """Add to a value, by default the empty one of the type with tag ``init``; a master raises TypeClash."""
        command = cmd.Add(to_value(key), to_value(value), init, expiry_ns, self.entity)
        return self._write(command, ticket, now)

    def subtract(
        self, key: object, value: object, *, now: float, expiry_ns: int | None = None,
        ticket: int | None = None,
    ) -> list[Effect]:  # fmt: skip
        """Take away from a value; a master raises NoSuchKey or TypeClash."""
        return self._write(cmd.Subtract(to_value(key), to_value(value), expiry_ns, self.entity), ticket, now)

    def clear(self, *, now: float, ticket: int | None = None) -> list[Effect]:
        return self._write(cmd.Clear(self.entity), ticket, now)

    def await_idle(self, ticket: int, timeout_s: float, now: float) -> list[Effect]:
        """Resolve the ticket with None once ``idle``, with TimedOut after ``timeout_s``."""
        if self.idle():
            return [Resolve(ticket, None)]
        self._waits[ticket] = now + timeout_s
        self.hurry_idle(now)
        return []

    # -- world --------------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, now: float) -> list[Effect]: ...

    def leave(self) -> list[Effect]:
        """Leave; the others notice that a master is gone."""
        return []

    @abstractmethod
    def handle_gone(self, endpoint: bytes, now: float) -> list[Effect]: ...

    @abstractmethod
    def handle_message(self, topic: bytes, messages: Iterable[Any], now: float) -> list[Effect]:
        """Take commands on one of ``topics``; or the chain's news, where ``topic`` is ``CHAIN``."""

    def handle_subscription(self, holders: frozenset[bytes], reaches: Reaches, now: float) -> list[Effect]:
        """Note changed subscriptions: ``holders`` are all endpoints that may have the master."""
        return []

    def handle_done(self, job: Commit, error: StorageError | None, now: float) -> list[Effect]:
        raise AssertionError(f"a {self.kind} asks for no commits")

    @abstractmethod
    def handle_timeout(self, now: float) -> list[Effect]: ...

    @abstractmethod
    def next_timeout(self) -> float: ...

    @abstractmethod
    def hurry_idle(self, now: float) -> None:
        """Ask the others to say soon how far they are, as a caller waits until it is ``idle``."""

    # -- inside -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]: ...

    def _has_all(self, ticket: int) -> bool:
        return True

    def _check_idle(self, now: float, actions: list[Effect]) -> None:
        if self._waits and self.idle():
            for ticket in [ticket for ticket in self._waits if self._has_all(ticket)]:
                del self._waits[ticket]
                actions.append(Resolve(ticket, None))
        for ticket in [ticket for ticket, until in self._waits.items() if now >= until]:
            del self._waits[ticket]
            actions.append(Resolve(ticket, TimedOut(f"store {self.name!r} did not become idle in time")))
