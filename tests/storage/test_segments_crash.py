"""A real process that appends is killed, again and again; what it said was stored must be there."""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chappe.log.batch import Batch
from chappe.storage.segments import SegmentStorage

ROUNDS = 12
ENTRIES = 40

WRITER = """
import itertools, os, sys
from chappe.storage.segments import SegmentStorage
from chappe.log.batch import encode_batch
from chappe.log.storage import AppendRecords, Retention

storage = SegmentStorage(sys.argv[1], segment_entries=int(sys.argv[2]))
heads = {}
for topic in ("t", "u"):
    for partition in ("p", "q", "r"):
        found = storage.partition(topic, partition)
        heads[topic, partition] = found.next if found else 0
for step in itertools.count():
    appends = []
    for number, ((topic, partition), base) in enumerate(heads.items()):
        count = 1 + (step + number) % 5
        values = [b"%d" % n * 50 for n in range(base, base + count)]
        body = encode_batch(base, values, step)
        appends.append(AppendRecords(topic, partition, base, count, step, step, body))
    storage.publish(storage.write(appends))
    for each in appends:
        heads[each.topic, each.partition] += each.count
    os.write(1, (" ".join(map(str, heads.values())) + "\\n").encode())
"""


@pytest.mark.process
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(1)
    partitions = [(topic, partition) for topic in "tu" for partition in "pqr"]
    for _ in range(ROUNDS):
        acked = run_and_kill(tmp_path, rng.uniform(0.0, 0.15))
        storage = SegmentStorage(tmp_path, segment_entries=ENTRIES)
        assert storage.holes() == []
        for key, head in zip(partitions, acked, strict=True):
            found = storage.partition(*key)
            assert found is not None
            assert found.first == 0
            assert head <= found.next <= head + 5
            check_records(storage, *key, found.next)
        if rng.random() < 0.3:
            storage.close()  # a clean end now and then; without it the lock goes with the object
        else:
            storage._directory.close()
            storage._reader.handles.close()


def run_and_kill(path: Path, after_s: float) -> list[int]:
    """The last heads that a writer acknowledged before it was killed ``after_s`` after its first commit."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(ENTRIES)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    pipe = writer.stdout.fileno()
    told = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        kill_at: float | None = None
        while kill_at is None or time.monotonic() < kill_at:
            if selector.select(0.05 if kill_at is None else max(kill_at - time.monotonic(), 0)):
                piece = os.read(pipe, 1 << 16)
                assert piece, "the writer ended by itself"
                told += piece
                kill_at = kill_at or time.monotonic() + after_s
    writer.send_signal(signal.SIGKILL)
    while piece := os.read(pipe, 1 << 16):
        told += piece
    writer.wait()
    writer.stdout.close()
    return [int(each) for each in told[: told.rindex(b"\n")].splitlines()[-1].split()]


def check_records(storage: SegmentStorage, topic: str, partition: str, head: int) -> None:
    at = 0
    while at < head:
        read = storage.read(topic, partition, at, 1 << 20)
        for raw in read.batches:
            for record in Batch.parse(raw).records(topic, partition):
                assert record.offset == at
                assert record.value == b"%d" % at * 50
                at += 1
        assert read.batches
