"""The results of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final


@dataclass(slots=True)
class NodeOutcome:
    """The outcome of one node. Times are seconds since the start; None: it never came so far."""

    name: str
    to_send: int
    expected: int
    sent: int = 0
    received: int = 0
    send_s: float | None = None  # when everything was sent
    receive_s: float | None = None  # when everything had come, or else the last message that did
    frames_out: int = 0
    frames_in: int = 0
    bytes_out: int = 0
    dropped: int = 0  # by this node, for want of room
    cpu_s: float = 0.0
    ended: str | None = None  # before its time, and how

    @property
    def missing(self) -> int:
        return max(0, self.expected - self.received)

    @property
    def surplus(self) -> int:
        return max(0, self.received - self.expected)

    @property
    def unsent(self) -> int:
        return self.to_send - self.sent

    @property
    def out_per_s(self) -> float:
        return self.sent / self.send_s if self.send_s else 0.0

    @property
    def in_per_s(self) -> float:
        return self.received / self.receive_s if self.receive_s else 0.0

    @property
    def seconds(self) -> float:
        """The time at which it was done."""
        return max(self.send_s or 0.0, self.receive_s or 0.0)


@dataclass(slots=True)
class BenchmarkReport:
    """The outcome of all nodes; ``samples`` are how many messages each had received, at seconds since the start."""

    nodes: list[NodeOutcome]
    reason: str = ""  # why it ended before all was done
    samples: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if everything was sent and came, and nothing else did."""
        return not any(each.missing or each.surplus or each.unsent or each.ended for each in self.nodes)

    def received_by_step(self, node: NodeOutcome, steps: int, seconds: float) -> list[float]:
        """Return the numbers of messages a node received in so many equal steps of the time from 0 to ``seconds``.

        Between two samples they count as evenly spread.
        """
        end = node.receive_s or node.seconds
        before_end = (each for each in self.samples.get(node.name, ()) if each[0] < end)  # what is told later is old
        return by_step([*before_end, (end, node.received)], steps, seconds)

    def troubles(self) -> list[str]:
        found = [self.reason] if self.reason else []
        for each in self.nodes:
            if each.ended:
                found.append(f"{each.name} {each.ended}")
            if each.unsent:
                found.append(f"{each.name} sent {each.sent:,} of {each.to_send:,} messages")
            if each.missing:
                found.append(
                    f"{each.name} received {each.received:,} of {each.expected:,} messages: {each.missing:,} lost"
                )
            if each.surplus:
                found.append(f"{each.name} received {each.surplus:,} messages more than the {each.expected:,} expected")
        return found

    def total(self) -> dict[str, Any]:
        nodes = self.nodes
        sent, received = sum(each.sent for each in nodes), sum(each.received for each in nodes)
        seconds = max((each.seconds for each in nodes), default=0.0)
        frames = sum(each.frames_out for each in nodes)
        return {
            "sent": sent,
            "received": received,
            "expected": sum(each.expected for each in nodes),
            "lost": sum(each.missing for each in nodes),
            "surplus": sum(each.surplus for each in nodes),
            "seconds": round(seconds, 6),
            "received_per_s": round(received / seconds, 1) if seconds else 0.0,
            "frames": frames,
            "frames_per_received": round(frames / received, 3) if received else None,
            "bytes": sum(each.bytes_out for each in nodes),
            "dropped": sum(each.dropped for each in nodes),
            "cpu_s": round(sum(each.cpu_s for each in nodes), 3),
        }

    def facts(self) -> dict[str, Any]:
        extra = ("missing", "surplus", "out_per_s", "in_per_s", "seconds")
        nodes = [asdict(each) | {name: getattr(each, name) for name in extra} for each in self.nodes]
        for each in nodes:
            each["lost"] = each.pop("missing")
            for name, value in each.items():
                each[name] = round(value, 6) if isinstance(value, float) else value
        return {"complete": self.complete, "total": self.total(), "nodes": nodes, "troubles": self.troubles()}


def by_step(samples: Iterable[tuple[float, int]], steps: int, seconds: float) -> list[float]:
    """Return how much a count grew in each of so many equal steps of the time from 0 to ``seconds``.

    The count begins at 0 and grows evenly between two samples, each a second and the count at it.
    """
    length = seconds / steps
    made = [0.0] * steps
    for (since, before), (until, after) in pairwise([(0.0, 0), *samples]):
        for step in range(steps):
            shared = min(until, (step + 1) * length) - max(since, step * length)
            if shared > 0 and after > before:
                made[step] += (after - before) * shared / (until - since)
    return made


COLUMNS: Final = (
    *("node", "sent", "out/s", "received", "in/s", "lost", "seconds"),
    *("frames out", "frames in", "MB out", "dropped", "CPU s"),
)
SPARE: Final = ("dropped", "MB out", "frames in", "CPU s", "out/s", "seconds")  # a narrow terminal does without


def rows(nodes: Sequence[NodeOutcome], total: dict[str, Any]) -> list[tuple[str, ...]]:
    made = [
        (
            each.name,
            f"{each.sent:,}",
            f"{each.out_per_s:,.0f}" if each.sent else "",
            f"{each.received:,}",
            f"{each.in_per_s:,.0f}" if each.received else "",
            f"{each.missing:,}",
            f"{each.seconds:.3f}",
            f"{each.frames_out:,}",
            f"{each.frames_in:,}",
            f"{each.bytes_out / 1e6:,.1f}",
            f"{each.dropped:,}",
            f"{each.cpu_s:.2f}",
        )
        for each in nodes
    ]
    frames = f"{total['frames']:,}"
    received_per_s, size = f"{total['received_per_s']:,.0f}", f"{total['bytes'] / 1e6:,.1f}"
    return [
        *made,
        (
            "all", f"{total['sent']:,}", "", f"{total['received']:,}", received_per_s, f"{total['lost']:,}",
            f"{total['seconds']:.3f}", frames, "", size, f"{total['dropped']:,}", f"{total['cpu_s']:.2f}",
        ),
    ]  # fmt: skip
