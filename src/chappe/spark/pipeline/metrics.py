"""A pipeline's numbers for Prometheus, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from chappe.errors import AddressInUse, UsageError
from chappe.spark.pipeline.progress import Numbers

if TYPE_CHECKING:
    from chappe.spark.pipeline.running import Running

HOST: Final = "127.0.0.1"
# Name, meaning, and the number of it; all with the labels pipeline and query.
GAUGES: Final = (
    ("rows_in_per_second", "Rows a second that arrived before the newest batch", "rows_in_s"),
    ("rows_processed_per_second", "Rows a second that the newest batch processed", "rows_processed_s"),
    ("batch_seconds", "Duration of the newest batch", "batch_s"),
    ("batch", "Number of the newest batch", "batch"),
    ("state_rows", "Rows in the state of the query", "state_rows"),
    ("state_bytes", "Memory that the state takes, as Spark estimates it", "state_bytes"),
)
COUNTERS: Final = (
    ("rows", "Rows processed since the pipeline was started", "rows"),
    ("batches", "Batches done since the pipeline was started", "batches"),
    ("late_rows", "Rows left out because they came after the watermark", "late_rows"),
)


class Metrics:
    """Serves ``/metrics`` until closed; ``address`` is where, also if port 0 was asked for.

    Raises:
        UsageError: prometheus-client is not installed.
        AddressInUse: Nothing can listen there.
    """

    def __init__(self, pipeline: str, running: Running, host: str, port: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise UsageError("--metrics needs prometheus-client; run: pip install 'chappe[spark]'") from error
        registry = CollectorRegistry()
        registry.register(_Collector(pipeline, running))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise AddressInUse(f"cannot listen on {host}:{port} for --metrics: {error}") from error
        self.address = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    def __init__(self, pipeline: str, running: Running) -> None:
        self._pipeline = pipeline
        self._running = running

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        up = GaugeMetricFamily("chappe_pipeline_up", "1 while the queries run", labels=["pipeline"])
        up.add_metric([self._pipeline], float(self._running.stage == "running"))
        yield up
        numbers = self._running.numbers
        for names, family in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, meaning, field in names:
                metric = family(f"chappe_pipeline_{name}", meaning, labels=["pipeline", "query"])
                for each in numbers:
                    metric.add_metric([self._pipeline, each.query], float(getattr(each, field)))
                yield metric
        yield from self._lag(numbers)

    def _lag(self, numbers: list[Numbers]) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        labels = ["pipeline", "query", "topic"]
        records = GaugeMetricFamily("chappe_pipeline_lag_records", "Records not read yet", labels=labels)
        seconds = GaugeMetricFamily("chappe_pipeline_lag_seconds", "How old the read end is", labels=labels)
        for each in numbers:
            for lag in each.lag:
                records.add_metric([self._pipeline, each.query, lag.topic], lag.records)
                if lag.seconds is not None:
                    seconds.add_metric([self._pipeline, each.query, lag.topic], lag.seconds)
        yield records
        yield seconds


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``9464``, ``:9464`` or ``0.0.0.0:9464``; loopback if no host is given. Raises UsageError."""
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise UsageError(f"--metrics is HOST:PORT or PORT, not {text!r}")
    return host.strip("[]") or HOST, int(port)
