"""The history of a key, as users see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from chappe.data.convert import to_python
from chappe.kv.entity import Entity
from chappe.kv.history import PastChange


@dataclass(frozen=True, slots=True)
class DataStoreRevision:
    """One change in the history of a key; ``operation`` is ``put``, ``erase`` or ``expire``, and a put has a ``value``.

    ``revision`` is the master's number of the write, and rises from one to the next. ``at_ns`` is the master's time of
    it, in nanoseconds since 1970, ``publisher`` the writer; both are None of a value from before the history.
    """

    key: Any
    revision: int
    operation: Literal["put", "erase", "expire"]
    value: Any
    at_ns: int | None
    publisher: Entity | None
    typed: PastChange = field(repr=False, compare=False)


def revisions_of(key: Any, found: tuple[PastChange, ...]) -> list[DataStoreRevision]:
    return [
        DataStoreRevision(key, each.revision, each.kind, to_python(each.value), each.at_ns, each.publisher, each)
        for each in found
    ]
