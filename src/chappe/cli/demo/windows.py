"""The windows that the query computed: the newest in memory, all of them as Parquet.

One file holds the rows of one window, named after its beginning, and is replaced as a whole whenever the query
has newer numbers for that window. The query hands over totals, not differences, so handing the same ones
over again after a crash changes nothing: every window is counted exactly once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from chappe.system.disk import sync_file

WINDOW_S: Final = 5
OPEN_WINDOWS_MAX: Final = 64  # kept in memory; an older one is read back from its file
HISTORY: Final = 24  # averages kept for each metric, for the small curve
METRICS_MAX: Final = 10_000  # rows of one window; further metrics are counted, not kept


class Row(NamedTuple):
    """One metric in one window; times are UTC."""

    window_start: datetime
    window_end: datetime
    metric: str
    records: int
    total: float
    average: float
    minimum: float
    maximum: float


@dataclass(slots=True)
class Windows:
    """All windows in a directory. Used by one thread; ``newest`` and ``history`` may be read by another."""

    directory: Path
    newest: dict[str, Row] = field(default_factory=dict)
    history: dict[str, deque[tuple[datetime, float]]] = field(default_factory=dict)
    records: int = 0
    updates: int = 0  # newer numbers of a metric in a window
    left_out: int = 0
    _open: OrderedDict[datetime, dict[str, Row]] = field(default_factory=OrderedDict)

    def merge(self, rows: Iterable[Row]) -> None:
        """Take over newer numbers of some metrics in some windows, and write these windows to disk."""
        self.directory.mkdir(parents=True, exist_ok=True)
        changed: set[datetime] = set()
        for row in sorted(rows):
            window = self._window(row.window_start)
            if row.metric not in window and len(window) >= METRICS_MAX:
                self.left_out += 1
                continue
            self.records += row.records - (window[row.metric].records if row.metric in window else 0)
            self.updates += 1
            window[row.metric] = row
            changed.add(row.window_start)
            self._remember(row)
        for start in sorted(changed):
            self._write(start)
        while len(self._open) > OPEN_WINDOWS_MAX:
            self._open.popitem(last=False)

    def path(self, start: datetime) -> Path:
        """The file of the window that begins at ``start``."""
        return self.directory / f"{start.astimezone(UTC):%Y-%m-%dT%H-%M-%SZ}.parquet"

    def _window(self, start: datetime) -> dict[str, Row]:
        if start not in self._open:
            self._open[start] = self._read(start)
        self._open.move_to_end(start)
        return self._open[start]

    def _read(self, start: datetime) -> dict[str, Row]:
        import pyarrow.parquet as parquet

        path = self.path(start)
        if not path.exists():
            return {}
        found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return {each["metric"]: Row(**each) for each in found}

    def _write(self, start: datetime) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        moment = pyarrow.timestamp("us", "UTC")
        types = (moment, moment, pyarrow.string(), pyarrow.int64(), *[pyarrow.float64()] * 4)
        schema = pyarrow.schema(list(zip(Row._fields, types, strict=True)))
        table = pyarrow.Table.from_pylist([row._asdict() for row in self._open[start].values()], schema)
        path = self.path(start)
        half = path.with_name(f".{path.name}.tmp")  # readers of a directory pass over names with a dot
        with half.open("wb") as file:
            parquet.write_table(table, file)
            file.flush()
            sync_file(file.fileno())
        half.replace(path)

    def _remember(self, row: Row) -> None:
        if row.metric not in self.newest and len(self.newest) >= METRICS_MAX:
            return
        if row.metric not in self.newest or self.newest[row.metric].window_start <= row.window_start:
            self.newest[row.metric] = row
        averages = self.history.setdefault(row.metric, deque(maxlen=HISTORY))
        if averages and averages[-1][0] == row.window_start:
            averages.pop()
        if not averages or averages[-1][0] < row.window_start:
            averages.append((row.window_start, row.average))
