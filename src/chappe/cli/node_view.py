"""What ``chappe node`` shows: its peers and their rates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chappe.cli.mesh import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe import Endpoint

SMOOTH_S = 2.0  # rates are of about the last seconds
COLUMNS: Final = ("peer", "address", "", "status", "in/s", "out/s", "waiting", "dropped")


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


def table(title: str, rows: Sequence[PeerRow], clients: int | None) -> RenderableType:
    """The picture for a terminal."""
    from rich.console import Group
    from rich.markup import escape

    from chappe.cli.fitting import Fitting

    cells = [
        (
            (row.id or "")[:8],
            row.address,
            ("original, " if row.original else "") + ("dialled" if row.dialled else "dialled in"),
            row.status,
            f"{row.in_per_s:,.0f}",
            f"{row.out_per_s:,.0f}",
            f"{row.waiting:,}",
            f"{row.dropped:,}",
        )
        for row in rows
    ]
    made = Fitting(COLUMNS, cells, left=COLUMNS[:4], spare=("", "peer", "dropped", "waiting", "out/s"))
    lines: list[RenderableType] = [escape(title), made if rows else "no peers yet"]
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
