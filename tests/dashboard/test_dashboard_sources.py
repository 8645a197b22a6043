"""Sources against real members in this process, and what watching makes of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.api.chain_rig import new_configuration, serving
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, Endpoint, Keys, MapServer, Producer, Retention, Store, Tower, Witness
from chappe.api import permissions
from chappe.dashboard.sources.chains import ChainSource
from chappe.dashboard.sources.log import LogSource, kept_of
from chappe.dashboard.sources.maps import MapSource
from chappe.dashboard.sources.mesh import MeshSource
from chappe.dashboard.sources.pipelines import PipelineSource, pipeline_of
from chappe.dashboard.watching import SourceRunner
from chappe.errors import TimedOut
from chappe.mesh.link_reports import ASK_LINKS, ask, parse_report
from chappe.observing.observer import SystemObserver
from chappe.observing.snapshot import (
    ObservedLag,
    ObservedLink,
    ObservedMember,
    ObservedPart,
    ObservedQuery,
    ObservedReader,
    ObservedTopic,
    SystemSnapshot,
)
from chappe.spark.pipeline.states import Failure, PipelineState, States, started_at


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def seen(watching: SourceRunner, condition: Callable[[SystemSnapshot], Any]) -> SystemSnapshot:
    """A snapshot for which something holds."""
    found: list[SystemSnapshot] = []

    def holds() -> Any:
        found[:] = [watching.snapshot()]
        return condition(found[0])

    until(holds, lambda: f"in {found[0]}")
    return found[0]


def only(snapshot: SystemSnapshot, kind: str) -> ObservedMember:
    (found,) = [each for each in snapshot.members if each.kind == kind]
    return found


def test_the_log_tells_of_towers_stores_topics_readers_and_who_writes(stack: ExitStack, tmp_path: Path) -> None:
    tower = stack.enter_context(Tower("127.0.0.1:0"))
    store = stack.enter_context(Store(tmp_path / "store", tower=tower.address))
    producer = stack.enter_context(
        Producer("readings", tower=tower.address, identity="sensor-1", directory=tmp_path / "kept")
    )
    for n in range(10):
        producer.send(b"%d" % n)
    producer.flush()
    consumer = stack.enter_context(Consumer("readings", tower=tower.address, identity="team", directory=tmp_path))
    assert len(list(consumer.to_end(PATIENCE_S))) == 10
    consumer.commit()
    producer.send(b"not read")
    producer.flush()
    source = LogSource(tower.address, listen="127.0.0.1", groups=tmp_path / "consumers")
    watching = stack.enter_context(SourceRunner([source], look_s=0.1))

    def whole(snapshot: SystemSnapshot) -> bool:
        topics, kinds = snapshot.topics, {each.kind for each in snapshot.members}
        there = {"tower", "store", "producers", "consumers"} <= kinds
        return there and any(each.readers and each.end == 11 and each.live for each in topics)

    found = seen(watching, whole)

    (topic,) = found.topics
    assert (topic.name, topic.records, topic.writers) == ("readings", 11, (producer.partition,))
    assert [(each.name, each.kind, each.lag, each.position) for each in topic.readers] == [("team", "group", 1, 10)]
    assert topic.stores == (only(found, "store").id,)
    assert only(found, "store").name == f"{store.name} ({store.store_id[:8]})"
    assert {each.kind for each in found.members} == {"tower", "store", "producers", "consumers", "group"}
    assert {each.kind for each in found.links} == {"introduces", "records", "reads"}
    name, held = source.held("readings")
    assert (name, held[producer.partition].next) == ("readings", 11)


def test_members_of_the_log_are_called_by_their_names_and_consumers_elsewhere_tell_what_they_committed(
    stack: ExitStack, tmp_path: Path
) -> None:
    tower = stack.enter_context(Tower("127.0.0.1:0", name="hill"))
    stack.enter_context(Store(tmp_path / "store", tower=tower.address, name="cellar"))
    named, other = [
        stack.enter_context(Producer("readings", tower=tower.address, name=name)) for name in ("boiler 3", "boiler 4")
    ]
    for producer in (named, other):
        producer.send_many([b"x"] * 10)
        producer.flush()
    consumer = stack.enter_context(
        Consumer("readings", tower=tower.address, identity="team", directory=tmp_path, name="far@web1")
    )
    assert len(list(consumer.to_end(PATIENCE_S))) == 20
    consumer.commit({("readings", named.partition): 10, ("readings", other.partition): 7})
    watching = stack.enter_context(
        SourceRunner([LogSource(tower.address, listen="127.0.0.1", groups=tmp_path / "nothing")], look_s=0.1)
    )

    found = seen(watching, lambda s: s.topics and s.topics[0].readers and all(s.topics[0].names))

    (topic,) = found.topics
    assert dict(zip(topic.writers, topic.names, strict=True)) == {
        named.partition: "boiler 3", other.partition: "boiler 4",
    }  # fmt: skip
    assert topic.readers == (ObservedReader("team (far@web1)", "consumer", 3, 17),)
    names = {each.kind: each.name for each in found.members}
    assert names["tower"] == "hill"
    assert names["store"].startswith("cellar (")
    assert (names["producers"], names["consumers"]) == ("boiler 3, boiler 4", "far@web1")
    facts = dict(only(found, "producers").facts)
    assert f"boiler 3 ({named.partition[:8]})" in facts["partitions"]
    assert dict(only(found, "consumers").facts)["team (far@web1) in readings"] == "committed 17, 3 records behind"
    came = {each.who for each in found.history}
    assert {"producers boiler 3, boiler 4", "consumers far@web1"} <= came

    named.close()  # what it wrote keeps its name

    found = seen(watching, lambda s: any(each.name == "boiler 4" for each in s.members))
    assert set(found.topics[0].names) == {"boiler 3", "boiler 4"}


def test_with_keys_the_identity_stands_before_a_name_and_only_administrators_are_told_of_producers(
    stack: ExitStack, tmp_path: Path
) -> None:
    home = tmp_path / "keys"
    permissions.init(home, "admin", "administrator")
    for name, role in (("hub", "server"), ("sensor", "member"), ("poor", "member")):
        permissions.add(home, name, role, hosts=["127.0.0.1"])
    keys = {name: Keys(home / name) for name in ("admin", "hub", "sensor", "poor")}
    tower = stack.enter_context(Tower("127.0.0.1:0", name="hill", security=keys["hub"]))
    stack.enter_context(Store(tmp_path / "store", tower=tower.address, name="cellar", security=keys["hub"]))
    producer = stack.enter_context(Producer("readings", tower=tower.address, name="the admin", security=keys["sensor"]))
    producer.send(b"x")
    producer.flush()

    def told(name: str, writer: str) -> dict[str, str]:
        source = LogSource(tower.address, listen="127.0.0.1", groups=tmp_path, security=keys[name])
        with SourceRunner([source], look_s=0.1) as watching:

            def whole(snapshot: SystemSnapshot) -> bool:
                kinds = {each.kind for each in snapshot.members}
                named = snapshot.topics and snapshot.topics[0].names == (writer,)
                return bool(named) and {"tower", "store", "producers"} <= kinds

            return {each.kind: each.name.partition(" (")[0] for each in seen(watching, whole).members}

    assert told("admin", "the admin") == {"tower": "hill", "store": "hub: cellar", "producers": "sensor: the admin"}
    assert told("poor", "") == {"tower": "hill", "store": "hub: cellar", "producers": "sensor"}


def test_nodes_of_the_log_tell_how_much_goes_over_their_links(stack: ExitStack, tmp_path: Path) -> None:
    tower = stack.enter_context(Tower("127.0.0.1:0"))
    stack.enter_context(Store(tmp_path / "store", tower=tower.address))
    producer = stack.enter_context(Producer("readings", tower=tower.address))
    consumer = stack.enter_context(Consumer("readings", tower=tower.address))
    source = LogSource(tower.address, listen="127.0.0.1", groups=tmp_path)
    watching = stack.enter_context(SourceRunner([source], look_s=0.1))
    producer.send(bytes(10_000))
    producer.flush()
    assert len(list(consumer.to_end(PATIENCE_S))) == 1

    def links(snapshot: SystemSnapshot) -> dict[tuple[str, str], ObservedLink]:
        kinds = {each.id: each.kind for each in snapshot.members}
        return {(kinds[each.ends[0]], kinds[each.ends[1]]): each for each in snapshot.links}

    def told(snapshot: SystemSnapshot) -> bool:
        found = links(snapshot)
        ways = [
            found.get(each) for each in (("producers", "store"), ("store", "consumers"), ("producers", "consumers"))
        ]
        return all(each is not None and each.sent and each.received is not None for each in ways)

    found = links(seen(watching, told))

    kept = found["producers", "store"]
    assert (kept.sent_bytes or 0) > 10_000
    assert (kept.received or 0) > 0  # acknowledgements
    assert (kept.tls, kept.note, kept.waiting) == (False, "protocol of chappe", 0)
    assert (found["producers", "consumers"].sent or 0) > 0  # directly, over no store
    seen(watching, lambda s: all((links(s)["tower", kind].sent or 0) > 0 for kind in ("store", "producers")))


def test_a_store_that_goes_away_is_a_problem_and_what_it_had_is_not_shown_as_there(
    stack: ExitStack, tmp_path: Path
) -> None:
    tower = stack.enter_context(Tower("127.0.0.1:0"))
    store = stack.enter_context(Store(tmp_path / "store", tower=tower.address))
    watching = stack.enter_context(
        SourceRunner([LogSource(tower.address, listen="127.0.0.1", groups=tmp_path)], look_s=0.1)
    )
    seen(watching, lambda s: any(each.kind == "store" for each in s.members))

    store.close()

    found = seen(watching, lambda s: s.problems)
    assert any("store" in each.text and each.mend for each in found.problems)


def test_no_tower_is_one_sentence_and_its_coming_ends_it(stack: ExitStack, tmp_path: Path) -> None:
    with Tower("127.0.0.1:0") as former:
        address = former.address
    watching = stack.enter_context(SourceRunner([LogSource(address, listen="127.0.0.1", groups=tmp_path)], look_s=0.1))

    found = seen(watching, lambda s: s.problems)

    assert [each.key for each in found.problems] == ["no tower"]
    assert only(found, "tower").status == "silent"
    stack.enter_context(Tower(address))
    seen(watching, lambda s: not any(each.key == "no tower" for each in s.problems))


def test_the_mesh_tells_of_endpoints_links_and_data_stores(stack: ExitStack) -> None:
    hub = stack.enter_context(Endpoint())
    far = stack.enter_context(Endpoint())
    port = hub.listen()
    far.peer("127.0.0.1", port)
    stack.enter_context(hub.attach_master("prices"))
    stack.enter_context(far.attach_clone("prices"))
    source = MeshSource([("127.0.0.1", port)])
    watching = stack.enter_context(SourceRunner([source], look_s=0.1))

    found = seen(watching, lambda s: s.keepings and s.keepings[0].ages == (0.0,) and len(s.links) == 3)

    assert {each.id for each in found.members if each.kind == "endpoint"} == {hub.id, far.id}
    assert only(found, "this dashboard").id == source.endpoint.id
    (own,) = [each for each in found.links if source.endpoint.id in each.ends]
    assert own.sent is not None
    assert own.sent > 0
    (other,) = [each for each in found.links if source.endpoint.id not in each.ends and each.kind == "mesh"]
    assert set(other.ends) == {hub.id, far.id}
    (store,) = found.keepings
    assert (store.name, store.masters, store.copies) == ("prices", (hub.id,), (far.id,))
    (copying,) = [each for each in found.links if each.kind == "copies"]
    assert (copying.ends, copying.note) == ((hub.id, far.id), "data store prices, up to date")
    facts = {each.id: dict(each.facts) for each in found.members}
    assert facts[hub.id]["data store prices"] == "master, entries: 0"
    assert facts[far.id]["data store prices"] == "clone, up to date"


def test_ends_of_links_tell_how_much_goes_over_them_and_clones_how_old_they_are(stack: ExitStack) -> None:
    hub = stack.enter_context(Endpoint())
    far = stack.enter_context(Endpoint())
    port = hub.listen()
    far.peer("127.0.0.1", port)
    master = stack.enter_context(hub.attach_master("prices"))
    master.put("a", 1)
    stack.enter_context(far.attach_clone("prices", stale_s=-1))
    source = MeshSource([("127.0.0.1", port)])
    watching = stack.enter_context(SourceRunner([source], look_s=0.05))

    def link(snapshot: SystemSnapshot) -> ObservedLink:
        return next(each for each in snapshot.links if source.endpoint.id not in each.ends and each.kind == "mesh")

    def linked(snapshot: SystemSnapshot) -> bool:
        return sum(each.kind == "mesh" for each in snapshot.links) == 2

    def told(snapshot: SystemSnapshot) -> bool:
        kept = [(each.entries, each.ages) for each in snapshot.keepings]
        return linked(snapshot) and link(snapshot).received is not None and kept == [(1, (0.0,))]

    before = link(seen(watching, told))
    assert before.tls is False
    one, other = (hub, far) if before.ends[0] == hub.id else (far, hub)
    stack.enter_context(other.subscribe("a"))
    until(lambda: one.publish("a", 1))

    later = seen(watching, lambda s: linked(s) and (link(s).sent or 0) > (before.sent or 0))
    assert link(later).waiting == link(later).waiting_back == 0
    master.close()
    seen(watching, lambda s: s.keepings and s.keepings[0].ages and (s.keepings[0].ages[0] or 0.0) > 0.0)


def test_who_is_published_a_question_like_anything_else_does_not_answer(stack: ExitStack) -> None:
    hub, looking = stack.enter_context(Endpoint()), stack.enter_context(Endpoint())
    stack.enter_context(hub.subscribe("<$>/links"))  # so that it gets it
    looking.peer("127.0.0.1", hub.listen())
    answers = stack.enter_context(looking.subscribe("<$>/links/told"))
    until(lambda: looking.try_publish(ASK_LINKS, ask(1)))

    looking.try_publish(ASK_LINKS, ask(2), UUID(hub.id).bytes)

    answer = answers.get(timeout=PATIENCE_S)
    assert answer is not None
    assert parse_report(answer.payload).number == 2


def test_stores_tell_what_they_keep(stack: ExitStack, tmp_path: Path) -> None:
    tower = stack.enter_context(Tower("127.0.0.1:0"))
    kept = [("readings*", Retention(age_s=7 * 86_400.0, bytes=1 << 30))]
    stack.enter_context(Store(tmp_path / "store", tower=tower.address, retention=kept))
    producer = stack.enter_context(Producer("readings", tower=tower.address))
    producer.send(b"x")
    producer.send(b"y", topic="other")
    producer.flush()
    source = LogSource(tower.address, listen="127.0.0.1", groups=tmp_path / "consumers")
    watching = stack.enter_context(SourceRunner([source], look_s=0.1))

    found = seen(watching, lambda s: len(s.topics) == 2)

    assert [each.retention for each in found.topics] == [
        "everything, for ever", "the last 7 days, 1.0 GiB at most",
    ]  # fmt: skip
    assert kept_of("a", [("a", None, None, 5), ("*", 60.0, None, None)]) == "5 records at most"
    assert kept_of("b", [("a", None, None, 5), ("*", 60.0, None, None)]) == "the last 1 minute"


def test_a_peer_that_the_user_named_and_that_is_not_there_is_a_problem(stack: ExitStack) -> None:
    with Endpoint() as former:
        port = former.listen()
    named = stack.enter_context(SourceRunner([MeshSource([("127.0.0.1", port)])], look_s=0.1))
    looked = stack.enter_context(SourceRunner([MeshSource([("127.0.0.1", port)], named=False)], look_s=0.1))

    found = seen(named, lambda s: s.problems)

    assert "chappe node" in found.problems[0].mend
    assert looked.snapshot().members == ()
    assert looked.snapshot().problems == ()


def test_maps_tell_how_many_entries_they_have_and_that_no_server_answers(stack: ExitStack) -> None:
    server = stack.enter_context(MapServer("127.0.0.1:0"))
    source = MapSource([server.address])
    watching = stack.enter_context(SourceRunner([source], look_s=0.1))
    until(lambda: source.maps[server.address].ready)
    source.maps[server.address].set("/a", b"1")

    found = seen(watching, lambda s: s.keepings and s.keepings[0].entries == 1)

    assert only(found, "map server").status == "followed"
    server.close()
    assert "No server of the map" in seen(watching, lambda s: s.problems).problems[0].text


def test_the_silent_server_of_a_pair_is_a_problem_while_the_other_one_serves(stack: ExitStack) -> None:
    servers = [stack.enter_context(MapServer("127.0.0.1:0")) for _ in range(2)]
    source = MapSource([",".join(each.address for each in servers)])
    watching = stack.enter_context(SourceRunner([source], look_s=0.1))

    def statuses(snapshot: SystemSnapshot) -> list[str]:
        return [each.status for each in snapshot.members]

    found = seen(watching, lambda s: sorted(statuses(s)) == ["followed", "not followed"] and not s.problems)
    silent = servers[statuses(found).index("not followed")]  # mostly the second one, if the machine is not too busy
    silent.close()

    def told(snapshot: SystemSnapshot) -> bool:
        return any(silent.address in each.text and "serves alone" in each.text for each in snapshot.problems)

    seen(watching, lambda s: sorted(statuses(s)) == ["does not answer", "followed"] and told(s))


def test_a_pair_of_map_servers_tells_who_is_active_and_where_its_witness_is(stack: ExitStack, tmp_path: Path) -> None:
    judge = stack.enter_context(Witness("127.0.0.1:0", path=tmp_path / "witness.db"))
    one, two = free_address(4), free_address(4)
    primary = stack.enter_context(MapServer(one, partner=two, role="primary", witness=judge.address, model=6))
    stack.enter_context(MapServer(two, partner=one, role="backup", witness=judge.address, model=6))
    watching = stack.enter_context(SourceRunner([MapSource([f"{one},{two}"])], look_s=0.1))

    def statuses(snapshot: SystemSnapshot) -> list[str]:
        return [each.status for each in snapshot.members]

    found = seen(watching, lambda s: statuses(s) == ["active", "passive", "known"] and len(s.links) == 3)

    until(lambda: (pair := primary.status().pair) is not None and pair.confirms == "paired")
    place = f"witness {judge.address}"
    assert found.members[2].id == place
    asked = {each.ends for each in found.links if each.kind == "asks"}
    assert asked == {(f"map {one}", place), (f"map {two}", place)}
    primary.close()
    found = seen(watching, lambda s: statuses(s) == ["does not answer", "active", "known"])
    assert {each.ends for each in found.links if each.kind == "asks"} == asked


def test_chains_tell_their_order_and_who_is_silent(stack: ExitStack, tmp_path: Path) -> None:
    configuration = new_configuration()
    servers = stack.enter_context(serving(configuration, tmp_path))
    file = tmp_path / "chain.toml"
    listed = "".join(f'{name} = "{at}"\n' for name, at in configuration.servers.items())
    file.write_text(f'name = "{configuration.name}"\n[servers]\n{listed}')
    until(servers.whole)
    watching = stack.enter_context(SourceRunner([ChainSource([file])], look_s=0.1))

    found = seen(watching, lambda s: s.keepings and len(s.links) == 2)

    assert [(each.name, each.status) for each in found.members] == [("a", "head"), ("b", "middle"), ("c", "tail")]
    assert [each.note for each in found.keepings] == ["a > b > c"]
    servers.stop("a")
    found = seen(watching, lambda s: s.problems and s.keepings[0].note == "b > c")
    assert found.problems[0].text.startswith("Server a of the chain")
    assert found.problems[0].mend.endswith("--name a")


def test_pipelines_tell_their_rates_and_lags(tmp_path: Path) -> None:
    states = States(tmp_path)
    numbers = ObservedQuery("q", batch=4, rows_in_s=7.0, rows_processed_s=6.0, lag=(ObservedLag("a", 30, 2.5),))
    started = started_at(os.getpid())
    assert started is not None
    state = PipelineState(
        "p", "/p.toml", os.getpid(), started, "2026-01-01", page="http://here:4040", queries=[numbers]
    )
    with states.claim(state):
        part = PipelineSource(states).look()

    (pipeline,) = part.pipelines
    (query,) = pipeline.queries
    assert (query.name, query.rows_in_s, query.lag_records, query.lag_s) == ("q", 7.0, 30, 2.5)
    assert [each.name for each in part.members] == ["p"]
    assert PipelineSource(states).look() == ObservedPart()
    assert pipeline_of(state) == pipeline
    assert pipeline.page == "http://here:4040"
    state.page = "javascript:alert(1)"
    assert pipeline_of(state).page == ""


def test_a_pipeline_that_ended_with_an_error_is_told_of_until_it_is_started_again(tmp_path: Path) -> None:
    states = States(tmp_path)
    states.fail(Failure("p", "/p.toml", "no column\n named x", "2026-01-01T00:00:00Z", "/p.log"))
    (tmp_path / "broken.failed").write_text("[]")

    observer = SystemObserver()
    part = PipelineSource(states).look()
    observer.take("pipelines", part, 0.0, 0)
    observer.take("pipelines", part, 10.0, 10_000_000)

    (pipeline,) = part.pipelines
    assert (pipeline.stage, pipeline.error) == ("failed", "no column named x")
    assert pipeline.error_at == "2026-01-01T00:00:00Z"
    (problem,) = observer.snapshot(10.0, 10_000_000).problems
    assert problem.text == "Pipeline p ended with an error: no column named x"
    assert problem.mend.endswith("chappe pipeline run /p.toml")
    started = started_at(os.getpid())
    assert started is not None
    with states.claim(PipelineState("p", "/p.toml", os.getpid(), started, "2026-01-01")):
        assert [each.error for each in PipelineSource(states).look().pipelines] == [""]
    assert PipelineSource(states).look() == ObservedPart()


class Stuck:
    """A source that fails, each time in another way."""

    name = "log"
    mend = "Start it."

    def __init__(self) -> None:
        self.looks = 0
        self.closed = False

    def look(self) -> ObservedPart:
        self.looks += 1
        if self.looks == 1:
            return ObservedPart(topics=(ObservedTopic("a", 1, 1, 1, 1),))
        raise TimedOut("nobody answers")

    def close(self) -> None:
        self.closed = True


def test_a_source_that_fails_is_asked_again_and_told_of_in_a_sentence() -> None:
    source = Stuck()
    with SourceRunner([source], look_s=0.1) as watching:
        found = seen(watching, lambda s: s.problems)
        until(lambda: source.looks > 3)

    assert [(each.text, each.mend) for each in found.problems] == [("Nobody answers.", "Start it.")]
    assert [each.name for each in found.topics] == ["a"]
    assert source.closed


def test_topics_are_found_by_what_their_names_contain_those_that_changed_last_first() -> None:
    parts = [
        ObservedPart(topics=tuple(ObservedTopic(name, 1, 1, 1, 1) for name in ("Orders.eu", "orders.us", "clicks"))),
        ObservedPart(topics=(ObservedTopic("Orders.eu", 1, 2, 2, 1),)),
    ]

    class Twice:
        name, mend = "twice", ""

        def look(self) -> ObservedPart:
            return parts.pop(0) if parts else ObservedPart()

        def close(self) -> None:
            """Nothing to close."""

    with SourceRunner([Twice()], look_s=0.01) as watching:
        until(lambda: not parts and watching.snapshot().topics_total == 3)
        assert [each.name for each in watching.find_topics("ORDERS", 10)] == ["Orders.eu", "orders.us"]
        assert len(watching.find_topics("", 2)) == 2


def test_a_snapshot_is_kept_fresh_by_a_thread_of_its_own_as_long_as_somebody_looks() -> None:
    class Counting:
        name, mend = "counting", ""

        def look(self) -> ObservedPart:
            return ObservedPart(members=(ObservedMember("m", "store", "m"),))

        def close(self) -> None:
            """Nothing to close."""

    with SourceRunner([Counting()], look_s=0.02) as watching:
        until(lambda: watching.picture()[1].nodes)
        first = watching.picture()[0]
        until(lambda: watching.picture()[0].looks > first.looks)
        assert [each.id for each in watching.picture()[1].nodes] == ["m"]
