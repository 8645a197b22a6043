"""One Parquet file of an archive being written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from chappe.defaults import MIB
from chappe.spark.archive.layout import file_schema
from chappe.system.disk import sync_file

GROUP_BYTES: Final = 8 * MIB  # of a row group, before it is compressed: replay holds one of each partition in memory
GROUP_ROWS: Final = 131_072
_NUMBERED: Final = ("partition", "offset", "timestamp")  # have statistics, by which readers leave out what they can


class FileWriter:
    """Writes records to a file; rows gather until they fill a row group.

    Args:
        path: A file that does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._file = open(path, "xb")  # noqa: SIM115  # closed by close() or discard()
        self._writer = pq.ParquetWriter(
            self._file,
            file_schema(),
            compression="zstd",
            use_dictionary=["partition"],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            write_statistics=list(_NUMBERED),
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows with the columns of ``file_schema``."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self.waiting_bytes >= GROUP_BYTES or self._waiting_rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered as a row group."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, file_schema())
            self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> int:
        """Finish the file; returns its size once it is on disk."""
        self.flush()
        self._writer.close()
        self._file.flush()
        sync_file(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return size

    def discard(self) -> None:
        """Give the file up."""
        self._file.close()
        self.path.unlink(missing_ok=True)
