"""Subscribers with the name of a queue: each message goes to one of them, wherever they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chappe import Endpoint, Subscriber
from chappe.errors import BufferFull, UsageError
from chappe.testing import World

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def mesh(chappe_world: World) -> Iterator[list[Endpoint]]:
    """Endpoints in a line, each on a host of its own."""
    with ExitStack() as stack:
        found: list[Endpoint] = []
        for name in NAMES:
            with chappe_world.on(name):
                endpoint = stack.enter_context(Endpoint(heartbeat_s=1))
                port = endpoint.listen()
            if found:
                with chappe_world.on(NAMES[len(found) - 1]):
                    found[-1].peer("127.0.0.1", port, timeout=10)
            found.append(endpoint)
        yield found


def took(world: World, *members: Subscriber) -> Counter[int]:
    world.advance(1)
    return Counter(each.value for member in members for each in member.poll())


def test_each_message_goes_to_one_of_the_queue_and_to_everybody_else(mesh: list[Endpoint], chappe_world: World) -> None:
    workers = [each.subscribe("jobs/", queue="workers") for each in (*mesh[1:], mesh[3])]
    others = [mesh[1].subscribe("jobs/"), mesh[2].subscribe("jobs/", queue="audit")]
    chappe_world.advance(1)
    for number in range(150):
        assert mesh[0].publish("jobs/a", number) == 3
    mesh[0].publish_batch(("jobs/b", number) for number in range(150, 300))
    chappe_world.advance(1)

    shares = [each.available for each in workers]

    assert min(shares) > 40
    assert took(chappe_world, *workers) == Counter(range(300))
    for each in others:
        assert took(chappe_world, each) == Counter(range(300))


def test_a_publisher_that_is_a_member_takes_its_share(mesh: list[Endpoint], chappe_world: World) -> None:
    workers = [each.subscribe("jobs/", queue="workers") for each in mesh[:2]]
    chappe_world.advance(1)
    for number in range(50):
        assert mesh[0].publish("jobs/a", number) in (1, 2)
    assert mesh[0].publish_batch(("jobs/a", number) for number in range(50, 100)) == 50

    assert workers[0].available > 20
    assert took(chappe_world, *workers) == Counter(range(100))
    workers[1].close()
    chappe_world.advance(1)
    assert (mesh[0].publish("jobs/a", 1), workers[0].available) == (1, 1)


def test_members_leave_and_others_take_over_at_once(mesh: list[Endpoint], chappe_world: World) -> None:
    workers = [each.subscribe("jobs/", queue="workers") for each in mesh[1:]]
    chappe_world.advance(1)
    workers[2].close()
    chappe_world.advance(0.1)
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    assert took(chappe_world, *workers[:2]) == Counter(range(100))
    workers[0].remove("jobs/")
    chappe_world.advance(0.1)
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    assert took(chappe_world, workers[1]) == Counter(range(100))
    workers[0].add("jobs/")
    chappe_world.advance(0.1)
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    assert took(chappe_world, *workers[:2]) == Counter(range(100))


def test_what_a_member_owned_that_is_killed_goes_to_others_as_soon_as_it_is_out_of_reach(
    mesh: list[Endpoint], chappe_world: World
) -> None:
    workers = [each.subscribe("jobs/", queue="workers") for each in mesh[1:]]
    chappe_world.advance(1)
    chappe_world.kill(NAMES[3])
    chappe_world.advance(1)
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    assert took(chappe_world, *workers[:2]) == Counter(range(100))


def test_each_part_of_a_mesh_that_is_cut_has_a_queue_of_its_own(mesh: list[Endpoint], chappe_world: World) -> None:
    workers = [each.subscribe("jobs/", queue="workers") for each in mesh]
    chappe_world.cut(NAMES[1], NAMES[2])
    chappe_world.advance(10)
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    mesh[3].publish_batch(("jobs/a", number) for number in range(100, 200))
    assert took(chappe_world, *workers[:2]) == Counter(range(100))
    assert took(chappe_world, *workers[2:]) == Counter(range(100, 200))
    chappe_world.mend()
    chappe_world.wait_until(lambda: mesh[0].await_peer(mesh[3].id, 0), timeout=60)
    chappe_world.advance(1)
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    assert took(chappe_world, *workers) == Counter(range(100))


def test_a_queue_of_responders_answers_each_request_once(mesh: list[Endpoint], chappe_world: World) -> None:
    for each in mesh:  # the originator's own too
        each.respond("who", lambda _, each=each: each.id, queue="who")  # type: ignore[misc]
    chappe_world.advance(1)

    found = [mesh[0].request("who", number, answers=4, timeout=0.1) for number in range(40)]

    assert {len(each) for each in found} == {1}
    assert len({each.value for [each] in found}) == 4
    assert all(each.value == each.responder for [each] in found)


def test_a_slow_member_loses_what_its_policy_says(mesh: list[Endpoint], chappe_world: World) -> None:
    slow = mesh[1].subscribe("jobs/", queue="workers", messages_max=5, on_full="disconnect")
    fast = mesh[2].subscribe("jobs/", queue="workers")
    chappe_world.advance(1)
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    chappe_world.advance(1)
    slow.poll()
    with pytest.raises(BufferFull):
        slow.poll()
    fast.poll()
    mesh[0].publish_batch(("jobs/a", number) for number in range(100))
    assert took(chappe_world, fast) == Counter(range(100))


def test_what_a_queue_cannot_have_is_refused(mesh: list[Endpoint], chappe_world: World) -> None:
    one = mesh[0]
    for options in ({"last": True}, {"on_gap": print}):
        with pytest.raises(UsageError, match="or queue"):
            one.subscribe("jobs/", queue="workers", **options)
    for name in ("", "x" * 256):
        with pytest.raises(UsageError, match="name of a queue"):
            one.subscribe("jobs/", queue=name)
    large = [f"{number}{'x' * 40_000}" for number in range(2)]
    with pytest.raises(UsageError, match="common prefixes"):
        one.subscribe(*large, queue="workers")
    with one.subscribe("jobs/", queue="workers") as member:
        with pytest.raises(UsageError, match="common prefixes"):
            member.add(*large)
        assert member.topics == {"jobs/"}
        assert one.core.router.subscriptions.prefixes(member.number) == {b"jobs/"}
    assert one.node.member.queues.of == {}
    chappe_world.advance(1)
    assert not [each for each in mesh[1].core.filters()[one.core.own_id] if each.startswith(b"<$>/queue/")]
