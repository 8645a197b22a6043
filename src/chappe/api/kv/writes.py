"""What the writes of a data store are at its core: which call with which arguments. Both faces write through this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from chappe.api.kv.attached import AttachedStore, Core, Write
from chappe.api.mesh.arguments import MISSING
from chappe.api.mesh.questions import Asked
from chappe.data.convert import to_value
from chappe.data.order import COUNT, INTEGER, NONE, REAL, SET, STRING, TABLE, TIMESPAN, TIMESTAMP, VECTOR, sort_key
from chappe.errors import BufferFull

WAIT_S: Final = 10.0  # a write waits this long for its outcome
MANY: Final = 256  # writes of ``put_many`` made at once
_NUMBERS: Final = frozenset({COUNT, INTEGER, REAL})

Items = Mapping[object, object] | Iterable[tuple[object, object]]


def put(core: Core, key: object, value: object) -> Write:
    """See ``DataStore.put``; so with those below."""
    return core.put, (key, value)


def put_unique(core: Core, key: object, value: object) -> Write:
    """Set a value if there is none."""
    return core.put_unique, (key, value)


def increment(core: Core, key: object, by: object) -> Write:
    """Add to a number, timespan or timestamp."""
    return core.add, (key, by, _number_tag(by))


def decrement(core: Core, key: object, by: object) -> Write:
    """Take from a number, timespan or timestamp."""
    return core.subtract, (key, by)


def append(core: Core, key: object, text: str | bytes) -> Write:
    """Lengthen a string."""
    return core.add, (key, text, STRING)


def insert_into(core: Core, key: object, index: object, value: object) -> Write:
    """Put a member into a set, or a key into a table."""
    return core.add, (key, index, SET) if value is MISSING else (key, (index, value), TABLE)


def remove_from(core: Core, key: object, index: object) -> Write:
    """Take a member from a set, or a key from a table."""
    return core.subtract, (key, index)


def push(core: Core, key: object, value: object) -> Write:
    """Put an element at the end of a vector."""
    return core.add, (key, value, VECTOR)


def pop(core: Core, key: object) -> Write:
    """Take the last element from a vector."""
    return core.subtract, (key, key)  # of a vector the last goes, whatever is named


def erase(core: Core, key: object) -> Write:
    """Remove a key."""
    return core.erase, (key,)


def clear(core: Core) -> Write:
    """Remove everything."""
    return core.clear, ()


def _number_tag(by: object) -> int:
    """The tag of the type that a missing number starts as."""
    tag: int = sort_key(to_value(by))[0]
    if tag == TIMESPAN:
        return TIMESTAMP
    return tag if tag in _NUMBERS else NONE  # of that nothing can start


class ManyPuts:
    """The writes of one ``put_many``; the face that makes them waits for room and for outcomes."""

    def __init__(self, store: AttachedStore, items: Items, expiry_s: float | None) -> None:
        self.asked: list[Asked] = []
        self.failed: list[Exception] = []
        self._store = store
        self._items = items
        self._expiry_s = expiry_s

    def make(self) -> Iterator[bool]:
        """Make them, many at a time; each time tells whether to wait for room before the next."""
        for chunk in _chunks(self._items):
            left = chunk
            while left:
                taken, problem = self._store.try_put_many(left, self._expiry_s, self.asked)
                left = left[taken:]
                full = isinstance(problem, BufferFull)
                if problem is not None and not full:
                    self.failed.append(problem)
                    left = left[1:]
                yield full

    def check(self) -> None:
        """Raise the first error, if there was any."""
        if self.failed:
            raise self.failed[0]


def _chunks(items: Items) -> Iterator[list[tuple[object, object]]]:
    """Keys and values, so many at a time."""
    chunk: list[tuple[object, object]] = []
    for key, value in items.items() if isinstance(items, Mapping) else items:
        chunk.append((key, value))
        if len(chunk) == MANY:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
