"""The options of ``format("chappe")`` for writing. The names shared with reading mean the same there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from chappe.data.topic import check_topic
from chappe.errors import UsageError
from chappe.reading.fetch import PATIENCE_S
from chappe.spark.options import option, place_of, positive, refuse_unknown, seconds, whole_number

NAMES: Final = (
    "stores", "towers", "topic", "minAcks", "writeId", "writeBatch", "writeAgain", "orderBy", "fetchTimeout"
)  # fmt: skip
# Spark hands these over too: they are for itself.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
# Kafka's name, or the reader's -> what to say
_ELSEWHERE: Final = {
    "topics": "did you mean `topic`?",
    "subscribe": "that is for reading; did you mean `topic`? (SQL inserts into tables, not into views)",
    "kafka.acks": "did you mean `minAcks`?",
    "acks": "did you mean `minAcks`?",
    "includeheaders": "that is for reading; a column `headers` is always written",
    "path": "the topic is named by `topic`; call start() or save() without a path",
}
WRITE_ID_MAX: Final = 200  # bytes


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user asked for."""

    stores: tuple[str, ...]  # query endpoints; without any, ``towers`` are asked for them
    towers: str | None  # addresses of towers
    topic: str | None  # where all rows go; None to take it from the column ``topic``
    min_acks: int  # stores that hold a batch before it counts as written
    write_id: str | None  # the name of a batch write, by which its repetition is known
    order: tuple[str, ...]  # columns by which each task sorts its rows
    patience_s: float  # how long a store that is away is waited for
    # the number of this write among those of one name, which come in order: one that is not above the last is a
    # repetition
    write_batch: int = 0
    # the id of a query whose rows another one may write once more, as its checkpoint is gone
    write_again: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raises UsageError; its text names the option."""
        options = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
        refuse_unknown(options, NAMES, _ELSEWHERE)
        stores, towers = place_of(options)
        min_acks = positive(options, "minAcks") or 1
        if stores and min_acks > len(stores):
            raise UsageError(f"`minAcks` is {min_acks}, and `stores` names only {len(stores)}")
        if "writebatch" in options and "writeid" not in options:
            raise UsageError("`writeBatch` numbers the writes of a `writeId`: give that too")
        return cls(
            stores,
            towers,
            _topic(options.get("topic")),
            min_acks,
            _write_id(options.get("writeid")),
            _names(options.get("orderby")),
            seconds(options, "fetchTimeout", PATIENCE_S),
            option(options, "writeBatch", "a number of at least 0", whole_number, 0),
            option(options, "writeAgain", "the id of a query, as the error names it", _query, None),
        )


def _topic(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return check_topic(text)
    except UsageError as error:
        raise UsageError(f"`topic`: {error}") from None


def _write_id(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        size = 0
    if not 0 < size <= WRITE_ID_MAX:
        raise UsageError(f"`writeId` is a name of 1 to {WRITE_ID_MAX} bytes, not {text[:WRITE_ID_MAX]!a}")
    return text


def _query(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise UsageError(f"`orderBy` names columns, separated by commas, not {text!r}")
    return found
