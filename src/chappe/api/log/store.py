"""A store in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from chappe.api import at_exit
from chappe.api.faces import Closeable, happened, weakly
from chappe.api.identity import log_event, new_address
from chappe.defaults import DELETIONS_KEPT_S
from chappe.errors import UsageError
from chappe.log.events import WritesRefused, WritesResumed
from chappe.log.ordered.keeping import Keeping
from chappe.log.sources import Key
from chappe.log.storage import Hole, Retention
from chappe.permissions.rules import STORE
from chappe.runtime.meeting import AtTowers, Meeting
from chappe.runtime.store_ports import StorePorts
from chappe.security import LogSecurity
from chappe.storage.catalogue_database import CatalogueDatabase
from chappe.storage.group_database import GroupDatabase
from chappe.storage.segments import SegmentStorage
from chappe.storage.staged_files import StagedFiles
from chappe.system import program, settings, time
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.addresses import TowerAddress
from chappe.transports.gate import check_listening, gate_of, keys_of

EVENTS_MAX = 1_000
ROWS_AT_ONCE: Final = 200  # of a group, looked at while the store waits


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The numbers of a store since it was opened; sizes in bytes."""

    store_id: str
    endpoint: str
    peers: int
    tower: bool
    topics: int
    written_records: int
    written_bytes: int
    duplicates: int
    malformed: int
    refusing: bool
    holes: tuple[Hole, ...]
    scrubbed_us: int  # when everything kept was last read and checked, since 1970; 0 if it never was
    catching_up: int  # partitions of which it asks others for records that it missed
    refusing_why: str  # why the disk refuses; empty if it does not
    refused: int = 0  # connections without keys that the permissions know, and what others wanted and may not
    refusals: Mapping[str, int] = field(default_factory=dict)  # of these, by the identity that wanted it
    serves: bool = True  # False while it waits for other stores to tell what was deleted while it was away


class KeptTopic(NamedTuple):
    """The size of a topic in one store; ``newest_us`` is the largest timestamp, microseconds since 1970, 0 for none."""

    topic: str
    partitions: int
    records: int
    bytes: int
    newest_us: int


class GroupLag(NamedTuple):
    """The lag of a consumer group in one topic, as one store knows it.

    ``seconds`` is how much younger the newest record is than the next one to read, in the partition that is furthest
    behind; exact to a batch on disk.
    """

    group: str
    topic: str
    members: int
    records: int
    seconds: float


