"""Who subscribes to what at this endpoint, and what follows for what it announces."""

from __future__ import annotations

from collections.abc import Iterable

from chappe.defaults import FILTER_BYTES_MAX, FILTER_TOPICS_MAX, MESH_TOPIC_BYTES_MAX
from chappe.errors import UsageError
from chappe.mesh.filters import NOTHING, Filter, announced, is_local
from chappe.mesh.messages import pack_filter

_FILTER_BYTES_MAX = FILTER_BYTES_MAX // 2  # a link state holds it, and what originals beside us want
_FILTER_TOPICS_MAX = FILTER_TOPICS_MAX // 2


class TopicSubscriptions:
    """The prefixes of every subscriber. ``filter`` is what all of them together want of others."""

    def __init__(self) -> None:
        self.filter: Filter = NOTHING
        self.asks_times = False  # somebody wants to know when what comes was published
        self._wanted: dict[int, tuple[int, set[bytes]]] = {}  # subscriber: kind and prefixes
        self._forwarded: set[bytes] = set()  # that only others want
        self._asking: set[int] = set()  # subscribers

    def add(self, subscriber: int, topics: Iterable[bytes], kind: int, times: bool = False) -> bool:
        """Returns whether the filter, or ``asks_times``, changed.

        Raises:
            UsageError: A topic is too long, or the filter would be too large to be announced; nothing is added.
        """
        new = set(topics)
        kept = self._checked(new)
        self._wanted.setdefault(subscriber, (kind, set()))[1].update(new)
        if times:
            self._asking.add(subscriber)
        return self._set(kept)

    def replace(self, subscriber: int, topics: Iterable[bytes], kind: int) -> bool:
        """Have a subscriber want exactly these prefixes. Returns and raises as ``add``."""
        before = self._wanted.pop(subscriber, None)
        try:
            return self.add(subscriber, topics, kind)
        except UsageError:
            if before is not None:
                self._wanted[subscriber] = before
            raise

    def remove(self, subscriber: int, topics: Iterable[bytes] | None) -> bool:
        """Remove some prefixes of a subscriber, or the subscriber; returns as ``add``."""
        if topics is None:
            self._wanted.pop(subscriber, None)
            self._asking.discard(subscriber)
        elif subscriber in self._wanted:
            self._wanted[subscriber][1].difference_update(topics)
        return self._set(announced(self._all()))

    def prefixes(self, subscriber: int) -> frozenset[bytes]:
        """The prefixes of a subscriber."""
        found = self._wanted.get(subscriber)
        return frozenset() if found is None else frozenset(found[1])

    def forward(self, topics: Iterable[bytes]) -> bool:
        """Want prefixes that nobody here wants, to pass them on. Returns and raises as ``add``."""
        new = set(topics)
        kept = self._checked(new)
        self._forwarded |= new
        return self._set(kept)

    def matching(self, topic: bytes, kind: int) -> tuple[int, ...]:
        """The subscribers that get a message of ``kind`` with ``topic``; one of the endpoint itself has to be named."""
        own = is_local(topic)
        return tuple(
            [
                subscriber
                for subscriber, (wanted, prefixes) in self._wanted.items()
                if wanted == kind
                and topic.startswith(tuple([each for each in prefixes if is_local(each)] if own else prefixes))
            ]
        )

    def _all(self) -> set[bytes]:
        return self._forwarded.union(*(prefixes for _, prefixes in self._wanted.values()))

    def _checked(self, new: set[bytes]) -> Filter:
        if any(len(topic) > MESH_TOPIC_BYTES_MAX for topic in new):
            raise UsageError(f"a topic to subscribe to has at most {MESH_TOPIC_BYTES_MAX} bytes")
        found = announced(self._all() | new)
        if len(found) > _FILTER_TOPICS_MAX or len(pack_filter(found)) > _FILTER_BYTES_MAX:
            raise UsageError(
                f"subscriptions to {len(found)} topics are too many to be announced: at most {_FILTER_TOPICS_MAX} of"
                f" {_FILTER_BYTES_MAX} bytes together; subscribe to common prefixes instead"
            )
        return found

    def _set(self, wanted: Filter) -> bool:
        before = self.filter, self.asks_times
        self.filter, self.asks_times = wanted, bool(self._asking)
        return before != (self.filter, self.asks_times)
