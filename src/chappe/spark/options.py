"""The options of ``format("chappe")`` for reading and for writing: read, checked and explained in one place.

Names are Kafka's where the meaning is the same. Spark hands options over case-insensitively, as text.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

from chappe.api.times import as_micros
from chappe.arrow import COLUMNS
from chappe.data.topic import check_topic
from chappe.errors import UsageError
from chappe.log.compression import CODECS
from chappe.reading.bounds import Bound, Moment, TopicRead
from chappe.reading.fetch import PATIENCE_S
from chappe.reading.offsets import EARLIEST, LATEST, Offsets, sort_offsets
from chappe.reading.selection import Selection
from chappe.security import Keys, LogSecurity
from chappe.spark.filters import ALL, Filters
from chappe.spark.pipeline.model import duration_ms
from chappe.spark.value_schemas import ValueSchema
from chappe.system import settings

T = TypeVar("T")
D = TypeVar("D")

NAMES: Final = (
    "stores", "towers", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger",
    "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "failOnDataLoss", "includeHeaders", "columns", "filters", "fetchTimeout", "openSealed", "identity",
    "valueFormat", "schemas", "subject",
)  # fmt: skip
PLAIN: Final = COLUMNS[:-1]  # without headers, as Kafka's
DELAY_S: Final = 900.0
_DIGITS_MAX: Final = 19  # of a number below 2**63
# Kafka's name -> what to say, where a user of Kafka would look for it
_ANYWHERE: Final = {
    "kafka.bootstrap.servers": "did you mean `towers` or `stores`?",
    "tower": "did you mean `towers`?",
    "store": "did you mean `stores`?",
}
_ELSEWHERE: Final = {
    "topic": "did you mean `subscribe`?",
    "topics": "did you mean `subscribe`?",
    "maxoffsetspertrigger": "did you mean `maxRecordsPerTrigger`?",
    "minoffsetspertrigger": "did you mean `minRecordsPerTrigger`?",
    "startingoffsetsbytimestamp": "did you mean `startingTimestamp`? It is one moment for all partitions",
    "endingoffsetsbytimestamp": "did you mean `endingTimestamp`? It is one moment for all partitions",
    "startingoffsetsbytimestampstrategy": "a partition without a record after `startingTimestamp` starts at its end",
    "kafkaconsumer.polltimeoutms": "did you mean `fetchTimeout`? It is in seconds",
    "fetchoffset.numretries": "did you mean `fetchTimeout`? Stores are asked again for so many seconds",
    "fetchoffset.retryintervalms": "did you mean `fetchTimeout`? Stores are asked again for so many seconds",
    "groupidprefix": "there are no groups: the position of a query is in its checkpoint alone",
    "kafka.group.id": "there are no groups: the position of a query is in its checkpoint alone",
    "path": "topics are named by `subscribe`; call load() without a path",
}


@dataclass(frozen=True, slots=True)
class Options:
    reading: TopicRead  # topics, stores, bounds and columns
    max_records: int | None = None  # of one micro-batch
    max_bytes: int | None = None  # of one micro-batch, about
    tasks: int | None = None  # how many share the work; None leaves it to the number of processors
    filters: Filters = ALL  # of a batch: bounds of the query
    min_records: int | None = None  # that a micro-batch waits for, ...
    delay_s: float = DELAY_S  # ... at most so long after the one before
    task_records: int | None = None  # of one task
    value: ValueSchema | None = None  # of values that are a typed column

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raise UsageError for a wrong option; its text names the option."""
        options = {name.lower(): value for name, value in given.items()}
        refuse_unknown(options, NAMES, _ELSEWHERE)
        stores, towers = place_of(options)
        selection = _selection(options)
        # as Kafka's: a moment wins over offsets
        starting = _moment(options, "startingTimestamp") or _offsets(options, "startingOffsets", selection)
        ending = _moment(options, "endingTimestamp") or _offsets(options, "endingOffsets", selection)
        if ending == EARLIEST:
            raise UsageError('`endingOffsets` cannot be "earliest": nothing would be read')
        least, most = positive(options, "minRecordsPerTrigger"), positive(options, "maxRecordsPerTrigger")
        if least is not None and most is not None and least > most:
            raise UsageError(f"`minRecordsPerTrigger` is {least}, and `maxRecordsPerTrigger` only {most}")
        if least is None and "maxtriggerdelay" in options:
            raise UsageError("`maxTriggerDelay` ends the wait for `minRecordsPerTrigger`: give that too")
        sealed = option(options, "openSealed", "true, false or keep", _SEALED.get, "open")
        return cls(
            TopicRead(
                selection,
                stores,
                starting,
                ending,
                towers=towers,
                fail_on_data_loss=_flag(options, "failOnDataLoss", True),
                columns=_columns(options),
                patience_s=seconds(options, "fetchTimeout", PATIENCE_S),
                opens=sealed == "open",
                security=identity_of(options),
                keeps=sealed == "keep",
            ),
            most,
            positive(options, "maxBytesPerTrigger"),
            positive(options, "minPartitions"),
            option(options, "filters", "what `narrowed` gives to its DataFrame", Filters.parse, ALL),
            least,
            option(options, "maxTriggerDelay", "a duration such as 30 seconds or 15m", _duration_s, DELAY_S),
            positive(options, "maxRecordsPerPartition"),
            _value_schema(options, selection),
        )


