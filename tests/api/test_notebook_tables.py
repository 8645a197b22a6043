"""What notebooks show of batches, topics, data stores, maps and the mesh; and batches as Polars has them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import polars
import pytest
from tests.waiting import until

from chappe import Consumer, Endpoint, MapServer, Producer, SharedMap, list_topics
from chappe.errors import TimedOut
from chappe.testing import Log

HOSTILE = "<b>&amp;"


def rows_of(shown: object) -> list[list[str]]:
    """The cells below the head; whatever is no table, or has markup of users in it, fails."""
    tree = ET.fromstring(shown._repr_html_())  # type: ignore[attr-defined]
    assert {each.tag for each in tree.iter()} <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    body = tree.find("tbody")
    assert body is not None
    return [[cell.text or "" for cell in row] for row in body]


def title_of(shown: object) -> str:
    tree = ET.fromstring(shown._repr_html_())  # type: ignore[attr-defined]
    return tree.findtext("caption") or ""


def test_a_batch_is_a_table_and_a_frame(chappe_log: Log) -> None:
    with Producer("orders") as producer:
        for number in range(100):
            producer.send(f"{HOSTILE}{number}", key=HOSTILE, headers=[("trace", HOSTILE.encode())])
        producer.flush(10)
    with Consumer("orders") as consumer:
        batches = list(consumer.batches_to_end())
    whole = max(batches, key=len)
    rows = rows_of(whole)
    assert rows[0][0] == f"{whole.first:,}"
    assert rows[0][2:] == [HOSTILE, f"{HOSTILE}{whole.first}", f"trace={HOSTILE}"]
    assert len(rows) <= 21
    assert title_of(whole).startswith("orders, partition ")
    frame = whole.to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert frame["value"].to_list() == whole.values()
    assert frame["offset"].to_list() == list(range(whole.first, whole.next))


def test_topics_are_listed_by_name(chappe_log: Log) -> None:
    chappe_log.write("readings", "1", "2")
    chappe_log.write(HOSTILE, "1")
    found = list_topics()
    assert [(each.topic, each.records, each.partitions) for each in found] == [(HOSTILE, 1, 1), ("readings", 2, 1)]
    assert [row[0] for row in rows_of(found)] == [HOSTILE, "readings"]
    assert [each.topic for each in list_topics("read*")] == ["readings"]
    assert list(list_topics("nowhere")) == []
    assert repr(found[1:]) == "<TopicList of 1 topic>"
    assert found[0].oldest == found[0].newest is not None


def test_without_a_store_there_is_nothing_to_list() -> None:
    with pytest.raises(TimedOut, match="no store answers at tcp://127"):
        list_topics(stores="tcp://127.0.0.1:9")


def test_a_data_store_is_a_table() -> None:
    with Endpoint() as endpoint:
        store = endpoint.attach_master("hosts")
        store.put(HOSTILE, {HOSTILE: 1})
        store.put(("a", 1), "soon gone", expiry_s=1000)
        assert title_of(store) == "data store hosts, master: 2 entries"
        first, second = rows_of(store)
        assert first == [HOSTILE, f"{{{HOSTILE} -> 1}}", ""]
        assert second[:2] == ["(a, 1)", "soon gone"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", second[2])
        for number in range(100):
            store.put(number, number)
        assert rows_of(store)[-1] == ["... and 82 more"]


def test_a_clone_without_data_says_so() -> None:
    with Endpoint() as endpoint:
        store = endpoint.attach_clone("hosts", timeout=0)
        assert title_of(store) == "data store hosts, clone: it has no data yet"
        assert rows_of(store) == []


def test_a_map_is_a_table() -> None:
    with MapServer("127.0.0.1:0") as server, SharedMap(server.address) as shared:
        shared[HOSTILE] = HOSTILE.encode()
        assert title_of(shared) == "shared map, active: 1 entry"
        assert rows_of(shared) == [[HOSTILE, HOSTILE]]


def test_the_mesh_is_a_table() -> None:
    with Endpoint() as one, Endpoint() as two:
        two.subscribe(HOSTILE)
        one.peer("127.0.0.1", two.listen())
        expected = [
            ["0", one.id[:8], "chappe", two.id[:8], ""],
            ["1", two.id[:8], "chappe", one.id[:8], HOSTILE],
        ]
        until(lambda: rows_of(one.topology()) == expected, lambda: str(rows_of(one.topology())))
        assert title_of(one.topology()) == f"2 endpoints and 1 link, seen from {one.id[:8]}"
