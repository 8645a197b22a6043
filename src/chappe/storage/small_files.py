"""Small JSON files with a format number and a checksum, by which damage is detected.

::

    {"format": 2, ..., "checksum": "1a2b3c4d"}     of everything else in it, with its keys sorted
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from chappe.storage.segments.files import FileOps, check_format, checksum

FORMAT: Final = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SmallFile:
    """The content of a file; ``checked`` if its checksum is correct."""

    raw: bytes
    content: object
    checked: bool

    def fields(self, kind: type[T]) -> T:
        """Return the fields. Raises ValueError for other content."""
        try:
            return msgspec.convert(self.content, type=kind)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None


def encode_small(fields: Mapping[str, object]) -> bytes:
    content = {"format": FORMAT, **fields}
    # The library's own JSON: it keeps topics of original producers that are not UTF-8.
    return json.dumps({**content, "checksum": checksum(_text(content))}).encode()


def load_small(ops: FileOps, path: Path) -> SmallFile | None:
    """Load a file; None if it does not exist. Raises ValueError if it is not JSON, OSError if it is unreadable."""
    try:
        raw = ops.read_file(str(path))
    except FileNotFoundError:
        return None
    try:
        content = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    said = content.pop("checksum", None) if isinstance(content, dict) else None
    checked = said is not None and said == checksum(_text(content))
    return SmallFile(raw, content, checked)


def load_twice(ops: FileOps, paths: tuple[Path, Path]) -> SmallFile | None:
    """Load two identical files; None if neither exists. A damaged or missing copy is rewritten.

    Raises:
        StorageFormat: A newer chappe wrote it.
        ValueError: Both are damaged, or they differ. Nothing was changed.
        OSError: A file cannot be read.
    """
    found: dict[Path, SmallFile | None] = {}
    wrong: ValueError | None = None
    for path in paths:
        try:
            found[path] = load_small(ops, path)
        except ValueError as error:
            found[path], wrong = None, error
    there = [each for each in found.values() if each is not None]
    sound = [each for each in there if each.checked]
    for each in sound or there:
        check_format(each.content, FORMAT, paths[0])
    if not sound:
        if wrong is None and not there:
            return None
        raise wrong or ValueError("its checksum is wrong")
    if any(each.content != sound[0].content for each in sound):
        raise ValueError(f"it says something else than {paths[1].name}")
    for path in paths:
        if found[path] != sound[0]:
            ops.mend(str(path), sound[0].raw)
    return sound[0]


def _text(content: object) -> str:
    return json.dumps(content, sort_keys=True)
