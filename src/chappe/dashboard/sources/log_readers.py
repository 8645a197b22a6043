"""Readers of the log, here and elsewhere, and the labels of members. Reads the files of groups on this machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from chappe.api.identity import IDENTITY
from chappe.errors import StorageFormat
from chappe.log.traffic import TrafficReport
from chappe.observing.snapshot import NAMES_MAX, SHORT, ObservedReader, called, readable
from chappe.reading.offsets import Key, KnownPartition
from chappe.storage.positions import kept_at, load_positions
from chappe.storage.segments.files import file_ops

LABELS_MAX: Final = 20_000  # that are remembered; those told first are forgotten
OF_NODE_MAX: Final = 3  # labels that name a node which carries several members


class Labels:
    """Remembers labels by address, also of members that have left: their records are still there."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()

    def take(self, reports: Mapping[str, TrafficReport]) -> set[str]:
        """Note what nodes told of themselves and of whom they carry; return the addresses that are called anew."""
        changed = set()
        for report in reports.values():
            for address, label in report.names:
                if self._known.get(address) != label:
                    changed.add(address)
                    self.note(address, label)
        return changed

    def note(self, address: str, label: str) -> None:
        """Remember a label under another address, too, such as the id of a store."""
        self._known[address] = label
        if len(self._known) > LABELS_MAX:
            self._known.popitem(last=False)

    def of(self, address: str) -> str:
        return self._known.get(address, "")

    def of_node(self, node: str, carries: Iterable[str]) -> str:
        """Return the label of a node, or those of the members that it carries."""
        if label := self.of(node):
            return label
        found = sorted({label for each in carries if (label := self.of(each))})
        more = len(found) - OF_NODE_MAX
        return ", ".join(found[:OF_NODE_MAX]) + (f" and {more:,} more" if more > 0 else "")

    def shown(self, address: str) -> str:
        return beside(self.of(address), address)


def beside(label: str, address: str) -> str:
    """Return a label with the beginning of an address, or the address alone if there is no label."""
    return called(label, address) if label else readable(address)


class ConsumerCommits(NamedTuple):
    """A consumer of another directory: where it is carried, what to call it, and what it has committed."""

    node: str
    name: str
    positions: Mapping[Key, int]
    left_out: int


def committed_elsewhere(
    reports: Mapping[str, TrafficReport], labels: Labels, kept_here: Callable[[str], bytes]
) -> list[ConsumerCommits]:
    """Return consumers that told how far they have committed, each under a name of its own. ``kept_here``: digest of
    the directory in which we look ourselves for the positions of an identity.
    """
    found: list[ConsumerCommits] = []
    names: set[str] = set()
    for node, report in sorted(reports.items()):
        for each in report.readers:
            if not IDENTITY.fullmatch(each.identity) or each.kept == kept_here(each.identity):
                continue
            name = f"{each.identity} ({labels.of(each.address) or readable(each.address)[:SHORT]})"
            if name in names:
                name = f"{name} {readable(each.address)}"
            if name not in names:
                names.add(name)
                found.append(ConsumerCommits(node, name, each.committed(), each.left_out))
    return found


GROUPS_MAX: Final = 200  # consumers with an identity whose positions are read, the first by name
POSITIONS_BYTES_MAX: Final = 1 << 20
POSITIONS_EVERY: Final = 2  # looks
COMMITS_SHOWN: Final = 20  # consumers of a node whose committed positions are among its facts

Partitions: TypeAlias = Mapping[str, Mapping[str, KnownPartition]]  # by topic


class LogReaders:
    """The readers, as of the last look; those that are read anew at each call are thread-safe. ``groups``: directory of
    the positions of consumers with an identity.
    """

    def __init__(self, groups: Path) -> None:
        self._groups = groups
        self._positions: dict[str, dict[Key, int]] = {}
        self._looks = 0
        self._elsewhere: list[ConsumerCommits] = []

    def take(self, reports: Mapping[str, TrafficReport], labels: Labels) -> None:
        """Take the reports of nodes, and read the files now and then."""
        if self._looks % POSITIONS_EVERY == 0:
            self._positions = self.groups()
        self._looks += 1
        here = self._groups
        self._elsewhere = committed_elsewhere(reports, labels, lambda identity: kept_at(here / identity))[:GROUPS_MAX]

    def groups(self) -> dict[str, dict[Key, int]]:
        """Return committed positions of consumers with an identity on this machine, read anew. Thread-safe."""
        return dict(_positions(self._groups))

    def all(self) -> list[tuple[str, Mapping[Key, int], bool]]:
        """Return groups here and consumers elsewhere with their commits, and True if these are all. Thread-safe."""
        groups = [(f"group {each}", positions, True) for each, positions in sorted(self.groups().items())]
        return [*groups, *((f"consumer {each.name}", each.positions, not each.left_out) for each in self._elsewhere)]

    def lags(self, known: Partitions) -> dict[str, tuple[ObservedReader, ...]]:
        """Return readers of each topic, each with the records between its position and the end."""
        found: dict[str, list[ObservedReader]] = {}
        for group, positions in self._positions.items():
            for topic, (position, lag) in _behind(positions, known).items():
                found.setdefault(topic, []).append(ObservedReader(group, "group", lag, position))
        for each in self._elsewhere:
            for topic, (position, lag) in _behind(each.positions, known).items():
                told = None if each.left_out else position
                found.setdefault(topic, []).append(ObservedReader(each.name, "consumer", lag, told, each.left_out))
        return {topic: tuple(readers) for topic, readers in found.items()}

    def commits(self, node: str, known: Partitions) -> Iterator[tuple[str, str]]:
        """Yield facts of a node: how far the consumers at it have committed that keep their positions elsewhere."""
        told = [each for each in self._elsewhere if each.node == node]
        for each in told[:COMMITS_SHOWN]:
            for topic, (position, lag) in sorted(_behind(each.positions, known).items())[:NAMES_MAX]:
                yield f"{each.name} in {readable(topic)}", f"committed {position:,}, {lag:,} records behind"
        if len(told) > COMMITS_SHOWN:
            yield "", f"and {len(told) - COMMITS_SHOWN:,} more consumers that commit"


def _behind(positions: Mapping[Key, int], known: Partitions) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for (topic, partition), offset in positions.items():
        part = known.get(topic, {}).get(partition)
        if part is not None:
            position, behind = found.get(topic, (0, 0))
            found[topic] = position + offset, behind + max(0, part.next - max(offset, part.first))
    return found


def _positions(directory: Path) -> Iterator[tuple[str, dict[Key, int]]]:
    """Yield committed positions of consumers with an identity; files that cannot be read are skipped."""
    with suppress(OSError):
        for each in sorted(directory.iterdir())[:GROUPS_MAX]:
            file = each / "positions.json"
            with suppress(OSError, StorageFormat):
                if file.stat().st_size <= POSITIONS_BYTES_MAX:
                    yield each.name, load_positions(file_ops(), file)
