"""Where partitions start whose first records are gone: one small file for each topic."""

from __future__ import annotations

import logging
import os
from typing import Final

import msgspec
from crc32c import crc32c

from chappe.storage.segments.files import FileOps, read_file, replace_file

logger: Final = logging.getLogger(__name__)
PINS_FILE: Final = "partitions"
_PINS_MAGIC: Final = b"CHPINS1\n"
_pins: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int]])

Pins = dict[str, int]  # partition -> its first offset, where its segments alone would not tell


def load_pins(ops: FileOps, folder: str) -> Pins:
    """Where partitions start whose records retention removed; empty if there are none."""
    path = os.path.join(folder, PINS_FILE)
    try:
        raw = read_file(ops, path)
    except FileNotFoundError:
        return {}
    body = memoryview(raw)[len(_PINS_MAGIC) + 4 :]
    try:
        if not raw.startswith(_PINS_MAGIC) or raw[8:12] != crc32c(body).to_bytes(4, "little"):
            raise ValueError("checksum")
        return {name.decode("utf-8", "surrogateescape"): first for name, first in _pins.decode(body)}
    except (ValueError, msgspec.DecodeError):
        logger.error("%s is damaged; partitions without any record left begin anew", path)
        return {}


def save_pins(ops: FileOps, folder: str, pins: Pins) -> None:
    """Replace the file of pins; raises OSError."""
    rows = [(name.encode("utf-8", "surrogateescape"), first) for name, first in pins.items()]
    body = msgspec.msgpack.encode(rows)
    head = _PINS_MAGIC + crc32c(body).to_bytes(4, "little")
    replace_file(ops, os.path.join(folder, PINS_FILE), [head, body])
