"""Counts records over time from the times that stores know, and reads one batch where a step begins in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from chappe.log.batch import Batch
from chappe.reading.bounds import batch_at, offsets_at
from chappe.reading.offsets import Key
from chappe.reading.view import StoresView


def counts(view: StoresView, keys: Iterable[Key], edges: Sequence[int]) -> dict[Key, list[int]]:
    """The numbers of each partition's records from each moment of ``edges`` up to the next one.

    What is counted are offsets: records that nobody has any more count where those beside them lie. Where timestamps
    go back and forth, a record counts with those before it. Those of a batch that is sealed count at its beginning.

    Args:
        view: What the stores have; refreshed before.
        keys: Partitions of ``view.known``. Each costs a question for each moment, and a batch for some of them.
        edges: Microseconds since 1970 UTC, rising.
    """
    keys = list(keys)
    found: dict[Key, list[int]] = {key: [] for key in keys}
    for edge in edges:
        for key, offset in offsets_at(view, edge, keys, exact=False).items():
            found[key].append(offset)
    for key, offsets in found.items():
        exact = accumulate(_exact(view, key, offsets, edges), max)
        found[key] = [after - before for before, after in pairwise(exact)]
    return found


def _exact(view: StoresView, key: Key, offsets: Sequence[int], edges: Sequence[int]) -> list[int]:
    """Offsets of batches made offsets of records; the latest batch is kept, in which the next moment may lie, too."""
    exact = []
    batch: Batch | None = None
    stamps: Sequence[int] = ()
    have = view.known[key]
    for offset, edge in zip(offsets, edges, strict=True):
        if have.first < have.next and have.timestamp_min < edge <= have.timestamp_max:
            if batch is None or not batch.base <= offset < batch.next:
                batch = batch_at(view, have.holders, key, offset)
                stamps = () if batch is None else batch.timestamps()
            if batch is not None:
                at = next((n for n in range(offset - batch.base, batch.count) if stamps[n] >= edge), batch.count)
                offset = batch.base + at
        exact.append(offset)
    return exact
