"""Numbers of the snapshot contract, as prometheus-client collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from chappe.observing.numbers import Family


class NumbersCollector:
    """A collector for a registry; ``now`` makes the numbers anew each time."""

    def __init__(self, now: Callable[[], Iterable[Family]]) -> None:
        self._now = now

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the metrics of this moment."""
        for each in self._now():
            kind = GaugeMetricFamily if each.kind == "gauge" else CounterMetricFamily
            made = kind(each.name, each.meaning, labels=each.labels)
            for labels, value in each.samples:
                made.add_metric(labels, value)
            yield made
