"""What ``chappe node`` shows: its peers and their rates."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from chappe.cli.mesh import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe import Endpoint

STEP_S: Final = 0.5
REPORT_S: Final = 5.0  # between two lines of JSON
SMOOTH_S: Final = 2.0  # rates are of about the last seconds
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
            rate_in, rate_out = (round(each, 1) for each in rates)
            place = (info.id, address, info.dialled, info.original, info.status.name.lower())
            rows.append(PeerRow(*place, rate_in, rate_out, *counters, info.buffered, info.dropped))
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


def follow(
    endpoint: Endpoint,
    statuses: Any,
    teller: Callable[[Any], None],
    title: str,
    as_json: bool,
    more: Callable[[], tuple[str, dict[str, Any]]],
) -> None:
    """Show peers until Ctrl-C or SIGTERM, and what there is more, for people and for a machine; tell events.

    Raises Closed if the endpoint halts.
    """
    from rich.console import Console

    from chappe.cli.screen import Screen

    watch = Watch(endpoint)
    report_at = time.monotonic() + REPORT_S
    with Screen(Console(stderr=True), quiet=as_json) as screen:
        while True:
            time.sleep(STEP_S)  # waiting for an event would make this thread drive, in the way of the web's event loop
            for event in statuses.poll():
                teller(event)
            rows = watch.look()
            note, facts = more()
            screen.show(partial(table, title, rows, note), partial(lines, rows, note))
            if as_json and time.monotonic() >= report_at:
                report_at += REPORT_S
                print(json.dumps({**facts, "peers": [row.facts() for row in rows]}), flush=True)


def table(title: str, rows: Sequence[PeerRow], note: str = "") -> RenderableType:
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
    return Group(escape(title), made if rows else "no peers yet", *([note] if note else []))


def lines(rows: Sequence[PeerRow], note: str = "") -> Iterator[str]:
    """The same without a terminal."""
    peered = [row for row in rows if row.id is not None]
    rates = f"{_total(row.in_per_s for row in peered)} in/s, {_total(row.out_per_s for row in peered)} out/s"
    waiting = sum(row.waiting for row in rows)
    dropped = sum(row.dropped for row in rows)
    yield f"{len(peered)} peers, {rates}, {waiting} waiting, {dropped} dropped{', ' if note else ''}{note}"
    for row in rows:
        if row.id is None:
            yield f"no peering with {row.address} yet: {row.status}"


def _total(rates: Iterable[float]) -> str:
    return f"{sum(rates):,.0f}"
