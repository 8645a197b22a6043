"""The measurements of a load test: as numbers for a machine, and as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from chappe.benchmark.load.histogram import PERCENTILES, Histogram
from chappe.benchmark.report import by_step

STEPS: Final = 40  # of the throughput over time
SAMPLES_MAX: Final = 400
PARTS: Final = ("sources", "sinks", "servers")


class Samples:
    """A count over time: at most ``SAMPLES_MAX`` points, spread over all of it."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []
        self._apart_s = 0.0

    def add(self, second: float, count: int) -> None:
        """Take a point, unless it is too close to the last one."""
        if self.points and second < self.points[-1][0] + self._apart_s:
            return
        self.points.append((second, count))
        if len(self.points) == SAMPLES_MAX:
            self._apart_s = 2 * second / SAMPLES_MAX
            del self.points[::2]


@dataclass(slots=True)
class LoadMember:
    """One process, and the last numbers that it reported; seconds count from the common start.

    ``part`` is one of ``PARTS``: what it sends is counted, what it takes, or nothing but its processor time.
    """

    name: str
    role: str
    part: str
    count: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    dropped: int = 0
    problem: str = ""
    latencies: dict[str, Histogram] = field(default_factory=dict)
    ended: str | None = None  # before its time, and how
    samples: Samples = field(default_factory=Samples)

    def take(self, said: dict[str, Any]) -> None:
        if said["count"] != self.count:
            self.samples.add(said["seconds"], said["count"])
        for name in ("count", "seconds", "cpu_s", "dropped", "problem"):
            setattr(self, name, said[name])
        self.latencies = {name: Histogram.unpack(each) for name, each in said["latencies"].items()}

    @property
    def per_s(self) -> float:
        """Its rate until it was done."""
        return self.count / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class LoadGroup:
    role: str
    members: list[LoadMember]

    @property
    def count(self) -> int:
        return sum(each.count for each in self.members)

    @property
    def per_s(self) -> float:
        """The rate of all together until the last one was done."""
        seconds = max(each.seconds for each in self.members)
        return self.count / seconds if seconds else 0.0

    @property
    def cpu_s(self) -> float:
        return sum(each.cpu_s for each in self.members)

    def spread(self) -> tuple[float, float, float]:
        """Return the slowest, mean and fastest rate of a member."""
        rates = [each.per_s for each in self.members]
        return min(rates), sum(rates) / len(rates), max(rates)


