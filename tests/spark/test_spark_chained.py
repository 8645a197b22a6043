"""A chain as the home of a sink: what is staged and committed survives its servers, and is there once."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.chain_rig import new_configuration
from tests.api.ordered_rig import serving
from tests.ports import free_ports
from tests.waiting import LOOK_S, PATIENCE_S, SPARK_S, until

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chappe import Chain, ChainConfiguration, Keys, OrderedProducer, OrderedStore, Tower, read_topic
from chappe.api import permissions
from chappe.api.log.sealed import sealing_here
from chappe.errors import (
    Fenced,
    NotPermitted,
    RecordTooLarge,
    StagedRowsMissing,
    StorageFull,
    TimedOut,
    UnknownTopic,
    UsageError,
)
from chappe.log.batch import encode_batch
from chappe.log.ordered import homes
from chappe.log.ordered.commands import BODY_BYTES_MAX
from chappe.spark import chained
from chappe.spark.chained import ChainPlace, ChainStaging
from chappe.spark.encode import EncodedPiece
from chappe.spark.home import Home, Origin, Sink
from chappe.spark.options import SinkOptions
from chappe.spark.sink import TopicStreamWriter
from chappe.spark.source import ChappeDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = """
[[rules]]
allow = ["write", "attach-clone"]
names = ["writer"]
topics = ["orders"]
"""
FILES = 3
LINES = 500
PARTITIONS = 2


def written(configuration: ChainConfiguration, folder: Path) -> Path:
    """The file of a configuration."""
    servers = "".join(f'{name} = "{address}"\n' for name, address in configuration.servers.items())
    path = folder / "chain.toml"
    path.write_text(f'name = "{configuration.name}"\n[servers]\n{servers}')
    return path


@contextlib.contextmanager
def closing_clients() -> Iterator[None]:
    try:
        yield
    finally:
        while chained._clients:
            chained._clients.popitem()[1].close()


@pytest.fixture
def store(tmp_path: Path, tower: str) -> Iterator[OrderedStore]:
    with OrderedStore(tmp_path / "a", chain=new_configuration("a"), name="a", tower=tower) as made, closing_clients():
        yield made


@pytest.fixture
def place(store: OrderedStore, tmp_path: Path) -> ChainPlace:
    return ChainPlace(str(written(store._server.configuration, tmp_path)), PATIENCE_S)


def values(store: OrderedStore, topic: str, count: int) -> list[bytes | None]:
    """Of a topic, once there are so many."""
    found: list[bytes | None] = []

    def read() -> bool:
        found.clear()
        with contextlib.suppress(UnknownTopic, TimedOut):
            found.extend(read_topic(topic, stores=store.endpoint)["value"].to_pylist())
        return len(found) >= count

    until(read, lambda: f"{len(found)} of {count}")
    return found


def piece(*rows: bytes, topic: str = "t", partition: int = 0) -> EncodedPiece:
    return EncodedPiece(topic, encode_batch(0, rows, 1_000), len(rows), partition)


def staged(place: ChainPlace, sink: Sink, home: Home, *pieces: EncodedPiece, attempt: int = 0) -> ChainStaging:
    made = ChainStaging(place, home, sink, home.committed + 1, 0, attempt)
    for each in pieces:
        made.partitions(each.topic)
        made.put(each)
    made.finish()
    return made


def test_what_is_staged_is_there_once_when_it_is_committed(place: ChainPlace, store: OrderedStore) -> None:
    sink = Sink("q", "run", True)
    home = chained.begin(place, sink, 0, (), None)
    staged(place, sink, home, piece(b"dropped"), attempt=7).give_up()
    made = staged(place, sink, home, *(piece(b"%d" % number) for number in range(3 * chained.UNDER_WAY_MAX)))
    named = [(0, 0, made.pieces, made.rows)]

    for _ in range(2):
        chained.commit(place, sink, 0, named)

    assert values(store, "t", made.rows) == [b"%d" % number for number in range(made.rows)]
    assert chained.begin(place, Sink("q", "next", True), 1, (), None).committed == 0


def test_what_the_chain_refuses_is_said_as_any_home_says_it(place: ChainPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Sink("q", "old", True), Sink("q", "new", True)
    origin = Origin("origin", "checkpoint here:/c")
    home = chained.begin(place, old, 0, [origin], None)
    chained.commit(place, old, 0, [])
    chained.commit(place, old, 1, [])

    with pytest.raises(UsageError, match="a query of the same checkpoint here:/c has written 2 batches here"):
        chained.begin(place, Sink("other", "r", True), 0, [origin], None)
    with pytest.raises(UsageError, match="keeps no commits of this query, which is at batch 3"):
        chained.begin(place, Sink("third", "r", True), 3, (), None)
    with pytest.raises(UsageError, match="its checkpoint is an older copy"):
        chained.begin(place, old, 0, (), None)
    with pytest.raises(StagedRowsMissing, match="run the batch again"):
        chained.commit(place, old, 2, [(0, 0, 1, 1)])
    with pytest.raises(RecordTooLarge, match="a chain takes at once"):
        staged(place, old, home, EncodedPiece("t", bytes(BODY_BYTES_MAX + 1), 1))
    home = chained.begin(place, new, 2, (), None)
    with pytest.raises(Fenced, match="run new took over"):
        staged(place, old, home, piece(b"a"))
    with pytest.raises(Fenced, match="silent for long"):
        chained.commit(place, Sink("never", "r", True), 0, [])
    monkeypatch.setattr(homes, "PIECE_BYTES", homes.STAGED_BYTES_MAX)
    with pytest.raises(StorageFull, match="make batches smaller"):
        staged(place, new, home, piece(b"a"))


def test_with_keys_who_may_write_the_chain_has_it_for_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    permissions.init(keys, "hub", "server")
    path = keys / "permissions.toml"
    path.write_text(path.read_text().replace("[[rules]]", RULES + "\n[[rules]]", 1))
    permissions.sign(path)
    for name, role in (("writer", "nothing"), ("other", "consumer")):
        permissions.add(keys, name, role)
    chain = ChainConfiguration({"a": f"hub@127.0.0.1:{free_ports(1)}"}, "orders")
    hub = Keys(keys / "hub")
    with (
        closing_clients(),
        Tower("127.0.0.1:0", security=hub) as tower,
        OrderedStore(tmp_path / "a", chain=chain, name="a", tower=f"hub@{tower.address}", security=hub),
    ):
        config = str(written(chain, tmp_path))
        place, sink = ChainPlace(config, PATIENCE_S, Keys(keys / "writer")), Sink("q", "r", True)
        home = chained.begin(place, sink, 0, (), None)
        made = staged(place, sink, home, piece(b"a"))
        chained.commit(place, sink, 0, [(0, 0, made.pieces, made.rows)])
        assert chained.begin(place, sink, 1, (), None).committed == 0

        with pytest.raises(NotPermitted):
            chained.begin(ChainPlace(config, PATIENCE_S, Keys(keys / "other")), sink, 0, (), None)

        sealing = sealing_here(place.security)
        assert sealing is not None
        monkeypatch.setattr(sealing, "seals", lambda topic: True)
        made._sealing = sealing
        with pytest.raises(UsageError, match="is sealed, and a sealed topic cannot be ordered"):
            made.partitions("secret")


def test_a_session_that_is_over_is_another_one(place: ChainPlace, store: OrderedStore) -> None:
    sink = Sink("q", "run", True)
    home = chained.begin(place, sink, 0, (), None)
    made = ChainStaging(place, home, sink, 0, 0, 0)
    made.partitions("t")
    sessions = store._server._ports.core.replica._sessions
    for number in range(4):
        made.put(piece(b"%d" % number))
        with store._server._node.lock:  # as if 10,000 others had come
            for each in list(sessions):
                store._server._ports.core.replica._end(each)
    made.finish()
    with store._server._node.lock:
        for each in list(sessions):
            store._server._ports.core.replica._end(each)

    chained.commit(place, sink, 0, [(0, 0, made.pieces, made.rows)])

    assert values(store, "t", 4) == [b"0", b"1", b"2", b"3"]


def test_a_chain_that_is_not_there_is_named(tmp_path: Path) -> None:
    place = ChainPlace(str(written(new_configuration("a"), tmp_path)), 0.1)

    with closing_clients(), pytest.raises(Exception, match="no server of the chain orders took it in time"):
        chained.begin(place, Sink("q", "r", True), 0, (), None)


def test_options_name_a_chain_by_its_file(tmp_path: Path) -> None:
    path = str(written(new_configuration("a"), tmp_path))

    assert SinkOptions.parse({"chain": path, "topic": "t"}).chain == path
    for name in ("stores", "towers", "minAcks"):
        with pytest.raises(UsageError, match=f"leave out `{name}`"):
            SinkOptions.parse({"chain": path, name: "tcp://h:1" if name == "stores" else "1"})
    with pytest.raises(UsageError, match=r"`chain`: .*none\.toml cannot be read"):
        SinkOptions.parse({"chain": str(tmp_path / "none.toml")})


@pytest.mark.spark
@pytest.mark.process
def test_the_head_is_killed_between_staging_and_commit_of_a_query(
    spark: SparkSession, tmp_path: Path, tower: str
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(LINES)))
    expected = Counter(f"{number}-{line}".encode() for number in range(FILES) for line in range(LINES))
    spark.dataSource.register(held_source())
    with serving(tmp_path, tower) as stores, Chain(stores.configuration) as chain, closing_clients():
        options = {"chain": str(written(stores.configuration, tmp_path)), "topic": "out", "folder": str(tmp_path)}
        with OrderedProducer("out", chain=stores.configuration, partitions=PARTITIONS) as producer:
            belongs = {each: producer.partition_of(each[:3]) for each in expected}
            names = producer.partitions

        def begin() -> Any:
            lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
            rows = lines.repartition(2).selectExpr("value", "substr(value, 1, 3) as key")
            writer = rows.writeStream.format("held").options(**options)
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            return writer.trigger(availableNow=True).start()

        def check(name: str) -> None:
            found = stores.contents(name, "out", len(expected))
            assert Counter(value for part in found.values() for value in part) == expected
            assert all(belongs[value or b""] == names.index(part) for part in found for value in found[part])

        query = begin()
        deadline = time.monotonic() + SPARK_S
        while not (tmp_path / "staged-1").exists():
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(LOOK_S)
        head = stores.of[stores.members(chain)[0]]
        head.kill()
        (tmp_path / "go").touch()
        assert query.awaitTermination(SPARK_S)
        assert query.exception() is None
        for each in set(stores.of) - {head.name}:
            check(each)

        head.start()
        head.started()
        until(lambda: stores.whole(chain))
        check(head.name)
        (tmp_path / "checkpoint" / "commits" / f"{FILES - 1}").unlink()  # Spark does not know of its last batch
        assert begin().awaitTermination(SPARK_S)
        for each in stores.of:
            check(each)


def held_source() -> type[ChappeDataSource]:
    """``format("held")``: batch 1 is not committed before there is a file ``go``. Spark takes local classes along."""

    class Held(TopicStreamWriter):
        def __init__(self, options: SinkOptions, schema: StructType, folder: Path) -> None:
            super().__init__(options, schema)
            self.folder = folder

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
            if batchId == 1:
                (self.folder / "staged-1").touch()
                while not (self.folder / "go").exists():
                    time.sleep(0.01)
            super().commit(messages, batchId)

    class HeldSource(ChappeDataSource):
        @classmethod
        def name(cls) -> str:
            return "held"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            options = {name: value for name, value in self.options.items() if name != "folder"}
            return Held(SinkOptions.parse(options), schema, Path(self.options["folder"]))

    return HeldSource
