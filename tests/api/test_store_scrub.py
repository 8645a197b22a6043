"""A store finds damage that nobody has read, and mends it from another one before that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, wait_until

from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.log.events import DamageHealed, ScrubEnded
from chappe.runtime import store_ports
from chappe.storage.segments import scrub

RECORDS = 3_000


def flip(path: Path, every: int) -> int:
    """Change a byte of every so many; returns how many were changed."""
    (file,) = path.glob("topics/*/*.seg")
    size = file.stat().st_size
    with file.open("r+b") as opened:
        for at in range(every, size, every):
            opened.seek(at)
            byte = opened.read(1)
            opened.seek(at)
            opened.write(bytes([byte[0] ^ 0x10]))
    return size // every


def test_flipped_bits_are_healed_while_another_store_has_good_copies(
    tower: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_ports, "SCRUB_IDLE_S", 0.05)
    monkeypatch.setattr(scrub, "SCRUB_ROUND_S", 0.0)
    one, two = (Store(tmp_path / name, tower=tower) for name in "ab")
    with Producer("hello", tower=tower, min_acks=2) as producer:
        for start in range(0, RECORDS, 10):
            producer.send_many([b"record %d" % n for n in range(start, start + 10)])
            producer.flush(PATIENCE_S)
    assert flip(tmp_path / "a", 4_000) > 5
    events: list[object] = []

    def healed() -> bool:
        events.extend(one.events())
        healed = any(isinstance(each, DamageHealed) for each in events)
        return healed and not one.status().holes and isinstance(events[-1], ScrubEnded)

    wait_until(healed)
    assert one.status().scrubbed_us > 0
    two.close()
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < RECORDS:
            batch = consumer.poll(PATIENCE_S)
            assert batch is not None
            found += batch.values()
    assert found == [b"record %d" % n for n in range(RECORDS)]
    one.close()
