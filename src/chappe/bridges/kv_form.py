"""The form of a data store's entry as a record of the log.

========================== =========================================================================================
record                     entry
========================== =========================================================================================
key                        its key, in the bytes that it travels as (``chappe.data.binary``)
value                      its value, in the same way; none at all once the key was erased or has expired
header ``store-version``   the number of the change in the copy of the store that it was read from
header ``store-expires``   when it expires, in nanoseconds since 1970, if that is known: only the master knows
timestamp                  when it was written
========================== =========================================================================================

So the latest record of each key (by timestamp, then partition, then offset) is the store. Records without the first
header come from elsewhere, such as a producer or ``chappe.spark.write_table``: there keys and values are strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from chappe.bridges.form import ROW_BYTES, pieces
from chappe.data.binary import decode, encode
from chappe.data.convert import to_value
from chappe.data.values import Value
from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import InvalidData
from chappe.log.batch import Headers, encode_batch

VERSION: Final = "store-version"
EXPIRES: Final = "store-expires"
_DIGITS_MAX: Final = 20  # of a 64-bit number
POSITION: Final = "chappe/from-topic"  # begins the keys under which it is kept how far a topic was taken
QUERY: Final = "chappe/query"  # ... and those of how far Spark's queries are


class StoreRow(NamedTuple):
    """A record that is to be written; ``value`` is None where the key is gone."""

    key: bytes
    value: bytes | None
    version: int
    expires: bytes = b""  # the header; empty without one

    @property
    def size(self) -> int:
        """An upper bound of its bytes in a batch."""
        return len(self.key) + len(self.value or b"") + ROW_BYTES


class StoreEntry(NamedTuple):
    """A record read as an entry; ``value`` has no meaning where it is gone."""

    key: Value
    value: Value
    gone: bool = False
    expires_ns: int | None = None
    version: int | None = None


def row_of(key: Value, value: Value, version: int, *, gone: bool = False, expires_ns: int | None = None) -> StoreRow:
    if gone:
        return StoreRow(encode(key), None, version)
    return StoreRow(encode(key), encode(value), version, b"" if expires_ns is None else b"%d" % expires_ns)


def fits(row: StoreRow) -> bool:
    return row.size <= RECORD_BYTES_MAX


def pack(rows: Sequence[StoreRow], timestamp: int) -> Iterator[tuple[int, bytes]]:
    """Yield rows, all of which fit, as batches: their number, and the batch. Its offsets have no meaning."""
    for place in pieces(row.size for row in rows):
        piece = rows[place]
        keys, values, headers = [row.key for row in piece], [row.value for row in piece], [*map(_headers, piece)]
        yield len(piece), encode_batch(0, values, timestamp, keys=keys, headers=headers)


def _headers(row: StoreRow) -> Headers:
    version = (VERSION, b"%d" % row.version)
    return (version, (EXPIRES, row.expires)) if row.expires else (version,)


def entry_of(key: bytes, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> StoreEntry:
    """Read a record as an entry; raises InvalidData for one that is damaged."""
    found = dict(headers)
    version = _number(found.get(VERSION))
    if version is None:
        return StoreEntry(to_value(key), None if value is None else to_value(value), value is None)
    expires_ns = _number(found.get(EXPIRES))
    if value is None:
        return StoreEntry(decode(key), None, True, None, version)
    return StoreEntry(decode(key), decode(value), False, expires_ns, version)


def _number(raw: bytes | None) -> int | None:
    if raw is None:
        return None
    if len(raw) > _DIGITS_MAX or not raw.removeprefix(b"-").isdigit():
        raise InvalidData(f"{raw[:_DIGITS_MAX]!r} in a header of a store's record is not a number")
    return int(raw)


def is_mark(key: object) -> bool:
    """True if an entry is not data, but says how far something was written into its store."""
    return type(key) is tuple and len(key) > 1 and (key[0] == POSITION or key[0] == QUERY)
