"""The databases that stores keep beside their records."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.errors import StorageError
from chappe.storage.segments.files import FileOps
from chappe.storage.small_database import SmallDatabase


class Marks(SmallDatabase):
    NAME = "marks.sqlite"
    FORMAT = 1
    SCHEMA = "CREATE TABLE marks (mark TEXT);"

    def add(self, mark: str) -> None:
        self._execute("keep a mark", [("INSERT INTO marks VALUES (?)", (mark,))])

    def marks(self) -> list[str]:
        return [mark for (mark,) in self._query("SELECT mark FROM marks")]


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    for mark in ("a", "b"):
        database = Marks(str(tmp_path), FileOps())
        database.add(mark)
        database.close()
    assert Marks(str(tmp_path), FileOps()).marks() == ["a", "b"]


@pytest.mark.parametrize(
    "garbage", [b"no database at all, and long enough to be taken for one" * 99, b"SQLite format 3\0" * 99]
)
def test_a_damaged_one_says_what_to_do(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / Marks.NAME).write_bytes(garbage)
    with pytest.raises(
        StorageError, match=r"marks.sqlite: it is damaged \(.*\); restore it from a copy, or move it away"
    ):
        Marks(str(tmp_path), FileOps()).marks()
    assert (tmp_path / Marks.NAME).read_bytes() == garbage
