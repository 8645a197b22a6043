"""Numbers for Prometheus, made of the snapshot contract: what pages show, and what alarms are built on, are the same.

No I/O, and no library of Prometheus: whoever serves them makes metrics of families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from chappe.observing.snapshot import ObservedPipeline, SystemSnapshot

LINKS_TOLD: Final = 2_000  # those with the most frames; of further ones there are no numbers

_QUERY_GAUGES: Final = (
    ("batch_rows", "Rows of the newest batch", "batch_rows"),
    ("rows_in_per_second", "Rows a second that came in with the newest batch", "rows_in_s"),
    ("rows_processed_per_second", "Rows a second that the newest batch processed", "rows_processed_s"),
    ("batch_seconds", "Duration of the newest batch", "batch_s"),
    ("batch", "Number of the newest batch", "batch"),
    ("state_rows", "Rows in the state of the query", "state_rows"),
    ("state_bytes", "Memory that the state takes, as Spark estimates it", "state_bytes"),
)
_QUERY_COUNTERS: Final = (
    ("rows", "Rows processed since the pipeline was started", "rows"),
    ("batches", "Batches done since the pipeline was started", "batches"),
    ("late_rows", "Rows left out because they came after the watermark", "late_rows"),
)


class Family(NamedTuple):
    """A metric: its name, of counters without ``_total``; and for each tuple of labels a number."""

    name: str
    meaning: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]


def of_pipelines(pipelines: Iterable[ObservedPipeline]) -> Iterator[Family]:
    """Return the numbers of pipelines and their queries."""
    found = list(pipelines)
    up = [((each.name,), float(each.stage == "running")) for each in found]
    yield Family("chappe_pipeline_up", "1 while the queries run", "gauge", ("pipeline",), up)
    labels = ("pipeline", "query")
    queries = [(pipeline.name, query) for pipeline in found for query in pipeline.queries]
    for names, kind in ((_QUERY_GAUGES, "gauge"), (_QUERY_COUNTERS, "counter")):
        for name, meaning, field in names:
            samples = [((pipeline, query.name), float(getattr(query, field))) for pipeline, query in queries]
            yield Family(f"chappe_pipeline_{name}", meaning, kind, labels, samples)  # type: ignore[arg-type]
    lags = [((pipeline, query.name, lag.topic), lag) for pipeline, query in queries for lag in query.lag]
    by_topic = (*labels, "topic")
    records = [(at, float(lag.records)) for at, lag in lags]
    sizes = [(at, float(lag.bytes)) for at, lag in lags]
    seconds = [(at, lag.seconds) for at, lag in lags if lag.seconds is not None]
    yield Family("chappe_pipeline_lag_records", "Records not read yet", "gauge", by_topic, records)
    yield Family("chappe_pipeline_lag_bytes", "About their bytes at the stores", "gauge", by_topic, sizes)
    yield Family("chappe_pipeline_lag_seconds", "How old the read end is", "gauge", by_topic, seconds)


def of_snapshot(snapshot: SystemSnapshot) -> Iterator[Family]:
    """Everything that a snapshot has numbers of; what nobody told is left out."""
    members = Counter((each.kind, each.level) for each in snapshot.members)
    samples = [((kind, level), float(count)) for (kind, level), count in sorted(members.items())]
    yield Family("chappe_members", "Members that are seen", "gauge", ("kind", "level"), samples)
    problems = Counter(each.level for each in snapshot.problems)
    levels = [((level,), float(problems[level])) for level in ("warning", "failed")]
    yield Family("chappe_problems", "What is wrong", "gauge", ("level",), levels)
    total = [((), float(snapshot.topics_total))]
    yield Family("chappe_topics", "Topics that are known", "gauge", (), total)
    yield from _of_topics(snapshot)
    yield from _of_links(snapshot)
    yield from _of_keepings(snapshot)
    yield from of_pipelines(snapshot.pipelines)


def _of_topics(snapshot: SystemSnapshot) -> Iterator[Family]:
    topics = snapshot.topics
    for name, meaning, field in (
        ("records", "Records that are kept of a topic", "records"),
        ("bytes", "What is kept of a topic, of one copy", "bytes"),
    ):
        samples = [((each.name,), float(getattr(each, field))) for each in topics]
        yield Family(f"chappe_topic_{name}", meaning, "gauge", ("topic",), samples)
    written = [((each.name,), float(each.end)) for each in topics]
    yield Family("chappe_topic_written", "Records that there ever were of a topic", "counter", ("topic",), written)
    lags = [((each.name, reader.name), float(reader.lag)) for each in topics for reader in each.readers]
    yield Family("chappe_reader_lag_records", "Records that a reader is behind", "gauge", ("topic", "reader"), lags)
    positions = [
        ((each.name, reader.name), float(reader.position))
        for each in topics
        for reader in each.readers
        if reader.position is not None
    ]
    meaning = "Sum of the offsets that a reader has committed, over partitions"
    yield Family("chappe_reader_position", meaning, "gauge", ("topic", "reader"), positions)


def _of_links(snapshot: SystemSnapshot) -> Iterator[Family]:
    told = [each for each in snapshot.links if each.sent is not None or each.received is not None]
    told = sorted(told, key=lambda each: -((each.sent or 0) + (each.received or 0)))[:LINKS_TOLD]
    labels = ("kind", "from", "to")
    frames = []
    sizes = []
    waiting = []
    for each in told:
        one, other = each.ends
        for count, size, held, at in (
            (each.sent, each.sent_bytes, each.waiting, (each.kind, one, other)),
            (each.received, each.received_bytes, each.waiting_back, (each.kind, other, one)),
        ):
            if count is not None:
                frames.append((at, float(count)))
            if size is not None:
                sizes.append((at, float(size)))
            waiting.append((at, float(held)))
    yield Family("chappe_link_frames", "Frames, or records, that went over a link", "counter", labels, frames)
    yield Family("chappe_link_bytes", "What went over a link of the log", "counter", labels, sizes)
    yield Family("chappe_link_waiting", "Messages that are held back before a link", "gauge", labels, waiting)


def _of_keepings(snapshot: SystemSnapshot) -> Iterator[Family]:
    keepings = snapshot.keepings
    counts = [((each.kind, each.name), float(each.entries)) for each in keepings if each.entries is not None]
    yield Family("chappe_entries", "Entries of a data store or map", "gauge", ("kind", "name"), counts)
    ages = [
        ((each.name, copy), age)
        for each in keepings
        for copy, age in zip(each.copies, each.ages, strict=False)
        if age is not None
    ]
    labels = ("store", "clone")
    yield Family("chappe_clone_age_seconds", "For how long a clone is not up to date", "gauge", labels, ages)
