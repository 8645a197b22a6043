"""Power cuts, kills and failed syncs at any call: what was acknowledged is there, and nothing is made up.

``python -m tests.storage.test_segments_power FROM TO`` plays more worlds, and counts them.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest
from tests.storage.power import Killed, PowerOps

from chappe.errors import StorageError
from chappe.log.batch import Batch, encode_batch
from chappe.log.storage import AppendRecords, Retention
from chappe.storage.segments import SegmentStorage

KEYS = [(topic, partition) for topic in ("t", "u") for partition in ("p", "q")]
Key = tuple[str, str]


def value(key: Key, offset: int) -> bytes:
    return b"%s %s %d" % (key[0].encode(), key[1].encode(), offset) * (1 + offset % 40)


def batch(key: Key, base: int, count: int) -> AppendRecords:
    body = encode_batch(base, [value(key, n) for n in range(base, base + count)], 5)
    return AppendRecords(*key, base, count, 5, 5, body)


def let_go(storage: SegmentStorage) -> None:
    """Close all files, as the death of a process does."""
    for appender in storage._appenders.values():
        appender.release()
    storage._manifest.close()
    storage._reader.handles.close()
    storage._directory.close()
    storage.close = lambda: None  # type: ignore[method-assign]  # a dead process closes nothing


class World:
    """One store that is written to, killed and opened again, and the images of its disk."""

    def __init__(self, root: Path, seed: int, *, rate: float, failing: bool) -> None:
        self.rng = Random(seed)
        self.root = root
        self.rate = rate
        self.failing = failing
        (root / "live").mkdir()
        self.ops = PowerOps(root / "live", self.rng)
        self.ops.event = self.maybe_cut
        self.acknowledged: dict[Key, tuple[int, int]] = {}  # first and next
        self.attempted: dict[Key, int] = {}
        self.images = 0
        self.entries = self.rng.choice((2, 5, 1000))
        self.removing = False
        self.storage: SegmentStorage | None = None

    def maybe_cut(self) -> None:
        if self.rng.random() < self.rate:
            self.cut()

    def cut(self) -> None:
        """The power fails now; look at what is left, as often as it fails again while the store is opened."""
        self.images += 1
        image = self.root / "image"
        self.ops.image(image)
        try:
            self.check(image)
        finally:
            shutil.rmtree(image)

    def check(self, path: Path) -> None:
        if not any(path.rglob("chappe-store*.json")):
            assert not self.acknowledged
        storage = SegmentStorage(path / "s", segment_entries=self.entries)
        assert storage.holes() == []
        for key in KEYS:
            self.check_partition(storage, key)
        heads = {key: found.next for key in KEYS if (found := storage.partition(*key)) is not None}
        more = [batch(key, heads.get(key, 0), 2) for key in KEYS]
        storage.publish(storage.write(more))
        let_go(storage)  # killed
        again = SegmentStorage(path / "s", segment_entries=self.entries)
        assert again.holes() == []
        for key in KEYS:
            found = again.partition(*key)
            assert found is not None
            assert found.next == heads.get(key, 0) + 2
        again.close()

    def check_partition(self, storage: SegmentStorage, key: Key) -> None:
        found = storage.partition(*key)
        first, next_ = self.acknowledged.get(key, (0, 0))
        if found is None:
            assert next_ == 0
            return
        assert next_ <= found.next <= self.attempted[key]
        if not self.removing:
            assert found.first <= first
        at = found.first
        while at < found.next:
            read = storage.read(*key, at, 1 << 20)
            assert read.batches
            for raw in read.batches:
                for record in Batch.parse(raw).records(*key, at):
                    assert record.value == value(key, record.offset)
                    at = record.offset + 1

    def acknowledge(self) -> None:
        assert self.storage is not None
        for key in KEYS:
            found = self.storage.partition(*key)
            if found is not None:
                self.acknowledged[key] = (found.first, found.next)
                self.attempted[key] = max(self.attempted.get(key, 0), found.next)

    def life(self) -> None:
        """Open the store, use it, and close it, or be killed anywhere."""
        rng, ops = self.rng, self.ops
        ops.dead = False
        ops.kill_in = rng.randint(0, 150) if rng.random() < 0.7 else -1
        ops.fail_in = rng.randint(1, 40) if self.failing else -1
        self.storage = None
        try:
            self.storage = SegmentStorage(self.root / "live" / "s", segment_entries=self.entries, ops=ops)
            self.acknowledge()
            for _ in range(rng.randint(1, 12)):
                self.step(self.storage)
            self.storage.close()
        except Killed:
            pass
        except StorageError:
            assert self.failing
        if self.storage is not None:
            let_go(self.storage)

    def step(self, storage: SegmentStorage) -> None:
        rng = self.rng
        if rng.random() < 0.15:
            self.removing = True
            storage.forget(storage.retain([("t", Retention(records=30))], 0))
            self.acknowledge()
            self.removing = False
            return
        appends: list[AppendRecords] = []
        heads = {key: found.next if (found := storage.partition(*key)) else 0 for key in KEYS}
        for key in rng.choices(KEYS, k=rng.randint(1, 6)):
            count = rng.randint(1, 5)
            appends.append(batch(key, heads[key], count))
            heads[key] += count
            self.attempted[key] = max(self.attempted.get(key, 0), heads[key])
        try:
            storage.publish(storage.write(appends))
        except StorageError:
            assert self.failing
            return
        self.acknowledge()


def play(root: Path, seed: int, *, lives: int, rate: float) -> int:
    """Returns the number of images that were looked at."""
    world = World(root, seed, rate=rate, failing=seed % 2 == 1)
    for _ in range(lives):
        world.life()
    world.cut()
    return world.images


@pytest.mark.parametrize("seed", range(10))
def test_power_cuts_kills_and_failed_syncs_lose_nothing_acknowledged(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    assert play(tmp_path, seed, lives=6, rate=0.03) > 0


def main(first: int, end: int) -> None:
    logging.disable(logging.CRITICAL)
    images = failed = 0
    for seed in range(first, end):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
            try:
                images += play(Path(root), seed, lives=12, rate=0.1)
            except Exception as error:
                failed += 1
                frame = error.__traceback__
                while frame is not None and frame.tb_next is not None:
                    frame = frame.tb_next
                where = frame and f"{frame.tb_frame.f_code.co_name}:{frame.tb_lineno}"
                print(f"seed {seed}: {where} {str(error)[:200]!r}", flush=True)
        if seed % 10 == 9:
            print(f"{seed + 1 - first} worlds, {images} images, {failed} failed", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
