"""What one of a pair keeps in its backend beside the data: in which term it was active, and what its data are worth."""

from __future__ import annotations

from typing import Final

from chappe.kv.backend import Loaded, WriterRow
from chappe.kv.entity import ENDPOINT_BYTES, Entity
from chappe.replication.binary_star.decisions import PairMemory
from chappe.replication.binary_star.messages import LEADER, Record

_ROW: Final = Entity(b"\xff" * ENDPOINT_BYTES, 0)


def is_of_a_pair(loaded: Loaded) -> bool:
    """Whether a backend was that of one of two servers."""
    return any(row.entity == _ROW for row in loaded.writers)


def without_star(loaded: Loaded) -> Loaded:
    """What is there besides."""
    return Loaded(loaded.entries, tuple([each for each in loaded.writers if each.entity != _ROW]))


def row_of(memory: PairMemory) -> WriterRow:
    """What is to be kept."""
    return WriterRow(_ROW, memory.term, ((memory.record.term, memory.record.rank),), 0)


def memory_of(loaded: Loaded) -> PairMemory:
    """What was kept."""
    for row in loaded.writers:
        if row.entity == _ROW:
            return PairMemory(row.applied, Record(*row.outcomes[0]))
    # What a single server has left is worth more than nothing.
    return PairMemory(0, Record(0, LEADER)) if loaded.entries else PairMemory()
