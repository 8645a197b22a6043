"""Runs sources, each in a thread of its own, and merges what they see into snapshots.

A source looks once a second. Where its look takes long it looks less often, so that a fifth of the time at most goes
into it, and a note of the snapshot says how often that is. A source that cannot look is asked again, and a problem
says why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Self

import msgspec

from chappe.dashboard.sources import DashboardSource
from chappe.errors import ChappeError
from chappe.observing.drawing import Drawing, draw
from chappe.observing.lines import MINUTES, LineSpan, Point
from chappe.observing.observer import SPARK, SystemObserver
from chappe.observing.snapshot import ObservedTopic, SystemSnapshot

logger = logging.getLogger("chappe")

LOOK_S: Final = 1.0
SHARE: Final = 4  # a look is followed by a pause of at least so many times as long
STALE_LOOKS: Final = 2  # a snapshot that is older is made anew before it is shown
ASKED_S: Final = 5.0  # as long after somebody has asked it is kept fresh
SAY_S: Final = 2.0  # a longer pause is noted for viewers


class SourceRunner:
    """Looks until it is closed; closes the sources. Use from several threads is safe."""

    def __init__(self, sources: Sequence[DashboardSource], *, look_s: float = LOOK_S) -> None:
        self._sources = list(sources)
        self._observer = SystemObserver([each.name for each in self._sources])
        self._lock = threading.Lock()
        self._look_s = look_s
        self._ended = threading.Event()
        self._made: tuple[float, SystemSnapshot, Drawing] | None = None
        self._making = threading.Lock()
        self._asked_at = -ASKED_S
        self._sparks: dict[str, str] = {}  # by topic
        self._sparks_of = -1.0  # the step of the history that they show
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name=f"chappe-look-{each.name}", daemon=True)
            for each in self._sources
        ]
        self._threads.append(threading.Thread(target=self._keep_fresh, name="chappe-picture", daemon=True))
        for thread in self._threads:
            thread.start()

    def snapshot(self) -> SystemSnapshot:
        """Return the state of everything, made a few times a second at most, and by no thread that shows it."""
        return self.picture()[0]

    def picture(self) -> tuple[SystemSnapshot, Drawing]:
        self._asked_at = now = time.monotonic()
        made = self._made
        if made is None or now - made[0] > STALE_LOOKS * self._look_s:  # nobody has asked for long
            made = self._make()
        return made[1], made[2]

    def _make(self) -> tuple[float, SystemSnapshot, Drawing]:
        with self._making:
            now = time.monotonic()
            made = self._made
            if made is not None and now - made[0] <= self._look_s / 4:
                return made
            with self._lock:
                snapshot = self._observer.snapshot(now, _wall_us())
            self._made = made = now, snapshot, draw(snapshot.members, snapshot.links)
            return made

    def _keep_fresh(self) -> None:
        while not self._ended.wait(self._look_s / 3):
            if time.monotonic() - self._asked_at < ASKED_S:
                self._make()

    def topic(self, name: str) -> ObservedTopic | None:
        with self._lock:
            return self._observer.topic(name, time.monotonic())

    def find_topics(self, text: str, limit: int) -> list[ObservedTopic]:
        """Return topics whose name contains a text, the last changed first; takes a while where there are many."""
        with self._lock:
            names = self._observer.names()
        wanted = text.casefold()
        fitting = list(islice((each for each in names if wanted in each.casefold()), limit))
        with self._lock:
            found = [self._observer.topic(each, time.monotonic()) for each in fitting]
        return [each for each in found if each is not None]

    def sparks(self, topics: Iterable[str]) -> dict[str, str]:
        """Return ``SystemObserver.spark`` of each; made once in a step, however many look."""
        now = time.monotonic()
        with self._lock:
            step = now // SPARK.step_s
            if step != self._sparks_of:
                self._sparks_of, self._sparks = step, {}
            for each in topics:
                if each not in self._sparks:
                    self._sparks[each] = self._observer.spark(each, now)
            return self._sparks

    def rate_line(self, topic: str, span: LineSpan = MINUTES) -> list[Point]:
        with self._lock:
            return self._observer.rate_line(topic, time.monotonic(), span)

    def lag_line(self, topic: str, reader: str, span: LineSpan = MINUTES) -> list[Point]:
        with self._lock:
            return self._observer.lag_line(topic, reader, time.monotonic(), span)

    def close(self) -> None:
        """End; waits for looks that are under way, some seconds at most."""
        self._ended.set()
        for thread in self._threads:
            thread.join(5.0)
        for each in self._sources:
            with suppress(ChappeError, OSError):
                each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, source: DashboardSource) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                part = source.look()
            except (ChappeError, OSError) as error:
                with self._lock:
                    self._observer.fail(source.name, _sentence(str(error)), source.mend, _wall_us())
                self._ended.wait(self._look_s)
                continue
            except Exception:
                logger.exception("the dashboard cannot look at the %s because of a defect", source.name)
                with self._lock:
                    text = f"The dashboard cannot look at the {source.name} because of a defect of its own."
                    self._observer.fail(source.name, text, "Its log has the details; please report them.", _wall_us())
                self._ended.wait(10 * self._look_s)
                continue
            took = max(0.0, time.monotonic() - began - part.waited_s)
            pause = max(self._look_s - took, SHARE * took)
            if pause > SAY_S:
                note = f"the {source.name} is looked at every {pause + took:.0f} s, as a look takes {took:.1f} s"
                part = msgspec.structs.replace(part, notes=(*part.notes, note))
            with self._lock:
                self._observer.take(source.name, part, time.monotonic(), _wall_us())
            self._ended.wait(pause)


def _wall_us() -> int:
    return time.time_ns() // 1000


def _sentence(text: str) -> str:
    text = " ".join(text.split())[:500]
    return f"{text[:1].upper()}{text[1:]}." if text else "It does not say why."
