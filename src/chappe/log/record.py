"""The parts of a batch; in a module of their own, since compiling would change the types of these classes' fields."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

Headers = tuple[tuple[str, bytes], ...]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as a user sees it.

    ``timestamp`` is in microseconds since 1970 UTC; ``partition`` is the address of its producer. A Struct is made
    in half the time of a tuple with names, which is what a loop over single records mostly does.
    """

    topic: str
    partition: str
    offset: int
    timestamp: int
    key: bytes | None
    value: Any  # bytes or None; of a consumer with a codec what that decodes, or None
    headers: Headers


class Column(NamedTuple):
    """A binary column as raw buffers: bitmap (or None), positions, data."""

    validity: memoryview | None
    positions: memoryview
    data: memoryview
