"""Several readers, each a process with workers of its own: the Mad Black Box.

A reader is a ``ShardedConsumer`` in a process (``reader_process``) that is told by one line of JSON what to do, and
says by others how far it is, and in the end how it ended. It ends when its input does, which is when this process does.
One that dies is replaced: its identity is free then, and its successor goes on from what was committed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from chappe import errors
from chappe.data.topic import Filter
from chappe.errors import ChappeError, OffsetConflict, TooSlow, UsageError, WorkerFailed
from chappe.security import IDENTITY, PASSPHRASE, LogSecurity
from chappe.subscribers.work import FunctionWork, ProgramWork
from chappe.subscribers.workers import how_ended, pause_s
from chappe.system.machine import Wakeup

if TYPE_CHECKING:
    from chappe.api.log.consumer import ResetLike

logger = logging.getLogger("chappe.subscribers")

TELL_S: Final = 0.25  # between two times that a reader tells how far it is
PAUSE_S: Final = 0.1  # before a reader is replaced; twice as long each time that one got nowhere
WELL_S: Final = 60.0  # one that lived this long may have been idle
LAST_S: Final = 30.0  # readers get so long to end: they wait for their workers
HURRIED_S: Final = 5.0  # ... and so long to end these at once
LINE_MAX: Final = 1 << 16
TEXT_MAX: Final = 2000  # of an error, so that a line is written in one piece
CARRIES: Final[dict[type[Exception], tuple[str, ...]]] = {  # what an error is made of beside its text
    TooSlow: ("age_s", "count"),
    OffsetConflict: ("next_offset",),
}
COUNTS: Final = ("read", "done", "again", "replaced")


def environment_of(security: LogSecurity) -> dict[str, str]:
    """Return the environment for a process of the same identity; nothing of it is in a command line."""
    found = dict(os.environ)
    if security == "plain":
        found.pop(IDENTITY, None)
    elif security is not None:
        found[IDENTITY] = os.path.abspath(security.place)
        if security.passphrase:
            found[PASSPHRASE] = security.passphrase
    return found


class _ReaderProcess:
    """One process after the other. ``last`` is what the present one said at its end."""

    def __init__(self, topic: str, order: bytes, environment: dict[str, str]) -> None:
        self.topic = topic
        self.order = order
        self._environment = environment
        self.told: dict[str, int] = {}
        self.before: dict[str, int] = {}  # counts of the readers that were replaced
        self.lives = 0  # readers in a row that got nothing done and ended soon
        self.start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.out = -1
        self.last: dict[str, Any] | None = None
        self.over = False
        self._line = b""

    def start(self) -> None:
        self.start_at = time.monotonic()
        self.out, theirs = os.pipe()
        self.last = None
        self._line = b""
        command = [sys.executable, "-P", "-m", "chappe.subscribers.reader_process", str(theirs)]
        try:
            self.process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, pass_fds=(theirs,), process_group=0, env=self._environment
            )
        except OSError as error:
            os.close(self.out)
            raise WorkerFailed(f"a reader cannot be started: {error.strerror or error}") from None
        finally:
            os.close(theirs)
        assert self.process.stdin is not None
        view = memoryview(self.order)
        with suppress(BrokenPipeError):
            while view:
                view = view[self.process.stdin.write(view) or 0 :]

    def hear(self) -> bool:
        data = os.read(self.out, LINE_MAX)
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            fact = json.loads(line)
            self.told = {name: fact[name] for name in COUNTS}
            if "end" in fact:
                self.last = fact
        return bool(data)

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def hurry(self) -> None:
        """Let the reader end its workers, which are not ours to end, and then itself."""
        assert self.process is not None
        self.process.terminate()

    def close(self) -> int:
        assert self.process is not None
        self.stop()
        self.process.kill()
        code = self.process.wait()
        self.process = None
        os.close(self.out)
        self.before = {name: self.told.get(name, 0) + self.before.get(name, 0) for name in COUNTS}
        self.told = {}
        return code


class Readers:
    """The readers of one ``ShardedConsumer``; its arguments are those of that. ``stopped`` has ``run`` end."""

    def __init__(
        self,
        work: FunctionWork | ProgramWork,
        topics: Sequence[str],
        workers: int,
        identity: str | None,
        options: dict[str, Any],
        reset: ResetLike,
        tries: int,
        wakeup: Wakeup,
        security: LogSecurity,
        cpus: Sequence[int] = (),
    ) -> None:
        if identity is None:
            raise UsageError("a reader for each topic takes an identity: one that is replaced goes on from there")
        _check_apart(topics)
        if not 1 <= len(topics) <= workers:
            raise UsageError(
                f"each topic has a reader, and each reader a worker or more: {workers} workers, {len(topics)} topics"
            )
        self.stopped = False
        self._tries = tries
        self._wakeup = wakeup
        where = {"time": reset.isoformat()} if isinstance(reset, datetime) else {"reset": reset}
        facts = {
            "call": isinstance(work, FunctionWork),
            "work": asdict(work),
            "path": sys.path,
            "options": options,
            **where,
        }
        self._readers = [
            _ReaderProcess(topic, line_of(facts | {
                "topic": topic,
                "workers": workers // len(topics) + (number < workers % len(topics)),
                "identity": f"{identity}-{_plain(topic)}",
                "cpus": _share(cpus, number, len(topics)),
            }), environment_of(security))
            for number, topic in enumerate(topics)
        ]  # fmt: skip

    @property
    def ids(self) -> list[int | None]:
        return [None if (process := each.process) is None else process.pid for each in self._readers]

    def progress(self) -> dict[str, int]:
        """Add up the counts that readers have reported, those of replaced ones included."""
        return {
            name: sum(each.told.get(name, 0) + each.before.get(name, 0) for each in self._readers) for name in COUNTS
        }

    def let_go(self) -> None:
        """Let go of the pipes after a fork; see ``ShardedConsumer.forked``."""
        for each in self._readers:
            if each.process is not None:
                each.stop()
                os.close(each.out)

    def run(self, hurried: Callable[[], bool]) -> None:
        """Run the readers; see ``ShardedConsumer.run``. Once ``hurried``, they do not wait for their workers."""
        for each in self._readers:
            each.over, each.lives = False, 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup.fileno(), selectors.EVENT_READ)
            try:
                while not self.stopped and not all(each.over for each in self._readers):
                    for each in self._readers:
                        if each.process is None and not each.over and time.monotonic() >= each.start_at:
                            each.start()
                            selector.register(each.out, selectors.EVENT_READ, each)
                    for reader in self._heard(selector):
                        self._ended(reader)
            finally:
                self._farewell(selector, hurried)

    def _heard(self, selector: selectors.BaseSelector) -> list[_ReaderProcess]:
        found = []
        for key, _ in selector.select(TELL_S):
            if key.data is None:
                self._wakeup.clear()
            elif not key.data.hear():
                selector.unregister(key.fd)
                found.append(key.data)
        return found

    def _ended(self, reader: _ReaderProcess) -> None:
        well = reader.told.get("done") or time.monotonic() >= reader.start_at + WELL_S
        reader.lives = 0 if well else reader.lives + 1
        assert reader.process is not None
        with suppress(subprocess.TimeoutExpired):
            reader.process.wait(LAST_S)
        why = how_ended(reader.close())
        if reader.last is not None:
            reader.over = True
            if reader.last["end"] is not None:
                raise error_of(reader.last)
            return
        if reader.lives >= self._tries:
            raise WorkerFailed(
                f"{reader.lives} readers of {reader.topic!r} in a row got nothing done; the last one {why}"
            )
        logger.warning("the reader of %r is replaced: it %s", reader.topic, why)
        reader.start_at = time.monotonic() + pause_s(PAUSE_S, reader.lives)

    def _farewell(self, selector: selectors.BaseSelector, hurried: Callable[[], bool]) -> None:
        """Let living readers end, and hear their last words."""
        for each in self._readers:
            each.stop()
        alive = [each for each in self._readers if each.process is not None]
        self._hear_last(selector, alive, LAST_S, hurried)
        for each in alive:
            each.hurry()
        self._hear_last(selector, alive, HURRIED_S, lambda: False)
        for each in self._readers:
            if each.process is not None:
                each.close()

    def _hear_last(
        self, selector: selectors.BaseSelector, alive: list[_ReaderProcess], wait_s: float, hurried: Callable[[], bool]
    ) -> None:
        """Take those out of ``alive`` that end within so long, unless ``hurried``."""
        until = time.monotonic() + wait_s
        while alive and time.monotonic() < until and not hurried():
            for each in self._heard(selector):
                alive.remove(each)
                if each.last is not None and each.last["end"] is not None:
                    logger.warning("the reader of %r: %s", each.topic, each.last["text"])


def _share(cpus: Sequence[int], number: int, count: int) -> list[int] | None:
    """Return the processors of one of ``count`` readers, its own first; those that are left are for workers."""
    if not cpus:
        return None
    return [cpus[number % len(cpus)], *(cpus[count:][number::count] or cpus[count:] or cpus)]


def _check_apart(topics: Sequence[str]) -> None:
    """Raise UsageError if two readers would read a topic."""
    filters = [Filter.parse(each) for each in topics]
    for number, one in enumerate(filters):
        for other in filters[:number]:
            if one.matches(other.name) or other.matches(one.name):
                raise UsageError(f"{str(other)!r} and {str(one)!r} would be read by two readers: each topic has one")


def _plain(topic: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._-]{1,40}", topic):
        return topic
    return sha256(topic.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def facts_of(error: Exception) -> dict[str, Any]:
    more = {each: getattr(error, each) for each in CARRIES.get(type(error), ())}
    return {"end": type(error).__name__, "text": str(error)[:TEXT_MAX], **more}


def error_of(fact: dict[str, Any]) -> ChappeError:
    name, text = fact["end"], fact["text"]
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, ChappeError):
        return kind(text, *(fact[each] for each in CARRIES.get(kind, ())))
    return WorkerFailed(f"a reader ended: {name}: {text}")


def line_of(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"
