"""``GroupDatabase``: what a store keeps of consumer groups, in SQLite."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from chappe.log.groups.table import KeptGroup
from chappe.log.queries import GroupRow
from chappe.storage.segments.files import FileOps, file_ops, trying
from chappe.storage.small_database import SmallDatabase, Statement

FOLDER = "groups"


class GroupDatabase(SmallDatabase):
    """Below a store's directory, locked by the caller. Raises StorageFormat: a newer chappe's; StorageError."""

    NAME = "groups.sqlite"
    FORMAT = 1
    SCHEMA = """
CREATE TABLE floors (grp TEXT PRIMARY KEY, floor INTEGER);
CREATE TABLE positions (grp TEXT, topic BLOB, part BLOB, epoch INTEGER, owner TEXT, member TEXT, serial INTEGER,
                        free INTEGER, next INTEGER, at_us INTEGER, PRIMARY KEY (grp, topic, part)) WITHOUT ROWID;
"""

    def __init__(self, directory: str | os.PathLike[str], ops: FileOps | None = None) -> None:
        super().__init__(os.path.join(os.path.abspath(directory), FOLDER), ops or file_ops())
        with trying(f"open the groups in {self._folder}", self.close):
            if os.path.isdir(self._folder):
                self.open()

    def kept(self) -> list[KeptGroup]:
        if self._database is None:
            return []
        rows: defaultdict[str, list[GroupRow]] = defaultdict(list)
        for group, topic, part, epoch, owner, member, serial, free, next_, at_us in self._query(
            "SELECT * FROM positions ORDER BY grp, topic, part"
        ):
            rows[group].append(GroupRow(topic, part, epoch, owner, member, serial, bool(free), next_, at_us))
        floors = dict(self._query("SELECT grp, floor FROM floors"))
        return [KeptGroup(group, floors.get(group, 0), tuple(rows[group])) for group in sorted({*floors, *rows})]

    def keep(self, changes: Sequence[KeptGroup]) -> None:
        statements: list[Statement] = []
        for each in changes:
            if each.floor:
                statements += [
                    ("INSERT OR REPLACE INTO floors VALUES (?, ?)", (each.group, each.floor)),
                    ("DELETE FROM positions WHERE grp = ? AND epoch <= ?", (each.group, each.floor)),
                ]
            statements += [
                (
                    "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (each.group, row.topic, row.partition, row.epoch, row.owner, row.member, row.serial, row.free,
                     row.offset, row.at_us),
                )
                for row in each.rows
            ]  # fmt: skip
        self._execute("keep the positions of a group", statements)
