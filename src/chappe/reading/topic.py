"""Whole topics as Arrow, pandas or Polars, for Python users without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from chappe.api.log.discovery import discover
from chappe.api.times import as_micros
from chappe.arrow import COLUMNS, polars, pyarrow, schema
from chappe.data.given import several
from chappe.errors import TimedOut, UsageError
from chappe.reading.bounds import Bound, Moment, TopicRead, bounded
from chappe.reading.fetch import read_task
from chappe.reading.offsets import EARLIEST, LATEST, sort_offsets
from chappe.reading.selection import Selection
from chappe.reading.view import DISCOVER_S
from chappe.security import LogSecurity
from chappe.system import settings

if TYPE_CHECKING:
    import pyarrow as pa

Where: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[str, int]]
Frame: TypeAlias = Literal["arrow", "pandas", "polars"]
FRAMES: Final = ("arrow", "pandas", "polars")


def read_topic(
    topic: str | Sequence[str],
    *,
    tower: str | None = None,
    stores: str | Sequence[str] | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Sequence[str] | None = None,
    as_: Frame = "arrow",
    security: LogSecurity = None,
) -> Any:
    """Read what stores have of a topic now, into memory; see ``read_batches`` for topics that do not fit there.

    Args:
        topic: ``name``, or ``prefix*`` for all topics that start so; or several of them.
        tower: ``HOST[:PORT]`` of the towers that know the stores, separated by commas; by default what the settings
            say, as of ``Consumer``.
        stores: Query endpoints of stores, instead of a tower.
        start: ``"earliest"``, ``"latest"``, a datetime with a time zone, or ``{topic: {partition: offset}}``, where
            partitions that are not named begin at their first record. Of a moment: at the first record of each
            partition that is not older.
        end: The same; it is not read any more. Partitions that are not named are read to their end.
        columns: Which of topic, partition, offset, timestamp, key, value and headers, in this order; all by default.
        security: Who we are, if stores have keys: as of ``Consumer``.
        as_: ``"arrow"`` for a ``pyarrow.Table``, ``"pandas"`` or ``"polars"`` for a DataFrame.

    Returns:
        Each partition in the order of its offsets, one partition after the other.

    Raises:
        UsageError: An argument is wrong, or pyarrow, pandas or Polars is not installed.
        UnknownTopic: No store has a topic that was named.
        OffsetOutOfRange: A bound is behind the end, or no store has the records any more.
        TimedOut: No store is there, or one that may have records that others lack does not answer.
        Sealed: A topic is sealed for a group, and the identity of ``security`` has no key for some
            records of it, or there is none; or they are not what they say to be. Columns topic, partition and offset
            can be read without.
    """
    if as_ not in FRAMES:
        raise UsageError(f"as_ is one of {', '.join(map(repr, FRAMES))}, not {as_!r}")
    convert = _converter(as_)
    import pyarrow as pa

    named, batches = _reader(topic, tower, stores, start, end, columns, security, apart=True)
    return convert(pa.Table.from_batches(batches, schema=schema(named)))


def read_batches(
    topic: str | Sequence[str],
    *,
    tower: str | None = None,
    stores: str | Sequence[str] | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Sequence[str] | None = None,
    security: LogSecurity = None,
) -> pa.RecordBatchReader:
    """Return the same as Arrow record batches of a few MiB, read as they are asked for: for data larger than memory.

    Arguments and errors are those of ``read_topic``; wrong arguments are found at once.

    Returns:
        An iterator of ``pyarrow.RecordBatch`` that whatever takes a stream of Arrow takes as it is, such as DuckDB and
        Polars. It can be read once. Stores are asked from the thread that reads.
    """
    named, batches = _reader(topic, tower, stores, start, end, columns, security, apart=False)
    return pyarrow().RecordBatchReader.from_batches(schema(named), batches)


def _reader(
    topic: str | Sequence[str],
    tower: str | None,
    stores: str | Sequence[str] | None,
    start: Where,
    end: Where,
    columns: Sequence[str] | None,
    security: LogSecurity,
    *,
    apart: bool,
) -> tuple[tuple[str, ...], Iterator[pa.RecordBatch]]:
    wanted = reached(topic, tower, stores, security)
    ending = _bound(end, "end")
    if ending == EARLIEST:
        raise UsageError('end cannot be "earliest": nothing would be read')
    named = _columns(columns)
    read = replace(wanted, starting=_bound(start, "start"), ending=ending, columns=named)
    return named, _batches(read, apart)


def reached(
    topic: str | Sequence[str],
    tower: str | None,
    stores: str | Sequence[str] | None,
    security: LogSecurity,
) -> TopicRead:
    """Read the arguments of users: topics, and the stores or the tower that has them. Raises UsageError."""
    if tower is not None and stores is not None:
        raise UsageError("give `tower` or `stores`, not both")
    topics = [topic] if isinstance(topic, str) else list(several(topic, "topics"))
    if not topics:
        raise UsageError("name a topic to read")
    endpoints = tuple(stores.split(",")) if isinstance(stores, str) else tuple(stores or ())
    for each in endpoints:
        if not each.startswith("tcp://") or not each.partition("#")[0].rpartition(":")[2].isdigit():
            raise UsageError(f"a store is tcp://host:port, and not {each!r}")
    if not endpoints and tower is None:
        forwarders = settings.forwarders()
        if forwarders is None:
            tower = settings.tower()
        else:
            endpoints = _behind(forwarders, security)
    return TopicRead(Selection.of_topics(topics), endpoints, towers=tower, security=security)


def _behind(forwarders: str, security: LogSecurity) -> tuple[str, ...]:
    """Return the query endpoints of stores at forwarders; raises TimedOut if there are none."""
    found = discover(None, DISCOVER_S, forwarders=forwarders, security=security)
    if not found:
        raise TimedOut(f"no forwarder answers at {forwarders}; start one or correct the address")
    return tuple(each.endpoint for each in found)


def _batches(wanted: TopicRead, apart: bool) -> Iterator[pa.RecordBatch]:
    with closing(wanted.view()) as view:
        found = bounded(wanted, view)
    yield from read_task(replace(wanted.task(tuple(found)), apart=apart))


def _bound(where: Where, name: str) -> Bound:
    if isinstance(where, str):
        if where in (EARLIEST, LATEST):
            return where
    elif isinstance(where, datetime):
        return Moment(as_micros(where))
    elif isinstance(where, Mapping):
        numbers = [n for each in where.values() for n in each.values()]
        if all(isinstance(n, int) and n >= 0 for n in numbers):
            return sort_offsets(where)
    raise UsageError(f'{name} is "earliest", "latest", a datetime or {{topic: {{partition: offset}}}}, not {where!r}')


def _columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    found = COLUMNS if columns is None else tuple(columns)
    if not found or set(found) - set(COLUMNS) or len(set(found)) < len(found):
        raise UsageError(f"columns are some of {', '.join(COLUMNS)}, each once, not {list(found)}")
    return found


def _converter(as_: Frame) -> Any:
    """Return the function that converts a table; looked up before anything is read."""
    schema()
    if as_ == "pandas":
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise UsageError("pandas is not installed; run: pip install 'chappe[pandas]'") from None
        return lambda table: table.to_pandas()
    if as_ == "polars":
        return polars().from_arrow
    return lambda table: table
