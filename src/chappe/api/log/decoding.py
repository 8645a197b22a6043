"""Values of a consumer with a codec, and what becomes of records that are no such value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, Protocol

from chappe.api.log.producer import Producer
from chappe.data.topic import Filter, as_topic, encode_topic
from chappe.defaults import HEADERS_MAX
from chappe.errors import BadValue, ChappeError, RecordTooLarge, UsageError
from chappe.log.batch import Record
from chappe.log.events import RecordsRefused
from chappe.permissions.rules import PRODUCE
from chappe.runtime.log_seats import Where
from chappe.schemas.codec import as_codec, decoded
from chappe.schemas.comparing import reason
from chappe.system import time

OnBad = Literal["raise", "skip"]
TELL_S: Final = 10.0  # between two events of records that are left out
STORED_S: Final = 30.0  # a store has this long for a record of the dead-letter topic


class Rewinding(Protocol):
    """A consumer, in which a record that could not be handled comes again."""

    def seek(self, topic: str, partition: str, offset: int) -> None: ...

    def report(self, event: object) -> None: ...


class Decoding:
    """Decodes records.

    Args:
        dead_letter: The topic for records that cannot be decoded; None: ``on_bad`` decides.
        reach: The arguments of a producer for the dead-letter topic.

    Attributes:
        bad: The number of records that were left out.
    """

    def __init__(self, codec: object, on_bad: OnBad, dead_letter: str | None, reach: dict[str, Any]) -> None:
        self._codec = as_codec(codec)
        self._asks = getattr(self._codec, "waits", None)  # of ``SchemaCodec``, whose module most programs do without
        if on_bad not in ("raise", "skip"):
            raise UsageError(f"on_bad is 'raise' or 'skip', not {on_bad!r}")
        self._raises = on_bad == "raise" and dead_letter is None
        self._dead_letter = None if dead_letter is None else as_topic(dead_letter)
        self._reach = reach
        self._producer: Producer | None = None
        self._tell_at, self._untold = -math.inf, 0
        self.bad = 0

    def check(self, where: Where, filters: Sequence[Filter]) -> None:
        """Raise UsageError for a dead-letter topic that is read itself, and NotPermitted for one we may not write."""
        if self._dead_letter is None:
            return
        if any(each.matches(self._dead_letter) for each in filters):
            raise UsageError(f"the dead-letter topic {self._dead_letter!r} is among those that are read: name another")
        where.require(PRODUCE, self._dead_letter)

    def records(self, records: Iterator[Record], consumer: Rewinding) -> Iterator[Record]:
        for record in records:
            found = self.one(record, consumer)
            if found is not None:
                yield found

    def one(self, record: Record, consumer: Rewinding) -> Record | None:
        """Return a record with its value decoded; None if it is left out.

        Raises:
            BadValue: It cannot be decoded, and nothing says what becomes of it; the consumer goes on after it.
            ChappeError: A schema, or a store for the dead letter, was not to be had; the consumer goes on with it.
        """
        try:
            return self.good(record)
        except BadValue as bad:
            self.refuse(record, bad, consumer)
            return None
        except ChappeError:
            consumer.seek(record.topic, record.partition, record.offset)
            raise

    def waits(self, record: Record) -> bool:
        """True if ``one`` has to ask a server for the schema first."""
        return self._asks is not None and record.value is not None and self._asks(record.value)

    @property
    def stores_bad(self) -> bool:
        """True if ``refuse`` waits for a store."""
        return self._dead_letter is not None

    def good(self, record: Record) -> Record:
        """Return a record with its value decoded. Raises BadValue, and what the codec raises for want of a schema."""
        if record.value is None:
            return record
        topic, partition, offset = record.topic, record.partition, record.offset
        value = decoded(self._codec, record.value, topic, partition, offset)
        return Record(topic, partition, offset, record.timestamp, record.key, value, record.headers)

    def refuse(self, record: Record, bad: BadValue, consumer: Rewinding) -> None:
        """Raise the error of a bad record, or leave it out, once the dead-letter topic has it if there is one."""
        if self._raises:
            raise bad
        if self._dead_letter is not None:
            try:
                self._send(self._dead_letter, record, bad)
            except RecordTooLarge:  # with the headers that say why; it would never fit
                raise bad from None
            except ChappeError:
                consumer.seek(record.topic, record.partition, record.offset)
                raise
        self.bad += 1
        self._untold += 1
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + TELL_S
            at = record.offset
            why = f"not {self._codec.name}: {reason(bad.__cause__ or bad)}"
            consumer.report(RecordsRefused(record.topic, record.partition, at, at, self._untold, why))
            self._untold = 0

    def _send(self, topic: str, record: Record, bad: BadValue) -> None:
        if self._producer is None:
            self._producer = Producer(topic, **self._reach)
        why = (
            ("chappe.error", str(bad).encode(errors="replace")),
            ("chappe.topic", encode_topic(record.topic)),
            ("chappe.partition", record.partition.encode(errors="replace")),
            ("chappe.offset", str(record.offset).encode()),
        )
        kept = record.headers[: HEADERS_MAX - len(why)]
        self._producer.send(record.value, record.key, (*kept, *why), record.timestamp)
        self._producer.flush(STORED_S)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
