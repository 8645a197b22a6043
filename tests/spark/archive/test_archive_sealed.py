"""What archives of sealed topics keep, and what replays make of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from tests.waiting import PATIENCE_S

pytest.importorskip("pyspark")

from chappe import Keys, Producer, Store, Tower
from chappe.api import permissions
from chappe.errors import Sealed, StorageError
from chappe.reading.kept import MARK, Unsealing, kept
from chappe.spark.archive.manifest import file_schema
from chappe.spark.archive.unsealed import unsealed
from chappe.spark.batch import TopicReader
from chappe.spark.options import Options

TOPIC = "patients/1"


class Place:
    """A tower and a store with keys; ann is of the group, hub and eve are not."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home = home
        permissions.init(home, "hub", "server")
        permissions.add(home, "ann", "member")
        permissions.add(home, "eve", "consumer")
        permissions.seal(home, "ward", ["patients/*"], names=["ann"])
        self.tower = stack.enter_context(Tower("127.0.0.1:0", security=self.keys("hub"))).address
        self.store = stack.enter_context(Store(home.parent / "kept", tower=self.tower, security=self.keys("hub")))

    def keys(self, name: str) -> Keys:
        return Keys(self.home / name)

    def send(self, topic: str, *values: bytes | None) -> str:
        with Producer(topic, tower=self.tower, security=self.keys("ann")) as producer:
            producer.send_many(values[:-1])
            producer.flush(PATIENCE_S)
            producer.send(values[-1], key="k", headers={"h": "v"}, timestamp=7)
            producer.flush(PATIENCE_S)
            return producer.partition


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("CHAPPE_IDENTITY", raising=False)
    with ExitStack() as stack:
        yield Place(tmp_path / "keys", stack)


def rows(place: Place, name: str, sealed: str, tasks: int = 1) -> pa.Table:
    """A topic as a task of the archive reads it."""
    given = {"stores": place.store.endpoint, "subscribe": TOPIC, "includeHeaders": "true", "openSealed": sealed}
    given |= {"identity": str(place.home / name), "minPartitions": str(tasks)}
    reader = TopicReader(Options.parse(given))
    found = [batch for task in reader.partitions() for batch in reader.read(task)]
    table = pa.Table.from_batches(found).select([each.name for each in file_schema()])
    return table.sort_by("offset")


@pytest.mark.parametrize("tasks", [1, 3])
def test_what_is_kept_sealed_can_be_opened_and_only_by_the_group(place: Place, tasks: int) -> None:
    values = [b"planted %d" % n for n in range(100)]
    partition = place.send(TOPIC, *values, None)
    table = rows(place, "eve", "keep", tasks)  # who keeps it need not belong to the group
    assert table.column("offset").to_pylist() == list(range(101))
    assert not any(b"planted" in value for value in table.column("value").to_pylist() if value)
    assert all(each[0]["key"] == MARK for each in table.column("headers").to_pylist())

    opened = unsealed(table, [(0, 40, (TOPIC, partition)), (40, 61, (TOPIC, partition))], Unsealing(place.keys("ann")))
    assert opened.column("value").to_pylist() == [*values, None]
    assert opened.column("key").to_pylist() == [None] * 100 + [b"k"]
    assert opened.column("headers")[100].as_py() == [{"key": "h", "value": b"v"}]
    assert opened.schema == table.schema
    for name in ("eve", "hub"):
        with pytest.raises(Sealed, match=f"cannot be opened: {name} is not of the group ward"):
            unsealed(table, [(0, 101, (TOPIC, partition))], Unsealing(place.keys(name)))
    with pytest.raises(Sealed, match="this program has no identity"):
        unsealed(table, [(0, 101, (TOPIC, partition))], Unsealing())
    with pytest.raises(StorageError, match="offset 1 is here without it"):
        unsealed(table.slice(1), [(0, 100, (TOPIC, partition))], Unsealing(place.keys("ann")))


def test_rows_that_only_look_so_stay_as_they_are(place: Place) -> None:
    columns = {
        "partition": ["P"] * 3,
        "offset": [5, 6, 7],
        "timestamp": [1, 2, 3],
        "key": [None] * 3,
        "value": [b"x", None, b"y"],
        "headers": [[{"key": MARK, "value": b""}], [{"key": MARK, "value": b""}], []],
    }
    arrays = [
        pa.array(columns[each.name], pa.int64() if each.name == "timestamp" else each.type) for each in file_schema()
    ]
    table = pa.table([each.cast(field.type) for each, field in zip(arrays, file_schema(), strict=True)], file_schema())

    for security in (place.keys("ann"), None):
        assert unsealed(table, [(0, 3, ("orders", "P"))], Unsealing(security)) == table


def test_an_older_kept_batch_of_the_same_records_is_a_batch(place: Place) -> None:
    place.send(TOPIC, b"one", b"two")
    table = rows(place, "ann", "true")
    assert table.column("value").to_pylist() == [b"one", b"two"]
    from chappe.log.batch import Batch, encode_sealed

    batch = kept(Batch.parse(encode_sealed(4, 3, 9, 9, bytes(80))), 5, 7)
    assert (batch.base, batch.next, batch.timestamp_min, batch.timestamp_max) == (5, 7, 9, 9)
