"""Topics of one site that are kept at another one too: each record once, at its place, whatever happens to the copy."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from chappe import Consumer, Forwarder, Keys, Producer, Store, Tower
from chappe.api import permissions
from chappe.api.log.discovery import discover
from chappe.api.log.mirror import MirrorProducer
from chappe.bridges.copying import CopyProgress, TopicCopy
from chappe.data.topic import encode_topic
from chappe.errors import TimedOut, UnknownTopic, UsageError
from chappe.log.batch import Batch, Record, encode_batch
from chappe.log.queries import TopicChange
from chappe.system import time
from chappe.testing import World
from chappe.transports.queries import StoreClient

NORTH, SOUTH = "127.0.0.1:5556", "127.0.0.1:6556"
SITES = {"north": NORTH, "south": SOUTH}


@pytest.fixture
def sites(chappe_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    for name, at in SITES.items():
        with chappe_world.on(name):
            Tower(at)
        start_store(chappe_world, name)
    return chappe_world


def start_store(world: World, site: str, name: str = "store", **more: Any) -> Store:
    with world.on(f"{site}-{name}"):
        return Store(f"{site}-{name}", tower=SITES[site], **more)


def write(topic: str, count: int, tower: str = NORTH, first: int = 0) -> str:
    with Producer(topic, tower=tower) as producer:
        for n in range(first, first + count):
            producer.send(str(n), key=f"k{n % 3}", headers={"n": str(n)}, timestamp=n)
        return producer.partition


def copy(topic: str = "orders", **more: Any) -> CopyProgress:
    with TopicCopy([topic], {"tower": NORTH}, {"tower": SOUTH}, **more) as made:
        made.run()
        return made.progress


def send(producer: Producer, first: int, count: int) -> None:
    """Send records as a batch of their own, whose times are their offsets."""
    producer.send_many([str(n) for n in range(first, first + count)], timestamp=first)
    producer.flush()


def read(topic: str, tower: str = SOUTH) -> list[Record]:
    with Consumer(topic, tower=tower) as consumer:
        return sorted(consumer.to_end(120), key=lambda each: (each.partition, each.offset))


def test_a_copy_has_the_same_records_at_the_same_places(sites: World) -> None:
    for _ in range(2):
        write("orders", 500)
    done = copy()
    assert (done.sent, done.stored, done.total, done.gone) == (1000, 1000, 1000, 0)
    assert read("orders") == read("orders", NORTH)
    assert len(read("orders")) == 1000
    assert copy().sent == 0  # all is there


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators of killed programs
def test_a_copy_that_is_killed_at_any_moment_goes_on_without_doubles_or_losses(
    sites: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer("orders", tower=NORTH) as one, Producer("orders", tower=NORTH) as other:
        for first in range(0, 300, 10):
            send(one, first, 10)
            send(other, first, 10)
    whole = TopicCopy._send

    def send_slowly(*args: Any) -> None:  # in these worlds it takes no time else
        time.sleep(0.01)
        whole(*args)

    monkeypatch.setattr(TopicCopy, "_send", send_slowly)
    reached = set()
    for turn in range(20):
        sites.start(copy, host=f"copier{turn}")
        sites.advance(0.6 + turn * 0.007)
        sites.kill(f"copier{turn}", power_cut=bool(turn % 2))
        reached.add(len(read("orders")))
    assert len(reached) > 4, "it was killed on its way"
    copy()
    assert read("orders") == read("orders", NORTH)
    assert len(read("orders")) == 600


def test_two_copies_at_once_write_each_record_once(sites: World) -> None:
    write("orders", 5000)
    both = [sites.start(copy, host=f"copier{n}") for n in range(2)]
    for each in both:
        each.result(60)
    assert read("orders") == read("orders", NORTH)


def test_following_copies_what_comes_and_new_partitions(sites: World) -> None:
    write("orders", 10)
    made = TopicCopy(["ord*"], {"tower": NORTH}, {"tower": SOUTH})
    sites.start(made.run, follow=True)
    sites.wait_until(lambda: made.progress.stored == 10)
    write("orders", 5)
    write("ordinary", 5)
    sites.wait_until(lambda: made.progress.stored == 20)
    sites.kill("south-store")
    write("orders", 5)
    sites.advance(20)
    start_store(sites, "south")
    sites.wait_until(lambda: made.progress.stored == 25, 60)
    assert [read(each) for each in ("orders", "ordinary")] == [read(each, NORTH) for each in ("orders", "ordinary")]


def test_there_and_back_again_is_no_circle(sites: World) -> None:
    write("orders", 10)
    write("orders", 10, SOUTH)
    copy()
    with TopicCopy(["orders"], {"tower": SOUTH}, {"tower": NORTH}) as back:
        back.run()
    assert back.progress.sent == 10
    assert read("orders") == read("orders", NORTH)
    assert len(read("orders")) == 20


def test_another_name_is_possible_at_the_same_site_and_beside_its_producers(sites: World) -> None:
    with Producer("orders", tower=NORTH) as producer:
        producer.send_many(map(str, range(100)))
        producer.flush()
        for expected in (100, 0):
            with TopicCopy(["orders"], {"tower": NORTH}, {"tower": NORTH}, to="backup") as made:
                made.run()
            assert made.progress.sent == expected
        producer.send(b"after")
        producer.flush()
    assert [each.value for each in read("backup", NORTH)] == [str(n).encode() for n in range(100)]
    with pytest.raises(UsageError, match="the stores of both places are the same"):
        TopicCopy(["orders"], {"tower": NORTH}, {"tower": NORTH})


def trim(tower: str, topic: str, before: int) -> None:
    for store in discover(tower):
        with closing(StoreClient(store.endpoint)) as client:
            client.ask(TopicChange(encode_topic(topic), before=before))


def test_records_that_the_source_has_let_go_of_leave_a_gap_and_are_counted(sites: World) -> None:
    with Producer("orders", tower=NORTH) as producer:
        send(producer, 0, 10)
        send(producer, 10, 90)
        trim(NORTH, "orders", 10)  # a copy begins behind them
        done = copy()
        assert (done.sent, done.stored, done.gone) == (90, 90, 0)
        send(producer, 100, 50)
        send(producer, 150, 50)
        trim(NORTH, "orders", 150)
        done = copy()
        assert (done.sent, done.stored, done.gone) == (50, 50, 50)
        assert copy().sent == 0
    assert [each.offset for each in read("orders")] == [*range(10, 100), *range(150, 200)]


def test_what_a_killed_copy_has_left_open_is_filled(sites: World) -> None:
    with Producer("orders", tower=NORTH) as producer:
        for first in range(0, 300, 100):
            send(producer, first, 100)

    def send_the_end_alone() -> None:
        batch = Batch.parse(encode_batch(200, [str(n).encode() for n in range(200, 300)], 200))
        mirror = MirrorProducer(producer.partition, tower=SOUTH)
        mirror.wait_ready()
        sites.cut("south-store", "copier", one_way=True)  # it cannot ask for what it lacks
        mirror.put("orders", batch)
        mirror.flush()

    sites.start(send_the_end_alone, host="copier")
    sites.advance(120)  # the store gives up the beginning
    sites.kill("copier")
    sites.mend()
    (store,) = discover(SOUTH)
    with closing(StoreClient(store.endpoint)) as client:
        client.heads("orders")
    assert client.holes == {("orders", producer.partition): [(0, 199)]}
    assert copy().stored == 200
    assert read("orders") == read("orders", NORTH)


def test_a_store_that_may_have_what_others_have_let_go_of_is_waited_for(sites: World) -> None:
    first = start_store(sites, "north", "second")
    with Producer("orders", tower=NORTH, min_acks=2) as producer:
        send(producer, 0, 50)
        send(producer, 50, 50)
    with first._node.driver.lock:  # as its own retention does
        first._storage.reset("orders", producer.partition, 50)
    for follow in (False, True):
        made = TopicCopy(["orders"], {"tower": NORTH}, {"tower": SOUTH})
        sites.kill("north-store")
        copying = sites.start(made.run, follow=follow, host="copier")
        if not follow:
            with pytest.raises(TimedOut, match="which does not answer: start it"):
                copying.result(60)
        sites.advance(30)
        start_store(sites, "north")
    sites.wait_until(lambda: made.progress.stored == 100, 120)
    with Producer("orders", tower=NORTH) as producer:
        send(producer, 100, 50)
        sites.advance(5)
        sites.pause("copier")
        send(producer, 150, 50)
        send(producer, 200, 50)
        trim(NORTH, "orders", 200)
        sites.resume("copier")
        sites.wait_until(lambda: made.progress.stored == 200, 120)
    assert made.progress.gone == 50  # nobody who is missed can have them


def test_bad_places_and_names(sites: World) -> None:
    write("orders", 1)
    with pytest.raises(UnknownTopic, match="no store of the source has a topic 'nothing'"):
        copy("nothing")
    with pytest.raises(UsageError, match="one name for several topics"):
        copy("ord*", to="backup")
    with pytest.raises(TimedOut, match=r"no store answers at the tower at .*:7556"):
        TopicCopy(["orders"], {"tower": "127.0.0.1:7556"}, {"tower": SOUTH})


def test_sealed_records_pass_as_they_are_between_forwarders_by_who_cannot_open_them(tmp_path: Path) -> None:
    home = tmp_path / "keys"
    permissions.init(home, "hub", "server")
    for name in ("ann", "bob", "copier"):
        permissions.add(home, name, "member")
    permissions.seal(home, "ward", ["patients"], names=["ann", "bob"])
    keys = {name: Keys(home / name) for name in ("hub", "ann", "bob", "copier")}
    with (
        Forwarder(tmp_path / "north", listen="127.0.0.1:0", security=keys["hub"]) as north,
        Forwarder(tmp_path / "south", listen="127.0.0.1:0", security=keys["hub"]) as south,
        Producer("patients", forwarders=north.address, security=keys["ann"]) as producer,
        Consumer("patients", forwarders=south.address, security=keys["bob"]) as consumer,
    ):
        producer.send(b"fever", key=b"7", headers={"ward": "3"}, timestamp=5)
        producer.flush(PATIENCE_S)
        places = [{"forwarders": each.address, "security": keys["copier"]} for each in (north, south)]
        for to in ("copies", None):
            with TopicCopy(["patients"], *places, to=to) as made:
                if to is not None:
                    with pytest.raises(UsageError, match="is sealed for a group"):
                        made.run()
                    continue
                made.run()
        assert made.progress.stored == 1
        (record,) = consumer.to_end(PATIENCE_S)
    assert record == Record("patients", producer.partition, 0, 5, b"7", b"fever", (("ward", b"3"),))
