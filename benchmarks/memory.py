"""Memory of every process while a producer runs at full speed and a consumer, or the store, is stopped."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from benchmarks.children import ROOT, Child, ChildFailed, Children
from benchmarks.curve import Curve, draw
from benchmarks.outcome import Line
from benchmarks.settings import Settings
from benchmarks.stored import start_store

BEFORE_S = 5
STOPPED_S = 30
AFTER_S = 10
KEEP_BYTES = 1 << 30  # of the topic; bounds the disk that a run takes
FLAT_MIB = 16.0  # growth allowed in the second half of the stop
WENT_ON_S = 0.1  # processor time by which the stopped process shows that it works again
CURVE = ROOT / "docs" / "explanation" / "memory.svg"


@dataclass(frozen=True, slots=True)
class _Samples:
    """Resident memory in MiB, one sample a second; the stop lies between ``stopped_at`` and ``resumed_at``."""

    stopped: str
    curves: dict[str, list[float]]
    stopped_at: int
    resumed_at: int
    went_on: bool

    def late_growth(self, name: str) -> float:
        """How much the largest sample of the second half of the stop exceeds the middle of it."""
        samples = self.curves[name]
        middle = (self.stopped_at + self.resumed_at) // 2
        return max(samples[middle : self.resumed_at + 1]) - samples[middle]


def _sample(settings: Settings, stopped: str) -> _Samples:
    short = 5 if settings.quick else 1
    spans = [max(2, span // short) for span in (BEFORE_S, STOPPED_S, AFTER_S)]
    with Children(settings.work / f"memory-{stopped}") as children:
        tower = children.member("tower")
        address: str = tower.hear()["tower"]
        store = start_store(children, settings, address, f"memory-{stopped}", keep_bytes=KEEP_BYTES)
        consumer = children.member("endless_consumer", tower=address)
        consumer.hear()
        producer = children.member("endless_producer", tower=address)
        producer.hear()
        processes: dict[str, Child] = {"producer": producer, "store": store, "consumer": consumer, "tower": tower}
        curves: dict[str, list[float]] = {name: [] for name in processes}
        cpu_s = 0.0
        due = time.monotonic()
        for span, after in zip(spans, (signal.SIGSTOP, signal.SIGCONT, None), strict=True):
            for _ in range(span):
                for name, child in processes.items():
                    curves[name].append(child.rss_mib())
                due += 1.0
                time.sleep(max(0.0, due - time.monotonic()))
            if after is not None:
                processes[stopped].signal(after)
                cpu_s = processes[stopped].cpu_s()
        ended = [name for name, child in processes.items() if not child.alive()]
        if ended:
            raise ChildFailed(f"the {' and the '.join(ended)} ended while memory was measured")
        went_on = processes[stopped].cpu_s() - cpu_s > WENT_ON_S
    return _Samples(stopped, curves, spans[0], spans[0] + spans[1], went_on)


def _line(samples: _Samples) -> Line:
    growth = {name: samples.late_growth(name) for name in samples.curves}
    peaks = ", ".join(f"{name} {max(curve):.0f}" for name, curve in samples.curves.items())
    ends = {f"{name}_growth_mib": value for name, value in growth.items()}
    return Line(
        f"memory with a stopped {samples.stopped}, the producer at full speed",
        ", ".join(f"{name} {value:+.1f}" for name, value in growth.items()) + " MiB",
        f"no process grows more than {FLAT_MIB:g} MiB in the second half of the stop",
        met=samples.went_on and all(value <= FLAT_MIB for value in growth.values()),
        note=("" if samples.went_on else "IT DID NOT GO ON AFTERWARDS; ")
        + f"stopped for {samples.resumed_at - samples.stopped_at} s; largest MiB: {peaks}",
        numbers={**ends, **{f"{name}_peak_mib": max(curve) for name, curve in samples.curves.items()}},
    )


def memory(settings: Settings) -> list[Line]:
    """Both stops; a full run also draws the curve."""
    found = [_sample(settings, stopped) for stopped in ("consumer", "store")]
    if not settings.quick:
        curves = [Curve(f"{each.stopped} stopped", each.curves, each.stopped_at, each.resumed_at) for each in found]
        CURVE.write_text(draw(curves))
    return [_line(each) for each in found]