def _value_schema(options: Mapping[str, str], selection: Selection) -> ValueSchema | None:
    form = option(options, "valueFormat", "bytes or schema", {"bytes": "bytes", "schema": "schema"}.get, "bytes")
    server, subject = options.get("schemas"), options.get("subject")
    if form == "bytes":
        if server is not None or subject is not None:
            raise UsageError("`schemas` and `subject` are for values with a schema: give `valueFormat` schema, too")
        return None
    if subject is None:
        only = selection.filters[0] if len(selection.filters) == 1 and selection.pattern is None else None
        if only is None or only.prefix:
            raise UsageError("`subject` names the schema of these values: only that of a single topic is known without")
        subject = f"{only.name}-value"
    return ValueSchema(subject, server)


def _duration_s(text: str) -> float | None:
    try:
        return duration_ms(text) / 1000
    except UsageError:
        return None


def refuse_unknown(options: Mapping[str, str], names: Sequence[str], elsewhere: Mapping[str, str]) -> None:
    """Raise UsageError for the first option that is not in ``names``, with what ``elsewhere`` says of it."""
    known = {name.lower(): name for name in names}
    for name in options:
        if name in known:
            continue
        hint = elsewhere.get(name, _ANYWHERE.get(name))
        if hint is None and name.startswith("kafka."):
            hint = "chappe has no Kafka clients to configure; leave it out"
        if hint is None:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean `{known[close[0]]}`?" if close else f"there are {', '.join(names)}"
        raise UsageError(f"unknown option `{name}` of format chappe: {hint}")


