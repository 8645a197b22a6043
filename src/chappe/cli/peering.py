"""The peers of an endpoint, as commands of the mesh show them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from chappe.cli import mesh
from chappe.cli.serving import STEP_S, Display
from chappe.data.markup import many
from chappe.observing.lines import RATE_POINTS_MAX, TimeSeries

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe import Endpoint

PEERS_MAX: Final = 20_000  # counters of peers that are remembered
COLUMNS: Final = ("peer", "address", "", "status", "in/s", "out/s", "waiting", "dropped")


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer, or an address that is dialled, at one moment. Rates are frames a second."""

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


class PeerRates:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._counters = TimeSeries(PEERS_MAX, RATE_POINTS_MAX)

    def look(self) -> list[PeerRow]:
        now = time.monotonic()
        rows = []
        for info in self._endpoint.peers():
            address = mesh.shown(info.address)
            rates = [
                round(self._counters.rise((info.id, address, way), count, now), 1)
                for way, count in (("in", info.received), ("out", info.sent))
            ]
            place = (info.id, address, info.dialled, info.original, info.status.name.lower())
            rows.append(PeerRow(*place, rates[0], rates[1], info.received, info.sent, info.buffered, info.dropped))
        return rows


class PeersDisplay(Display):
    """Shows the peers of an endpoint, and in ``more`` what its command adds."""

    def __init__(self, endpoint: Endpoint, statuses: Any, title: str, as_json: bool) -> None:
        super().__init__(title, as_json)
        self._statuses = statuses
        self._notices = mesh.PeerNotices(come_and_go=True, quiet=as_json)
        self._peers = PeerRates(endpoint)

    def more(self) -> tuple[str, dict[str, Any]]:
        """Return a note for people, and further facts for a machine."""
        return "", {}

    def tell(self, event: Any) -> None:
        self._notices(event)

    def tell_all(self) -> None:
        for event in self._statuses.poll():
            self.tell(event)

    def look(self) -> None:
        """Raise Closed if the endpoint halts."""
        time.sleep(STEP_S)  # waiting for an event would make this thread drive, in the way of the web's event loop
        self.tell_all()
        self._rows = self._peers.look()
        self._note, self._facts = self.more()

    def picture(self) -> RenderableType:
        return table(self.title, self._rows, self._note)

    def lines(self) -> Iterator[str]:
        return lines(self._rows, self._note)

    def report(self) -> dict[str, Any]:
        return {**self._facts, "peers": [asdict(row) for row in self._rows]}


def table(title: str, rows: Sequence[PeerRow], note: str = "") -> RenderableType:
    from chappe.cli.screen import Fitting, titled

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
    return titled(title, made if rows else "no peers yet", *([note] if note else []))


def lines(rows: Sequence[PeerRow], note: str = "") -> Iterator[str]:
    peered = [row for row in rows if row.id is not None]
    rates = f"{sum(row.in_per_s for row in peered):,.0f} in/s, {sum(row.out_per_s for row in peered):,.0f} out/s"
    waiting = sum(row.waiting for row in rows)
    dropped = sum(row.dropped for row in rows)
    yield f"{many(len(peered), 'peer')}, {rates}, {waiting} waiting, {dropped} dropped{', ' if note else ''}{note}"
    for row in rows:
        if row.id is None:
            yield f"no peering with {row.address} yet: {row.status}"
