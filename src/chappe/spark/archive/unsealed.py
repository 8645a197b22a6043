"""Rows of an archive in which sealed batches stand, with what was sealed in them; see ``reading.kept``."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from chappe.arrow import to_arrow
from chappe.reading.kept import MARK, Unsealing


def unsealed(table: pa.Table, pieces: Iterable[tuple[int, int, tuple[str, str]]], unsealing: Unsealing) -> pa.Table:
    """Return the same rows; those that are plain stay as they are. ``pieces``: where rows of one partition begin, how
    many there are, and their topic and partition. Raises Sealed: something cannot be opened; StorageError: the first
    row of a sealed batch is not here, and was not before.
    """
    found: list[pa.Table] = []
    done = 0
    for start, rows, partition in sorted(pieces):
        found.append(table.slice(done, start - done))
        done = start + rows
        found.append(_piece(table.slice(start, rows), *partition, unsealing))
    return pa.concat_tables([*found, table.slice(done)])


def _piece(rows: pa.Table, topic: str, partition: str, unsealing: Unsealing) -> pa.Table:
    headers, values = rows.column("headers").to_pylist(), rows.column("value")
    marked = [bool(each) and each[0]["key"] == MARK for each in headers]
    if True not in marked:
        return rows
    first, found, at = rows.column("offset")[0].as_py(), list[pa.Table](), 0
    while at < len(marked):
        batch = unsealing.open(topic, partition, first + at, values[at].as_py()) if marked[at] else None
        if batch is None:
            found.append(rows.slice(at, 1))
            at += 1
            continue
        end = min(batch.next - first, len(marked))
        opened = to_arrow(batch, topic, partition, first + at, first + end)
        found.append(pa.Table.from_batches([opened]).select(rows.schema.names).cast(rows.schema))
        at = end
    return pa.concat_tables(found)
