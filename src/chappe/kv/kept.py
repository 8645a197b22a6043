"""A store as it was before its latest changes, for those who must not see what its disk may still refuse."""

from __future__ import annotations

from collections.abc import Sequence

from chappe.data.values import Value
from chappe.errors import NoSuchKey
from chappe.kv import operations
from chappe.kv.engine import Change, Engine, Entry, Index, index_of


class Kept:
    """Reads as ``Engine`` does.

    Args:
        without: The latest changes of the engine, in their order, which are not shown.
    """

    def __init__(self, engine: Engine, without: Sequence[Change]) -> None:
        self._engine = engine
        self._without = without
        self._before: dict[Index, Entry | None] = {index_of(each.key): each.before for each in reversed(without)}

    def get(self, key: Value) -> Value:
        """The value under a key; raises NoSuchKey."""
        index = index_of(key)
        entry = self._before[index] if index in self._before else self._engine.find(key)
        if entry is None:
            raise NoSuchKey(f"nothing is stored under {key!r}")
        return entry.value

    def get_index(self, key: Value, index: Value) -> Value:
        """What lies at an index of the value under a key; raises NoSuchKey or TypeClash."""
        return operations.retrieve(self.get(key), index)

    def exists(self, key: Value) -> bool:
        """Whether there is a value under the key."""
        index = index_of(key)
        return self._before[index] is not None if index in self._before else self._engine.exists(key)

    def keys(self) -> list[Value]:
        """All keys."""
        return [entry.key for entry in self._engine.frozen(self._without)]
