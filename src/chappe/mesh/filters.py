"""Filters: sets of topic prefixes, kept as sorted tuples in which none is a prefix of another.

A topic matches if it starts with one of the prefixes, byte by byte: ``/foo`` matches ``/foobar``; the empty prefix
matches everything. A filter that comes from a peer is any list of prefixes and is brought into this form first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, TypeAlias

Filter: TypeAlias = tuple[bytes, ...]

NOTHING: Final[Filter] = ()
EVERYTHING: Final[Filter] = (b"",)
ASK_LINKS: Final = b"<$>/links/ask"  # every endpoint hears it, and nobody has to be told (``mesh.link_reports``)
LAST_ASK: Final = b"<$>/last/ask"  # announced by those who keep last values (``mesh.forwarding.last_values``) ...
LAST_TOLD: Final = b"<$>/last/told"  # ... and told only to who has asked
LOCAL_PREFIX: Final = b"<$>/local/"  # topics of one endpoint with itself: never announced, refused from outside
_FEW: Final = 16  # up to here startswith() is faster than a search


def minimal(topics: Iterable[bytes]) -> Filter:
    """Return the smallest filter that matches what any of ``topics`` matches as a prefix."""
    kept: list[bytes] = []
    for topic in sorted(topics):
        # Sorted, whatever starts with a prefix follows it directly: comparing with the last one kept is enough.
        if not kept or not topic.startswith(kept[-1]):
            kept.append(topic)
    return tuple(kept)


def union(filters: Iterable[Filter]) -> Filter:
    return minimal({topic for each in filters for topic in each})


def announced(topics: Iterable[bytes]) -> Filter:
    """Return the filter that peers are told for a subscription to ``topics``: without those of the endpoint itself."""
    return minimal([topic for topic in topics if topic != ASK_LINKS and not is_local(topic)])


def is_local(topic: bytes) -> bool:
    """True if a topic, or all that begins so, stays within its endpoint."""
    return topic.startswith(LOCAL_PREFIX)


def matches(wanted: Filter, topic: bytes) -> bool:
    """Return whether ``topic`` starts with a prefix of ``wanted``, which is minimal."""
    if len(wanted) <= _FEW:
        return topic.startswith(wanted)
    # Of a minimal filter only the last prefix that is not after the topic can be a prefix of it: anything between
    # a prefix and a longer topic starts with that prefix too, and could not be in the filter beside it.
    at = bisect_right(wanted, topic)
    return at > 0 and topic.startswith(wanted[at - 1])
