"""The observer: merges what sources saw into snapshots, and remembers the last day. No I/O.

Each source hands in its newest ``Part``, or says that it failed; what it saw before stays then, and a problem says
why. Rates are differences of counters over the last seconds. All tables are bounded; at a bound the newest is left
out and a note says how much.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from chappe.observing.health import problems_of
from chappe.observing.history import History
from chappe.observing.lines import DAY, HOUR, MINUTES, RATE_POINTS_MAX, RATE_S, LineSpan, Point, TimeSeries
from chappe.observing.snapshot import (
    LINKS_MAX,
    MEMBERS_MAX,
    NAMES_MAX,
    PROBLEMS_MAX,
    TOPICS_SHOWN,
    HealthProblem,
    ObservedLink,
    ObservedMember,
    ObservedPart,
    ObservedReader,
    ObservedTopic,
    StatusChange,
    SystemSnapshot,
)

TOPICS_MAX: Final = 200_000  # known by name; further ones are counted alone
COUNTED: Final = ("sent", "received", "sent_bytes", "received_bytes")  # of links, each with a rate
LINK_SERIES_MAX: Final = len(COUNTED) * LINKS_MAX
SPARK: Final = LineSpan(MINUTES.last_s, HOUR.step_s)  # of the rate beside a topic's name
SPARK_MAX: Final = 16
_DIGITS: Final = "0123456789abcdefg"
GRACE_US: Final = 3_000_000  # after the first look nothing is called wrong for so long: everybody is still being met


class SystemObserver:
    """Merges looks into one picture; not for use by two threads at once. ``now`` is monotonic seconds.

    Args:
        sources: Names of the sources that will look; a snapshot names those that it still waits for.
    """

    def __init__(self, sources: Sequence[str] = ()) -> None:
        self._sources = tuple(sources)
        self._parts: dict[str, ObservedPart] = {}
        self._failed: dict[str, HealthProblem] = {}  # by source
        self._topics: OrderedDict[str, ObservedTopic] = OrderedDict()  # the one that changed last is last
        self._topics_left_out: set[str] = set()
        self._lines = TimeSeries(coarser=(HOUR, DAY))
        self._links = TimeSeries(LINK_SERIES_MAX, RATE_POINTS_MAX)
        self._history = History()
        self._problems: dict[str, HealthProblem] = {}
        self._problems_left_out = 0
        self._queries: dict[str, tuple[ObservedReader, ...]] = {}  # of pipelines, by the topic that they read
        self._reading: dict[str, tuple[str, ...]] = {}  # topics of each pipeline, by the id of its member
        self._looks = 0
        self._began: int | None = None  # when the first source looked
        self._judged = False  # whether the time to meet everybody is over

    # -- sources --------------------------------------------------------------------------------------

    def take(self, source: str, part: ObservedPart, now: float, wall_us: int) -> None:
        part = _cut(part)
        before = self._parts.get(source)
        self._looks += 1
        self._parts[source] = msgspec.structs.replace(part, topics=(), gone=())
        self._failed.pop(source, None)
        self._take_topics(part, now)
        self._take_pipelines(now)
        for link in part.links:
            for way in COUNTED:
                if (count := getattr(link, way)) is not None:
                    self._links.note((way, *link.ends), count, now)
        if before is not None:
            self._history.compare(before.members, part.members, wall_us)
        self._judge(wall_us)

    def fail(self, source: str, text: str, mend: str, wall_us: int) -> None:
        """A source cannot look; what it saw before stays, and a problem says why."""
        self._looks += 1
        self._failed[source] = HealthProblem(f"source {source}", "failed", text, mend, wall_us)
        self._judge(wall_us)

    # -- what is known --------------------------------------------------------------------------------

    def snapshot(self, now: float, wall_us: int) -> SystemSnapshot:
        """Everything now; costs time in proportion to what it holds, not to how many topics there are."""
        parts = list(self._parts.values())
        shown = sorted(islice(reversed(self._topics.values()), TOPICS_SHOWN), key=lambda each: each.name)
        notes = [note for part in parts for note in part.notes]
        if self._problems_left_out:
            notes.append(f"{self._problems_left_out:,} problems beyond the first {PROBLEMS_MAX} are not listed")
        if self._topics_left_out:
            notes.append(f"{len(self._topics_left_out):,} topics beyond the first {TOPICS_MAX:,} are not looked at")
        if len(self._topics) > TOPICS_SHOWN:
            shown_of = f"of {len(self._topics):,} topics the {TOPICS_SHOWN} that changed last are listed"
            notes.append(f"{shown_of}: search finds the others")
        members = _once([each for part in parts for each in part.members])
        known = {each.id for each in members}
        links = [self._with_rates(each, now) for part in parts for each in part.links if known.issuperset(each.ends)]
        links += [each for each in self._read_by_pipelines() if known.issuperset(each.ends)]
        return SystemSnapshot(
            at=wall_us,
            looks=self._looks,
            members=tuple(members),
            links=tuple(links),
            topics=tuple(self._with_rate(each, now) for each in shown),
            topics_total=len(self._topics) + len(self._topics_left_out),
            keepings=tuple(each for part in parts for each in part.keepings),
            pipelines=tuple(each for part in parts for each in part.pipelines),
            problems=tuple(sorted(self._problems.values(), key=lambda each: (each.level != "failed", each.since))),
            history=tuple(self._history.newest()),
            notes=tuple(dict.fromkeys(notes)),
            awaited=self._awaited(),
        )

    def topic(self, name: str, now: float) -> ObservedTopic | None:
        """One topic by its name."""
        found = self._topics.get(name)
        return None if found is None else self._with_rate(found, now)

    def names(self) -> list[str]:
        """All topics, those that changed last first."""
        return list(reversed(self._topics))

    def rate_line(self, topic: str, now: float, span: LineSpan = MINUTES) -> list[Point]:
        """Records a second over a span; of the topics that changed last alone, else empty."""
        return self._lines.rates(("end", topic), now, span)

    def spark(self, topic: str, now: float) -> str:
        """The last five minutes' rate as heights in base 36, the highest ``SPARK_MAX``; empty: nothing was written."""
        found = [value for _, value in self._lines.rates(("end", topic), now, SPARK)]
        most = max(found, default=0.0)
        return "".join(_DIGITS[round(each / most * SPARK_MAX)] for each in found) if most else ""

    def lag_line(self, topic: str, reader: str, now: float, span: LineSpan = MINUTES) -> list[Point]:
        """The number of records that a reader was behind, over a span."""
        return self._lines.gauge(("lag", topic, reader), now, span)

    # -- inside ---------------------------------------------------------------------------------------

    def _awaited(self) -> tuple[str, ...]:
        if not self._judged:
            return self._sources
        return tuple(each for each in self._sources if each not in self._parts and each not in self._failed)

    def _take_topics(self, part: ObservedPart, now: float) -> None:
        for name in part.gone:
            self._topics.pop(name, None)
            self._topics_left_out.discard(name)
            self._lines.forget(("end", name))
        for topic in part.topics:
            if topic.name not in self._topics and len(self._topics) >= TOPICS_MAX:
                if len(self._topics_left_out) < TOPICS_MAX:
                    self._topics_left_out.add(topic.name)
                continue
            known = self._topics.get(topic.name)
            self._topics[topic.name] = topic
            if known is None or known.end != topic.end:
                self._topics.move_to_end(topic.name)
                self._lines.note(("end", topic.name), topic.end, now)
            for reader in topic.readers:
                self._lines.note(("lag", topic.name, reader.name), reader.lag, now)

    def _take_pipelines(self, now: float) -> None:
        """Queries are readers of topics; what they read their pipelines tell, and not those who look at topics."""
        found: dict[str, list[ObservedReader]] = {}
        reading: dict[str, dict[str, None]] = {}
        for pipeline in [each for part in self._parts.values() for each in part.pipelines]:
            for query in pipeline.queries:
                name = pipeline.name if query.name == pipeline.name else f"{pipeline.name}: {query.name}"
                for lag in query.lag:
                    found.setdefault(lag.topic, []).append(ObservedReader(name, "pipeline", lag.records))
                    reading.setdefault(f"pipeline {pipeline.name}", {})[lag.topic] = None
                    self._lines.note(("lag", lag.topic, name), lag.records, now)
        self._queries = {topic: tuple(readers[:NAMES_MAX]) for topic, readers in found.items()}
        self._reading = {pipeline: tuple(topics) for pipeline, topics in reading.items()}

    def _read_by_pipelines(self) -> Iterator[ObservedLink]:
        """The lines from each store that a pipeline reads to the pipeline."""
        for pipeline, topics in self._reading.items():
            known = [found for each in topics if (found := self._topics.get(each)) is not None]
            for store in dict.fromkeys(store for topic in known for store in topic.stores):
                yield ObservedLink((store, pipeline), "reads")

    def _with_rate(self, topic: ObservedTopic, now: float) -> ObservedTopic:
        readers = topic.readers + self._queries.get(topic.name, ())
        return msgspec.structs.replace(topic, readers=readers, per_s=self._lines.rate(("end", topic.name), now))

    def _with_rates(self, link: ObservedLink, now: float) -> ObservedLink:
        counted = [way for way in COUNTED if getattr(link, way) is not None]
        if not counted:
            return link
        over_s = max(RATE_S, 2 * link.every_s)
        rates = {f"{way}_per_s": self._links.rate((way, *link.ends), now, over_s) for way in counted}
        return msgspec.structs.replace(link, **rates)

    def _judge(self, wall_us: int) -> None:
        """Find out what is wrong now, and note what has begun and ended."""
        if self._began is None:
            self._began = wall_us
        if wall_us - self._began < GRACE_US:
            return
        self._judged = True
        found = [*self._failed.values()]
        found += [each for part in self._parts.values() for each in part.problems]
        recent = list(islice(reversed(self._topics.values()), TOPICS_SHOWN))
        found += problems_of(list(self._parts.values()), recent)
        self._problems_left_out = max(0, len({each.key for each in found}) - PROBLEMS_MAX)
        former, self._problems = self._problems, {}
        for each in found:
            if each.key not in self._problems and len(self._problems) >= PROBLEMS_MAX:
                continue
            known = former.get(each.key)
            since = known.since if known is not None else wall_us
            self._problems[each.key] = msgspec.structs.replace(each, since=since)
            if known is None:
                self._history.note(StatusChange(wall_us, each.level, "health", each.text, "health"))
        for key, each in former.items():
            if key not in self._problems:
                self._history.note(StatusChange(wall_us, "good", "health", f"over: {each.text}", "health"))


def _cut(part: ObservedPart) -> ObservedPart:
    """A part within the bounds."""
    notes = list(part.notes)
    if len(part.members) > MEMBERS_MAX:
        notes.append(f"{len(part.members) - MEMBERS_MAX:,} members beyond {MEMBERS_MAX:,} are left out")
    if len(part.links) > LINKS_MAX:
        notes.append(f"{len(part.links) - LINKS_MAX:,} links beyond {LINKS_MAX:,} are left out")
    return msgspec.structs.replace(
        part, members=part.members[:MEMBERS_MAX], links=part.links[:LINKS_MAX], notes=tuple(notes)
    )


def _once(members: Iterable[ObservedMember]) -> list[ObservedMember]:
    """Each member once: the first that tells of it counts."""
    found: dict[str, ObservedMember] = {}
    for each in members:
        found.setdefault(each.id, each)
    return list(found.values())
