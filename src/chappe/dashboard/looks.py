"""Everything that pages look at, as one value."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from chappe.api.mesh.endpoint import Endpoint
from chappe.dashboard.changes import DashboardChanges
from chappe.dashboard.entries import Entries
from chappe.dashboard.leases import Leases
from chappe.dashboard.records import Found, RecordQuery, find
from chappe.dashboard.sources.log import LogSource
from chappe.dashboard.watching import SourceRunner
from chappe.errors import ChappeError
from chappe.security import LogSecurity

READS_AT_ONCE: Final = 4  # concurrent reads of records; further viewers wait


@dataclass
class Looks:
    """The sources, entries and changes that pages of a dashboard use.

    Args:
        watching: Snapshots.
        log: Where topics are, None without a log.
        endpoint: Of the mesh, None without one.
        entries: What is in data stores and maps.
        leases: What is open for viewers.
        security: Who we are to stores.
        changes: What may be changed; None if nothing may.
    """

    watching: SourceRunner
    log: LogSource | None
    endpoint: Endpoint | None
    entries: Entries
    leases: Leases
    security: LogSecurity = None
    changes: DashboardChanges | None = None
    _reads: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(READS_AT_ONCE))

    def find(self, topic: str, wanted: RecordQuery) -> Found:
        """Return records of a topic, by its name for people. Raises as ``records.find``; ChappeError if it is gone."""
        name, held = self.log.held(topic) if self.log is not None else (topic, {})
        if not held:
            raise ChappeError("No store has this topic just now.")
        with self._reads:
            return find(name, held, wanted, self.security)
