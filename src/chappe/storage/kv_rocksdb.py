"""A store's entries in a RocksDB folder, through the package ``rocksdict`` (the extra ``rocksdb``).

Keys have a first byte: ``e`` and the binary form of the key for an entry, whose value is ``u8`` 0, or 1 and ``i64``
expiry in nanoseconds since 1970, and then the binary form of the value; ``w`` and the entity for a clone's writes;
``f`` for the format. One commit is one write batch, synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final

from chappe.data.binary import decode
from chappe.errors import Damaged, InvalidData, StorageError, StorageFormat, UsageError
from chappe.kv.backend import ClearRows, EraseRow, ForgetWriter, Loaded, Operation, PutRow, WriterRow
from chappe.kv.entity import Entity
from chappe.storage.kv_sqlite import ENTITY, decode_outcomes, encode_outcomes, problem
from chappe.system.forking import own

FORMAT: Final = 1
_ENTRY: Final = b"e"
_WRITER: Final = b"w"
_FORMAT_KEY: Final = b"f"
_EXPIRY: Final = Struct(">Bq")
_WRITER_HEAD: Final = Struct(">Qq")


class RocksdbBackend:
    """See the module.

    Args:
        path: Of the folder; it is made if it is not there.

    Raises:
        UsageError: ``rocksdict`` is not installed.
        StorageLocked: Another process, or this one, has the folder open.
        StorageFormat: It was written by a newer chappe, or is another program's.
        Damaged: Files in it are damaged.
        StorageError: Anything else that keeps it from being opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        own(self, keep=("_database",))
        try:
            import rocksdict
        except ImportError:
            raise UsageError("the rocksdb backend needs the package rocksdict: pip install 'chappe[rocksdb]'") from None
        self._rocksdict: Any = rocksdict
        self.path = Path(path)
        self._database: Any = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._database = rocksdict.Rdict(str(self.path), rocksdict.Options(raw_mode=True))
            self._synced = rocksdict.WriteOptions()
            self._synced.sync = True
            self._check()
        except StorageError:
            self.close()
            raise
        except Exception as error:
            raise self._problem(error, "open") from error

    # -- the backend port -----------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        """All of it; raises Damaged for bytes that are no values, StorageError if it cannot be read."""
        entries, writers = [], []
        try:
            for key, value in self._all():
                if key[:1] == _ENTRY:
                    expires_ns = _EXPIRY.unpack_from(value)[1] if value[0] else None
                    entries.append((decode(key[1:]), decode(value[_EXPIRY.size if value[0] else 1 :]), expires_ns))
                elif key[:1] == _WRITER:
                    applied, heard_ns = _WRITER_HEAD.unpack_from(value)
                    outcomes = decode_outcomes(value[_WRITER_HEAD.size :])
                    writers.append(WriterRow(Entity(*ENTITY.unpack(key[1:])), applied, outcomes, heard_ns))
        except InvalidData as problem:
            raise Damaged(f"{self.path} has a malformed entry: {problem}; restore it from a copy") from None
        except StorageError:
            raise
        except Exception as error:
            raise self._problem(error, "read") from error
        return Loaded(tuple(entries), tuple(writers))

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all in one synced batch; raises StorageError, StorageFull for a full disk, and then nothing was done."""
        database = self._open()
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        try:
            for each in operations:
                if isinstance(each, PutRow):
                    head = b"\0" if each.expires_ns is None else _EXPIRY.pack(1, each.expires_ns)
                    batch.put(_ENTRY + each.key, head + each.value)
                elif isinstance(each, EraseRow):
                    batch.delete(_ENTRY + each.key)
                elif isinstance(each, ClearRows):
                    batch.delete_range(_ENTRY, bytes((_ENTRY[0] + 1,)))
                elif isinstance(each, WriterRow):
                    row = _WRITER_HEAD.pack(each.applied, each.heard_ns) + encode_outcomes(each)
                    batch.put(_WRITER + ENTITY.pack(*each.entity), row)
                else:
                    assert isinstance(each, ForgetWriter)
                    batch.delete(_WRITER + ENTITY.pack(*each.entity))
            database.write(batch, self._synced)
        except Exception as error:
            raise self._problem(error, "write to") from error

    def close(self) -> None:
        """Let go of the folder; may be called again."""
        if self._database is not None:
            self._database.close()
            self._database = None

    # -- inside ---------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._database is None:
            raise StorageError(f"{self.path} is closed")
        return self._database

    def _all(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self._open().items()

    def _check(self) -> None:
        """Refuse what this version does not know; mark what is new."""
        found = self._database.get(_FORMAT_KEY)
        if found is None:
            if next(self._all(), None) is not None:
                raise StorageFormat(f"{self.path} is a RocksDB folder of another program; choose another path")
            batch = self._rocksdict.WriteBatch(raw_mode=True)
            batch.put(_FORMAT_KEY, str(FORMAT).encode())
            self._database.write(batch, self._synced)
        elif int(found) > FORMAT:
            raise StorageFormat(
                f"{self.path} has format {int(found)}, written by a newer chappe; this one knows {FORMAT}"
            )

    def _problem(self, error: Exception, doing: str) -> StorageError:
        text = str(error)
        full, locked = "No space left" in text or "SpaceLimit" in text, "lock" in text.lower()
        return problem(error, f"{doing} {self.path}", full=full, locked=locked, corrupt="Corruption" in text)
