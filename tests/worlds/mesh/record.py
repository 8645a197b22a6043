"""What happened in a world: who was linked with whom and when, who wanted what, what was published and delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from chappe.mesh.messages import DATA


class Spans:
    """When something was so: spans of time."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """It is so from now on."""
        if self._since is None:
            self._since = now

    def end(self, now: float) -> None:
        """It is so no longer."""
        if self._since is not None:
            self._spans.append((self._since, now))
            self._since = None

    def covers(self, start: float, stop: float) -> bool:
        """Whether it was so all the time from ``start`` to ``stop``."""
        return any(a <= start and stop <= b for a, b in self)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        yield from self._spans
        if self._since is not None:
            yield self._since, inf


@dataclass
class Publication:
    """One message, named by its payload."""

    topic: bytes
    publisher: str  # life of a host
    at: float
    receiver: str | None = None  # life of the only host that is to get it
    kind: int = DATA
    nth: int = 0  # of those of its publisher to everybody with its topic, from 1 on; 0 for others
    to: frozenset[bytes] = frozenset()  # ids of those whom its publisher sends it to, where that is accounted for
    delivered: dict[str, int] = field(default_factory=dict)  # life of a host: how often


class Record:
    """Everything that checkers look at afterwards. A *life* is a host between two crashes."""

    def __init__(self) -> None:
        self.publications: dict[bytes, Publication] = {}
        self.links: dict[tuple[str, str], Spans] = {}  # what one life says of another: peered
        self.sound: dict[str, Spans] = {}  # life: runs, and not slowly
        self.wanted: dict[tuple[str, bytes], Spans] = {}  # life and prefix
        self.forwards: dict[str, bool] = {}  # life
        self.barred: Callable[[str, float, float], bool] = lambda life, start, stop: False  # from forwarding, then
        self.originals: set[str] = set()  # lives that are originals
        self.eased = Spans()  # nobody publishes more than a slow reader takes
        self.eased.begin(0.0)

    def link(self, one: str, two: str) -> Spans:
        """When ``one`` was peered with ``two``, as it says."""
        return self.links.setdefault((one, two), Spans())

    def want(self, life: str, topic: bytes) -> Spans:
        """When a life subscribed to a prefix."""
        return self.wanted.setdefault((life, topic), Spans())

    def due(self, publication: Publication, before_s: float, after_s: float, *, full: bool = False) -> set[str]:
        """The lives of endpoints of chappe that must get a publication.

        They wanted it, and had a path of sound, forwarding endpoints of chappe, from ``before_s`` earlier to
        ``after_s`` later. ``full``: also where boxes are full, so that it may come late or be dropped.
        """
        start, stop = publication.at - before_s, publication.at + after_s
        if not full and not self.eased.covers(start, stop):
            return set()  # boxes are full, and what is late may still come
        publisher = publication.publisher
        found = self._reached(publisher, start, stop)
        found.discard(publisher)
        if not self._forwarded(publisher, start, stop):  # no hop can send around over it what it cannot send on
            for (one, two), spans in self.links.items():
                if one == publisher and self._is_stable(one, two, spans, start, stop):
                    found &= self._reached(two, start, stop, publisher)
        if publication.receiver is not None:  # it takes the direct link as long as that seems to stand
            found &= {publication.receiver} if self.is_quiet(start, stop) else set()
        return {life for life in found - self.originals if self._wants(life, publication.topic, start, stop)}

    def has_way(self, one: str, two: str, start: float, stop: float) -> bool:
        """Whether a path of sound, forwarding endpoints of chappe led from one life to another all the time."""
        return two in self._reached(one, start, stop)

    def _reached(self, life: str, start: float, stop: float, but: str = "") -> set[str]:
        linked: dict[str, list[str]] = {}
        for (one, two), spans in self.links.items():
            if one < two and but not in (one, two) and self._is_stable(one, two, spans, start, stop):
                linked.setdefault(one, []).append(two)
                linked.setdefault(two, []).append(one)
        found = {life}
        edge = [life] if self._is_sound(life, start, stop) else []
        for at in edge:  # grows meanwhile
            if at in self.originals or (at != life and not self._forwarded(at, start, stop)):
                continue
            new = [each for each in linked.get(at, ()) if each not in found]
            found.update(new)
            edge += new
        return found

    def _forwarded(self, life: str, start: float, stop: float) -> bool:
        return self.forwards[life] and not self.barred(life, start, stop)

    def is_quiet(self, start: float, stop: float) -> bool:
        """Whether no link came or went in between."""
        return all(
            (a <= start and stop <= b) or b < start or stop < a for spans in self.links.values() for a, b in spans
        )

    def _is_stable(self, one: str, two: str, spans: Spans, start: float, stop: float) -> bool:
        return (
            spans.covers(start, stop)
            and self.link(two, one).covers(start, stop)
            and self._is_sound(one, start, stop)
            and self._is_sound(two, start, stop)
        )

    def _is_sound(self, life: str, start: float, stop: float) -> bool:
        return life in self.sound and self.sound[life].covers(start, stop)

    def _wants(self, life: str, topic: bytes, start: float, stop: float) -> bool:
        return any(
            spans.covers(start, stop)
            for (each, prefix), spans in self.wanted.items()
            if each == life and topic.startswith(prefix)
        )
