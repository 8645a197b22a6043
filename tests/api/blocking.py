"""Whether anything blocks an event loop: found by watching the calls that wait, and not by how long something took.

While a ``LoopGuard`` runs, what could block is replaced by something that looks who calls it first. Two things are
wrong, and the guard keeps the story of each:

- The event loop's thread waits inside chappe: it sleeps, syncs, looks up a name, waits on sockets, joins a thread
  or waits for an event. It may wait for a lock, as every call takes its member's, but not for one that it holds itself.
- A thread waits that long, wherever it runs, while it holds a lock that a chappe's object made: the loop could want it.

Starting a thread is no such wait. Make everything inside ``run``: older locks are not watched.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest
from tests.waiting import PATIENCE_S

import chappe

SOURCE: Final = str(Path(chappe.__file__).parent)
_held = threading.local()  # of each thread: the watched locks that it holds


def held() -> list[_Lock]:
    found: list[_Lock] = _held.__dict__.setdefault("locks", [])
    return found


class _Lock:
    """A lock that knows who holds it."""

    def __init__(self, guard: LoopGuard, lock: Any) -> None:
        self._guard = guard
        self._lock = lock
        self.owner: int | None = None  # the thread that took it last

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._lock.acquire(False):
            if not blocking or timeout == 0:
                return False
            if self.owner == threading.get_ident():
                self._guard.look("waits until another thread lets go of a lock that it took itself", self)
            if not self._lock.acquire(True, timeout):
                return False
        self.owner = threading.get_ident()
        held().append(self)
        return True

    def release(self) -> None:
        if self in held():
            held().remove(self)
        if self not in held():  # or it is let go by another thread
            self.owner = None
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class LoopGuard:
    """Runs coroutines and finds what blocks their loop; make one by the fixture ``guard``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        self.beats = 0
        self._patch = patch
        self._thread: int | None = None

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it as ``asyncio.run`` does; fails with the story of what blocked."""
        with self._patch.context() as patch:
            self._watch(patch)
            asyncio.run(self._guarded(main))
        assert not self.found, "\n\n".join(self.found)

    async def beat(self, count: int = 5) -> None:
        """Until the heartbeat has beaten so often more: the loop runs, whatever else stands still."""
        until = self.beats + count
        while self.beats < until:
            await asyncio.sleep(0.001)

    def look(self, what: str, lock: _Lock | None = None) -> None:
        """Somebody is about to wait, perhaps for a lock."""
        here = threading.get_ident()
        locks = [each for each in held() if each.owner == here and each is not lock]
        in_loop = here == self._thread
        if not in_loop and not locks:
            return
        stack = traceback.extract_stack()[:-2]
        if any(frame.name == "start" and frame.filename == threading.__file__ for frame in stack):
            return
        if any(frame.filename.startswith(SOURCE) for frame in stack):
            where = "the event loop's thread" if in_loop else "a thread that holds a lock"
            self.found.append(f"{where} {what}:\n{''.join(traceback.format_list(stack))}")

    async def _guarded(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._thread = threading.get_ident()
        heart = asyncio.create_task(self._heart())
        try:
            await asyncio.wait_for(main(), PATIENCE_S)
        finally:
            heart.cancel()

    async def _heart(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.beats += 1

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        lock, rlock = threading.Lock, threading.RLock
        patch.setattr(threading, "Lock", lambda: _Lock(self, lock()) if self._is_ours() else lock())
        patch.setattr(threading, "RLock", lambda: _Lock(self, rlock()) if self._is_ours() else rlock())
        self._before(patch, time, "sleep", "sleeps")
        self._before(patch, os, "fsync", "syncs a file")
        if hasattr(os, "fdatasync"):
            self._before(patch, os, "fdatasync", "syncs a file")
        self._before(patch, socket, "getaddrinfo", "looks up a name")
        self._before(patch, threading.Thread, "join", "waits for a thread")
        self._before(patch, threading.Event, "wait", "waits for an event", lambda event, *_: not event.is_set())
        kind = selectors.DefaultSelector
        self._before(patch, kind, "select", "waits on sockets", lambda _, timeout=None: timeout is None or timeout > 0)

    def _before(
        self,
        patch: pytest.MonkeyPatch,
        owner: Any,
        name: str,
        what: str,
        waits: Callable[..., bool] = lambda *_, **__: True,
    ) -> None:
        function = getattr(owner, name)

        def looked(*args: Any, **options: Any) -> Any:
            if waits(*args, **options):
                self.look(what)
            return function(*args, **options)

        patch.setattr(owner, name, looked)

    @staticmethod
    def _is_ours() -> bool:
        """Whether chappe makes it, and not a library for itself."""
        return sys._getframe(2).f_code.co_filename.startswith(SOURCE)


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> LoopGuard:
    return LoopGuard(monkeypatch)
