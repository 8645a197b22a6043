"""What a benchmark found, in the form that the table and the JSON need."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

CPU = "_cpu_us_"  # in the names of numbers: whose, and of which of its processes, microseconds for a record
OWN_CPU = tuple(f"{whose}{CPU}" for whose in ("chappe", "peer"))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Args:
        path: What was measured.
        result: chappe's figure, for people.
        target: What it should be.
        beside: The peer or raw limit measured in the same run, for people; empty if there is none.
        ratio: chappe's figure as a multiple of ``beside``; empty if there is none.
        met: Whether the target was met; None if the line has none.
        note: What explains the figure: processor time, repeats, conditions.
        numbers: Everything measured, for machines; processor time for a record, of each process, named as by ``Rate``.
    """

    path: str
    result: str
    target: str = ""
    beside: str = ""
    ratio: str = ""
    met: bool | None = None
    note: str = ""
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def cpu_us(self) -> str:
        """Processor time for a record of the processes that the line is about, for people; empty if not measured."""
        found = {name: us for name, us in self.numbers.items() if name.startswith(OWN_CPU)}
        return ", ".join(f"{name.partition(CPU)[2]} {us:.{0 if us >= 100 else 2}f}" for name, us in found.items())


@dataclass(frozen=True, slots=True)
class Rate:
    """Throughput of several rounds; ``cpu_us`` is processor time per record, by process."""

    rounds: tuple[float, ...]
    cpu_us: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Records a second in the middle round."""
        return median(self.rounds)

    def __str__(self) -> str:
        return per_second(self.median)

    def note(self) -> str:
        """Slowest and fastest round, and processor time."""
        found = []
        if len(self.rounds) > 1:
            found.append(f"rounds {per_second(min(self.rounds))} to {per_second(max(self.rounds))}")
        if self.cpu_us:
            found.append("CPU us/record: " + ", ".join(f"{name} {us:.2f}" for name, us in self.cpu_us.items()))
        return "; ".join(found)

    def numbers(self, prefix: str) -> dict[str, float]:
        """For ``Line.numbers``."""
        cpu = {f"{prefix}{CPU}{name}": us for name, us in self.cpu_us.items()}
        return {f"{prefix}_per_s": self.median, f"{prefix}_slowest_per_s": min(self.rounds), **cpu}


def per_second(rate: float) -> str:
    """A rate for people."""
    return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:.0f} k/s"


def times(ratio: float) -> str:
    """A ratio for people."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"
