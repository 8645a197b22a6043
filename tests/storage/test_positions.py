"""Committed positions on disk: what was committed, or a clear refusal."""

from __future__ import annotations

from pathlib import Path

from chappe.errors import StorageFormat
from chappe.log.sources import Key
from chappe.storage.positions import Positions

COMMITTED: dict[Key, int] = {("t\udcff", "P"): 1000, ("é", "Q"): 5}


def test_no_flipped_bit_makes_other_positions(tmp_path: Path) -> None:
    positions = Positions(tmp_path)
    positions.commit(COMMITTED)
    positions.close()
    path = tmp_path / "positions.json"
    whole = path.read_bytes()
    refused = 0
    for bit in range(0, 8 * len(whole), 3):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        try:
            found = Positions(tmp_path)
        except StorageFormat:
            refused += 1
        else:  # between two of its words
            assert found.committed == COMMITTED
            found.close()
    assert refused > len(whole)
