"""Data on disk as this version writes it, for the tests of all later ones: ``python -m tests.vectors.make_formats 0.1``

Made once for each version whose formats are new, with its own code, and never again: that later code reads them is what
they are for. Each is a small directory, packed. The private keys among them were made for that alone and protect
nothing.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow.parquet

from chappe import Consumer, Endpoint, MapServer, Producer, SharedMap, Store, Tower
from chappe.api import permissions
from chappe.data.scalars import Count
from chappe.log.batch import encode_batch
from chappe.log.exactly_once.staged import Remember, SinkState, StagedAttempt, StagePiece
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.log import ChainState, LogChange
from chappe.replication.chain.messages import Entry
from chappe.spark.archive import manifest as archive
from chappe.storage.chain_files import ChainFiles
from chappe.storage.journal import Journals
from chappe.storage.staged_files import StagedFiles

FORMATS: Final = Path(__file__).parent / "formats"

RECORDS: Final = [
    (
        None if n % 7 == 3 else f"value {n}".encode(),
        f"key {n % 5}".encode(),
        [("trace", bytes([n, 255]))] if n % 4 else [],
    )
    for n in range(100)
]
AT_US: Final = 1_769_860_800_000_000  # 2026-01-31T12:00:00Z
LONG: Final = "long/" + "ü" * 120  # a folder cannot have its name
STAGED: Final = [b"a", b"b", b"c"]
SINK: Final = SinkState("q", "home", "one")
ATTEMPT: Final = StagedAttempt("q", "one", 0, 0, 0)
ADDRESS: Final = "0" * 31 + "A"
BATCHES: Final = [encode_batch(0, [b"one", b"two"], AT_US), encode_batch(2, [b"three"], AT_US)]
PENDING: Final = encode_batch(3, [b"not in a batch yet"], AT_US)
ENTRIES: Final = {"host": {"a": 1, "b": (2.5, True)}, 7: "seven", Count(7): timedelta(seconds=5), ("t", 1): None}
SHARED: Final = {"colour/wall": b"white", "colour/door": b"\xff\x00"}
CHAIN: Final = LogChange(ChainState(2, 1, (b"state",)), 2, (Entry(1, 3, 1, 3, 0, b"xyz"),), 2)
LATER: Final = LogChange(None, 3, (Entry(1, 4, 1, 4, 0, b"uvw"),), 3)
MEMORY: Final = VoteRecord(77, 3, b"value")
PUBLISHED: Final = [("/all/x", [1, "text"]), ("/all/y", None), ("/all/x", {"a": Count(2)})]
ENDPOINT: Final = UUID("6f9619ff-8b86-d011-b42d-00cf4fc964ff")
ARCHIVED: Final = [b"kept 0", None, b"kept 2"]


def store(directory: Path) -> None:
    with Tower("127.0.0.1:0") as tower, Store(directory, tower=tower.address):
        for topic in ("readings", LONG):
            with Producer(topic, tower=tower.address, min_acks=1) as producer:
                for n, (value, key, headers) in enumerate(RECORDS):
                    producer.send(value, key=key, headers=headers, timestamp=AT_US + n)
                producer.flush()
    staged = StagedFiles(directory)
    staged.carry_out(Remember(SINK))
    staged.carry_out(StagePiece(ATTEMPT, 0, "readings", len(STAGED), encode_batch(0, STAGED, AT_US)))
    staged.close()


def producer(directory: Path) -> None:
    journals = Journals(directory, "readings", ADDRESS)
    journal = journals.opened["readings"]
    for body, next_ in zip(BATCHES, (2, 3), strict=True):
        journal.append(body, next_)
    journal.pend(PENDING)
    journals.open("another").append(BATCHES[0], 2)
    journals.close()


def consumer(directory: Path) -> None:
    with (
        Tower("127.0.0.1:0") as tower,
        Consumer("readings", tower=tower.address, identity="reader", directory=directory) as made,
    ):
        made.commit({("readings", ADDRESS): 42, ("another", ADDRESS): 7})


def data_store(directory: Path, backend: str) -> None:
    with Endpoint() as endpoint:
        made = endpoint.attach_master("hosts", backend, path=directory / "hosts")
        for key, value in ENTRIES.items():
            made.put(key, value)
        made.put("soon gone", 1, expiry_s=1e9)
        made.put("gone", 1)
        made.erase("gone")


def shared_map(directory: Path) -> None:
    with (
        MapServer("127.0.0.1:0", backend="sqlite", path=directory / "map") as server,
        SharedMap(server.address) as made,
    ):
        made.update(SHARED)
        made["gone"] = b"1"
        del made["gone"]


def chain(directory: Path) -> None:
    files = ChainFiles(directory, MEMORY.disk)
    files.keep(MEMORY)
    files.write(CHAIN)
    files.write(LATER)
    files.close()


def recording(directory: Path) -> None:
    with Endpoint(id=str(ENDPOINT), recording_directory=directory) as endpoint:
        endpoint.subscribe("/only/x")
        for topic, value in PUBLISHED:
            endpoint.publish(topic, value)


def parquet(directory: Path) -> None:
    import pyarrow as pa

    with archive.ArchiveWriter(directory) as writer:
        staged = f"{writer.run}/0.parquet"
        rows: dict[str, Any] = {
            "partition": [ADDRESS] * 3, "offset": [0, 1, 2], "timestamp": [AT_US] * 3, "key": [None, b"k", b""],
            "value": ARCHIVED, "headers": [[], [{"key": "h", "value": b"v"}], []],
        }  # fmt: skip
        pyarrow.parquet.write_table(pa.table(rows, schema=archive.file_schema()), directory / staged)
        place = f"{archive.directory_of('readings', AT_US // archive.DAY_US)}/{archive.file_name(1, 0)}"
        size = (directory / staged).stat().st_size
        file = archive.ArchivedFile(place, "readings", 3, size, AT_US, AT_US)
        spans = {"readings": {ADDRESS: archive.OffsetSpan(0, 3, 3)}}
        writer.commit(archive.followed_by(writer.manifest, [file], spans, [archive.Move(staged, place)]))


def keys(directory: Path) -> None:
    permissions.init(directory)
    permissions.add(directory, "sensor", "member")
    permissions.seal(directory, "ward", ["patients/*"], names=["sensor"])
    permissions.rotate(directory, "ward")
    (directory / "authority.key").unlink()  # nobody reads it to take part


MADE: Final[dict[str, Callable[[Path], None]]] = {
    "store": store,
    "producer": producer,
    "consumer": consumer,
    "sqlite": lambda directory: data_store(directory, "sqlite"),
    "rocksdb": lambda directory: data_store(directory, "rocksdb"),
    "map": shared_map,
    "chain": chain,
    "recording": recording,
    "archive": parquet,
    "keys": keys,
}


def main(version: str) -> None:
    """Make all of a version."""
    home = FORMATS / version
    home.mkdir(parents=True)
    for name, make in MADE.items():
        with tempfile.TemporaryDirectory() as directory:
            made = Path(directory) / name
            make(made)
            with tarfile.open(home / f"{name}.tar.gz", "w:gz", compresslevel=9) as packed:
                for each in sorted(made.rglob("*")):
                    found = packed.gettarinfo(each, str(each.relative_to(made)))
                    found.uid = found.gid = 0
                    found.uname = found.gname = ""
                    packed.addfile(found, io.BytesIO(each.read_bytes()) if each.is_file() else None)
        print(f"{name}: {(home / f'{name}.tar.gz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
