"""A rogue with valid keys of a small role tries every verb on every surface of the mesh and its data stores."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.api.rogues import rogue, rules
from tests.endpoints import PATIENCE_S, Make, event, until

from chappe import Endpoint, Keys
from chappe.api import permissions
from chappe.errors import NotPermitted
from chappe.mesh.events import LostElsewhere, SubscriptionRefused

VERBS = ("publish", "subscribe", "forward", "attach-master", "attach-clone", "write")
TOPIC, STORE = "t/1", "t/s"
SECURITY = Path(__file__).parents[2] / "docs" / "explanation" / "security.md"
Done = Callable[[], bool]


class Place(NamedTuple):
    """Where it tries: a hub that it is linked to, and a friend of the hub."""

    eve: Endpoint
    hub: Endpoint
    friend: Endpoint
    make: Make
    home: Path


def publish(at: Place) -> Done:
    got = at.friend.subscribe(TOPIC)
    assert at.eve.await_peer(at.friend.id, PATIENCE_S)
    until(lambda: at.eve.publish(TOPIC, 1) > 0, "word of the subscription")
    return lambda: got.get(0) is not None


def publish_to_one(at: Place) -> Done:
    got = at.friend.subscribe(TOPIC)
    assert at.eve.await_peer(at.friend.id, PATIENCE_S)
    at.eve.publish(TOPIC, 1, to=at.friend.id)
    return lambda: got.get(0) is not None


def subscribe(at: Place) -> Done:
    got = at.eve.subscribe(TOPIC)
    return lambda: at.friend.publish(TOPIC, 1) > 0 and got.get(PATIENCE_S) is not None


def forward(at: Place) -> Done:
    behind = at.make(security=Keys(at.home / "behind"))
    behind.peer("127.0.0.1", at.eve.listen())
    return lambda: at.hub.await_peer(behind.id, 0)


def attach_master(at: Place) -> Done:
    at.eve.attach_master(STORE)["key"] = 1
    clone = at.friend.attach_clone(STORE, timeout=0)
    return lambda: _has(clone, "key")


def attach_clone(at: Place) -> Done:
    at.friend.attach_master(STORE)["key"] = 1
    clone = at.eve.attach_clone(STORE, timeout=0)
    return lambda: _has(clone, "key")


def write(at: Place) -> Done:
    master = at.friend.attach_master(STORE)
    clone = at.eve.attach_clone(STORE)
    clone.put("key", 1, wait=False)
    return lambda: _has(master, "key")


def _has(store: object, key: str) -> bool:
    try:
        return key in store  # type: ignore[operator]
    except Exception:  # it has no master yet
        return False


class Attempt(NamedTuple):
    """What is tried, the verb it takes, what else has to be allowed to get that far, and a sentence for people."""

    tries: Callable[[Place], Done]
    verb: str
    needs: tuple[str, ...]
    sentence: str


ATTEMPTS = [
    Attempt(publish, "publish", (), "publishes a message"),
    Attempt(publish_to_one, "publish", (), "sends a message to one endpoint alone"),
    Attempt(subscribe, "subscribe", (), "subscribes to a topic"),
    Attempt(forward, "forward", (), "passes on link states and messages of others"),
    Attempt(attach_master, "attach-master", (), "has the master of a data store, and speaks to its clones"),
    Attempt(attach_clone, "attach-clone", (), "has a clone of a data store, and asks its master"),
    Attempt(write, "write", ("attach-clone",), "writes to a data store"),
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    permissions.init(made, "hub", "member")
    for name in ("friend", "behind", "eve"):
        permissions.add(made, name, "member")
    return made


def place(make: Make, home: Path, *allowed: str) -> Place:
    """Everybody else goes by the rules; who tries goes by others, which allow everything."""
    others = [(["everything"], name, ["*"]) for name in ("hub", "friend", "behind")]
    rules(home, *others, (allowed or ["introduce"], "eve", ["t/*"]))
    hub, friend = (make(security=Keys(home / name)) for name in ("hub", "friend"))
    eve = make(security=rogue(home, "eve"))
    port = hub.listen()
    for each in (friend, eve):
        each.peer("127.0.0.1", port)
    return Place(eve, hub, friend, make, home)


def counted(hub: Endpoint, verb: str) -> bool:
    return any((each.identity, each.verb) == ("eve", verb) for each in hub.refusals())


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda each: each.tries.__name__)
def test_who_may_all_but_one_thing_is_refused_that_and_counted(make: Make, home: Path, attempt: Attempt) -> None:
    allowed = [each for each in VERBS if each not in (attempt.verb, "forward")]
    if attempt.verb in ("write", "attach-clone"):  # whoever has the master of a data store may do both
        allowed.remove("attach-master")
    at = place(make, home, *allowed)
    done = attempt.tries(at)
    until(lambda: counted(at.hub, attempt.verb), at.hub.refusals)
    assert not done()


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda each: each.tries.__name__)
def test_who_may_one_thing_does_it(make: Make, home: Path, attempt: Attempt) -> None:
    at = place(make, home, attempt.verb, *attempt.needs)
    until(attempt.tries(at), at.hub.refusals)
    assert not counted(at.hub, attempt.verb)


def test_the_table_of_the_docs_has_every_attempt() -> None:
    lines = SECURITY.read_text().splitlines()
    rows = {(row[1], row[2]) for row in (re.match(r"\| ([^|]+) \| `([a-z-]+)`", each) for each in lines) if row}
    assert {(each.sentence, each.verb) for each in ATTEMPTS} <= rows
    assert {each.verb for each in ATTEMPTS} == set(VERBS)


def test_who_knows_its_own_rules_is_told_so_before_anything_leaves_it(make: Make, home: Path) -> None:
    others = [(["everything"], name, ["*"]) for name in ("hub", "friend")]
    rules(home, *others, (["publish", "subscribe", "attach-clone"], "eve", ["t/*"]))
    hub, eve = (make(security=Keys(home / name)) for name in ("hub", "eve"))
    eve.peer("127.0.0.1", hub.listen())
    with pytest.raises(NotPermitted, match=r"eve may not publish 'u': no rule allows it; whoever signs .*permissions"):
        eve.publish("u", 1)
    with pytest.raises(NotPermitted, match="eve may not publish 'u'"):
        eve.publish_batch([("t/1", 1), ("u", 1)])
    with pytest.raises(NotPermitted, match="eve may not subscribe 'u'"):
        eve.subscribe("t", "u")
    with eve.subscribe("t") as subscriber, pytest.raises(NotPermitted, match="eve may not subscribe 'u'"):
        subscriber.add("u")
    with pytest.raises(NotPermitted, match="eve may not attach-master 't/s'"):
        eve.attach_master(STORE)
    with pytest.raises(NotPermitted, match="eve may not attach-clone 'u'"):
        eve.attach_clone("u")
    hub.attach_master(STORE)
    store = eve.attach_clone(STORE)
    for wait in (True, False):
        with pytest.raises(NotPermitted, match="eve may not write 't/s'"):
            store.put("key", 1, wait=wait)
    with pytest.raises(NotPermitted, match="eve may not write 't/s'"):
        store.increment("key")
    with pytest.raises(NotPermitted, match="eve may not write 't/s'"):
        store.put_many({"key": 1})
    eve.publish("t/1", 1)
    assert hub.refused == 0


def test_who_does_not_know_it_hears_of_what_is_lost(make: Make, home: Path) -> None:
    at = place(make, home, "subscribe")
    with at.eve.statuses() as statuses:
        publish(at)
        told = event(statuses, LostElsewhere)
    assert str(told).startswith(f"{at.hub.id} dropped")
    assert str(told).endswith("as the permissions do not allow them")


def test_a_rule_that_is_taken_back_counts_within_seconds(make: Make, home: Path) -> None:
    at = place(make, home, "publish", "subscribe")
    got, own = at.friend.subscribe(TOPIC), at.eve.subscribe(TOPIC)
    until(lambda: at.eve.publish(TOPIC, 1) and got.get(0) is not None, "what is allowed")
    until(lambda: at.friend.publish(TOPIC, 1) > 0, "what is allowed")
    statuses = at.friend.statuses()
    at.friend.subscribe("gone")
    rules(home, (["everything"], "hub", ["*"]), (["everything"], "friend", ["t/*"]))

    assert event(statuses, SubscriptionRefused).topic == b"gone"
    until(lambda: at.friend.publish(TOPIC, 2) == 0, "word of the new rules")
    until(lambda: at.eve.publish(TOPIC, 2) and counted(at.hub, "publish"), at.hub.refusals)

    own.get_many(1_000)
    assert at.friend.publish(TOPIC, 3) == 0
    assert own.get(0) is None


def test_producers_of_the_first_file_write_to_data_stores(make: Make, home: Path) -> None:
    permissions.add(home, "sensor", "producer")
    hub, sensor = (make(security=Keys(home / name)) for name in ("hub", "sensor"))
    sensor.peer("127.0.0.1", hub.listen())
    master = hub.attach_master(STORE)
    sensor.attach_clone(STORE).put("key", 1)
    assert master["key"] == 1


@pytest.mark.parametrize("endpoint", ["new", None])
def test_who_may_not_forward_is_no_way_whether_its_certificate_names_an_id_or_not(
    make: Make, home: Path, endpoint: str | None
) -> None:
    permissions.add(home, "leaf", "consumer", endpoint=endpoint)
    hub, leaf, friend = (make(security=Keys(home / name)) for name in ("hub", "leaf", "friend"))
    for each in (hub, friend):
        each.peer("127.0.0.1", leaf.listen())
    until(lambda: [each.forwards for each in hub.topology().endpoints if each.id == leaf.id] == [False], hub.topology)
    assert not hub.await_peer(friend.id, 0)
    assert hub.refused == friend.refused == 0
