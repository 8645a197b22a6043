"""Traffic between nodes of the log, put together from the report of each. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Final, NamedTuple

from chappe.log.traffic import TrafficReport
from chappe.observing.snapshot import ObservedLink

FURTHER_MAX: Final = 2_000  # links beside those between stores and all others: those over which most goes

Ends = tuple[str, str]


class NodeIds(NamedTuple):
    """A node of the log; of a store also under which id it speaks, and where it is asked."""

    address: str
    store_id: str = ""
    queries: str = ""


class _Flow(NamedTuple):
    frames: int = 0
    bytes: int = 0


class Passing:
    """The traffic of one look.

    Args:
        nodes: Everybody who is there.
        reports: What nodes told, by their addresses.
        every_s: How often each is asked.
        encrypted: Whether there are keys.
    """

    def __init__(
        self,
        nodes: Sequence[NodeIds],
        reports: Mapping[str, TrafficReport],
        *,
        every_s: float = 0.0,
        encrypted: bool = False,
    ) -> None:
        self._reports = reports
        self._every_s = every_s
        self._encrypted = encrypted
        self._flows: dict[Ends, _Flow] = {}
        there = {each.address for each in nodes}
        owners = {each.address: each.address for each in nodes}
        owners |= {each.store_id: each.address for each in nodes if each.store_id}
        for address, report in reports.items():
            owners |= dict.fromkeys(report.carries, address)
        stores = {each.queries: each.address for each in nodes if each.queries}
        for address, report in reports.items():
            if address not in there:
                continue
            for sender, frames, size in report.came:
                self._add(owners.get(sender), address, frames, size)
            for endpoint, frames, size, asked in report.answered:
                self._add(stores.get(endpoint), address, frames, size)
                self._add(address, stores.get(endpoint), asked, 0)
        self._full = {address for address, report in reports.items() if report.full}
        self._stopped = {one for one, other in self._flows if other in self._full}  # who sends to somebody who is full

    def link(self, ends: Ends) -> ObservedLink:
        one, other = ends
        there, back = self._way(one, other), self._way(other, one)
        return ObservedLink(
            ends,
            "records",
            sent=None if there is None else there.frames,
            received=None if back is None else back.frames,
            sent_bytes=None if there is None else there.bytes,
            received_bytes=None if back is None else back.bytes,
            waiting=self._waiting(one, other),
            waiting_back=self._waiting(other, one),
            tls=self._encrypted,
            every_s=self._every_s,
            note="protocol of chappe" if one in self._reports and other in self._reports else "",
        )

    def told(self, address: str) -> bool:
        return address in self._reports

    def further(self, known: Iterable[Ends], without: Collection[str] = ()) -> Iterator[ObservedLink]:
        """Yield links over which something went, that are not among the known ones: at most ``FURTHER_MAX``.
        ``without``: who only looks, as we do: questions and answers are no links to be shown.
        """
        seen = {frozenset(each) for each in known}
        found: dict[frozenset[str], tuple[int, Ends]] = {}
        for ends, flow in self._flows.items():
            pair = frozenset(ends)
            if pair not in seen and pair.isdisjoint(without):
                size, first = found.get(pair, (-1, ends))
                found[pair] = (flow.bytes, ends) if flow.bytes > size else (size, first)
        for _, ends in sorted(nlargest(FURTHER_MAX, found.values()), key=lambda each: each[1]):
            yield self.link(ends)

    def _add(self, one: str | None, other: str | None, frames: int, size: int) -> None:
        if one is not None and other is not None and one != other:
            known = self._flows.get((one, other), _Flow())
            self._flows[one, other] = _Flow(known.frames + frames, known.bytes + size)

    def _way(self, one: str, other: str) -> _Flow | None:
        return self._flows.get((one, other), _Flow() if other in self._reports else None)

    def _waiting(self, one: str, other: str) -> int:
        """Return the number of messages held back at one for the other: all if it takes nothing, or nobody says so."""
        report = self._reports.get(one)
        if report is None or (one in self._stopped and other not in self._full):
            return 0
        return report.waiting if (one, other) in self._flows else 0
