"""The form of a mesh message as a record of the log.

========================== =========================================================================================
record                     message
========================== =========================================================================================
key                        its topic in the mesh
value                      its value, in the bytes that it travels as (``chappe.data.binary``)
header ``mesh-sender``     the id of the endpoint that published it, or of the peer that it came from if none was told
timestamp                  when it was recorded
========================== =========================================================================================

A record without that header was not recorded from the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from chappe.defaults import BATCH_RECORDS_MAX, KIB, RECORD_BYTES_MAX
from chappe.errors import ProtocolError
from chappe.log.batch import Batch, decode_headers, encode_batch, encode_headers
from chappe.mesh.messages import NOBODY, Message

SENDER: Final = "mesh-sender"
PIECE_BYTES: Final = 512 * KIB  # of records in one batch: each is synced to the journal
ROW_BYTES: Final = 128  # counted for each record beside topic and value
SENDERS_MAX: Final = 4096  # whose headers are kept ready


class Played(NamedTuple):
    """Messages of one partition, in order. Times are in microseconds since 1970 and never go back."""

    times: list[int]
    messages: list[tuple[bytes, bytes]]


def fits(message: Message) -> bool:
    return len(message.topic) + len(message.payload) + ROW_BYTES <= RECORD_BYTES_MAX


def pieces(sizes: Iterable[int]) -> Iterator[slice]:
    """Yield records of these sizes, none of which is 0, cut into batches."""
    start = size = index = 0
    for index, each in enumerate(sizes):
        if index > start and (size + each > PIECE_BYTES or index - start == BATCH_RECORDS_MAX):
            yield slice(start, index)
            start, size = index, 0
        size += each
    if size:
        yield slice(start, index + 1)


def pack(messages: Sequence[Message], base: int, now_us: int) -> Iterator[tuple[int, bytes]]:
    """Yield messages, all of which fit, as batches from offset ``base`` on: their number, and the batch."""
    for place in pieces(len(each.topic) + len(each.payload) + ROW_BYTES for each in messages):
        piece = messages[place]
        yield (
            len(piece),
            encode_batch(
                base + place.start,
                [each.payload for each in piece],
                now_us,
                keys=[each.topic for each in piece],
                headers=[_header(each.origin if each.origin != NOBODY else each.sender) for each in piece],
            ),
        )


def unpack(batch: Batch, start: int, end: int, not_before: int) -> tuple[Played, int]:
    """Return the messages at offsets ``start`` <= n < ``end``, and how many records there were none.

    A message whose time is before ``not_before``, or before that of its predecessor, gets the latter.
    """
    low, high = start - batch.base, end - batch.base
    keys, headers = batch.keys(), batch.raw_headers()
    if keys is None or headers is None:
        return Played([], []), high - low
    stamps, values = batch.timestamps(), batch.values()
    times: list[int] = []
    messages: list[tuple[bytes, bytes]] = []
    for index in range(low, high):
        topic, payload = keys[index], values[index]
        if topic is not None and payload is not None and _is_recorded(headers[index]):
            not_before = max(not_before, stamps[index])
            times.append(not_before)
            messages.append((topic, payload))
    return Played(times, messages), high - low - len(messages)


def recorded(batch: Batch) -> list[bool]:
    """Say for each record of a batch whether it was recorded from the mesh; an empty list if none was."""
    headers = batch.raw_headers()
    if headers is None or batch.keys() is None:
        return []
    return [_is_surely_recorded(raw) for raw in headers]


def _is_surely_recorded(raw: bytes) -> bool:
    try:
        return _is_recorded(raw)
    except ProtocolError:  # its headers are malformed
        return False


@lru_cache(SENDERS_MAX)
def _header(sender: bytes) -> bytes:
    return encode_headers(((SENDER, str(UUID(bytes=sender)).encode()),))


@lru_cache(SENDERS_MAX)
def _is_recorded(raw: bytes) -> bool:
    return any(name == SENDER for name, _ in decode_headers(raw))
