"""How fast the segment storage is beside a plain file: ``python benchmarks/storage.py [directory]``.

Writes the same batches (64 KiB of 100-byte records) with the same number of syncs through ``SegmentStorage`` and
to one plain file, in turn, and reads them back; then restarts a store of 100,000 partitions of ten records, after
a clean end and after a kill, in a process of its own. Ratios are what counts: absolute figures are the disk's.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chappe.log.batch import encode_batch
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage

RECORDS = 600  # of 100 bytes in one batch: about 64 KiB with their positions
BATCHES = 4_000  # 2.4 million records, 250 MB
ROUNDS = 3
PARTITIONS = 100_000
RESTART = """
import sys, time
start = time.monotonic()
from chappe.storage.segments import SegmentStorage
imported = time.monotonic()
storage = SegmentStorage(sys.argv[1])
opened = time.monotonic()
assert len(storage.changed("", 0, 1_000_000)) == 100_000
status = open("/proc/self/status").read()  # getrusage would count what the parent had before exec
peak_kib = int(status.split("VmHWM:")[1].split()[0])
print(opened - imported, time.process_time(), time.monotonic() - opened, peak_kib / 1024)
"""


def batches() -> list[AppendRecords]:
    made = []
    value = [b"%0100d" % 7] * RECORDS
    for n in range(BATCHES):
        made.append(AppendRecords("bench", "producer", n * RECORDS, RECORDS, n, n, encode_batch(n * RECORDS, value, n)))
    return made


@contextmanager
def scratch(root: str | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="chappe-bench-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def write_plain(path: Path, made: list[AppendRecords], per_commit: int) -> float:
    fd = os.open(path / "plain", os.O_WRONLY | os.O_CREAT)
    start = time.perf_counter()
    for at in range(0, len(made), per_commit):
        os.writev(fd, [each.body for each in made[at : at + per_commit]])
        os.fdatasync(fd)
    took = time.perf_counter() - start
    os.close(fd)
    os.unlink(path / "plain")
    return took


def write_segments(path: Path, made: list[AppendRecords], per_commit: int) -> float:
    storage = SegmentStorage(path / "store")
    start = time.perf_counter()
    for at in range(0, len(made), per_commit):
        storage.publish(storage.write(made[at : at + per_commit]))
    took = time.perf_counter() - start
    storage.close()
    return took


def read_segments(path: Path) -> float:
    storage = SegmentStorage(path / "store")
    start = time.perf_counter()
    at = 0
    while at < BATCHES * RECORDS:
        read = storage.read("bench", "producer", at, 1 << 20)
        at += len(read.batches) * RECORDS
    took = time.perf_counter() - start
    storage.close()
    return took


def throughput(root: str | None, console: Console) -> None:
    table = Table(
        title=f"{BATCHES * RECORDS / 1e6:.1f} million 100-byte records, median of {ROUNDS}; million records/s"
    )
    for name in ("batches a commit", "plain file", "segments", "plain / segments", "read back", "CPU us/record"):
        table.add_column(name, justify="right")
    made = batches()
    for per_commit in (1, 4, 16, 64):
        part = made[: min(BATCHES, per_commit * 1_000)]
        plain, segments, reads, cpu = [], [], [], []
        for _ in range(ROUNDS):
            with scratch(root) as path:
                plain.append(len(part) * RECORDS / write_plain(path, part, per_commit) / 1e6)
                before = time.process_time()
                segments.append(len(part) * RECORDS / write_segments(path, part, per_commit) / 1e6)
                cpu.append((time.process_time() - before) * 1e6 / (len(part) * RECORDS))
                if len(part) == BATCHES:
                    reads.append(BATCHES * RECORDS / read_segments(path) / 1e6)
        ratio = statistics.median(a / b for a, b in zip(plain, segments, strict=True))
        table.add_row(
            str(per_commit),
            f"{statistics.median(plain):.2f}",
            f"{statistics.median(segments):.2f}",
            f"{ratio:.2f}",
            f"{statistics.median(reads):.1f}" if reads else "",
            f"{statistics.median(cpu):.3f}",
        )
    console.print(table)


def one_batch_each(storage: SegmentStorage) -> None:
    body = encode_batch(0, [b"%0100d" % 7] * 10, 5)
    for start in range(0, PARTITIONS, 5_000):
        appends = [AppendRecords("many", f"{n:032x}", 0, 10, 5, 5, body) for n in range(start, start + 5_000)]
        storage.publish(storage.write(appends))


def ten_batches_each(storage: SegmentStorage) -> None:
    for base in range(10):
        body = encode_batch(base, [b"%0100d" % 7], 5)
        for start in range(0, PARTITIONS, 5_000):
            appends = [AppendRecords("many", f"{n:032x}", base, 1, 5, 5, body) for n in range(start, start + 5_000)]
            storage.publish(storage.write(appends))


def restart(root: str | None, console: Console) -> None:
    table = Table(title="restart with 100,000 partitions of 10 records")
    for name in ("written as", "ended", "open s", "CPU s (all)", "list all s", "peak memory MiB"):
        table.add_column(name, justify="right")
    fillers: list[tuple[str, Callable[[SegmentStorage], None]]] = [
        ("one batch each", one_batch_each),
        ("ten batches each", ten_batches_each),
    ]
    for name, fill in fillers:
        with scratch(root) as path:
            storage = SegmentStorage(path / "store")
            fill(storage)
            shutil.copytree(path / "store", path / "killed")
            storage.close()
            for ended, directory in (("cleanly", "store"), ("by a kill", "killed")):
                told = subprocess.run(
                    [sys.executable, "-c", RESTART, str(path / directory)], capture_output=True, text=True, check=True
                )
                opened_s, cpu_s, listed_s, rss_mib = map(float, told.stdout.split())
                table.add_row(name, ended, f"{opened_s:.2f}", f"{cpu_s:.2f}", f"{listed_s:.2f}", f"{rss_mib:.0f}")
    console.print(table)


def main() -> None:
    root = sys.argv[1] if len(sys.argv) > 1 else None
    console = Console()
    throughput(root, console)
    restart(root, console)


if __name__ == "__main__":
    main()
