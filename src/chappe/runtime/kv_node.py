"""The masters and clones of data stores on a mesh node: the lock, and the commits of durable masters.

A durable master's backend commits on a lane of its own: one commit is under way while the next one gathers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

from chappe.core import Report
from chappe.errors import StorageError
from chappe.kv.actions import Action as KvAction
from chappe.kv.actions import Commit, Propose
from chappe.kv.backend import Backend
from chappe.kv.chained.core import ChainedMaster, Place
from chappe.kv.chained.fed import Fed
from chappe.kv.role import KvRole
from chappe.member import Action, Serve
from chappe.mesh.actions import Flush
from chappe.runtime.mesh_node import MeshNode
from chappe.runtime.worker import DISKS, Lane, Post
from chappe.system import time

logger = logging.getLogger(__name__)

CLOSE_S: Final = 2.0  # closing waits this long for what is under way: commits, and confirmations of a clone's writes


class Chain(Protocol):
    """What leads to a server of a chain: see ``runtime.kv_chain``."""

    def begin(self, post: Post, take: Callable[[Sequence[object]], None]) -> None:
        """Have ``take`` called, by ``post``, with what there is and comes."""

    def propose(self, action: Propose) -> None:
        """Have the chain do this, if the server is its head; never waits."""

    def close(self) -> None:
        """Pass nothing more."""


class KvNode:
    """A master or clone on a node.

    Args:
        number: That no ticket and no subscriber of the endpoint has.
        perform: What is done, with the lock held, for ``Resolve``, ``Notify`` and ``Report`` actions.
        backend: Of a durable master; closed at the end.
        require: Raises NotPermitted if we may not write; None if nobody is asked.
        chain: Of a master whose state a chain has.
    """

    def __init__(
        self, node: MeshNode, role: KvRole, number: int, perform: dict[type, Callable[[Any], None]],
        backend: Backend | None = None, require: Callable[[], None] | None = None,
        chain: Chain | None = None,
    ) -> None:  # fmt: skip
        self.node = node
        self._require = require
        self.part = node.member.attach(role, number)
        self.looked_for = False  # True while the author of a clone's unconfirmed write may poll for it
        self._follows = role.kind == "clone"
        self._table: dict[type, Callable[[Any], None]] = {
            Commit: self._commit,
            Propose: self._propose,
            **perform,
        }
        self._backend = backend
        self._commits = None if backend is None else Lane(DISKS, node.turns.run)
        self._chain = chain

    def start(self) -> None:
        """Take part; raises UsageError if the endpoint has too many subscriptions to be announced. The lock is held."""
        node = self.node
        node.served[self.part.number] = self.serve
        try:
            actions = self.part.start(time.monotonic())
        except BaseException:
            del node.served[self.part.number]
            self._close_backend(CLOSE_S)
            raise
        self._perform(actions)
        if self._chain is not None:
            self._chain.begin(node.turns.run, self._chain_told)
        node.turns.tell()

    # -- application, with the lock held ------------------------------------------------------------------------

    def write(
        self, method: Callable[..., list[KvAction]], args: tuple[object, ...], options: dict[str, Any], hurry: bool
    ) -> None:
        """See ``KvPart.write``. Without ``hurry`` it may be sent a moment later, with others.

        Raises:
            NotPermitted: The permissions do not let us write.
            MemberStopped: A defect has stopped the endpoint.
        """
        node = self.node
        node.turns.check()
        if self._require is not None:
            self._require()
        now = time.monotonic()
        due = self.part.due
        waiting: list[Flush] = []
        held = self.part.role.held_until < math.inf
        actions = self.part.write(method, args, options, now)
        if hurry and self.part.role.held_until < math.inf:
            actions = [*actions, *self.part.let_go(now)]
        for action in actions:
            if isinstance(action, Flush):
                waiting.append(action)
            else:
                node.perform((action,))
        if waiting:
            node.gatherer.add(waiting)
            if hurry:
                node.gatherer.at_once()
            else:
                node.gatherer.soon(now)
            node.gatherer.many |= held
        if self.part.due < due:
            node.turns.look_again_at(self.part.due)
        if not hurry:
            self.looked_for = self._follows

    def catch_up(self) -> None:
        """Process pending messages before a reader looks for its own unconfirmed write; never waits.

        A polling thread holds the GIL, and the node's thread would get it only after
        ``sys.getswitchinterval()``, longer than the whole round trip to a master.
        """
        self.node.turns.serve()
        with self.node.lock:
            self.looked_for = self.part.role.unconfirmed > 0

    def ask(self, method: Callable[..., list[KvAction]], *args: object) -> None:
        """Make one call into the core that a ``Resolve`` answers. Raises MemberStopped."""
        self.node.turns.check()
        self._perform(self.part.ask(method, args, time.monotonic()))
        self.node.gatherer.at_once()

    def do_what_is_due(self) -> None:
        """Have the core do it now, if it was not done in time: the machine is busy."""
        if not self.part.closing:
            self._perform(self.part.handle_timeout(time.monotonic()))

    def stop(self, watcher: object, on: bool) -> None:
        """A watcher has no room for further changes, or has some again."""
        if self.part.handle_full(watcher, on):
            self.node.pause(self.part.number, on)

    # -- the member's, with the lock held -----------------------------------------------------------------------

    def serve(self, action: Serve) -> None:
        """Carry out what the core asks for."""
        table = self._table
        for each in action.actions:
            table[type(each)](each)

    def _commit(self, action: Commit) -> None:
        assert self._commits is not None
        assert self._backend is not None
        backend = self._backend
        self._commits.do(lambda: commit(backend, action), lambda error: self._committed(action.number, error))

    def _committed(self, number: int, error: StorageError | None) -> None:
        self._perform(self.part.handle_committed(number, error, time.monotonic()))
        self.node.turns.news = True  # there may be room again

    def _propose(self, action: Propose) -> None:
        assert self._chain is not None
        self._chain.propose(action)

    def _chain_told(self, news: Sequence[object]) -> None:
        """What the chain has for this server, in order."""
        role = self.part.role
        assert isinstance(role, ChainedMaster)
        if self.part.number not in self.node.served:
            return
        for fed, told in groupby(news, lambda each: isinstance(each, Fed)):
            if fed:
                self._hear_chain(role.handle_fed, tuple(told))
                continue
            for each in told:
                if isinstance(each, Place):
                    self._hear_chain(role.handle_place, each)
                else:
                    self._table[Report](Report(each))
        self.node.gatherer.at_once()
        self.node.turns.news = True

    def _hear_chain(self, method: Callable[..., list[KvAction]], told: object) -> None:
        self._perform(self.part.handle_chain(method, told, time.monotonic()))

    def _perform(self, actions: Sequence[Action]) -> None:
        self.node.perform(actions)
        self.node.turns.look_again_at(self.part.due)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Take no more writes, wait until those under way are done, and end; the lock is not held.

        Waits at most ``timeout_s`` each for a clone's writes to be confirmed, if it has a master, and for a backend.
        """
        turns = self.node.turns
        with self.node.lock:
            self.part.closing = True
        if not turns.closed:
            turns.wait(lambda: self.part.role.settled, timeout_s)
        self._close_backend(timeout_s)
        with self.node.lock:
            self.node.served.pop(self.part.number, None)
            actions = self.part.close(time.monotonic())
            self.node.pause(self.part.number, False)
            if not turns.closed and turns.halted is None:
                self.node.perform(actions)
                self.node.gatherer.at_once()
                turns.tell()
        if self._chain is not None:
            self._chain.close()

    def _close_backend(self, timeout_s: float) -> None:
        """Let go of it after what is under way."""
        if self._commits is not None and self._backend is not None:
            self._commits.close(timeout_s, self._backend.close)


def commit(backend: Backend, operations: Commit) -> StorageError | None:
    """Have it commit; returns why it could not."""
    try:
        backend.commit(operations.operations)
    except StorageError as problem:
        return problem
    except Exception as problem:  # a defect of the backend's: refuse the writes, rather than hang
        logger.exception("a commit failed")
        return StorageError(f"the backend failed: {problem!r}")
    return None
