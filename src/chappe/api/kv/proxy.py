"""Asking a data store now and taking the answers later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chappe.api.kv.reading import ReadableStore
from chappe.api.mesh.arguments import MISSING
from chappe.api.mesh.source import Queued
from chappe.api.mesh.waiting import Asked
from chappe.errors import BufferFull, ChappeError, NoSuchKey

ANSWERS_MAX: Final = 65_536  # questions that were asked and whose answers nobody has taken


@dataclass(frozen=True, slots=True)
class DataStoreAnswer:
    """The answer to one question: its number, and what came of it. ``error`` is set if it failed."""

    id: int
    value: Any = None
    error: ChappeError | None = None

    def take(self) -> Any:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


class DataStoreProxy(Queued[DataStoreAnswer]):
    """Asks a store without waiting. Every question has a number, which its answer has too.

    Made by ``DataStore.proxy``. Answers come in the order of the questions, but for those of ``put_unique``, which come
    when the master has decided. Use from several threads is safe.
    """

    def __init__(self, store: ReadableStore) -> None:
        super().__init__(store.attached.endpoint.node)
        self._store = store
        self._last = 0
        self._asked: dict[int, Asked] = {}

    # -- asking ---------------------------------------------------------------------------------------

    def get(self, key: object) -> int:
        """Ask for the value under a key; NoSuchKey is the error if there is none."""

        def read() -> Any:
            found = self._store.get(key, MISSING)
            if found is MISSING:
                raise NoSuchKey(f"nothing is stored under {key!r}")
            return found

        return self._read(read)

    def exists(self, key: object) -> int:
        """Ask whether there is a value under a key."""
        return self._read(lambda: self._store.exists(key))

    def keys(self) -> int:
        """Ask for all keys."""
        return self._read(self._store.keys)

    def get_index_from_value(self, key: object, index: object) -> int:
        """Ask what lies at an index of a value; NoSuchKey is the error if there is nothing."""

        def read() -> Any:
            found = self._store.get_index_from_value(key, index, MISSING)
            if found is MISSING:
                raise NoSuchKey(f"nothing is stored under {key!r} at {index!r}")
            return found

        return self._read(read)

    def put_unique(self, key: object, value: object, *, expiry_s: float | None = None) -> int:
        """Set a value if there is none; the answer is whether it did.

        Raises:
            BufferFull: There is no room for another write at present, or too many answers were not taken.
        """
        number = self._number()
        with self._lock:
            try:
                asked = self._store.attached.try_write(self._store.core.put_unique, (key, value), expiry_s, True)
            except BufferFull:
                raise
            except ChappeError as problem:
                self._answer(DataStoreAnswer(number, None, problem))
            else:
                assert asked is not None
                self._asked[number] = asked
                asked.then(lambda: self._written(number))
        return number

    # -- answers --------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> DataStoreAnswer | None:
        """The next answer, or None after ``timeout`` seconds (None: wait for ever; Ctrl-C ends the wait).

        Raises:
            Closed: The proxy, its store or its endpoint was closed, and all answers were taken.
        """
        found = self.get_many(1, timeout)
        return found[0] if found else None

    # -- inside ---------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Ask no more; writes that were asked for are still done, and answers that are there can still be taken."""
        self._store.attached.proxies.pop(self, None)
        self._asked.clear()

    def _number(self) -> int:
        with self._lock:
            self._waiting.check()
            if len(self._queue) + len(self._asked) >= ANSWERS_MAX:
                raise BufferFull(f"{ANSWERS_MAX:,} answers of this proxy wait: receive them before asking more")
            self._last += 1
            return self._last

    def _read(self, read: Callable[[], Any]) -> int:
        number = self._number()
        try:
            answer = DataStoreAnswer(number, read())
        except ChappeError as problem:
            answer = DataStoreAnswer(number, None, problem)
        with self._lock:
            self._answer(answer)
        return number

    def _written(self, number: int) -> None:
        """The master has decided; the lock is held."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            failed = asked.outcome if isinstance(asked.outcome, ChappeError) else None
            self._answer(DataStoreAnswer(number, None if failed is not None else asked.outcome, failed))

    def _answer(self, answer: DataStoreAnswer) -> None:
        self._queue.append(answer)
        self._waiting.changed()
        self._node.turns.tell()
