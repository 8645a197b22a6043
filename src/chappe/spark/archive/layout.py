"""Names of an archive's directories and files, and the columns of its files."""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from chappe.arrow import COLUMNS, schema
from chappe.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

META: Final = "_chappe"
STAGING: Final = "staging"
LOCK: Final = "lock"
DAY_US: Final = 86_400_000_000
NAME_BYTES_MAX: Final = 255  # of one directory, on every usual file system
FILE_COLUMNS: Final = COLUMNS[1:]  # the topic is in the path
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()


def file_schema() -> pa.Schema:
    """The columns of every file, for ever: partition, offset, timestamp, key, value, headers."""
    return schema(FILE_COLUMNS)


def directory_of(topic: str, day: int) -> str:
    """Where the records of a topic and a day (days since 1970) lie, below the archive.

    Raises:
        UsageError: The topic's name does not fit into that of a directory.
    """
    return f"{_topic_directory(topic)}/date={day_text(day)}"


@cache
def _topic_directory(topic: str) -> str:
    try:
        name = f"topic={quote(topic, safe='')}"
    except UnicodeEncodeError:
        raise UsageError(f"topic {topic!r} cannot be archived: its name is not UTF-8") from None
    if len(name) > NAME_BYTES_MAX:
        raise UsageError(f"topic {topic} cannot be archived: its name is too long for a directory")
    return name


def day_text(day: int) -> str:
    """A day as ``2026-01-31``; what is before year 1 or after year 9999 is counted to the first or last day."""
    return date.fromordinal(min(max(day + _EPOCH_ORDINAL, 1), date.max.toordinal())).isoformat()


def file_name(version: int, number: int) -> str:
    """The name of a file that first came with a version of the manifest."""
    return f"{version:08d}-{number:03d}.parquet"


def check_topic_fits(topic: str) -> None:
    """Raises UsageError if the topic cannot be archived."""
    _topic_directory(topic)
