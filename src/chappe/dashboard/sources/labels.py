"""Names of members of the log, and positions of consumers that keep them elsewhere, as nodes told. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from chappe.api.identity import IDENTITY
from chappe.log.traffic import TrafficReport
from chappe.observing.snapshot import readable
from chappe.reading.offsets import Key

LABELS_MAX: Final = 20_000  # that are remembered; those told first are forgotten
SHORT: Final = 8  # characters of an address beside a label
OF_NODE_MAX: Final = 3  # labels that name a node which carries several members


class Labels:
    """Remembers labels by address, also of members that have left: their records are still there."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()

    def take(self, reports: Mapping[str, TrafficReport]) -> set[str]:
        """Note what nodes told of themselves and of whom they carry; return the addresses that are called anew."""
        changed = set()
        for node, report in reports.items():
            own = {node, *report.carries}
            for address, label in report.names:
                if address in own and self._known.get(address) != label:
                    changed.add(address)
                    self.note(address, label)
        return changed

    def note(self, address: str, label: str) -> None:
        """Remember a label under another address, too, such as the id of a store."""
        self._known[address] = label
        if len(self._known) > LABELS_MAX:
            self._known.popitem(last=False)

    def of(self, address: str) -> str:
        """Return the label of a member, or an empty text."""
        return self._known.get(address, "")

    def of_node(self, node: str, carries: Iterable[str]) -> str:
        """Return the label of a node, or those of the members that it carries."""
        if label := self.of(node):
            return label
        found = sorted({label for each in carries if (label := self.of(each))})
        more = len(found) - OF_NODE_MAX
        return ", ".join(found[:OF_NODE_MAX]) + (f" and {more:,} more" if more > 0 else "")

    def shown(self, address: str) -> str:
        """Return a member's label with the beginning of its address, or the address alone."""
        return beside(self.of(address), address)


def beside(label: str, address: str) -> str:
    """Return a label with the beginning of an address, or the address alone if there is no label."""
    return f"{label} ({readable(address)[:SHORT]})" if label else readable(address)


class ConsumerCommits(NamedTuple):
    """A consumer of another directory: where it is carried, what to call it, and what it has committed."""

    node: str
    name: str
    positions: Mapping[Key, int]
    left_out: int


def committed_elsewhere(
    reports: Mapping[str, TrafficReport], labels: Labels, kept_here: Callable[[str], bytes]
) -> list[ConsumerCommits]:
    """Consumers that told how far they have committed, each under a name of its own.

    Args:
        kept_here: Digest of the directory in which we look ourselves for the positions of an identity.
    """
    found: list[ConsumerCommits] = []
    names: set[str] = set()
    for node, report in sorted(reports.items()):
        for each in report.readers:
            if not IDENTITY.fullmatch(each.identity) or each.address not in report.carries:
                continue
            if each.kept == kept_here(each.identity):
                continue
            name = f"{each.identity} ({labels.of(each.address) or readable(each.address)[:SHORT]})"
            if name in names:
                name = f"{name} {readable(each.address)}"
            if name not in names:
                names.add(name)
                found.append(ConsumerCommits(node, name, each.committed(), each.left_out))
    return found
