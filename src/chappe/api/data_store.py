"""A data store as its users hold it: the master of a store, or a clone of one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

from chappe.api.arguments import as_policy, check_bounds
from chappe.api.asked import Asked, Questions
from chappe.api.store_proxy import StoreProxy
from chappe.api.store_watch import StoreEntry, StoreEvent, StoreWatch, event_of_change
from chappe.data.convert import to_python, to_value
from chappe.data.order import COUNT, INTEGER, NONE, REAL, SET, STRING, TABLE, TIMESPAN, TIMESTAMP, VECTOR, sort_key
from chappe.data.scalars import Count, EnumValue, Port
from chappe.data.values import Value
from chappe.defaults import SUBSCRIBER_BYTES_MAX, SUBSCRIBER_MESSAGES_MAX
from chappe.drivers.mesh_store import MeshStore
from chappe.errors import BufferFull, Closed, NoSuchKey, StaleData, TimedOut, UsageError, WriteUnknown
from chappe.stores.actions import Action, Notify
from chappe.stores.clone import StoreClone
from chappe.stores.engine import Engine, Entry, index_of
from chappe.stores.entity import Entity
from chappe.stores.events import WriteFailed
from chappe.stores.master import StoreMaster

if TYPE_CHECKING:
    from chappe.api.endpoint import Endpoint, OnFull

WAIT_S: Final = 10.0  # a write waits so long for its outcome
MANY: Final = 256  # writes of ``put_many`` made at once
_NS: Final = 1_000_000_000
_NS_MAX: Final = 2**63 - 1
_PLAIN: Final = frozenset({str, int, float, bool, type(None), Count, EnumValue, Port})  # values as they are in Python
_NUMBERS: Final = frozenset({COUNT, INTEGER, REAL})
MISSING: Final = object()
NO_OPTIONS: Final[dict[str, Any]] = {}

Core = StoreMaster | StoreClone
Method = Callable[..., list[Action]]


class DataStore:
    """Keys and values that several endpoints share: one has the master, any number have clones with all data.

    Made by ``Endpoint.attach_master`` and ``attach_clone``. Reading never waits and shows what is in memory here.
    Writing goes through the master, in one order that every clone sees. Use from several threads is safe. Close it, or
    use it in a ``with``; closing the endpoint closes it too.

    Keys and values are what ``chappe.data.convert`` can convert, and come back as its table says. Keys are told apart
    by type: ``1``, ``Count(1)``, ``1.0`` and ``True`` are four keys.

    All writes take ``wait`` and ``timeout``. With ``wait`` they return when the write is done: durable, if the master
    is, and shown by this clone. Without, they return at once, and a failure is told to ``Endpoint.statuses`` as
    ``WriteFailed``; what a master refuses at once, it raises. Both wait, at most ``timeout`` seconds, while there is no
    room for another write.

    Where there is an ``expiry_s``, the key is removed so many seconds later; a later write without it makes it stay.

    Raises (every write):
        NoMaster: No master was found in time; the write is not done.
        WriteUnknown: The master was lost before it confirmed the write, and cannot be asked any more.
        BackendFailure: The master's disk refused it; the write is not done.
        RecordTooLarge: Key and value have more than 16 MiB.
        UnsupportedValue: A key or value cannot be converted.
        BufferFull: There was no room for it in time; the write is not done.
        TimedOut: It is not confirmed yet; it may still be done.
        Closed: The store was closed.
    """

    def __init__(self, endpoint: Endpoint, core: Core) -> None:
        self.endpoint = endpoint
        self.name = core.name
        self.role: Literal["master", "clone"] = "master" if isinstance(core, StoreMaster) else "clone"
        self.core = core
        self.member: MeshStore  # set by ``begin``
        self._node = endpoint.node
        self._lock = endpoint.node.lock
        self._turns = endpoint.node.turns
        self._questions = Questions()
        self._watches: list[StoreWatch] = []
        self._proxies: list[StoreProxy] = []
        self._immediate = False
        self.closed = False

    def begin(self, member: MeshStore, immediate: bool) -> None:
        """For who makes it, with the lock held. ``immediate``: writes are done when a call into the core returns."""
        self.member = member
        self._immediate = immediate
        member.start()

    # -- what it is -----------------------------------------------------------------------------------

    @property
    def entity(self) -> Entity:
        """Who this is: the publisher of its writes."""
        return self.core.entity

    @property
    def ready(self) -> bool:
        """Whether it may be read: a master always, a clone once it has all data, until it is stale."""
        return self.member.entries is not None

    # -- reading --------------------------------------------------------------------------------------

    def get(self, key: object, default: Any = None) -> Any:
        """The value under a key, or ``default``.

        Raises:
            StaleData: A clone was without its master for too long, or has never had one. So does all reading.
        """
        entries = self.member.entries
        if entries is None:
            raise self._unreadable()
        entry = entries.get(key if type(key) is str else index_of(to_value(key)))
        if entry is None:
            return default
        value = entry.value
        return value if type(value) in _PLAIN else to_python(value)

    def get_index_from_value(self, key: object, index: object, default: Any = None) -> Any:
        """What lies at an index of the value under a key; ``default`` if there is nothing.

        That is an element of a vector, the value under a key of a table, or whether it is a member of a set; of
        anything else the value itself.

        Raises:
            TypeClash: A vector is indexed by something else than a number from 0 on.
        """
        try:
            return to_python(self._engine().get_index(to_value(key), to_value(index)))
        except NoSuchKey:
            return default

    def exists(self, key: object) -> bool:
        """Whether there is a value under a key."""
        return self._engine().exists(to_value(key))

    def keys(self) -> list[Any]:
        """All keys, the oldest first."""
        with self._lock:
            found = self._engine().keys()
        return [to_python(key) for key in found]

    def items(self) -> list[tuple[Any, Any]]:
        """All keys and values, the oldest first."""
        return [(to_python(each.key), to_python(each.value)) for each in self._entries()]

    def snapshot(self) -> list[StoreEntry]:
        """All entries, of one moment."""
        return [
            StoreEntry(to_python(each.key), to_python(each.value), each.expires_ns, each.version, each)
            for each in self._entries()
        ]

    @property
    def version(self) -> int:
        """The number of the last change here."""
        return self.core.engine.version

    def changes_since(self, version: int) -> list[StoreEvent] | None:
        """What has changed after ``version``; None if that is not remembered any more: take a ``snapshot`` then.

        A durable master shows changes a moment before they are durable; None if one of them was taken back.
        """
        with self._lock:
            found = self._engine().changes_since(version)
        return None if found is None else [event_of_change(each) for each in found]

    def __getitem__(self, key: object) -> Any:
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self.exists(key)

    def __len__(self) -> int:
        return len(self._engine())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __bool__(self) -> bool:
        """True also while it is empty."""
        return True

    # -- writing --------------------------------------------------------------------------------------

    def put(
        self,
        key: object,
        value: object,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """Set a value. For the rest, and for what all writes raise, see the class."""
        if expiry_s is None and (self._immediate or not wait):
            try:
                with self._lock:
                    self.member.write(self.core.put, (key, value), NO_OPTIONS, False)
                    self._turns.tell()
                self._node.stores.keep_up()
                return
            except BufferFull:
                pass  # wait for room as every other write does
        self._write(self.core.put, (key, value), expiry_s, wait, timeout)

    def put_unique(
        self, key: object, value: object, *, expiry_s: float | None = None, timeout: float | None = WAIT_S
    ) -> bool:
        """Set a value if there is none; whether it did. Of all who try at the same time one does."""
        asked = self._begin(self.core.put_unique, (key, value), expiry_s, True, timeout)
        return self._outcome(asked, timeout) is True

    def put_many(
        self,
        items: Mapping[Any, Any] | Iterable[tuple[object, object]],
        *,
        expiry_s: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Set many values, much faster than one by one; returns when all are done, or raises the first error then."""
        deadline = _deadline(timeout)
        asked: list[Asked] = []
        failed: list[Exception] = []
        for chunk in chunks(items):
            left = chunk
            while left:
                taken, problem = self.try_put_many(left, expiry_s, asked)
                self._node.stores.keep_up()
                left = left[taken:]
                if isinstance(problem, BufferFull):
                    self._wait_for_room(deadline)
                elif problem is not None:
                    failed.append(problem)
                    left = left[1:]
        for each in asked:
            try:
                self._outcome(each, _left(deadline))
            except Exception as problem:
                failed.append(problem)
        if failed:
            raise failed[0]

    def increment(
        self,
        key: object,
        by: object = 1,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """Add to a number, timespan or timestamp of the same type; a missing one starts at zero (1970).

        Raises:
            TypeClash: The value under the key is of another type.
            InvalidOperation: The result is out of the bounds of its type.
        """
        self._write(self.core.add, (key, by, number_tag(by)), expiry_s, wait, timeout)

    def decrement(
        self,
        key: object,
        by: object = 1,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """Take from a number, timespan or timestamp. Raises as ``increment``, and NoSuchKey."""
        self._write(self.core.subtract, (key, by), expiry_s, wait, timeout)

    def append(
        self,
        key: object,
        text: str | bytes,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """Lengthen a string; a missing one is empty. Raises TypeClash."""
        self._write(self.core.add, (key, text, STRING), expiry_s, wait, timeout)

    def insert_into(
        self,
        key: object,
        index: object,
        value: object = MISSING,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """Put a member into a set, or with a ``value`` a key into a table; a missing one is empty. Raises TypeClash."""
        args = (key, index, SET) if value is MISSING else (key, (index, value), TABLE)
        self._write(self.core.add, args, expiry_s, wait, timeout)

    def remove_from(
        self,
        key: object,
        index: object,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """Take a member from a set, or a key from a table, if it is there. Raises TypeClash and NoSuchKey."""
        self._write(self.core.subtract, (key, index), expiry_s, wait, timeout)

    def push(
        self,
        key: object,
        value: object,
        *,
        expiry_s: float | None = None,
        wait: bool = True,
        timeout: float | None = WAIT_S,
    ) -> None:
        """Put an element at the end of a vector; a missing one is empty. Raises TypeClash."""
        self._write(self.core.add, (key, value, VECTOR), expiry_s, wait, timeout)

    def pop(
        self, key: object, *, expiry_s: float | None = None, wait: bool = True, timeout: float | None = WAIT_S
    ) -> None:
        """Take the last element from a vector, if it has one. Raises TypeClash and NoSuchKey."""
        self._write(self.core.subtract, (key, key), expiry_s, wait, timeout)

    def erase(self, key: object, *, wait: bool = True, timeout: float | None = WAIT_S) -> None:
        """Remove a key, if it is there."""
        self._write(self.core.erase, (key,), None, wait, timeout)

    def clear(self, *, wait: bool = True, timeout: float | None = WAIT_S) -> None:
        """Remove everything."""
        self._write(self.core.clear, (), None, wait, timeout)

    def __setitem__(self, key: object, value: object) -> None:
        self.put(key, value)

    def __delitem__(self, key: object) -> None:
        if not self.exists(key):
            raise KeyError(key)
        self.erase(key)

    # -- waiting and watching -------------------------------------------------------------------------

    def await_idle(self, timeout: float | None = WAIT_S, *, callback: Callable[[bool], object] | None = None) -> bool:
        """Wait until everything is everywhere; False if it is not after ``timeout`` seconds.

        On a master: every clone in reach has all changes, and all is durable. On a clone: it has a master, knows of
        nothing missing, and its own writes are confirmed and shown. With ``callback`` it returns True at once, and the
        callback gets the answer, in a thread of its own.
        """
        asked = self.begin_await_idle(timeout)
        if callback is None:
            asked.wait(None)
            return self.idle_outcome(asked)
        self.endpoint.call_when_done(asked, lambda outcome: callback(outcome is None), "chappe-await-idle")
        return True

    def watch(
        self,
        *,
        key: object = MISSING,
        prefix: str | None = None,
        callback: Callable[[StoreEvent], object] | None = None,
        on_full: OnFull = "drop_oldest",
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
    ) -> StoreWatch:
        """Hear what becomes of a key, of all keys that are strings with a ``prefix``, or of all; from now on.

        A clone that finds its master again tells of every difference, without those who wrote.

        Args:
            key: The only key; or
            prefix: how the keys begin.
            callback: Called with each event, by a thread that this watch has for it.
            on_full: What happens when more waits than the bounds: ``drop_oldest``, ``drop_newest``, ``block`` (this
                store takes no more writes, and its endpoint reads nothing from its peers, until there is room), or
                ``disconnect`` (the watch ends). What is dropped is counted and reported.
            messages_max: How many events may wait.
            bytes_max: How many bytes, of keys and new values.
        """
        check_bounds(messages_max, bytes_max)
        made = StoreWatch(self, _wanted(key, prefix), as_policy(on_full), messages_max, bytes_max)
        with self._lock:
            self._check()
            self._watches.append(made)
            self.core.notify = True
        if callback is not None:
            made.call_back(callback)
        return made

    def proxy(self) -> StoreProxy:
        """Ask now, and take the answers later."""
        made = StoreProxy(self)
        with self._lock:
            self._check()
            self._proxies.append(made)
        return made

    # -- the end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Detach from the endpoint. Safe to call twice.

        What is being committed, and what a clone with a master has written, is waited for, at most about four seconds.
        Whoever waits for another write gets WriteUnknown, whoever watches gets Closed.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
            watches, proxies = list(self._watches), list(self._proxies)
        self.member.close()
        with self._lock:
            unconfirmed = self.core.unconfirmed if isinstance(self.core, StoreClone) else 0
            lost = WriteUnknown(f"store {self.name!r} was closed before its master had confirmed the write")
            if unconfirmed and not self._questions:
                self.endpoint.report(WriteFailed(self.name, f"{unconfirmed} writes", lost))
            self._questions.end(lost)
            self._turns.news = True
            self.endpoint.forget_store(self)
        for watch in watches:
            watch.close()
        for proxy in proxies:
            proxy.close()
        with self._lock:
            self._turns.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DataStore {self.name!r}, {self.role}>"

    # -- for other faces ------------------------------------------------------------------------------

    def try_write(self, method: Method, args: tuple[object, ...], expiry_s: float | None, wait: bool) -> Asked | None:
        """Make a write; the question that its outcome answers, None if nobody wants to know or it is done.

        Raises:
            BufferFull: There is no ``room`` at present.
        """
        options: dict[str, Any] = {}
        if expiry_s is not None:
            options["expiry_ns"] = expiry_ns(expiry_s)
        if not wait or (self._immediate and method != self.core.put_unique):
            with self._lock:
                self.member.write(method, args, options, False)
                self._turns.tell()
            self._node.stores.keep_up()
            return None
        with self._lock:
            ticket = self.endpoint.new_number()
            asked = self._questions.begin(self._node, ticket)
            options["ticket"] = ticket
            try:
                self.member.write(method, args, options, True)
            except BaseException:
                self._questions.forget(ticket)
                raise
            self._turns.tell()
        return asked

    def try_put_many(
        self, items: list[tuple[object, object]], expiry_s: float | None, asked: list[Asked]
    ) -> tuple[int, Exception | None]:
        """Make as many writes as there is room for; how many were made, and what the next one raised."""
        taken = 0
        with self._lock:
            stores = self._node.stores
            stores.hold()
            try:
                for item in items:
                    try:
                        made = self.try_write(self.core.put, item, expiry_s, True)
                    except Exception as problem:
                        return taken, problem
                    taken += 1
                    if made is not None:
                        asked.append(made)
            finally:
                stores.let_go()
        return taken, None

    def room(self) -> bool:
        """Whether a write would not wait for room."""
        return self.closed or self.member.room()

    def begin_await_idle(self, timeout: float | None) -> Asked:
        """``await_idle`` up to the wait."""
        with self._lock:
            self._check()
            ticket = self.endpoint.new_number()
            asked = self._questions.begin(self._node, ticket)
            self.member.ask(self.core.await_idle, ticket, math.inf if timeout is None else timeout)
        return asked

    def idle_outcome(self, asked: Asked) -> bool:
        """The answer of ``await_idle``, after the wait."""
        try:
            return asked.take("") is None
        except (TimedOut, WriteUnknown):
            return False

    def begin_await_ready(self) -> Asked:
        """Wait until a clone may be read."""
        assert isinstance(self.core, StoreClone)
        with self._lock:
            ticket = self.endpoint.new_number()
            asked = self._questions.begin(self._node, ticket)
            self.member.ask(self.core.await_ready, ticket, math.inf)
        return asked

    # -- for watches, with the lock held --------------------------------------------------------------

    def forget_watch(self, watch: StoreWatch) -> None:
        """A watch is closed."""
        if watch in self._watches:
            self._watches.remove(watch)
        self.core.notify = bool(self._watches)

    def forget_proxy(self, proxy: StoreProxy) -> None:
        """A proxy is closed."""
        if proxy in self._proxies:
            self._proxies.remove(proxy)

    def stop(self, watch: StoreWatch, on: bool) -> None:
        """A watch has no room for further changes, or has some again."""
        if on:
            self.member.stopped.add(watch)
        else:
            self.member.stopped.discard(watch)
            self._turns.news = True
        number = min(self.member.topics)
        if bool(self.member.stopped) is on:
            self.endpoint.pause(number, on)

    # -- the listener of the member, with the lock held -------------------------------------------------

    def resolved(self, ticket: int, outcome: object) -> None:
        """A call is over."""
        if self._questions.resolve(ticket, outcome):
            self._turns.news = True

    def notified(self, action: Notify) -> None:
        """A key has changed."""
        for watch in list(self._watches):
            watch.notify(action)

    def reported(self, event: object) -> None:
        """Something happened."""
        self.endpoint.report(event)

    # -- inside ---------------------------------------------------------------------------------------

    def _write(
        self, method: Method, args: tuple[object, ...], expiry_s: float | None, wait: bool, timeout: float | None
    ) -> None:
        asked = self._begin(method, args, expiry_s, wait, timeout)
        if asked is not None:
            self._outcome(asked, timeout)

    def _begin(
        self, method: Method, args: tuple[object, ...], expiry_s: float | None, wait: bool, timeout: float | None
    ) -> Asked | None:
        deadline: float | None = None
        while True:
            try:
                return self.try_write(method, args, expiry_s, wait)
            except BufferFull:
                deadline = _deadline(timeout) if deadline is None else deadline
                self._wait_for_room(deadline)

    def _wait_for_room(self, deadline: float) -> None:
        if not self._turns.wait(self.room, _left(deadline)):
            self.no_room()

    def _outcome(self, asked: Asked | None, timeout: float | None) -> Any:
        if asked is None:
            return None
        asked.wait(timeout)
        return asked.take(self.too_late())

    def no_room(self) -> NoReturn:
        """Raise what a write raises that found no room in time."""
        self._check()
        raise BufferFull(f"store {self.name!r} had no room for another write in time; the write is not done")

    def too_late(self) -> str:
        """The text of a TimedOut."""
        return f"the write to store {self.name!r} is not confirmed yet; it may still be done"

    def _check(self) -> None:
        if self.closed or self._turns.closed:
            raise Closed(f"store {self.name!r} was closed")

    def _engine(self) -> Engine:
        if self.member.entries is None:
            raise self._unreadable()
        return self.core.engine

    def _entries(self) -> list[Entry]:
        with self._lock:
            return list(self._engine().items())

    def _unreadable(self) -> StaleData | Closed:
        if not self.closed and isinstance(self.core, StoreClone):
            try:
                self.core.readable_engine()
            except StaleData as stale:
                return stale
        return Closed(f"store {self.name!r} was closed")


def number_tag(by: object) -> int:
    """The tag of the type that a missing number starts as."""
    tag: int = sort_key(to_value(by))[0]
    if tag == TIMESPAN:
        return TIMESTAMP
    return tag if tag in _NUMBERS else NONE  # of that nothing can start


def expiry_ns(expiry_s: float) -> int:
    """Nanoseconds of an expiry."""
    if not 0 < expiry_s < math.inf:
        raise UsageError(f"expiry_s is a number of seconds above 0, not {expiry_s!r}")
    return min(int(expiry_s * _NS), _NS_MAX)


def chunks(items: Mapping[Any, Any] | Iterable[tuple[object, object]]) -> Iterator[list[tuple[object, object]]]:
    """Keys and values, so many at a time."""
    chunk: list[tuple[object, object]] = []
    for key, value in items.items() if isinstance(items, Mapping) else items:
        chunk.append((key, value))
        if len(chunk) == MANY:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _wanted(key: object, prefix: str | None) -> Callable[[Value], bool]:
    if key is not MISSING:
        if prefix is not None:
            raise UsageError("watch a key or a prefix, not both")
        index = index_of(to_value(key))
        return lambda found: index_of(found) == index
    if prefix is not None:
        return lambda found: isinstance(found, str) and type(found) is str and found.startswith(prefix)
    return lambda found: True


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _left(deadline: float) -> float | None:
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
