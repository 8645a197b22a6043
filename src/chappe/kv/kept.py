"""A view of a store without its latest changes, which the disk may still refuse."""

from __future__ import annotations

from collections.abc import Sequence

from chappe.data.values import Value
from chappe.errors import NoSuchKey
from chappe.kv import operations
from chappe.kv.engine import Change, Engine, Entry, Index, index_of


class DurableContents:
    """A read-only view with the reading methods of ``Engine``.

    Args:
        without: The engine's latest changes, in order, that the view leaves out.
    """

    def __init__(self, engine: Engine, without: Sequence[Change]) -> None:
        self._engine = engine
        self._without = without
        self._before: dict[Index, Entry | None] = {index_of(each.key): each.before for each in reversed(without)}

    def get(self, key: Value) -> Value:
        """Return the value under a key; raises NoSuchKey."""
        index = index_of(key)
        entry = self._before[index] if index in self._before else self._engine.find(key)
        if entry is None:
            raise NoSuchKey(f"nothing is stored under {key!r}")
        return entry.value

    def get_index(self, key: Value, index: Value) -> Value:
        """Return the item at an index of the value under a key; raises NoSuchKey or TypeClash."""
        return operations.retrieve(self.get(key), index)

    def exists(self, key: Value) -> bool:
        """True if there is a value under the key."""
        index = index_of(key)
        return self._before[index] is not None if index in self._before else self._engine.exists(key)

    def keys(self) -> list[Value]:
        """Return all keys."""
        return [entry.key for entry in self._engine.frozen(self._without)]
