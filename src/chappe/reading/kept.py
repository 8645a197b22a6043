"""Sealed batches that stay sealed where they are read for an archive, and how they are opened later.

Each record has a row, as all others have, so that offsets can be counted. Each of these has a header that says so, and
the time of the earliest; the first has the batch as its value, in the bytes that stores keep, the others have none.
"""

from __future__ import annotations

from typing import Final

from chappe.api.log.sealed import Unread, reader_here
from chappe.errors import ProtocolError, Sealed, StorageError
from chappe.log.batch import Batch, encode_batch
from chappe.security import LogSecurity

MARK: Final = "chappe-sealed"  # the header


def kept(batch: Batch, start: int, end: int) -> Batch:
    """Return the records of a sealed batch at ``start`` <= n < ``end``."""
    count = end - start
    values = [batch.slice(start, end), *[None] * (count - 1)]
    return Batch.parse(encode_batch(start, values, batch.timestamp_min, headers=[((MARK, b""),)] * count), check=False)


class Unsealing:
    """Opens what was kept, of each partition in the order of offsets."""

    def __init__(self, security: LogSecurity = None) -> None:
        self._reader = reader_here(security)
        self._now: dict[tuple[str, str], Batch] = {}

    def open(self, topic: str, partition: str, offset: int, raw: bytes | None) -> Batch | None:
        """Return the batch of a marked row; None if it is plain all the same, as any record may have such a header.
        ``raw``: the value there. Raises Sealed: it cannot be opened; StorageError: the row with the batch did not come
        before.
        """
        key = topic, partition
        if raw is not None:
            found = self._opened(topic, partition, offset, raw)
            if found is not None:
                self._now[key] = found
            return found
        now = self._now.get(key)
        if now is not None and now.base <= offset < now.next:
            return now
        if self._reader.seals(topic):
            raise StorageError(f"of a sealed batch of topic {topic!r} the record at offset {offset} is here without it")
        return None

    def _opened(self, topic: str, partition: str, offset: int, raw: bytes) -> Batch | None:
        try:
            batch = Batch.parse(raw)
        except ProtocolError:
            return None  # somebody's own header
        if batch.sealed is None or batch.base != offset:
            return None
        outcome = self._reader.open(topic, partition, batch)
        if isinstance(outcome, Unread):
            last = batch.next - 1
            raise Sealed(f"offsets {offset} to {last} of topic {topic!r} cannot be opened: {outcome.reason}")
        return outcome.batch
