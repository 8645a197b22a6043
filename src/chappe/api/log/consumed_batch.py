"""Batches of a consumer: records of one partition, not unpacked yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from chappe.api.log.lines import iso_time, readable_name
from chappe.data.markup import ROWS_MAX, many, table, text_of
from chappe.log.batch import Batch, Record

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class ConsumedBatch:
    """Neighbouring records of one partition: iterate them, or take them as Arrow without unpacking.

    ``sender`` is the identity that sealed and signed them, if the topic is sealed for a group.
    """

    __slots__ = ("arrived", "batch", "first", "partition", "sender", "topic")

    def __init__(
        self,
        topic: str,
        partition: str,
        batch: Batch,
        first: int,
        sender: str | None = None,
        arrived: float = -math.inf,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.batch = batch
        self.first = first
        self.sender = sender
        self.arrived = arrived  # when it came here, where ages matter

    def cut(self, first: int, end: int | None = None) -> ConsumedBatch:
        """Return its records from ``first`` on, up to ``end``."""
        whole = end is None or end == self.next
        kept = self.batch if whole else Batch.parse(self.batch.slice(first, end), check=False)
        return ConsumedBatch(self.topic, self.partition, kept, first, self.sender, self.arrived)

    @property
    def next(self) -> int:
        """The offset after the last record."""
        return self.batch.next

    def __len__(self) -> int:
        return self.batch.next - self.first

    def __repr__(self) -> str:
        return f"<ConsumedBatch of {self.topic!r}, partition {self.partition}, offsets {self.first} to {self.next - 1}>"

    def __iter__(self) -> Iterator[Record]:
        return self.batch.records(self.topic, self.partition, self.first)

    def values(self) -> list[bytes | None]:
        """Return only the values, in order."""
        return self.batch.values()[self.first - self.batch.base :]

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return columns topic, partition, offset, timestamp, key, value, headers; values are not copied."""
        from chappe.arrow import to_arrow

        return to_arrow(self.batch, self.topic, self.partition, self.first, self.batch.next)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the same columns as a pandas DataFrame."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Return the same columns as a Polars DataFrame. Raises UsageError: pyarrow or Polars is not installed."""
        from chappe.arrow import polars as installed

        frame: polars.DataFrame = installed().from_arrow(self.to_arrow())
        return frame

    def _repr_html_(self) -> str:
        """Show the first records as a table, in notebooks."""
        rows = (
            (each.offset, iso_time(each.timestamp), each.key, each.value, _headers(each))
            for each in islice(self, ROWS_MAX)
        )
        title = f"{readable_name(self.topic)}, partition {readable_name(self.partition)}: {many(len(self), 'record')}"
        return table(title, COLUMNS, rows, len(self))


def _headers(record: Record) -> str | None:
    return ", ".join(f"{name}={text_of(value)}" for name, value in record.headers) or None
