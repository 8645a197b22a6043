"""What ``chappe node`` shows: its peers and their rates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chappe.cli.mesh import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from chappe import Endpoint

SMOOTH_S = 2.0  # rates are of about the last seconds
COLUMNS: Final = ("peer", "address", "", "status", "in/s", "out/s", "waiting", "dropped")
ROOM: Final = {"": 88, "peer": 60, "dropped": 50}  # a terminal that is narrower does without the column
WIDE: Final = 80


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer, or what is being dialled, at one moment. Rates are frames a second."""

    id: str | None
    address: str
    dialled: bool
    original: bool
    status: str
    in_per_s: float
    out_per_s: float
    received: int
    sent: int
    waiting: int
    dropped: int

    def facts(self) -> dict[str, Any]:
        """For a machine."""
        return {name: getattr(self, name) for name in self.__slots__}


class Watch:
    """Looks at the peers of an endpoint again and again."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._before: dict[str, tuple[float, int, int, float, float]] = {}  # time, counters, rates

    def look(self) -> list[PeerRow]:
        """How things are now."""
        now = time.monotonic()
        rows = []
        after = {}
        for info in self._endpoint.peers():
            address = shown(info.address)
            key = f"{info.id} {address}"
            counters = (info.received, info.sent)
            rates = self._rates(key, now, counters)
            after[key] = (now, *counters, *rates)
            rows.append(
                PeerRow(
                    info.id,
                    address,
                    info.dialled,
                    info.original,
                    info.status.name.lower(),
                    round(rates[0], 1),
                    round(rates[1], 1),
                    *counters,
                    info.buffered,
                    info.dropped,
                )
            )
        self._before = after
        return rows

    def _rates(self, key: str, now: float, counters: tuple[int, int]) -> tuple[float, float]:
        if key not in self._before:
            return 0.0, 0.0
        then, received, sent, rate_in, rate_out = self._before[key]
        passed = max(now - then, 1e-6)
        weight = min(1.0, passed / SMOOTH_S)
        return (
            rate_in + weight * ((counters[0] - received) / passed - rate_in),
            rate_out + weight * ((counters[1] - sent) / passed - rate_out),
        )


@dataclass(frozen=True, slots=True)
class _Peers:
    """A table of peers with one line for each, of the columns that there is room for."""

    rows: Sequence[PeerRow]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        made = Table(
            box=None, header_style="bold", pad_edge=False, padding=(0, 1 if options.max_width < WIDE else 2, 0, 0)
        )
        left_out = {name for name, room in ROOM.items() if options.max_width < room}
        for name in COLUMNS:
            if name not in left_out:
                right = name in ("in/s", "out/s", "waiting", "dropped")
                made.add_column(name, justify="right" if right else "left", no_wrap=name != "address")
        for row in self.rows:
            cells: dict[str, RenderableType] = {
                "peer": (row.id or "")[:8],
                "address": Text(row.address, no_wrap=True, overflow="ellipsis"),
                "": ("original, " if row.original else "") + ("dialled" if row.dialled else "dialled in"),
                "status": row.status,
                "in/s": f"{row.in_per_s:,.0f}",
                "out/s": f"{row.out_per_s:,.0f}",
                "waiting": f"{row.waiting:,}",
                "dropped": f"{row.dropped:,}",
            }
            made.add_row(*(cell for name, cell in cells.items() if name not in left_out))
        yield made


def table(title: str, rows: Sequence[PeerRow], clients: int | None) -> RenderableType:
    """The picture for a terminal."""
    from rich.console import Group
    from rich.markup import escape

    lines: list[RenderableType] = [escape(title), _Peers(rows) if rows else "no peers yet"]
    if clients is not None:
        lines.append(f"{clients} WebSocket clients")
    return Group(*lines)


def lines(rows: Sequence[PeerRow], clients: int | None) -> Iterator[str]:
    """The same without a terminal."""
    peered = [row for row in rows if row.id is not None]
    rates = f"{_total(row.in_per_s for row in peered)} in/s, {_total(row.out_per_s for row in peered)} out/s"
    waiting = sum(row.waiting for row in rows)
    dropped = sum(row.dropped for row in rows)
    web = "" if clients is None else f", {clients} WebSocket clients"
    yield f"{len(peered)} peers, {rates}, {waiting} waiting, {dropped} dropped{web}"
    for row in rows:
        if row.id is None:
            yield f"no peering with {row.address} yet: {row.status}"


def _total(rates: Iterable[float]) -> str:
    return f"{sum(rates):,.0f}"
