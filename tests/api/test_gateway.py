"""Gateways between real endpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint, Gateway, GatewaySide, Tls
from chappe.api.keys import make_authority, make_certificate
from chappe.api.mesh.arguments import OnFull, encode_value
from chappe.defaults import SUBSCRIBER_MESSAGES_MAX, SURPLUS_MESSAGES_MAX
from chappe.errors import Closed, UsageError
from chappe.gateway.announcement import MARKED
from chappe.gateway.events import GatewayPasses, GatewayWaits, SameMesh
from chappe.mesh.messages import NOBODY
from chappe.testing import World

Join = Callable[..., Gateway]
HOST = "127.0.0.1"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    threads = set(threading.enumerate())
    with ExitStack() as made:
        yield made
    until(lambda: set(threading.enumerate()) <= threads, threading.enumerate)


@pytest.fixture
def join(stack: ExitStack) -> Join:
    """Makes a gateway between the domains of two endpoints."""

    def made(office: Endpoint, plant: Endpoint, *, orders: str = "/orders", alarms: str = "/alarms") -> Gateway:
        sides = GatewaySide("office", [orders], security=office.security), GatewaySide("plant", [alarms])
        gateway = stack.enter_context(Gateway(*sides))
        for domain, endpoint in (("office", office), ("plant", plant)):
            gateway.endpoint(domain).peer(HOST, endpoint.listen(), timeout=PATIENCE_S)
        return gateway

    return made


def node(stack: ExitStack, **options: object) -> Endpoint:
    return stack.enter_context(Endpoint(**options))  # type: ignore[arg-type]


def wants(endpoint: Endpoint, topic: bytes) -> bool:
    return topic in endpoint.core.peer_subscriptions()


def test_chosen_topics_pass_and_nothing_else_is_seen_of_the_other_domain(stack: ExitStack, join: Join) -> None:
    office, plant = node(stack), node(stack)
    gateway = join(office, plant)
    alarms = office.subscribe("/alarms/fire", "/secret")
    everything = plant.subscribe("")
    until(lambda: wants(plant, b"/alarms/fire") and wants(office, b"/orders"))
    assert not wants(plant, b"/secret")
    assert gateway.status().state == "passing"
    assert set(office.core.filters()) == {gateway.endpoint("office").core.own_id}

    plant.publish("/secret/1", 1)
    plant.publish("/alarms/fire/hall", {"floor": 3})
    received = alarms.get(PATIENCE_S)
    assert received is not None
    assert (received.topic, received.value, received.origin) == (
        "/alarms/fire/hall", {"floor": 3}, gateway.endpoint("office").id,
    )  # fmt: skip
    office.publish("other", 1)
    office.publish("/orders/1", "bread")
    assert [each.topic for each in everything.get_many(9, PATIENCE_S)] == ["/orders/1"]

    alarms.close()
    until(lambda: not wants(plant, b"/alarms/fire"))
    assert gateway.status().sides[1].wanted == ()


def test_all_of_a_burst_arrives_in_order_though_a_subscriber_is_slow(stack: ExitStack, join: Join) -> None:
    office, plant = node(stack, peer_messages_max=64), node(stack)
    join(office, plant)
    orders = plant.subscribe("/orders", on_full="block", messages_max=50)
    until(lambda: wants(office, b"/orders"))
    publisher = threading.Thread(target=lambda: office.publish_batch(("/orders/x", each) for each in range(20_000)))
    publisher.start()
    found: list[object] = []
    while len(found) < 20_000:
        found += [each.value for each in orders.get_many(40, PATIENCE_S)]
    publisher.join(PATIENCE_S)
    assert found == list(range(20_000))


def through(office: Endpoint, plant: Endpoint, on_full: OnFull = "block") -> Gateway:
    """A gateway with little room, once it passes what each side wants of the other."""
    sides = [
        GatewaySide(name, [prefix], peer_messages_max=64, on_full=on_full)
        for name, prefix in (("office", "/orders"), ("plant", "/alarms"))
    ]
    gateway = Gateway(sides[0], sides[1])
    gateway.endpoint("office").peer(HOST, office.listen(), timeout=PATIENCE_S)
    gateway.endpoint("plant").peer(HOST, plant.listen(), timeout=PATIENCE_S)
    return gateway


def test_a_flood_for_a_slow_domain_waits_and_holds_up_nothing_else(chappe_world: World) -> None:
    with Endpoint(peer_messages_max=64) as office, Endpoint() as plant, through(office, plant), Endpoint() as clerk:
        clerk.peer(HOST, office.listen(), timeout=PATIENCE_S)
        orders = plant.subscribe("/orders", on_full="block", messages_max=50)
        alarms, notes = office.subscribe("/alarms"), clerk.subscribe("/notes")
        chappe_world.wait_until(lambda: wants(office, b"/orders") and wants(plant, b"/alarms"))
        sent = 0
        for _ in range(10_000):  # of 64 each
            if office.try_publish_many([(b"/orders/x", encode_value(sent + each)) for each in range(64)]) is None:
                chappe_world.advance(0.1)
                if not office.room([b"/orders/x"]):
                    break
            else:
                sent += 64
        assert not office.room([b"/orders/x"])
        assert sent < 3 * (SUBSCRIBER_MESSAGES_MAX + 2 * SURPLUS_MESSAGES_MAX)

        plant.publish("/alarms", "fire")
        office.publish("/notes", "lunch")
        assert alarms.get(PATIENCE_S).value == "fire"  # type: ignore[union-attr]
        assert notes.get(PATIENCE_S).value == "lunch"  # type: ignore[union-attr]
        assert [orders.get(PATIENCE_S).value for _ in range(sent)] == list(range(sent))  # type: ignore[union-attr]


def test_a_flood_for_a_slow_domain_that_drops_waits_for_nobody(chappe_world: World) -> None:
    with chappe_world.on("factory"):
        plant = Endpoint()
        plant.subscribe("/orders")
        port = plant.listen()
    side = GatewaySide("plant", peer_messages_max=64, on_full="drop_oldest")
    with Endpoint() as office, Gateway(GatewaySide("office", ["/orders"]), side) as gateway:
        gateway.endpoint("office").peer(HOST, office.listen(), timeout=PATIENCE_S)
        gateway.endpoint("plant").peer(HOST, port, timeout=PATIENCE_S)
        chappe_world.wait_until(lambda: wants(office, b"/orders"))
        chappe_world.pause("factory")
        for each in range(1_000):
            office.publish("/orders", bytes(10_000))
            assert gateway.endpoint("plant").buffered < 100  # of itself too
            if not each % 100:
                chappe_world.advance(0.01)
        assert gateway.status().dropped > 0
        chappe_world.resume("factory")
    plant.close()


def test_a_gateway_has_no_threads_of_its_own(stack: ExitStack, join: Join) -> None:
    office, plant = node(stack), node(stack)
    threads = threading.active_count()
    gateway = join(office, plant)
    until(lambda: gateway.status().state == "passing")
    assert threading.active_count() == threads


def test_of_two_gateways_one_passes_and_the_other_takes_over(stack: ExitStack, join: Join) -> None:
    office, plant = node(stack), node(stack)
    first = join(office, plant)
    until(lambda: first.status().state == "passing")
    second = join(office, plant)
    until(lambda: second.status().state == "standing by")
    alarms = office.subscribe("/alarms")
    until(lambda: wants(plant, b"/alarms"))
    for each in range(100):
        plant.publish("/alarms", each)
    assert [alarms.get(PATIENCE_S).value for _ in range(100)] == list(range(100))  # type: ignore[union-attr]

    statuses = second.endpoint("office").statuses()
    first.close()
    until(lambda: second.status().state == "passing")
    until(lambda: wants(plant, b"/alarms"))
    plant.publish("/alarms", "again")
    assert alarms.get(PATIENCE_S).value == "again"  # type: ignore[union-attr]
    assert alarms.available == 0
    assert GatewayPasses(("office", "plant")) in statuses.poll()
    with pytest.raises(Closed):
        first.endpoint("office").publish("/orders", 1)


def test_a_circle_of_three_domains_brings_everything_once(stack: ExitStack) -> None:
    names = ("a", "b", "c")
    nodes = {name: node(stack) for name in names}
    gateways = []
    for one, two in (("a", "b"), ("b", "c"), ("c", "a")):
        made = stack.enter_context(Gateway(GatewaySide(one, ["/"]), GatewaySide(two, ["/"])))
        for each in (one, two):
            made.endpoint(each).peer(HOST, nodes[each].listen(), timeout=PATIENCE_S)
        gateways.append(made)
    subscribers = {name: nodes[name].subscribe("/t") for name in names}
    until(lambda: sorted(each.status().state for each in gateways) == ["passing", "passing", "standing by"])
    until(lambda: all(wants(each, b"/t") for each in nodes.values()))
    for name in names:  # what a gateway asks of a further domain follows a moment later
        others = [each for each in names if each != name]
        number = 0
        while not all(subscribers[each].available for each in others):
            nodes[name].publish("/t", number)
            number += 1
            until(lambda seen=others: any(subscribers[each].available for each in seen))  # type: ignore[misc]
        nodes[name].publish("/t", "end")
        for each in others:
            found: list[object] = []
            while not found or found[-1] != "end":
                found.append(subscribers[each].get(PATIENCE_S).value)  # type: ignore[union-attr]
            assert found[:-1] == list(range(number - len(found) + 1, number))
    assert sum(side.refused for each in gateways for side in each.status().sides) == 0


def test_two_sides_of_one_mesh_pass_nothing_and_it_is_said(stack: ExitStack, join: Join) -> None:
    office, plant = node(stack), node(stack)
    gateway = join(office, plant)
    until(lambda: gateway.status().state == "passing")
    statuses = gateway.endpoint("office").statuses()
    office.peer(HOST, plant.listen(), timeout=PATIENCE_S)
    until(lambda: gateway.status().state == "misjoined")
    assert SameMesh(("office", "plant")) in statuses.poll()
    assert gateway.status().reason == "both are one mesh"


def test_a_rogue_makes_it_pass_nothing_that_was_not_chosen(stack: ExitStack, join: Join) -> None:
    office, plant = node(stack), node(stack)
    gateway = join(office, plant)
    seen = plant.subscribe("")
    until(lambda: gateway.status().state == "passing" and wants(office, b"/orders"))
    door = gateway.endpoint("office").id
    office.publish("/secret", 1, to=door)
    office.publish("/orders", 2, to=door)
    office.try_publish(MARKED, b"nonsense", gateway.endpoint("office").core.own_id)
    office.try_publish(MARKED, b"nonsense", NOBODY)
    office.publish("/orders", "right")
    assert [each.value for each in seen.get_many(9, PATIENCE_S)] == ["right"]
    assert gateway.status().sides[0].refused >= 1


def test_each_domain_has_its_own_certificates(stack: ExitStack, join: Join, tmp_path: Path) -> None:
    for domain in ("office", "plant"):
        make_authority(tmp_path / domain)
        for each in ("node", "door"):
            make_certificate(tmp_path / domain, each)
    keys = {
        domain: {each: Tls.of(tmp_path / domain, each) for each in ("node", "door")} for domain in ("office", "plant")
    }
    nodes = {domain: node(stack, security=found["node"]) for domain, found in keys.items()}
    sides = [GatewaySide(domain, ["/"], security=found["door"]) for domain, found in keys.items()]
    gateway = stack.enter_context(Gateway(sides[0], sides[1]))
    for domain, host in nodes.items():
        gateway.endpoint(domain).peer(HOST, host.listen(), timeout=PATIENCE_S)
    seen = nodes["plant"].subscribe("/t")
    until(lambda: wants(nodes["office"], b"/t"))
    nodes["office"].publish("/t", "through")
    assert seen.get(PATIENCE_S).value == "through"  # type: ignore[union-attr]


def test_losing_a_domain_is_said_and_what_ends_an_endpoint_ends_the_gateway(stack: ExitStack, join: Join) -> None:
    office = node(stack)
    with Endpoint() as plant:
        gateway = join(office, plant)
        until(lambda: gateway.status().state == "passing")
        statuses = gateway.endpoint("office").statuses()
    until(lambda: gateway.status().state == "waiting")
    until(lambda: GatewayWaits(("office", "plant"), "nobody else is in plant") in statuses.poll())
    gateway.endpoint("plant").close()
    until(lambda: repr(gateway).startswith("<Gateway between office and plant") and ended(gateway))


def ended(gateway: Gateway) -> bool:
    try:
        gateway.status()
    except Closed:
        return True
    return False


@pytest.mark.parametrize(
    ("one", "two", "text"),
    [
        (GatewaySide("a"), GatewaySide("a"), "both sides are called a"),
        (GatewaySide("a b"), GatewaySide("c"), "'a b' is not a name of a domain"),
        (GatewaySide("a", ["<$>/x"]), GatewaySide("b"), "begin with '<'"),
        (GatewaySide("a", "/orders"), GatewaySide("b"), "a list of prefixes, not '/orders'"),
        (GatewaySide("a", gateways=["me"]), GatewaySide("b"), "'me' is not an endpoint id"),
        (GatewaySide("a", on_full="sometimes"), GatewaySide("b"), "on_full is 'block'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_sides_are_refused_and_nothing_is_left_open(one: GatewaySide, two: GatewaySide, text: str) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(UsageError, match=text):
        Gateway(one, two)
    until(lambda: set(threading.enumerate()) <= threads, threading.enumerate)


def test_it_has_only_two_endpoints(stack: ExitStack, join: Join) -> None:
    gateway = join(node(stack), node(stack))
    with pytest.raises(UsageError, match="joins office and plant, not moon"):
        gateway.endpoint("moon")
    gateway.close()
    gateway.close()