class Store(at_exit.Collectable, Closeable):
    """Keeps every record that it hears of in ``directory``, and acknowledges records that are on disk.

    Args:
        directory: Made if missing; one store at a time.
        tower: ``HOST[:PORT]``, several separated by commas; defaults to the settings, as in ``Consumer``.
        listen: Host to listen on; ``*`` for all interfaces. Defaults to the settings.
        retention: Pairs of a topic or ``prefix*`` and its ``Retention``; the first that matches counts. A topic whose
            retention an ``Admin`` has set is kept by that instead.
        keep_deletions: Seconds for which this store remembers that topics were deleted or trimmed, 30 days by default:
            so long another store may be away, and nothing deleted returns when it comes back. Give all stores the same.
        name, security: Like those of ``Tower``.

    Raises:
        StorageLocked: Another process uses the directory.
        StorageFormat: The directory was written by a newer chappe.
        StorageError: The directory cannot be used.
        NotPermitted: The permissions do not let this identity store anything.
        UsageError: An argument is wrong, or listening beyond this machine requires ``security``.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        tower: str | None = None,
        listen: str | None = None,
        retention: Sequence[tuple[str, Retention]] = (),
        keep_deletions: float = DELETIONS_KEPT_S,
        name: str | None = None,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        self._name = program.label(name)
        tower, listen = settings.tower(tower), settings.listen(listen)
        check_listening(security, listen, "store")
        gate = gate_of(keys_of(security))
        self._open(directory, AtTowers(TowerAddress.parse_many(tower), listen, gate), retention, keep_deletions)

    _keeping: Keeping | None = None  # what a chain has for it
    _name: str

    def _open(
        self,
        directory: str | Path,
        meeting: Meeting,
        retention: Sequence[tuple[str, Retention]],
        keep_deletions: float,
        *,
        forwards: bool = False,
    ) -> None:
        if not keep_deletions > 0:
            raise UsageError(f"keep_deletions is a positive number of seconds, not {keep_deletions}")
        need_descriptors()
        self._gate = meeting.gate
        if self._gate is not None:
            self._gate.require_somewhere(STORE)
        self._directory = str(directory)
        self._storage = SegmentStorage(Path(directory))
        self._events: deque[object] = deque(maxlen=EVENTS_MAX)
        self._refused = ""  # why the disk refuses
        with ExitStack() as undone:
            undone.callback(self._storage.close)
            staged = StagedFiles(directory)
            undone.callback(staged.close)
            groups = GroupDatabase(directory)
            undone.callback(groups.close)
            catalogue = CatalogueDatabase(directory)
            undone.callback(catalogue.close)
            self._node = StorePorts(
                new_address(),
                self._storage,
                staged,
                groups,
                catalogue,
                meeting,
                name=self._name,
                forwards=forwards,
                keeping=self._keeping,
                retention=retention,
                deletions_s=keep_deletions,
                on_report=weakly(self._report),
            )
            undone.pop_all()
        self._node.start()
        at_exit.opened(self)

    def _report(self, event: object) -> None:
        log_event(event)
        if isinstance(event, (WritesRefused, WritesResumed)):
            self._refused = event.reason if isinstance(event, WritesRefused) else ""
        self._events.append(event)

    @property
    def name(self) -> str:
        """Its name for people, in lists and pictures."""
        return self._name

    @property
    def directory(self) -> str:
        """Where it keeps its records."""
        return self._directory

    @property
    def store_id(self) -> str:
        """The lasting id of the directory; acknowledgements carry it."""
        return self._storage.store_id

    @property
    def endpoint(self) -> str:
        """The address of its query socket, to which Spark and other readers connect."""
        return self._node.store.endpoint

    def events(self) -> list[object]:
        """Return the events since the last call: damage, refused writes and the like (``chappe.log.events``).

        Raises MemberStopped if there are none, because of a defect.
        """
        return happened(self._events, self._node.driver.turns.check)

    def wait(self, timeout: float | None = None) -> None:
        """Wait while it runs, or ``timeout`` seconds; Ctrl-C ends the wait. Raises MemberStopped: a defect ended it."""
        self._node.driver.halt_event.wait(timeout)
        self._node.driver.turns.check()

    def status(self) -> StoreStatus:
        """Return numbers for people and monitors. Raises MemberStopped after a defect."""
        self._node.driver.turns.check()
        driver, node, core = self._node.driver, self._node, self._node.store
        with driver.lock:
            return StoreStatus(
                self.store_id,
                self.endpoint,
                node.discovery.peers,
                node.discovery.tower,
                len(self._storage.topics()),
                core.written_records,
                core.written_bytes,
                core.duplicates,
                driver.malformed,
                core.refusing,
                tuple(self._storage.holes()),
                self._storage.scrubbed_us,
                core.catching_up,
                self._refused if core.refusing else "",
                0 if self._gate is None else self._gate.refused,
                {} if self._gate is None else self._gate.refusals.by_identity(),
                core.serves,
            )

    def topics(self) -> list[KeptTopic]:
        """Return the sizes of all topics that it keeps. Raises MemberStopped after a defect.

        Costs time in proportion to partitions; writes go on in between.
        """
        self._node.driver.turns.check()
        with self._node.driver.lock:
            names = self._storage.topics()
        found: list[KeptTopic] = []
        for name in names:
            with self._node.driver.lock:
                found.append(KeptTopic(name, *self._storage.kept(name)))
        return found

    def groups(self) -> list[GroupLag]:
        """Return how far each consumer group is behind in each of its topics. Raises MemberStopped after a defect.

        Costs time in proportion to partitions of groups; writes go on in between.
        """
        self._node.driver.turns.check()
        lock, store = self._node.driver.lock, self._node.store
        with lock:
            told = [(group, members, list(rows)) for group, members, rows in store.groups.told(time.monotonic())]
        found: dict[tuple[str, str], GroupLag] = {}
        for group, members, rows in told:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                with lock:
                    for row in rows[start : start + ROWS_AT_ONCE]:
                        topic = row.key[0]
                        known = found.get((group, topic), GroupLag(group, topic, members, 0, 0.0))
                        records, seconds = self._behind(row.key, row.offset)
                        found[group, topic] = known._replace(
                            records=known.records + records, seconds=max(known.seconds, seconds)
                        )
        return list(found.values())

    def _behind(self, key: Key, offset: int) -> tuple[int, float]:
        info = self._storage.partition(*key)
        at = offset if info is None else max(offset, info.first)
        if info is None or at >= info.next:
            return 0, 0.0
        stamp = self._storage.time_of(*key, at)
        return info.next - at, 0.0 if stamp is None else max(0.0, (info.timestamp_max - stamp) / 1e6)

    def sinks(self) -> dict[str, int]:
        """Return the last committed batch of each exactly-once sink whose home this store is; -1 for none."""
        self._node.driver.turns.check()
        with self._node.driver.lock:
            return self._node.store.transactions.batches()

    def close(self) -> None:
        """Finish the write under way and release the directory."""
        at_exit.closed(self)
        self._node.driver.close()

    def __repr__(self) -> str:
        state = "closed" if self._node.driver.turns.closed else self.endpoint
        return f"<{type(self).__name__} {self.store_id} in {self._directory}, {state}>"
