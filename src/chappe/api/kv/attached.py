"""The master or a clone of a data store on its endpoint: what both faces of it, blocking and asyncio, stand on.

Nothing here waits, but for ``close``: what has an outcome is an ``Asked`` or ``Steps``, and each face waits for it in
its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from chappe.api.faces import Closeable, Seconds, Steps, weakly
from chappe.api.kv.chained import StoreServer
from chappe.api.kv.past import DataStoreRevision, revisions_of
from chappe.api.mesh.arguments import expiry_ns
from chappe.api.mesh.waiting import Asked, deadline_after, time_left
from chappe.core import Report
from chappe.data.convert import to_python, to_value
from chappe.data.given import pairs, two
from chappe.defaults import CLOSE_S
from chappe.errors import BufferFull, Closed, MemberStopped, StaleData, TimedOut, WriteUnknown
from chappe.kv.actions import Action, Notify, Resolve
from chappe.kv.backend import Backend
from chappe.kv.chained.core import ChainedMaster
from chappe.kv.clone import KvClone
from chappe.kv.engine import Engine
from chappe.kv.events import WriteFailed
from chappe.kv.master import KvMaster
from chappe.runtime.kv_node import KvNode
from chappe.system import time
from chappe.system.forking import own

if TYPE_CHECKING:
    from chappe.api.mesh.hosting import Host
    from chappe.api.mesh.identity import Own
    from chappe.mesh.events import PeerLost
    from chappe.sealing.in_mesh import MeshSealing

WAIT_S: Final = 10.0  # a write, or a question to the master, waits this long for its outcome
MANY: Final = 256  # writes of ``put_many`` made at once
Core = KvMaster | KvClone | ChainedMaster
Method = Callable[..., list[Action]]
Args = tuple[object, ...]
Items = Mapping[Any, Any] | Iterable[tuple[object, object]]


class Watching(Protocol):
    """What is told of changes, and ends with its store."""

    def close(self) -> None:
        """End it."""

    def notify(self, action: Notify) -> None:
        """A key has changed; the lock is held."""


def _require(permitted: Own, sealing: MeshSealing | None, kind: str, name: bytes) -> None:
    """Raise NotPermitted or Sealed if nothing can be written now."""
    if kind != "master":
        permitted.write(name)
    if sealing is not None:
        sealing.check(name)


class AttachedStore:
    """A master or clone, its place on the node, and who asks and watches it."""

    def __init__(
        self, endpoint: Host, core: Core, backend: Backend | None = None, chain: StoreServer | None = None
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
        self._asked: dict[int, Asked] = {}
        self._watches: dict[Watching, None] = {}
        self.proxies: dict[Closeable, None] = {}
        table: dict[type, Callable[[Any], None]] = {
            Resolve: weakly(self._resolved),
            Notify: weakly(self._notified),
            Report: weakly(self._reported),
        }
        require = (
            None
            if endpoint.permitted is None
            else partial(_require, endpoint.permitted, endpoint.node.sealing, core.kind, core.name.encode())
        )
        link = None if chain is None else chain.link
        self.node = KvNode(endpoint.node, core, next(endpoint.numbers), table, backend, require, link)
        self.part = self.node.part

    def _reported(self, action: Report) -> None:
        self.endpoint.report(action.event)

    def begin(self) -> None:
        """Take part; the lock is held."""
        self.node.start()
        self.endpoint.stores[self] = None

    def check(self) -> None:
        """Raise Closed if it is, or MemberStopped if its endpoint was stopped; the lock is held."""
        self._turns.check()
        if self.closed or self._turns.closed:
            raise Closed(f"store {self.name!r} was closed")

    # -- reading --------------------------------------------------------------------------------------

    def engine(self) -> Engine:
        """The data, of a master without what has expired by now. Raises what ``unreadable`` tells."""
        if self.node.looked_for:
            self.node.catch_up()
        if self.part.entries is None:
            raise self.unreadable()
        if self.core.kind == "master" and time.monotonic() >= self.part.due:
            with self._lock:
                self.node.do_what_is_due()
        return self.core.engine

    def unreadable(self) -> StaleData | MemberStopped | Closed:
        """Why it cannot be read."""
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
        """Make a write, after a wait for room, and wait for its outcome; see ``try_write``.

        Returns the outcome, if that is waited for; or with ``look`` what is under the key then, if that is known.
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
        """Make a write; the question that its outcome answers, None if nobody wants to know or it is done.

        A master adds to ``found`` what is under the key then: nobody else's write comes between.

        Args:
            method: Of the core, with ``args``.

        Raises:
            BufferFull: There is no ``room`` at present.
        """
        options: dict[str, Any] = {}
        if expiry_s is not None:
            options["expiry_ns"] = expiry_ns(expiry_s)
        if not wait or (self.immediate and method != self.core.put_unique):
            with self._lock:
                self.node.write(method, args, options, False)
                if found is not None:
                    self._look(args, found)
                self._turns.tell()
            self._node.keep_up()
            return None
        with self._lock:
            ticket = next(self.endpoint.numbers)
            asked = Asked(self._turns, self._asked, ticket)
            options["ticket"] = ticket
            try:
                self.node.write(method, args, options, True)
            except BaseException:
                asked.forget()
                raise
            if found is not None:
                self._look(args, found)
            self._turns.tell()
        return asked

    def _look(self, args: tuple[object, ...], found: list[Any]) -> None:
        if self.core.leads:
            found.append(to_python(self.core.engine.get(to_value(args[0]))))

    def _try_put_many(
        self, items: list[tuple[object, object]], expiry_s: Seconds, asked: list[Asked]
    ) -> tuple[int, Exception | None]:
        """Make as many writes as there is room for; how many were made, and what the next one raised."""
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
        """Whether a write would not wait for room."""
        return self.closed or self.part.room()

    # -- waiting --------------------------------------------------------------------------------------

    def begin_await_idle(self, timeout: float | None) -> Asked:
        """``await_idle`` up to the wait; what has expired by now is among what is waited for."""
        with self._lock:
            self.check()
            self.node.do_what_is_due()
            return self._ask(self.core.await_idle, timeout)

    def idle_outcome(self, asked: Asked) -> bool:
        """The answer of ``await_idle``, after the wait."""
        try:
            return asked.take("") is None
        except (TimedOut, WriteUnknown):
            return False

    def begin_await_ready(self, timeout: float | None = None) -> Asked:
        """Wait until a clone is readable; answers StaleData after ``timeout`` seconds."""
        assert isinstance(self.core, KvClone)
        with self._lock:
            self.check()
            return self._ask(self.core.await_ready, timeout)

    def asking_history(self, key: object, timeout: Seconds) -> Steps[list[DataStoreRevision]]:
        """Wait for the history of a key."""
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
            self.node.do_what_is_due()
            return self._ask(self.core.ask_history, timeout, to_value(key))

    def history_outcome(self, key: object, asked: Asked) -> list[DataStoreRevision]:
        """The answer to ``begin_history``."""
        if self.closed:
            raise Closed(f"store {self.name!r} was closed")
        return revisions_of(to_python(to_value(key)), asked.take(""))

    def _ask(self, method: Method, timeout: float | None, *arguments: object) -> Asked:
        ticket = next(self.endpoint.numbers)
        asked = Asked(self._turns, self._asked, ticket)
        try:
            self.node.ask(method, ticket, *arguments, math.inf if timeout is None else timeout)
        except BaseException:
            asked.forget()
            raise
        return asked

    # -- the end --------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """See ``DataStore.close``; ``timeout_s`` is how long to wait for writes."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            watches, proxies = list(self._watches), list(self.proxies)
        self.node.close(timeout_s)
        if self.chain is not None:
            self.chain.close()
        with self._lock:
            unconfirmed = self.core.unconfirmed
            lost = WriteUnknown(f"store {self.name!r} was closed before its master had confirmed the write")
            if unconfirmed and not self._asked:
                self.endpoint.report(WriteFailed(self.name, f"{unconfirmed} writes", lost))
            for asked in list(self._asked.values()):
                asked.answer(lost)
            self._turns.news = True
            self.endpoint.stores.pop(self, None)
        for watch in watches:
            watch.close()
        for proxy in proxies:
            proxy.close()
        with self._lock:
            self._turns.tell()

    # -- for watches and proxies ----------------------------------------------------------------------

    def add_watch(self, watch: Watching) -> None:
        """Have a watch told of changes. Raises Closed."""
        with self._lock:
            self.check()
            self._watches[watch] = None
            self.core.notify = True

    def forget_watch(self, watch: Watching) -> None:
        """A watch is closed; the lock is held."""
        self._watches.pop(watch, None)
        self.core.notify = bool(self._watches)

    def add_proxy(self, proxy: Closeable) -> None:
        """Have a proxy closed with the store. Raises Closed."""
        with self._lock:
            self.check()
            self.proxies[proxy] = None

    def stop(self, watch: Watching, on: bool) -> None:
        """A watch has no room for further changes, or has some again; the lock is held."""
        if not on:
            self._turns.news = True
        self.node.stop(watch, on)

    # -- for the node, with the lock held -------------------------------------------------------------

    def _resolved(self, action: Resolve) -> None:
        if (asked := self._asked.get(action.ticket)) is not None:
            asked.answer(action.outcome)

    def _notified(self, action: Notify) -> None:
        for watch in list(self._watches):
            watch.notify(action)
