"""This machine's measurements, as JSON records: one for each metric and moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from chappe.errors import UsageError

INTERVAL_S: Final = 0.2


class Measurement(msgspec.Struct, frozen=True):
    """One value of one metric."""

    metric: str
    value: float
    unit: str


class Machine:
    """Measures processors, memory, disk and network; rates are since the measurement before."""

    def __init__(self) -> None:
        try:
            import psutil  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise UsageError("the demo measures this machine with psutil; run: pip install 'chappe[demo]'") from error
        self._psutil: Any = psutil
        self._counters: dict[str, tuple[float, float]] = {}
        psutil.cpu_percent(percpu=True)  # the first answer only starts the measurement

    def measure(self) -> list[tuple[str, float, str, bytes]]:
        """Name, value, unit and the JSON of all that, for every metric of this machine."""
        return [(each.metric, each.value, each.unit, msgspec.json.encode(each)) for each in self._all()]

    def _all(self) -> Iterator[Measurement]:
        for number, percent in enumerate(self._psutil.cpu_percent(percpu=True)):
            yield Measurement(f"cpu.{number}", percent, "%")
        memory = self._psutil.virtual_memory()
        yield Measurement("memory.used", memory.percent, "%")
        yield Measurement("memory.available", memory.available / 2**20, "MiB")
        yield Measurement("processes", float(len(self._psutil.pids())), "")
        disk = _have(self._psutil.disk_io_counters)
        if disk is not None:
            yield self._rate("disk.read", disk.read_bytes)
            yield self._rate("disk.written", disk.write_bytes)
        network = _have(self._psutil.net_io_counters)
        if network is not None:
            yield self._rate("network.received", network.bytes_recv)
            yield self._rate("network.sent", network.bytes_sent)

    def _rate(self, metric: str, count: float) -> Measurement:
        now = time.monotonic()
        before, at = self._counters.get(metric, (count, now))
        self._counters[metric] = (count, now)
        rate = max(0.0, count - before) / (now - at) if now > at else 0.0  # a counter may have been reset
        return Measurement(metric, rate / 1024, "KiB/s")


def _have(counters: Callable[[], Any]) -> Any:
    """Counters that a container may not have."""
    try:
        return counters()
    except (OSError, RuntimeError):
        return None
