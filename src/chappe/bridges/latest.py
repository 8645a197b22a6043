"""What stores of the log have of a topic now, for those who want the latest record of each key.

Among records of one key the one with the later timestamp counts; among equal ones the name of the partition decides,
then the offset. ``chappe.spark.tables`` says what follows from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from chappe.errors import TimedOut, UnknownTopic
from chappe.log.batch import Record
from chappe.reading.bounds import Reading, bounded
from chappe.reading.fetch import read_blocks
from chappe.reading.offsets import EARLIEST, LATEST, Known, unflatten
from chappe.reading.selection import Selection


class Place(NamedTuple):
    """Where a record stands; the greatest of a key counts. The timestamp is in microseconds since 1970."""

    timestamp: int
    partition: str
    offset: int


NOWHERE: Final = Place(-(1 << 63), "", -1)  # before every record


class TopicNow:
    """The partitions of a topic as all stores together have them when this is made.

    Raises:
        TimedOut: No store answers, or one that may have what others lack does not.
    """

    def __init__(self, topic: str, tower: str) -> None:
        self._reading = Reading(Selection.of_topics([topic]), (), tower, EARLIEST, LATEST)
        view = self._reading.view()
        try:
            view.refresh()
            if view.away:
                raise TimedOut(f"the store at {', '.join(view.away)} does not answer and may have what others lack")
            self.known: Mapping[str, Known] = {partition: each for (_, partition), each in view.known.items()}
            self._topic = topic
        finally:
            view.close()

    def records(self, before: Mapping[str, int] | None = None) -> Iterator[Record]:
        """All records, or those of the named partitions at offsets lower than ``before`` says.

        Raises TimedOut and OffsetOutOfRange as ``read_topic``.
        """
        ends = {
            (self._topic, partition): each.next if before is None else min(before.get(partition, 0), each.next)
            for partition, each in self.known.items()
        }
        reading = replace(self._reading, ending=unflatten(ends))
        view = reading.view()
        try:
            ranges = bounded(reading, view) if ends else []
        except UnknownTopic:
            return  # retention took all of it meanwhile
        finally:
            view.close()
        for each in ranges:
            for start, end, batches in read_blocks(reading.task((each,))):
                for batch in batches:
                    for record in batch.records(each.topic, each.partition, max(start, batch.base)):
                        if record.offset < end:
                            yield record

    def places(self, before: Mapping[str, int]) -> dict[bytes, Place]:
        """Where the latest record of each key stands, of those that ``records`` has."""
        found: dict[bytes, Place] = {}
        for record in self.records(before):
            key, place = record.key, place_of(record)
            if key is not None and place > found.get(key, NOWHERE):
                found[key] = place
        return found


def place_of(record: Record) -> Place:
    """Where a record stands."""
    return Place(record.timestamp, record.partition, record.offset)