def place_of(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """Return the endpoints that ``stores`` names, or else what ``towers`` says. Raises UsageError."""
    stores, towers = _words(options.get("stores")), options.get("towers")
    for each in stores:
        host, _, port = each.removeprefix("tcp://").partition("#")[0].rpartition(":")
        if not each.startswith("tcp://") or not host or not port.isdigit():
            raise UsageError(f"`stores` wants tcp://host:port,... and not {each!r}")
    if stores and towers:
        raise UsageError("give `stores` or `towers`, not both")
    return tuple(dict.fromkeys(stores)), towers or (None if stores else settings.tower())


def identity_of(options: Mapping[str, str]) -> LogSecurity:
    """Return the identity at a place that driver and executors have; its key stays there. Raises UsageError."""
    place = options.get("identity")
    try:
        if place is not None and not place.strip():
            raise UsageError("an identity is DIRECTORY/NAME, not empty")
        return None if place is None else Keys(os.path.abspath(place))
    except UsageError as error:
        raise UsageError(f"`identity`: {error}") from None


def _words(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _selection(options: Mapping[str, str]) -> Selection:
    topics, pattern, assigned = (options.get(name) for name in ("subscribe", "subscribepattern", "assign"))
    if sum(each is not None for each in (topics, pattern, assigned)) != 1:
        raise UsageError(
            'say what to read with exactly one of `subscribe` ("topic,other"), `subscribePattern` (a regular '
            'expression such as "metrics[.].*") and `assign` ({"topic": ["partition"]})'
        )
    if assigned is not None:
        return _assigned(assigned)
    if pattern is not None:
        try:
            return Selection.of_pattern(pattern.strip())
        except UsageError as error:
            raise UsageError(f"`subscribePattern`: {error}") from None
    names = _words(topics)
    if not names:
        raise UsageError("`subscribe` names no topic")
    if any(name.endswith("*") for name in names):
        raise UsageError("`subscribe` takes names of topics; for others use `subscribePattern`, such as metrics[.].*")
    return Selection.of_topics(names)


def _assigned(text: str) -> Selection:
    try:
        parsed = json.loads(text)
        found = [(topic, each) for topic, partitions in parsed.items() for each in partitions]
        fits = all(isinstance(partitions, list) for partitions in parsed.values())
    except (ValueError, AttributeError, TypeError, RecursionError):
        found, fits = [], False
    if not fits or not found or not all(isinstance(each, str) and each for _, each in found):
        raise UsageError(f'`assign` is JSON such as {{"topic": ["partition", "other"]}}, not {text[:200]!r}')
    return Selection.of_partitions(found)


def _offsets(options: Mapping[str, str], name: str, selection: Selection) -> str | Offsets | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    try:
        parsed = json.loads(text)
        found = {str(t): {str(p): _offset(n) for p, n in ps.items()} for t, ps in parsed.items()}
    except (ValueError, AttributeError, RecursionError):
        wanted = '"earliest", "latest" or JSON such as {"topic": {"partition": 42}} (-2: earliest, -1: latest)'
        raise UsageError(f"`{name}` is {wanted}, not {text[:200]!r}") from None
    for topic, partitions in found.items():
        if not topic or not selection.has_topic(topic):
            raise UsageError(f"`{name}` names topic {topic!r}, which is not subscribed to")
        for partition in partitions:
            if not selection.has(topic, partition):
                raise UsageError(f"`{name}` names partition {partition!r} of topic {topic!r}, which is not assigned")
    return sort_offsets(found)


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -2 <= value < 1 << 63:
        raise ValueError(value)
    return value


def _moment(options: Mapping[str, str], name: str) -> Bound | None:
    def parse(text: str) -> Moment | None:
        number = whole_number(text)
        if number is not None and number < 1 << 53:
            return Moment(number * 1000)
        try:
            return Moment(as_micros(datetime.fromisoformat(text)))
        except (ValueError, UsageError):
            return None

    wanted = "milliseconds since 1970, or a time with its zone such as 2025-01-31T12:00:00Z"
    return option(options, name, wanted, parse, None)


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    headers = _flag(options, "includeHeaders", False)
    text = options.get("columns")
    if text is None:
        return COLUMNS if headers else PLAIN
    names = tuple(part.strip().lower() for part in text.split(","))
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        close = difflib.get_close_matches(unknown[0], COLUMNS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COLUMNS)}"
        raise UsageError(f"`columns` names {unknown[0]!r}: {hint}")
    if len(set(names)) < len(names):
        raise UsageError("`columns` names a column twice")
    if headers and "headers" not in names:
        raise UsageError("`includeHeaders` is true and `columns` has no headers: name them there, or leave one out")
    return names


def option(options: Mapping[str, str], name: str, wanted: str, parse: Callable[[str], T | None], default: D) -> T | D:
    """Parse an option; ``parse`` returns None for a text that is not as ``wanted``. Raises UsageError."""
    text = options.get(name.lower())
    if text is None:
        return default
    found = parse(text.strip())
    if found is None:
        raise UsageError(f"`{name}` is {wanted}, not {text[:200]!r}")
    return found


def positive(options: Mapping[str, str], name: str) -> int | None:
    return option(options, name, "a whole number of at least 1", lambda text: whole_number(text) or None, None)


def whole_number(text: str) -> int | None:
    """Return the number below 2**63 that a text of decimal digits is; None for any other text."""
    text = text.strip()
    if not text.isdecimal() or len(text) > _DIGITS_MAX:  # Python refuses to convert thousands of digits
        return None
    number = int(text)
    return number if number < 1 << 63 else None


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    def parse(text: str) -> float | None:
        try:
            found = float(text)
        except ValueError:
            return None
        return found if 0 < found < math.inf else None

    return option(options, name, "a number of seconds above 0, such as 30", parse, default)


_SEALED: Final = {"true": "open", "false": "refuse", "keep": "keep"}


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    values = {"true": True, "false": False}
    return option(options, name, "true or false", lambda text: values.get(text.lower()), default)


SINK_NAMES: Final = (
    "stores", "towers", "chain", "topic", "minAcks", "writeId", "writeBatch", "writeAgain", "orderBy", "fetchTimeout",
    "identity", "compression",
)  # fmt: skip
# Spark hands these over too: they are for itself.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
# Kafka's name, or the reader's -> what to say
_SINK_ELSEWHERE: Final = {
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
    security: LogSecurity = None  # who writes, if stores have keys
    chain: str | None = None  # the file with the configuration of a chain of stores, which is the home of the sink
    codec: int = 0  # of ``chappe.log.compression``

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raise UsageError for a wrong option; its text names the option."""
        options = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
        refuse_unknown(options, SINK_NAMES, _SINK_ELSEWHERE)
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
            identity_of(options),
            _chain(options),
            option(options, "compression", "zstd or lz4", CODECS.get, 0),
        )


def _chain(options: Mapping[str, str]) -> str | None:
    """Return the file of a chain, by a place that driver and executors have. Raises UsageError."""
    path = options.get("chain")
    if path is None:
        return None
    for name in ("stores", "towers", "minAcks"):
        if name.lower() in options:
            raise UsageError(f"`chain` says where rows go, to all of its stores that live: leave out `{name}`")
    from chappe.api.chain.configuration import ChainConfiguration  # readers, which are started more often, do without

    path = os.path.abspath(path)
    try:
        ChainConfiguration.load(path)
    except UsageError as error:
        raise UsageError(f"`chain`: {error}") from None
    return path


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
