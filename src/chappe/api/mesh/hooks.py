"""Hooks: functions of a user that an endpoint calls when peers come and go.

They are called one after the other, in the order of the statuses, and in order with the endpoint's publications: from
the moment of a status on, every publication of other code waits until its hook has returned. So a message that a hook
publishes goes out before all later publications. Hooks run in a thread of their own, or in the event
loop of an ``AsyncEndpoint``, and without the endpoint's lock: they may call every method of the endpoint, and wait.

Messages are still delivered, data stores are served, and messages of others are forwarded while a hook runs.

Source: the callbacks of Broker's core actor. Departure: its callbacks block the whole endpoint while they run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias

from chappe.api.faces import weakly
from chappe.api.mesh.hosting import EndpointHost, hook_call
from chappe.api.mesh.subscriber import StatusSubscriber
from chappe.defaults import HOOKS_HOLD_S, HOOKS_WAITING_MAX
from chappe.errors import Closed, UsageError
from chappe.mesh.events import (
    EndpointDiscovered,
    EndpointUnreachable,
    HookFailed,
    PeerAdded,
    PeerLost,
    PeerRemoved,
    Status,
)
from chappe.system import time

logger = logging.getLogger("chappe.mesh")

HOOKS: Final[dict[str, type[Status]]] = {
    "on_discovered": EndpointDiscovered,
    "on_connected": PeerAdded,
    "on_disconnected": PeerLost,
    "on_removed": PeerRemoved,
    "on_unreachable": EndpointUnreachable,
}
NAMES: Final = {status: name for name, status in HOOKS.items()}

Functions: TypeAlias = Mapping[str, Callable[[Any], object] | None]


def named_hooks(*given: Callable[[Any], object] | None, coroutines: bool = False) -> Functions:
    """Return the hooks by their names, given in the order of ``HOOKS``.

    Raises:
        UsageError: One is not a function, or is a coroutine function where those cannot be.
    """
    functions = dict(zip(HOOKS, given, strict=True))
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UsageError(f"{name} is a function that takes a status, not {function!r}")
        if iscoroutinefunction(function) and not coroutines:
            raise UsageError(f"{name} is a coroutine function, which an AsyncEndpoint can call: use that")
    return functions


class Hooks(StatusSubscriber):
    """The hooks of one endpoint, by their names, and the statuses that wait for them."""

    called_by = "chappe-hooks"

    def __init__(self, endpoint: EndpointHost, functions: Functions) -> None:
        self._functions = {HOOKS[name]: function for name, function in functions.items() if function is not None}
        self._event: Status | None = None  # the one whose hook runs, or is about to
        self._running: object | None = None  # the call of that hook
        self._late = False  # nobody waits any more, until all hooks have returned
        super().__init__(endpoint)
        with self._lock:
            endpoint.hooks = self
            endpoint.listening[self] = None
            self._node.alarm = weakly(self._overdue)

    def start(self) -> None:
        self.call_back(self._call_in_thread)

    @contextmanager
    def call(self, event: Status) -> Iterator[Callable[[Any], object]]:
        """Yield the hook of a status that was taken, to be called in this context, which reports its exceptions.

        Other publications wait until the end of the context.
        """
        call = object()
        with self._lock:
            self._running = call
        token = hook_call.set(call)
        try:
            yield self._functions[type(event)]
        except Exception as error:
            self._failed(event, error)
        finally:
            hook_call.reset(token)
            self._returned()

    def holds(self, call: object) -> bool:
        """Return True if a caller must wait; ``call`` is the hook call that it is part of. The lock is held."""
        if self._late or (self._event is None and not self._queue):
            return False
        return self._running is None or call is not self._running

    # -- inside ---------------------------------------------------------------------------------------

    def report(self, event: object) -> None:
        """Take an event; the lock is held."""
        if type(event) not in self._functions:
            return
        if self._event is None and not self._queue:
            self._node.alarm_at = time.monotonic() + HOOKS_HOLD_S
        if len(self._queue) >= HOOKS_WAITING_MAX:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._waiting.changed()

    def _take(self, n: int) -> list[Any]:
        found = super()._take(1)
        self._event = found[0] if found else None
        return found

    def _call_in_thread(self, event: Status) -> None:
        with self.call(event) as function:
            function(event)

    def _failed(self, event: Status, error: Exception) -> None:
        with self._lock:
            if isinstance(error, Closed) and self._endpoint.closing:
                return  # while the hook used it
            name = NAMES[type(event)]
            logger.error("the hook %s failed", name, exc_info=error)
            self._endpoint.report(HookFailed(name, f"it raised {error!r}; the endpoint goes on"))

    def _returned(self) -> None:
        turns = self._node.turns
        with self._lock:
            self._event = self._running = None
            if self.dropped != self._reported:
                self._report_dropped(self.dropped, "the hooks of this endpoint")
            if not self._queue:
                self._late = False
                self._node.alarm_at = math.inf
            turns.news = True
            turns.tell()

    def _overdue(self) -> None:
        """Release the waiting publishers, after ``HOOKS_HOLD_S``; the lock is held."""
        self._late = True
        self._node.turns.news = True
        name = NAMES[type(self._event or self._queue[0])]
        reason = f"it has not returned after {HOOKS_HOLD_S:g} s; publications no longer wait for it"
        self._endpoint.report(HookFailed(name, reason))