@dataclass(slots=True)
class LoadReport:
    """A whole run.

    Args:
        bench: What was measured: ``log``, ``mesh`` or ``state``.
        unit: What is counted: a record, message or put.
        size: Bytes of each.
        options: The options of the run, for a machine.
        wanted_per_s: The rate that was asked for, of all sources together; None: as fast as possible.
        reason: Why it ended before all was done.
        cut: Whether it ended while things were under way, so that nobody knows what is lost.
    """

    bench: str
    unit: str
    size: int
    options: dict[str, Any]
    wanted_per_s: float | None
    members: list[LoadMember]
    reason: str = ""
    cut: bool = False

    def groups(self, *parts: str) -> list[LoadGroup]:
        found: dict[str, list[LoadMember]] = {}
        for part in parts:
            for each in self.members:
                if each.part == part:
                    found.setdefault(each.role, []).append(each)
        return [LoadGroup(role, members) for role, members in found.items()]

    @property
    def sent(self) -> int:
        return sum(each.count for each in self.members if each.part == "sources")

    @property
    def lost(self) -> int | None:
        """Deliveries that are missing at all sinks; None if the run was cut."""
        return None if self.cut else sum(self.missing(each) for each in self.members)

    def missing(self, member: LoadMember) -> int:
        """Return how many this member should have got and did not."""
        waits = member.part == "sinks" and not self.cut
        return max(0, self.sent - member.count - member.dropped) if waits else 0

    @property
    def seconds(self) -> float:
        """The time until the last source and sink was done."""
        return max((each.seconds for each in self.members if each.part != "servers"), default=0.0)

    @property
    def complete(self) -> bool:
        """True if everything arrived and was confirmed, and no process had trouble."""
        return not self.troubles()

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time of all processes together, for each that was sent."""
        return 1e6 * sum(each.cpu_s for each in self.members) / self.sent if self.sent else 0.0

    def latencies(self) -> dict[str, Histogram]:
        """Return those of all members together, by what they measure."""
        found: dict[str, Histogram] = {}
        for member in self.members:
            for name, each in member.latencies.items():
                found.setdefault(name, Histogram()).merge(each)
        return {name: each for name, each in found.items() if each.count}

    def over_time(self) -> list[float]:
        """Return how many arrived in each of ``STEPS`` equal steps of the time; were sent, where nothing takes them."""
        if not self.seconds:
            return [0.0] * STEPS
        of = [each for group in self.groups("sinks") or self.groups("sources") for each in group.members]
        steps = [by_step([*each.samples.points, (each.seconds, each.count)], STEPS, self.seconds) for each in of]
        return [sum(each) for each in zip(*steps, strict=True)]

    def troubles(self) -> list[str]:
        """Return what went wrong, one sentence each."""
        found = [self.reason] if self.reason else []
        for each in self.members:
            if each.ended:
                found.append(f"{each.name}: {each.ended}")
            if each.problem:
                found.append(f"{each.name}: {each.problem}")
            if each.dropped:
                found.append(f"{each.name} was too slow: {_many(each.dropped, self.unit)} dropped")
            if missing := self.missing(each):
                found.append(f"{each.name} got {each.count:,} of {_many(self.sent, self.unit)}: {missing:,} missing")
        return found

    def facts(self) -> dict[str, Any]:
        """Return the facts for a machine, with units in the names."""
        unit, over_time = f"{self.unit}s", self.over_time()
        step_s = self.seconds / STEPS
        return {
            "bench": self.bench,
            "complete": self.complete,
            "options": self.options,
            "seconds": round(self.seconds, 6),
            f"{unit}_sent": self.sent,
            f"{unit}_lost": self.lost,
            "cpu_us_per_" + self.unit: round(self.cpu_us, 3),
            "latency": {name: _latency(each) for name, each in self.latencies().items()},
            "groups": [self._group(each) for each in self.groups(*PARTS)],
            "throughput": [
                {"from_s": round(step * step_s, 6), f"{unit}_per_s": round(grown / step_s, 1) if step_s else 0.0}
                for step, grown in enumerate(over_time)
            ],
            "troubles": self.troubles(),
        }

    def _group(self, group: LoadGroup) -> dict[str, Any]:
        unit, facts = f"{self.unit}s", {"role": group.role, "processes": len(group.members)}
        if group.members[0].part != "servers":
            low, mean, high = group.spread()
            facts |= {
                unit: group.count,
                f"{unit}_per_s": round(group.per_s, 1),
                "bytes_per_s": round(group.per_s * self.size, 1),
                f"each_{unit}_per_s": {"min": round(low, 1), "mean": round(mean, 1), "max": round(high, 1)},
            }
        return facts | {"cpu_s": round(group.cpu_s, 6)}


def _many(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def _latency(found: Histogram) -> dict[str, Any]:
    facts: dict[str, Any] = {"count": found.count, "min_us": _us(found.least_ns)}
    facts["mean_us"] = _us(found.sum_ns / found.count)
    facts |= {f"p{percent:g}_us".replace(".", ""): _us(found.percentile_ns(percent)) for percent in PERCENTILES}
    facts["max_us"] = _us(found.most_ns)
    rows = found.buckets()
    facts["histogram"] = [{"from_us": _us(low), "to_us": _us(high), "count": count} for low, high, count in rows]
    return facts


def _us(duration_ns: float) -> float:
    return round(duration_ns / 1000, 3)


RATES: Final = ("processes", "count", "per second", "MiB/s", "slowest", "mean", "fastest", "CPU us each")
RATES_SPARE: Final = ("mean", "count", "slowest", "fastest")  # a narrow terminal does without
LATENCIES: Final = ("latency", "count", *(f"p{percent:g}" for percent in PERCENTILES), "max")


def rate_rows(report: LoadReport) -> Iterable[tuple[str, ...]]:
    """Yield a row for each role, and one for all; the columns are ``RATES``."""
    for group in report.groups(*PARTS):
        cells = [f"{len(group.members)} {group.role}{'' if len(group.members) == 1 else 's'}", *[""] * 6]
        if group.members[0].part != "servers":
            several = group.spread() if len(group.members) > 1 else ()
            cells[1:4] = f"{group.count:,}", f"{group.per_s:,.0f}", f"{group.per_s * report.size / (1 << 20):,.1f}"
            cells[4 : 4 + len(several)] = [f"{each:,.0f}" for each in several]
        yield (*cells, f"{1e6 * group.cpu_s / report.sent:.2f}" if report.sent else "")
    yield ("all", *[""] * 6, f"{report.cpu_us:.2f}" if report.sent else "")
