"""A backend that lasts beyond its master, takes time to commit, and is full now and then."""

from __future__ import annotations

from collections.abc import Sequence

from chappe.data.binary import decode
from chappe.errors import StorageFull
from chappe.kv.backend import (
    ClearHistory,
    ClearRows,
    EraseRow,
    ForgetHistory,
    ForgetWriter,
    HistoryRow,
    Loaded,
    Operation,
    PutRow,
    WriterRow,
)
from chappe.kv.entity import Entity


class SimBackend:
    """Rows in memory; what a commit holds is there when ``commit`` returns, or not at all."""

    def __init__(self) -> None:
        self.rows: dict[bytes, PutRow] = {}
        self.writers: dict[Entity, WriterRow] = {}
        self.history: dict[tuple[bytes, int], HistoryRow] = {}
        self.full = False

    def load(self) -> Loaded:
        """All of it."""
        entries = tuple((decode(row.key), decode(row.value), row.expires_ns) for row in self.rows.values())
        return Loaded(entries, tuple(self.writers.values()), tuple(self.history.values()))

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all, or none if the disk is full."""
        if self.full:
            raise StorageFull("the disk of this world is full")
        self.take(operations)

    def take(self, operations: Sequence[Operation]) -> None:
        """Do all, however full the disk is."""
        for each in operations:
            if isinstance(each, PutRow):
                self.rows[each.key] = each
            elif isinstance(each, EraseRow):
                self.rows.pop(each.key, None)
            elif isinstance(each, ClearRows):
                self.rows.clear()
            elif isinstance(each, WriterRow):
                self.writers[each.entity] = each
            elif isinstance(each, ForgetWriter):
                self.writers.pop(each.entity, None)
            elif isinstance(each, HistoryRow):
                self.history[each.key, each.revision] = each
            elif isinstance(each, ForgetHistory):
                self.history.pop((each.key, each.revision), None)
            elif isinstance(each, ClearHistory):
                self.history.clear()

    def close(self) -> None:
        """Nothing to let go of."""
