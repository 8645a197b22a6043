"""Shared by bridges: a producer that loses nothing, and a thread that keeps a store and a topic in step."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from chappe.api.kv.map_store import MapStore, as_store
from chappe.api.log.producer import Producer
from chappe.errors import BufferFull, ChappeError, Closed, OffsetOutOfRange, Sealed, TimedOut, UnknownTopic, UsageError
from chappe.log.batch import Record
from chappe.reading.bounds import TopicRead, bounded
from chappe.reading.fetch import read_blocks
from chappe.reading.offsets import KnownPartition, unflatten
from chappe.reading.selection import Selection
from chappe.security import LogSecurity
from chappe.system import time

if TYPE_CHECKING:
    from chappe.api.kv.data_store import DataStore
    from chappe.api.kv.shared_map import SharedMap

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25  # how often it is checked whether to end, and whether there is room again


class Sender:
    """A producer whose records wait in a journal while stores are away, and what it has sent in this run."""

    def __init__(
        self, topic: str, tower: str, listen: str | None, min_acks: int, identity: str, directory: str | Path | None,
        security: LogSecurity,
    ) -> None:  # fmt: skip
        if min_acks < 1:
            raise UsageError("min_acks is at least 1 where nothing is to be lost")
        self.producer = Producer(
            topic,
            tower=tower,
            listen=listen,
            min_acks=min_acks,
            identity=identity,
            directory=directory,
            security=security,
            on_full="error",  # so that a wish to end is heard while stores are away
        )
        self._first, self._first_stored = self.producer.next_offset, self.producer.stored

    def account(self) -> tuple[int, int, int]:
        """Return records of this run; those that enough stores have since it began; those that they do not have yet."""
        sent, stored = self.producer.next_offset, self.producer.stored
        return sent - self._first, stored - self._first_stored, sent - stored

    def flush(self, timeout_s: float | None) -> None:
        """Wait until everything is stored, at most ``timeout_s`` seconds."""
        with suppress(TimedOut):  # the account says so
            self.producer.flush(timeout_s)

    def wait(self, why: BufferFull | Sealed) -> None:
        """Wait a moment, as the producer takes nothing now. Raises ``why`` if keys to seal with will not come."""
        if isinstance(why, BufferFull):
            self.flush(LOOK_S)
        elif why.passing:
            time.sleep(LOOK_S)
        else:
            raise why

    def leave(self) -> None:
        """Close at once; the journal keeps what is not stored."""
        try:
            self.producer.close(0.0)
        except TimedOut:
            pass
        except ChappeError as error:
            logger.warning("%s", error)


class StoreMirror(ABC):
    """A thread that makes what a store and a topic hold the same, until it is closed; a context.

    Args:
        tower: Where stores of the log are found.
        to_topic: Whether the topic follows the store, or the store the topic.
    """

    def __init__(self, store: DataStore | SharedMap[Any], topic: str, tower: str, *, to_topic: bool) -> None:
        self.topic = topic
        self._store = as_store(store)
        self._tower = tower
        name = self._store.name
        ours, theirs = f"store {name!r}", f"topic {topic!r}"
        self._ended = (
            f"{ours} is no longer written to {theirs}" if to_topic else f"{theirs} is no longer kept in {ours}"
        )
        self._waits = f"{ours} waits to be written to {theirs}" if to_topic else f"{theirs} waits to be kept in {ours}"
        self._lacks = f"{theirs} does not have all of {ours}" if to_topic else f"{ours} does not have all of {theirs}"
        self._stopping = False
        if isinstance(self._store, MapStore):
            self._store.given_up = lambda: self._stopping
        self._error: ChappeError | None = None
        self._news = threading.Condition()
        thread = f"chappe store {name} to {topic}" if to_topic else f"chappe topic {topic} to {name}"
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    def __enter__(self) -> Self:
        return self

    # -- what the thread does -----------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Find out how far the one is that follows; raises TimedOut or OffsetOutOfRange if it cannot be told yet."""

    @abstractmethod
    def _turn(self) -> None:
        """Take over what is new, or wait a while for it."""

    def _end(self) -> None:  # noqa: B027  # not every bridge has something to do
        """Asked to end, after the last turn."""

    def _run(self) -> None:
        try:
            told = False
            while not self._stopping:
                try:
                    self._begin()
                    break
                except (TimedOut, OffsetOutOfRange) as error:  # the latter: retention was faster than the reading
                    if not told:
                        told = True
                        logger.warning("%s: %s", self._waits, error)
                self._wait(LOOK_S)
            while not self._stopping:
                self._turn()
            self._end()
        except Closed:
            pass  # the store went first
        except ChappeError as error:
            logger.warning("%s: %s", self._ended, error)
            self._error = error
        finally:
            if isinstance(self._store, MapStore):
                self._store.leave()
            self._tell()

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        with self._news:
            while not self._stopping and (left := end - time.monotonic()) > 0:
                self._news.wait(min(left, LOOK_S))

    # -- waiters ------------------------------------------------------------------------------------------------

    def _flush(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while not is_done():
                if self._error is not None:
                    raise self._error
                if not self._thread.is_alive():
                    raise Closed(f"{self._ended}: it was closed")
                left = LOOK_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimedOut(
                        f"{self._lacks} after {timeout:g} s: "
                        "is a store of the log running, and connected to the same tower?"
                    )
                self._news.wait(min(left, LOOK_S))


class RecordPlace(NamedTuple):
    """The place of a record; the greatest of a key counts. The timestamp is in microseconds since 1970.

    ``chappe.spark.tables`` says what follows from that.
    """

    timestamp: int
    partition: str
    offset: int


NOWHERE: Final = RecordPlace(-(1 << 63), "", -1)  # before every record


class TopicNow:
    """The partitions of a topic as all stores together have them when this is made. Raises TimedOut: no store answers,
    or one that may have what others lack does not.
    """

    def __init__(self, topic: str, tower: str, security: LogSecurity) -> None:
        self._reading = TopicRead(Selection.of_topics([topic]), towers=tower, security=security)
        with closing(self._reading.view()) as view:
            view.refresh()
            if view.away:
                raise TimedOut(f"the store at {', '.join(view.away)} does not answer and may have what others lack")
            self.known: Mapping[str, KnownPartition] = {partition: each for (_, partition), each in view.known.items()}
            self._topic = topic

    def records(self, before: Mapping[str, int] | None = None) -> Iterator[Record]:
        """Yield all records, or those of the named partitions at offsets lower than ``before`` says.

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

    def places(self, before: Mapping[str, int]) -> dict[bytes, RecordPlace]:
        """Return the place of each key's latest record in ``records``."""
        found: dict[bytes, RecordPlace] = {}
        for record in self.records(before):
            key, place = record.key, place_of(record)
            if key is not None and place > found.get(key, NOWHERE):
                found[key] = place
        return found


def place_of(record: Record) -> RecordPlace:
    return RecordPlace(record.timestamp, record.partition, record.offset)
