"""Which offset a moment is at: that of the first record of a partition which is not older.

Stores know the times of whole batches; the batch that they point to is read to find the record in it. Where clocks went
back and forth, later records of the partition may be older than the moment all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from chappe.data.topic import encode_topic
from chappe.errors import ProtocolError, TimedOut
from chappe.log.batch import Batch
from chappe.log.queries import ReadRequest, SeekAnswer, SeekRequest
from chappe.reading.offsets import Key
from chappe.reading.view import StoresView

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000  # questions under way to one store


def offsets_at(view: StoresView, timestamp: int, keys: Iterable[Key], *, exact: bool = True) -> dict[Key, int]:
    """For each partition the offset of its first record at or after ``timestamp`` (microseconds), or its end.

    Args:
        view: What the stores have; refreshed before.
        timestamp: Microseconds since 1970 UTC.
        keys: Partitions of ``view.known``.
        exact: Look into the batches; otherwise the offset may be that of an older record of the same batch.
    """
    found: dict[Key, int] = {}
    unclear: list[Key] = []
    for key in keys:
        have = view.known[key]
        if have.first == have.next or have.timestamp_max < timestamp:
            found[key] = have.next
        elif have.timestamp_min >= timestamp:
            found[key] = have.first
        else:
            unclear.append(key)
    for key, (offset, endpoint) in _seek(view, timestamp, unclear).items():
        have = view.known[key]
        at = min(max(offset, have.first), have.next)
        found[key] = _within(view, endpoint, key, at, timestamp) if exact and at < have.next else at
    return found


def _seek(view: StoresView, timestamp: int, keys: list[Key]) -> dict[Key, tuple[int, str]]:
    """The smallest offset that a store names for each partition, and that store."""
    found = {key: (view.known[key].next, "") for key in keys}
    for endpoint in view.endpoints:
        client = view.client(endpoint)
        if client is None:
            continue
        held = [key for key in keys if endpoint in view.known[key].holders]
        for begin in range(0, len(held), AT_ONCE):
            part = held[begin : begin + AT_ONCE]
            requests = [SeekRequest(encode_topic(t), encode_topic(p), timestamp) for t, p in part]
            try:
                for key, (answer, _) in zip(part, client.ask_many(requests), strict=True):
                    if isinstance(answer, SeekAnswer) and 0 <= answer.offset < found[key][0]:
                        found[key] = (answer.offset, endpoint)
            except (TimedOut, ProtocolError) as error:
                # the others know as much; where nobody answers, everything from the first record on is read
                logger.warning("%s; asking the other stores what was when", error)
                found |= {key: (view.known[key].first, endpoint) for key in part if not found[key][1]}
    return found


def _within(view: StoresView, endpoint: str, key: Key, offset: int, timestamp: int) -> int:
    """The offset of the first record at or after ``timestamp`` in the batch that has ``offset``."""
    client = view.client(endpoint)
    if client is None:
        return offset
    try:
        _, raws = client.ask(ReadRequest(encode_topic(key[0]), encode_topic(key[1]), offset, 1))
        if not raws:
            return offset
        batch = Batch.parse(raws[0])
    except (TimedOut, ProtocolError) as error:
        logger.warning("%s; taking the whole batch", error)
        return offset
    stamps = batch.timestamps()
    begin = max(offset - batch.base, 0)
    return next((batch.base + n for n in range(begin, batch.count) if stamps[n] >= timestamp), offset)
