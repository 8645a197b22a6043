"""What former versions have written is opened by this one, and all of it is there; what newer ones write is refused.

``tests/vectors/make_formats.py`` made the data, with the code of the version that the folder names.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.vectors import make_formats as made

from chappe import Consumer, Endpoint, MapServer, SharedMap, Store, Tower, read_topic
from chappe.data.binary import decode
from chappe.errors import ChappeError, ConfigError, InvalidData, StorageFormat
from chappe.log.batch import Batch
from chappe.replication.chain.log import LoadedChain
from chappe.security import Keys, authority_file
from chappe.spark.archive import manifest as archive
from chappe.storage.chain_files import ChainFiles
from chappe.storage.journal import IDENTITY, Journals
from chappe.storage.key_files import authority_check, curve_keys, read_permissions
from chappe.storage.positions import Positions
from chappe.storage.recordings.codec import entries
from chappe.storage.sealed_files import read_sealed
from chappe.storage.segments import SegmentStorage
from chappe.storage.staged_files import StagedFiles

VERSIONS: Final = sorted(each.name for each in made.FORMATS.iterdir())


@pytest.fixture(params=VERSIONS)
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    def unpack(name: str) -> Path:
        with tarfile.open(made.FORMATS / request.param / f"{name}.tar.gz") as packed:
            packed.extractall(tmp_path / name, filter="tar")
        return tmp_path / name

    return unpack


def test_there_is_data_of_each_kind() -> None:
    assert "0.1" in VERSIONS
    for version in VERSIONS:
        assert {each.name for each in (made.FORMATS / version).iterdir()} == {f"{name}.tar.gz" for name in made.MADE}


def test_a_store_has_all_its_records(unpacked: Callable[[str], Path]) -> None:
    with Tower("127.0.0.1:0") as tower, Store(unpacked("store"), tower=tower.address) as store:
        for topic in ("readings", made.LONG):
            table = read_topic(topic, stores=store.endpoint)
            found = [
                (value, key, [(each["key"], each["value"]) for each in headers])
                for value, key, headers in zip(
                    *(table.column(name).to_pylist() for name in ("value", "key", "headers")), strict=True
                )
            ]
            assert found == made.RECORDS
            assert table.column("timestamp").cast("int64").to_pylist() == [made.AT_US + n for n in range(len(found))]
            assert table.column("offset").to_pylist() == list(range(len(found)))
        assert not [each for each in store.events() if "amage" in type(each).__name__]


def test_a_store_has_its_staged_rows(unpacked: Callable[[str], Path]) -> None:
    staged = StagedFiles(unpacked("store"))
    kept = staged.kept()
    assert [(each.sink, each.home, each.run) for each in kept.sinks] == [("q", "home", "one")]
    assert kept.attempts == ((made.ATTEMPT, ("readings",)),)
    staged.close()


def test_a_producer_goes_on_where_it_was(unpacked: Callable[[str], Path]) -> None:
    journals = Journals(unpacked("producer"), "readings", "another address")
    assert journals.address == made.ADDRESS
    first, second = journals.opened["readings"], journals.opened["another"]
    assert [*first.batches, *second.batches] == [*made.BATCHES, made.BATCHES[0]]
    assert [each.value for each in first.pending] == Batch.parse(made.PENDING).values()
    assert (first.next_offset, second.next_offset) == (3, 2)
    journals.close()


def test_a_consumer_goes_on_where_it_was(unpacked: Callable[[str], Path]) -> None:
    directory = unpacked("consumer")
    with Tower("127.0.0.1:0") as tower:
        Consumer("readings", tower=tower.address, identity="reader", directory=directory).close()
    (kept,) = [each.parent for each in directory.rglob("positions.json")]
    positions = Positions(kept)
    assert positions.committed == {("readings", made.ADDRESS): 42, ("another", made.ADDRESS): 7}
    positions.close()


@pytest.mark.parametrize("backend", ["sqlite", "rocksdb"])
def test_a_data_store_has_all_its_entries(unpacked: Callable[[str], Path], backend: str) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    with Endpoint() as endpoint:
        store = endpoint.attach_master("hosts", backend, path=unpacked(backend) / "hosts")
        found = store.items()
        expected = [*made.ENTRIES.items(), ("soon gone", 1)]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        (expiring,) = [each for each in store.snapshot() if each.expires_ns is not None]
        assert expiring.key == "soon gone"


def test_a_map_has_all_its_entries(unpacked: Callable[[str], Path]) -> None:
    path = unpacked("map") / "map"
    with MapServer("127.0.0.1:0", backend="sqlite", path=path) as server, SharedMap(server.address) as shared:
        assert shared.snapshot() == made.SHARED


def test_a_server_of_a_chain_has_its_log_and_vote(unpacked: Callable[[str], Path]) -> None:
    files = ChainFiles(unpacked("chain"), 99)
    assert files.loaded == LoadedChain(made.CHAIN.state, (*made.CHAIN.entries, *made.LATER.entries), 3)
    assert files.memory == made.MEMORY
    files.close()


def test_a_recording_has_all_its_messages(unpacked: Callable[[str], Path]) -> None:
    directory = unpacked("recording")
    found = list(entries((directory / "messages.dat").read_bytes()))
    assert [each.topic.decode() for each in found] == [topic for topic, _ in made.PUBLISHED]
    assert decode(found[1].payload()) is None
    assert (directory / "id.txt").read_text().strip() == str(made.ENDPOINT)
    assert (directory / "topics.txt").read_text().splitlines() == ["/only/x"]


def test_an_archive_has_all_its_records(unpacked: Callable[[str], Path]) -> None:
    import pyarrow.parquet

    directory = unpacked("archive")
    found = archive.load(directory)
    (file,) = found.files
    rows = pyarrow.parquet.read_table(archive.path_of(directory, found, file)).to_pydict()
    assert (rows["value"], rows["offset"]) == (made.ARCHIVED, [0, 1, 2])
    assert found.positions == {"readings": {made.ADDRESS: archive.OffsetSpan(0, 3, 3)}}
    archive.ArchiveWriter(directory).close()


def test_keys_and_permissions_are_read(unpacked: Callable[[str], Path]) -> None:
    directory = unpacked("keys")
    found = read_permissions(directory)
    holder = found.holder(curve_keys(Keys(directory / "sensor")).public, found.issued)
    assert not isinstance(holder, str)
    assert holder.name == "sensor"
    chain = read_sealed(directory, "ward", authority_check(authority_file(directory).read_bytes()))
    assert chain is not None
    assert [each.number for each in chain.keys.epochs] == [1, 2]


# -- what a newer version writes ------------------------------------------------------------------------------------


def replaced(path: Path, before: bytes, after: bytes) -> None:
    raw = path.read_bytes()
    assert before in raw
    path.write_bytes(raw.replace(before, after, 1))


def of_a_database(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def newer_store(directory: Path) -> object:
    for name in ("chappe-store.json", "chappe-store.copy.json"):
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 9}))
    return SegmentStorage(directory)


def newer_sinks(directory: Path) -> object:
    of_a_database(directory / "staged" / "sinks.sqlite", "PRAGMA user_version = 9")
    return StagedFiles(directory)


def newer_rows(directory: Path) -> object:
    (path,) = (directory / "staged").glob("*.rows")
    replaced(path, b"CHR1", b"CHR2")
    return StagedFiles(directory)


def newer_journal(directory: Path) -> object:
    for name in IDENTITY:
        (directory / name).write_text('{"format": 9, "who": ["knows"]}')
    return Journals(directory, "readings", made.ADDRESS)


def newer_positions(directory: Path) -> object:
    (path,) = directory.rglob("positions.json")
    path.write_text('{"format": 9}')
    return Positions(path.parent)


def newer_sqlite(directory: Path) -> object:
    (path,) = [each for each in directory.rglob("hosts*") if each.is_file()]
    of_a_database(path, "update meta set value = '9' where key = 'chappe_format'")
    with Endpoint() as endpoint:
        return endpoint.attach_master("hosts", "sqlite", path=directory / "hosts")


def newer_map(directory: Path) -> object:
    of_a_database(directory / "map", "update meta set value = '9' where key = 'chappe_format'")
    return MapServer("127.0.0.1:0", backend="sqlite", path=directory / "map")


def newer_chain(directory: Path) -> object:
    replaced(sorted(directory.glob("*.chain"))[0], b"CHN1", b"CHN2")
    return ChainFiles(directory, 1)


def newer_vote(directory: Path) -> object:
    replaced(directory / "vote", b"CHN1", b"CHN2")
    return ChainFiles(directory, 1)


def newer_recording(directory: Path) -> object:
    path = directory / "messages.dat"
    raw = bytearray(path.read_bytes())
    raw[4] = 9
    path.write_bytes(raw)
    return list(entries(path.read_bytes()))


def newer_archive(directory: Path) -> object:
    path = max((directory / "_chappe").glob("manifest-*.json"))
    path.write_text('{"format": 9, "files": "elsewhere"}')
    return archive.load(directory)


def newer_permissions(directory: Path) -> object:
    path = directory / "permissions.toml"
    path.write_text("format = 9\n" + path.read_text())
    return read_permissions(directory)


def newer_group(directory: Path) -> object:
    replaced(directory / "sealed-ward.keys", b"{", b'{"format":9,')
    return read_sealed(directory, "ward", authority_check(authority_file(directory).read_bytes()))


NEWER: Final[list[tuple[str, Callable[[Path], object], type[ChappeError]]]] = [
    ("store", newer_store, StorageFormat),
    ("store", newer_sinks, StorageFormat),
    ("store", newer_rows, StorageFormat),
    ("producer", newer_journal, StorageFormat),
    ("consumer", newer_positions, StorageFormat),
    ("sqlite", newer_sqlite, StorageFormat),
    ("map", newer_map, StorageFormat),
    ("chain", newer_chain, StorageFormat),
    ("chain", newer_vote, StorageFormat),
    ("recording", newer_recording, InvalidData),
    ("archive", newer_archive, StorageFormat),
    ("keys", newer_permissions, ConfigError),
    ("keys", newer_group, ConfigError),
]


@pytest.mark.parametrize(("name", "open_newer", "error"), NEWER, ids=[each.__name__ for _, each, _ in NEWER])
def test_what_a_newer_version_wrote_is_refused_in_a_sentence(
    unpacked: Callable[[str], Path], name: str, open_newer: Callable[[Path], object], error: type[ChappeError]
) -> None:
    directory = unpacked(name)
    with pytest.raises(error, match=r"newer chappe|version 9 of the format, only 2 can be read") as told:
        open_newer(directory)
    assert "\n" not in str(told.value)
    assert not list(directory.rglob("aside/*"))
