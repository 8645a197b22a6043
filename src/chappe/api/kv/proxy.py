"""Questions to a data store whose answers are taken later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chappe.api.faces import Seconds
from chappe.api.kv.attached import WAIT_S
from chappe.api.kv.reading import ReadableStore
from chappe.api.mesh.arguments import MISSING
from chappe.api.mesh.source import Queued
from chappe.api.mesh.waiting import Asked
from chappe.errors import BufferFull, ChappeError, NoSuchKey

ANSWERS_MAX: Final = 65_536  # questions that were asked and whose answers nobody has taken


@dataclass(frozen=True, slots=True)
class DataStoreAnswer:
    """The answer to one question, with its number; ``error`` is set if the question failed."""

    id: int
    value: Any = None
    error: ChappeError | None = None

    def take(self) -> Any:
        """Return the value; raise the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


class DataStoreProxy(Queued[DataStoreAnswer]):
    """Asks a store without waiting. Every question has a number, which its answer has too.

    Made by ``DataStore.proxy``. Answers come in the order of the questions, except those of ``put_unique`` and
    ``history``, which come when the master has answered. Use from several threads is safe.
    """

    def __init__(self, store: ReadableStore) -> None:
        super().__init__(store.attached.endpoint.node)
        self._store = store
        self._last = 0
        self._asked: dict[int, Asked] = {}

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

    def keys(self, prefix: str | None = None) -> int:
        """Ask for all keys; with ``prefix`` for those that are strings and begin so."""
        return self._read(lambda: self._store.keys(prefix))

    def history(self, key: object, *, timeout: Seconds = WAIT_S) -> int:
        """Ask for the history of a key, as ``DataStore.history`` returns it."""
        attached = self._store.attached
        return self._ask(
            lambda: attached.begin_history(key, timeout), lambda asked: attached.history_outcome(key, asked)
        )

    def get_index_from_value(self, key: object, index: object) -> int:
        """Ask for the value at an index of a value; NoSuchKey is the error if there is nothing."""

        def read() -> Any:
            found = self._store.get_index_from_value(key, index, MISSING)
            if found is MISSING:
                raise NoSuchKey(f"nothing is stored under {key!r} at {index!r}")
            return found

        return self._read(read)

    def put_unique(self, key: object, value: object, *, expiry_s: float | None = None) -> int:
        """Set a value if there is none; the answer is True if it did.

        Raises:
            BufferFull: There is no room for another write at present, or too many answers were not taken.
        """
        attached, put_unique = self._store.attached, self._store.core.put_unique
        return self._ask(
            lambda: attached.try_write(put_unique, (key, value), expiry_s, True), lambda asked: asked.take("")
        )

    def receive(self, timeout: float | None = None) -> DataStoreAnswer | None:
        """Return the next answer, or None after ``timeout`` seconds (None: wait for ever; Ctrl-C ends the wait).

        Raises:
            Closed: The proxy, its store or its endpoint was closed, and all answers were taken.
        """
        found = self.get_many(1, timeout)
        return found[0] if found else None

    def _leave(self) -> None:
        """Ask no more; writes under way are still done, and answers that are there can still be taken."""
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

    def _ask(self, ask: Callable[[], Asked | None], take: Callable[[Asked], Any]) -> int:
        """Ask a question that the master answers later; ``take`` makes the value of the answer. Raises BufferFull."""
        number = self._number()
        with self._lock:
            try:
                asked = ask()
            except BufferFull:
                raise
            except ChappeError as problem:
                self._answer(DataStoreAnswer(number, None, problem))
            else:
                assert asked is not None
                self._asked[number] = asked
                asked.then(lambda: self._answered(number, take))
        return number

    def _answered(self, number: int, take: Callable[[Asked], Any]) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            try:
                answer = DataStoreAnswer(number, take(asked))
            except ChappeError as problem:
                answer = DataStoreAnswer(number, None, problem)
            self._answer(answer)

    def _answer(self, answer: DataStoreAnswer) -> None:
        self._queue.append(answer)
        self._waiting.changed()
        self._node.turns.tell()
