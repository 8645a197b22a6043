"""A master or clone of a data store on its endpoint, the base of its blocking and asyncio faces.

Nothing here waits, except ``close``: what has an outcome is an ``Asked`` or ``Steps``, and each face waits for it in
its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from chappe.api.faces import Closeable, Seconds, Steps
from chappe.api.kv.chained import StoreServer
from chappe.api.kv.past import DataStoreRevision, revisions_of
from chappe.api.mesh.arguments import expiry_ns
from chappe.api.mesh.waiting import Asked, deadline_after, time_left
from chappe.core import Effect, Flush
from chappe.data.convert import to_python, to_value
from chappe.data.given import pairs, two
from chappe.defaults import CLOSE_S
from chappe.errors import BufferFull, Closed, MemberStopped, StaleData, TimedOut, WriteUnknown
from chappe.kv.backend import Backend
from chappe.kv.chained.core import ChainedMaster
from chappe.kv.clone import KvClone
from chappe.kv.engine import Engine
from chappe.kv.events import WriteFailed
from chappe.kv.master import KvMaster
from chappe.kv.role import KeyChange
from chappe.runtime.commits import CLOSE_S as CLOSE_WRITES_S
from chappe.system import time
from chappe.system.forking import own

if TYPE_CHECKING:
    from chappe.api.mesh.hosting import EndpointHost
    from chappe.mesh.events import PeerLost

WAIT_S: Final = 10.0  # a write, or a question to the master, waits this long for its outcome
MANY: Final = 256  # writes of ``put_many`` made at once
Core = KvMaster | KvClone | ChainedMaster
Method = Callable[..., list[Effect]]
Args = tuple[object, ...]
Items = Mapping[Any, Any] | Iterable[tuple[object, object]]


class Watching(Protocol):
    """A listener to changes, which ends with its store."""

    def close(self) -> None: ...

    def notify(self, change: KeyChange) -> None:
        """Take a change; the lock is held."""


class AttachedStore:
    """A master or clone, its place on the node, and its watches and questions."""

    def __init__(
        self, endpoint: EndpointHost, core: Core, backend: Backend | None = None, chain: StoreServer | None = None
    ) -> None:  # fmt: skip
        own(self)
        self.endpoint = endpoint
        self.core = core
        self.name = core.name
        self.chain = chain
        self.closed = False
        self._too_late = f"the write to store {self.name!r} is not confirmed yet; it may still be done"
        self.lost_peer: PeerLost | None = None  # the last peering that was lost since it is attached
        self.immediate = core.immediate
        self._node = endpoint.node
        self._lock = endpoint.node.lock
        self._turns = endpoint.node.turns
        self._watches: dict[Watching, None] = {}
        self.proxies: dict[Closeable, None] = {}
        self.number = next(endpoint.numbers)
        self.part = endpoint.node.member.attach(core, self.number)
        self.looked_for = False  # True while the author of a clone's unconfirmed write may poll for it
        self._held = False  # changes were held back when the last write began
        self._follows = core.kind == "clone"
        self._backend = backend

    def begin(self) -> None:
        """Take part; the lock is held.

        Raises:
            UsageError: The endpoint has too many subscriptions to be announced.
        """
        node = self._node
        self.endpoint.hear(self.number, self)
        if self._backend is not None:
            node.backends[self.number] = self._backend
        if self.chain is not None:
            node.chains[self.number] = self.chain.link
        try:
            effects = self.part.start(time.monotonic())
        except BaseException:
            self._end_disk(CLOSE_WRITES_S)
            self._forget()
            raise
        self._do(effects)
        if self.chain is not None:
            self.chain.link.begin(self._turns.run, self._hear_chain)
        self._turns.tell()
        self.endpoint.stores[self] = None

    def _do(self, effects: Sequence[Effect]) -> None:
        """Perform the effects of a call into the part; the lock is held."""
        self._node.driver.perform(effects)
        self._turns.look_again_at(self.part.due)

    def _hear_chain(self, news: Sequence[object]) -> None:
        """Take the chain's news, in order; the lock is held."""
        if self.number in self._node.chains:
            self._do(self.part.hear_chain(news, time.monotonic()))
            self._node.gatherer.at_once()
            self._turns.news = True

    def _end_disk(self, timeout_s: float) -> None:
        """Close the backend after the writes under way."""
        if self._backend is not None:
            self._node.driver.end_disk(self.number, timeout_s, self._backend.close)

    def _forget(self) -> None:
        self.endpoint.hear(self.number, None)
        self._node.backends.pop(self.number, None)
        self._node.chains.pop(self.number, None)
        self._node.driver.forget_disk(self.number)

    def check(self) -> None:
        """Raise Closed, or MemberStopped if its endpoint was stopped; the lock is held."""
        self._turns.check()
        if self.closed or self._turns.closed:
            raise Closed(f"store {self.name!r} was closed")

    # -- reading --------------------------------------------------------------------------------------

    def engine(self) -> Engine:
        """Return the data, of a master without expired entries. Raises as ``unreadable`` says."""
        if self.looked_for:
            self.catch_up()
        if self.part.entries is None:
            raise self.unreadable()
        if self.core.kind == "master" and time.monotonic() >= self.part.due:
            with self._lock:
                self._do_what_is_due()
        return self.core.engine

    def catch_up(self) -> None:
        """Process pending messages before a reader looks for its own unconfirmed write; never waits.

        A polling thread holds the GIL, and the loop's thread would get it only after
        ``sys.getswitchinterval()``, longer than the whole round trip to a master.
        """
        self._turns.serve()
        with self._lock:
            self.looked_for = self.core.unconfirmed > 0

    def _do_what_is_due(self) -> None:
        """Run the core's timers now if they are late: the machine is busy."""
        if not self.part.closing:
            self._do(self.part.handle_timeout(time.monotonic()))

    def unreadable(self) -> StaleData | MemberStopped | Closed:
        if self._turns.halted is not None:
            return MemberStopped(self._turns.halted)
        stale = None if self.closed else self.core.unreadable()
        return stale or Closed(f"store {self.name!r} was closed")

    def await_kept(self) -> None:
        """Wait until all writes to a single master so far are durable; call it without the lock."""
        core = self.core
        assert isinstance(core, KvMaster)
        with self._lock:
            self.engine()  # removes expired entries
            written = core.written
        self._turns.wait(lambda: self.closed or core.has_kept(written))

    # -- writing --------------------------------------------------------------------------------------

    def writing(
        self, method: Method, args: Args, expiry_s: Seconds, wait: bool, timeout: Seconds, look: bool = False
    ) -> Steps[Any]:
        """Make a write, after a wait for room, and wait for its outcome.

        Returns the outcome, if that is waited for; or with ``look`` the value under the key then, if it is known.
        """
        found: list[Any] | None = [] if look else None
        deadline: float | None = None
        while True:
            try:
                asked = self.try_write(method, args, expiry_s, wait, found)
                break
            except BufferFull:
                deadline = deadline_after(timeout) if deadline is None else deadline
                yield from self._wait_for_room(deadline)
        outcome = None if asked is None else (yield from self._outcome(asked, timeout))
        if found is None:
            return outcome
        return found[0] if found and (wait or self.immediate) else None

    def putting(self, items: Items, expiry_s: Seconds, timeout: Seconds) -> Steps[None]:
        """Make many writes, some at a time; raise the first error when all are done."""
        deadline = deadline_after(timeout)
        asked: list[Asked] = []
        failed: list[Exception] = []
        source = pairs(items, "items")
        while chunk := [two(each, "an item is a key and a value") for each in islice(source, MANY)]:
            while chunk:
                taken, problem = self._try_put_many(chunk, expiry_s, asked)
                self._node.keep_up()
                if isinstance(problem, BufferFull):
                    yield from self._wait_for_room(deadline)
                else:
                    if problem is not None:
                        failed.append(problem)
                        taken += 1
                    yield None
                del chunk[:taken]
        for each in asked:
            try:
                yield from self._outcome(each, time_left(deadline))
            except Exception as problem:
                failed.append(problem)
        if failed:
            raise failed[0]

    def _wait_for_room(self, deadline: float) -> Steps[None]:
        if not (yield self.room, time_left(deadline)):
            self.check()
            raise BufferFull(f"store {self.name!r} had no room for another write in time; the write is not done")

    def _outcome(self, asked: Asked, timeout: Seconds) -> Steps[Any]:
        try:
            yield asked.done, timeout
        except BaseException:  # Ctrl-C, a cancellation
            asked.forget()
            raise
        return asked.take(self._too_late)

    def try_write(
        self, method: Method, args: Args, expiry_s: Seconds, wait: bool, found: list[Any] | None = None
    ) -> Asked | None:
        """Make a write; return the question that its outcome answers, None without ``wait`` or if it is done.

        A master adds the value under the key then to ``found``: no other write comes between.

        Args:
            method: A method of the core, called with ``args``.

        Raises:
            BufferFull: There is no ``room`` at present.
        """
        options: dict[str, Any] = {}
        if expiry_s is not None:
            options["expiry_ns"] = expiry_ns(expiry_s)
        if not wait or (self.immediate and method != self.core.put_unique):
            with self._lock:
                now = time.monotonic()
                effects = method(*args, now=self.begin_write(now), **options)
                self.end_write(effects, now, expires=expiry_s is not None)
                if found is not None:
                    self._look(args, found)
                self._turns.tell()
            self._node.keep_up()
            return None
        with self._lock:
            asked = Asked(self._turns, self.endpoint.asked, next(self.endpoint.numbers), self)
            options["ticket"] = asked.ticket
            try:
                now = time.monotonic()
                effects = method(*args, now=self.begin_write(now), **options)
                self.end_write(effects, now, expires=expiry_s is not None, hurry=True)
            except BaseException:
                asked.forget()
                raise
            if found is not None:
                self._look(args, found)
            self._turns.tell()
        return asked

    def begin_write(self, now: float) -> float:
        """Check that the core may be called to write; return the time to pass to it. The lock is held.

        Raises:
            BufferFull: There is no ``room`` at present.
            NotPermitted: The permissions do not let us write.
            MemberStopped: A defect has stopped the endpoint.
        """
        self._turns.check()
        endpoint, core = self.endpoint, self.core
        if endpoint.permitted is not None:
            name = core.name.encode()
            if core.kind != "master":
                endpoint.permitted.write(name)
            if endpoint.node.sealing is not None:
                endpoint.node.sealing.check(name)
        self._held = core.held_until < math.inf
        return self.part.check(now)

    def end_write(self, effects: Sequence[Effect], now: float, *, expires: bool = False, hurry: bool = False) -> None:
        """Perform the effects of a write; without ``hurry`` it may be sent a moment later, with others."""
        node, part = self._node, self.part
        due = part.due
        effects = part.wrote(effects, now, expires=expires)
        if hurry and self.core.held_until < math.inf:
            effects = [*effects, *part.let_go(now)]
        waiting: list[Flush] = []
        rest: list[Effect] = []
        for each in effects:
            if type(each) is Flush:
                waiting.append(each)
            else:
                rest.append(each)
        if rest:
            node.driver.perform(rest)
        if waiting:
            node.gatherer.add(waiting)
            if hurry:
                node.gatherer.at_once()
            else:
                node.gatherer.soon(now)
            node.gatherer.many |= self._held
        if part.due < due:
            self._turns.look_again_at(part.due)
        if not hurry:
            self.looked_for = self._follows

    def _look(self, args: tuple[object, ...], found: list[Any]) -> None:
        if self.core.leads:
            found.append(to_python(self.core.engine.get(to_value(args[0]))))

    def _try_put_many(
        self, items: list[tuple[object, object]], expiry_s: Seconds, asked: list[Asked]
    ) -> tuple[int, Exception | None]:
        """Make as many writes as there is room for; return their number, and the error of the next."""
        taken = 0
        put = self.core.put
        with self._lock:
            gatherer = self._node.gatherer
            gatherer.hold()
            try:
                for item in items:
                    try:
                        made = self.try_write(put, item, expiry_s, True)
                    except Exception as problem:
                        return taken, problem
                    taken += 1
                    if made is not None:
                        asked.append(made)
            finally:
                gatherer.let_go()
        return taken, None

    def room(self) -> bool:
        """True if a write would not wait for room."""
        return self.closed or self.part.room()

    # -- waiting --------------------------------------------------------------------------------------

    def begin_await_idle(self, timeout: float | None) -> Asked:
        """Begin ``await_idle``, which also waits for the removal of entries that have expired by now."""
        with self._lock:
            self.check()
            self._do_what_is_due()
            asked = self.endpoint.question(self)
            effects = self.core.await_idle(asked.ticket, _or_ever(timeout), self.part.time(time.monotonic()))
            return self._answering(asked, effects)

    def idle_outcome(self, asked: Asked) -> bool:
        try:
            return asked.take("") is None
        except (TimedOut, WriteUnknown):
            return False

    def begin_await_ready(self, timeout: float | None = None) -> Asked:
        """Wait until a clone is readable; the answer is StaleData after ``timeout`` seconds."""
        assert isinstance(self.core, KvClone)
        with self._lock:
            self.check()
            asked = self.endpoint.question(self)
            effects = self.core.await_ready(asked.ticket, _or_ever(timeout), self.part.time(time.monotonic()))
            return self._answering(asked, effects)

    def asking_history(self, key: object, timeout: Seconds) -> Steps[list[DataStoreRevision]]:
        asked = self.begin_history(key, timeout)
        try:
            yield asked.done, None  # the core answers in time
        except BaseException:  # Ctrl-C, a cancellation
            asked.forget()
            raise
        return self.history_outcome(key, asked)

    def begin_history(self, key: object, timeout: Seconds) -> Asked:
        """Ask for the history of a key. Raises InvalidOperation if there is none, or BufferFull."""
        with self._lock:
            self.check()
            self._do_what_is_due()
            asked, now = self.endpoint.question(self), self.part.time(time.monotonic())
            try:
                effects = self.core.ask_history(asked.ticket, to_value(key), _or_ever(timeout), now)
            except BaseException:
                asked.forget()
                raise
            return self._answering(asked, effects)

    def history_outcome(self, key: object, asked: Asked) -> list[DataStoreRevision]:
        if self.closed:
            raise Closed(f"store {self.name!r} was closed")
        return revisions_of(to_python(to_value(key)), asked.take(""))

    def _answering(self, asked: Asked, effects: Sequence[Effect]) -> Asked:
        self._do(self.part.answered(effects, time.monotonic()))
        self._node.gatherer.at_once()
        return asked

    # -- the end --------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Detach; wait up to ``timeout_s`` for writes."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            watches, proxies = list(self._watches), list(self.proxies)
        self._leave(timeout_s)
        if self.chain is not None:
            self.chain.close()
        with self._lock:
            unconfirmed = self.core.unconfirmed
            lost = WriteUnknown(f"store {self.name!r} was closed before its master had confirmed the write")
            waiting = [each for each in self.endpoint.asked.values() if each.owner is self]
            if unconfirmed and not waiting:
                self.endpoint.report(WriteFailed(self.name, f"{unconfirmed} writes", lost))
            for asked in waiting:
                asked.answer(lost)
            self._turns.news = True
            self.endpoint.stores.pop(self, None)
        for watch in watches:
            watch.close()
        for proxy in proxies:
            proxy.close()
        with self._lock:
            self._turns.tell()

    def _leave(self, timeout_s: float) -> None:
        """Take no more writes, wait for those under way, and leave; the lock is not held.

        Waits at most ``timeout_s`` each for a clone's writes to be confirmed, if it has a master, and for a backend.
        """
        node, turns = self._node, self._turns
        with self._lock:
            self.part.closing = True
        if not turns.closed:
            turns.wait(lambda: self.core.settled, timeout_s)
        self._end_disk(timeout_s)
        with self._lock:
            effects = self.part.close(time.monotonic())
            self._forget()
            node.pause(self.number, False)
            if not turns.closed and turns.halted is None:
                node.driver.perform(effects)
                node.gatherer.at_once()
                turns.tell()
        if self.chain is not None:
            self.chain.link.close()

    # -- for watches and proxies ----------------------------------------------------------------------

    def add_watch(self, watch: Watching) -> None:
        with self._lock:
            self.check()
            self._watches[watch] = None
            self.core.notify = True

    def forget_watch(self, watch: Watching) -> None:
        """Remove a closed watch; the lock is held."""
        self._watches.pop(watch, None)
        self.core.notify = bool(self._watches)

    def add_proxy(self, proxy: Closeable) -> None:
        """Close a proxy with the store. Raises Closed."""
        with self._lock:
            self.check()
            self.proxies[proxy] = None

    def stop(self, watch: Watching, on: bool) -> None:
        """Hold or resume writes: a watch has no room for further changes, or has some again; the lock is held."""
        if not on:
            self._turns.news = True
        if self.part.handle_full(watch, on):
            self._node.pause(self.number, on)

    def deliver(self, changes: list[KeyChange]) -> None:
        """Pass changes to the watches; the lock is held."""
        for change in changes:
            for watch in list(self._watches):
                watch.notify(change)


def _or_ever(timeout: float | None) -> float:
    return math.inf if timeout is None else timeout
