"""Numbers for Prometheus: of members, of pipelines, and of the snapshot contract, whose numbers are those of the pages.

No I/O, and no library of Prometheus: a server of numbers makes metrics of families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from chappe.observing.snapshot import ObservedPipeline, SystemSnapshot

LINKS_TOLD: Final = 2_000  # those with the most frames; of further ones there are no numbers

SERIES_MAX: Final = 200  # of one metric of a member, by topic, group, sink or peer
OTHER: Final = "other"  # the label of what is beyond these

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


class MemberNumber(NamedTuple):
    """The kind of a number of a member, its labels besides ``kind`` and ``member``, and what to do about it."""

    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    meaning: str


MEMBER_NUMBERS: Final[Mapping[str, MemberNumber]] = {
    "chappe_member_ready": MemberNumber(
        "gauge", (), "1 while the member does its work. Alarm on 0 for minutes; /health/ready says why."
    ),
    "chappe_member_connected": MemberNumber(
        "gauge",
        (),
        "Other members that it is connected to, or a tower has heard lately. 0 for long: look at the network.",
    ),
    "chappe_member_tower_reachable": MemberNumber(
        "gauge", (), "1 while a tower or forwarder hears it. 0: new members are not met; start the tower."
    ),
    "chappe_member_malformed_messages": MemberNumber(
        "counter", (), "Messages that were dropped because they are not of the protocol. Rising: find the stranger."
    ),
    "chappe_member_refusals": MemberNumber(
        "counter", (), "Connections and requests that the permissions do not allow. Rising: look into the audit."
    ),
    "chappe_store_written_records": MemberNumber("counter", (), "Records written to disk since the start."),
    "chappe_store_written_bytes": MemberNumber("counter", (), "Bytes of these."),
    "chappe_store_duplicate_records": MemberNumber(
        "counter", (), "Records that came again and were not written again."
    ),
    "chappe_store_refusing_writes": MemberNumber(
        "gauge", (), "1 while the disk refuses writes. Make room: producers are held back, and nothing stored is lost."
    ),
    "chappe_store_damaged_ranges": MemberNumber(
        "gauge", (), "Ranges of records that are damaged here and not healed. Above 0 for long: a copy is gone."
    ),
    "chappe_store_partitions_catching_up": MemberNumber(
        "gauge",
        (),
        "Partitions of which it asks others for records that it missed. Not falling: start the other stores.",
    ),
    "chappe_store_last_scrub_timestamp_seconds": MemberNumber(
        "gauge",
        (),
        "When everything kept was last read and checked, since 1970; 0: never. Older than two days: too slow.",
    ),
    "chappe_store_disk_free_bytes": MemberNumber(
        "gauge",
        (),
        "Room on the disk of its directory. A store refuses writes at 16 MiB: shorten the retention before.",
    ),
    "chappe_store_topics": MemberNumber("gauge", (), "Topics that it keeps."),
    "chappe_store_topic_records": MemberNumber("gauge", ("topic",), "Records of a topic that it keeps."),
    "chappe_store_topic_bytes": MemberNumber("gauge", ("topic",), "Bytes of a topic that it keeps."),
    "chappe_store_topic_newest_timestamp_seconds": MemberNumber(
        "gauge",
        ("topic",),
        "Time of the newest record of a topic, since 1970. Too old: its source or the way is broken.",
    ),
    "chappe_store_sink_batch": MemberNumber(
        "gauge", ("sink",), "Last committed batch of an exactly-once sink at home here. Not rising: look at the query."
    ),
    "chappe_group_members": MemberNumber(
        "gauge", ("group",), "Living members of a consumer group. 0: nobody reads for it."
    ),
    "chappe_group_lag_records": MemberNumber(
        "gauge", ("group", "topic"), "Records that a group has not committed. Growing: add members, before retention."
    ),
    "chappe_group_lag_seconds": MemberNumber(
        "gauge", ("group", "topic"), "How much younger the newest record is than the next one to read. Alarm on this."
    ),
    "chappe_producer_records": MemberNumber("counter", ("topic",), "Offsets given to records of a topic."),
    "chappe_producer_unacknowledged_records": MemberNumber(
        "gauge", ("topic",), "Records that too few stores have. Growing: the stores are slow or away."
    ),
    "chappe_consumer_lag_records": MemberNumber(
        "gauge", ("topic",), "Records that exist and were not handed over. Growing: the program is too slow."
    ),
    "chappe_consumer_too_old_records": MemberNumber("counter", (), "Records left out because they were too old."),
    "chappe_endpoint_peers": MemberNumber("gauge", ("status",), "Peers, and addresses that are dialled, by status."),
    "chappe_endpoint_peer_sent_frames": MemberNumber(
        "counter", ("peer",), "Frames sent to a peer on its present link."
    ),
    "chappe_endpoint_peer_sent_bytes": MemberNumber("counter", ("peer",), "Bytes of these."),
    "chappe_endpoint_peer_received_frames": MemberNumber("counter", ("peer",), "Frames that came over this link."),
    "chappe_endpoint_peer_dropped_messages": MemberNumber(
        "counter", ("peer",), "Messages dropped because the peer took less than was published. Rising: it is too slow."
    ),
    "chappe_endpoint_peer_waiting_messages": MemberNumber("gauge", ("peer",), "Messages that wait for a peer."),
    "chappe_endpoint_dropped_messages": MemberNumber(
        "counter", (), "Messages that the endpoint dropped for any reason; statuses say why. Rising: alarm."
    ),
    "chappe_endpoint_unopened_messages": MemberNumber(
        "counter", (), "Messages of sealed topics that could not be opened. Rising: a key of the group is missing."
    ),
    "chappe_gateway_passing": MemberNumber(
        "gauge", (), "1 while this gateway passes topics; of several one does. Alarm when the sum of all is 0."
    ),
    "chappe_gateway_passed_messages": MemberNumber(
        "counter", ("domain",), "Messages that came from a domain and passed."
    ),
    "chappe_gateway_refused_messages": MemberNumber(
        "counter", ("domain",), "Messages from a domain that may not pass."
    ),
    "chappe_gateway_dropped_messages": MemberNumber("counter", (), "Messages dropped because peers were slow."),
    "chappe_data_store_entries": MemberNumber("gauge", (), "Entries of a data store."),
    "chappe_data_store_version": MemberNumber(
        "gauge", (), "Number of its newest change: equal at master and clones that are up to date."
    ),
    "chappe_data_store_clones": MemberNumber("gauge", (), "Clones that are attached to a master."),
    "chappe_map_active": MemberNumber(
        "gauge", (), "1 while a map server orders writes. Alarm when the sum over a pair is not 1."
    ),
    "chappe_map_keys": MemberNumber("gauge", (), "Keys of a shared map."),
    "chappe_map_updates": MemberNumber("counter", (), "Writes that the map has ordered."),
    "chappe_map_clients": MemberNumber("gauge", (), "Clients that follow a map server."),
    "chappe_map_pending_writes": MemberNumber("gauge", (), "Writes of a client that are not confirmed."),
    "chappe_chain_member": MemberNumber(
        "gauge", (), "1 while a server is in its chain. 0: it fetches the state, or was removed."
    ),
    "chappe_chain_head": MemberNumber("gauge", (), "1 at the head. Alarm when the sum over a chain is not 1."),
    "chappe_chain_servers": MemberNumber("gauge", (), "Servers in the chain. Below what the file names: repair one."),
    "chappe_chain_configuration": MemberNumber(
        "gauge", (), "Number of the chain's configuration. Rising often: unrest."
    ),
    "chappe_chain_committed_commands": MemberNumber("counter", (), "Commands committed and applied here."),
    "chappe_chain_uncommitted_commands": MemberNumber("gauge", (), "Commands in its log that are not committed yet."),
    "chappe_chain_clients": MemberNumber("gauge", (), "Clients that are remembered."),
    "chappe_archive_records": MemberNumber("counter", (), "Records archived by this run."),
    "chappe_archive_files": MemberNumber("gauge", (), "Files of the archive."),
    "chappe_archive_bytes": MemberNumber("gauge", (), "Size of these."),
    "chappe_copy_records": MemberNumber("counter", (), "Records of this run that the other site has stored."),
    "chappe_copy_missing_records": MemberNumber(
        "counter", (), "Records that were gone before they were copied. Rising: the copy is slower than retention."
    ),
    "chappe_copy_waiting_records": MemberNumber("gauge", (), "Records that were found and are not stored there yet."),
    "chappe_recorded_messages": MemberNumber("counter", (), "Messages of the mesh that were recorded by this run."),
    "chappe_recording_lost_messages": MemberNumber("counter", (), "Messages that came too fast or are too large."),
    "chappe_recording_waiting_messages": MemberNumber("gauge", (), "Messages that are not stored yet."),
}


def of_member(kind: str, member: str, found: Iterable[tuple[str, float | Mapping[Any, float]]]) -> Iterator[Family]:
    """Return the numbers of one member by the names of ``MEMBER_NUMBERS``.

    A number with labels is a mapping from their values. Of more than ``SERIES_MAX`` the largest are told; a gauge has
    the sum of the rest as ``other``, in seconds the largest.
    """
    for name, value in found:
        number = MEMBER_NUMBERS[name]
        labels = ("kind", "member", *number.labels)
        if not isinstance(value, Mapping):
            yield Family(name, number.meaning, number.kind, labels, [((kind, member), float(value))])
            continue
        named = [(each if isinstance(each, tuple) else (each,), float(count)) for each, count in value.items()]
        if len(named) > SERIES_MAX:
            named.sort(key=lambda each: -each[1])
            rest = [count for _, count in named[SERIES_MAX:]]
            del named[SERIES_MAX:]
            if number.kind == "gauge":
                total = max(rest) if name.endswith("_seconds") else sum(rest)
                named.append(((OTHER,) * len(number.labels), total))
        samples = [((kind, member, *map(_shown, each)), count) for each, count in named]
        yield Family(name, number.meaning, number.kind, labels, samples)


def merged(families: Iterable[Family]) -> list[Family]:
    """Return each name once, with the samples of all families of that name."""
    found: dict[str, Family] = {}
    for each in families:
        known = found.get(each.name)
        found[each.name] = each if known is None else known._replace(samples=[*known.samples, *each.samples])
    return list(found.values())


def _shown(label: str) -> str:
    """Return a label as UTF-8 can carry it: names of topics may have other bytes."""
    return label.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


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
