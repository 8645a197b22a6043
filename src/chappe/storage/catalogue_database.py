"""``CatalogueDatabase``: what a store keeps of the catalogue of topics, in SQLite."""

from __future__ import annotations

import os

import msgspec

from chappe.errors import StorageError
from chappe.log.catalogue import CatalogueJob, KeptCatalogue, says_nothing
from chappe.log.queries import TopicEntry
from chappe.storage.segments.files import FileOps, file_ops, trying
from chappe.storage.small_database import SmallDatabase, Statement

FOLDER = "catalogue"


class CatalogueDatabase(SmallDatabase):
    """Below a store's directory, locked by the caller. Raises StorageFormat: a newer chappe's; StorageError."""

    NAME = "catalogue.sqlite"
    FORMAT = 1
    SCHEMA = """
CREATE TABLE topics (topic BLOB PRIMARY KEY, entry BLOB) WITHOUT ROWID;
CREATE TABLE seen (store TEXT PRIMARY KEY, at_us INTEGER) WITHOUT ROWID;
"""

    def __init__(self, directory: str | os.PathLike[str], ops: FileOps | None = None) -> None:
        super().__init__(os.path.join(os.path.abspath(directory), FOLDER), ops or file_ops())
        with trying(f"open the catalogue in {self._folder}", self.close):
            if os.path.isdir(self._folder):
                self.open()

    def kept(self) -> KeptCatalogue:
        if self._database is None:
            return KeptCatalogue()
        try:
            entries = tuple(
                msgspec.msgpack.decode(raw, type=TopicEntry)
                for (raw,) in self._query("SELECT entry FROM topics ORDER BY topic")
            )
        except msgspec.DecodeError as error:
            path = os.path.join(self._folder, self.NAME)
            raise StorageError(
                f"the catalogue in {path} is damaged ({error}): move the file away, and the store takes the catalogue "
                "of another one"
            ) from error
        return KeptCatalogue(entries, dict(self._query("SELECT store, at_us FROM seen")))

    def keep(self, job: CatalogueJob) -> None:
        statements: list[Statement] = []
        for entry in job.entries:
            if says_nothing(entry):
                statements.append(("DELETE FROM topics WHERE topic = ?", (entry.topic,)))
            else:
                raw = msgspec.msgpack.encode(entry)
                statements.append(("INSERT OR REPLACE INTO topics VALUES (?, ?)", (entry.topic, raw)))
        for store_id, at_us in job.seen:
            if at_us:
                statements.append(("INSERT OR REPLACE INTO seen VALUES (?, ?)", (store_id, at_us)))
            else:
                statements.append(("DELETE FROM seen WHERE store = ?", (store_id,)))
        self._execute("keep the catalogue of topics", statements)
