"""Subscribers of the mesh that begin with the newest message of each topic."""

from __future__ import annotations

import asyncio

import pytest

from chappe import AsyncEndpoint, Endpoint, Gap
from chappe.errors import UsageError
from chappe.testing import World


def values(found: list[object]) -> list[tuple[str, object]]:
    return [(each.topic, each.value) for each in found]  # type: ignore[attr-defined]


def test_a_late_subscriber_has_the_newest_at_once_though_the_publisher_is_gone(chappe_world: World) -> None:
    with Endpoint(last_values=100) as proxy, proxy.subscribe("rooms/"):
        port = proxy.listen()
        with Endpoint() as publisher:
            publisher.peer("127.0.0.1", port, timeout=10)
            chappe_world.advance(1)
            publisher.publish_batch([("rooms/a", 20), ("rooms/b", 17), ("rooms/a", 21)])
            chappe_world.advance(1)
        with Endpoint() as late:
            late.peer("127.0.0.1", port, timeout=10)
            with late.subscribe("rooms/", last=True) as heard, late.subscribe("rooms/") as plain:
                chappe_world.advance(1)
                assert values(heard.poll()) == [("rooms/b", 17), ("rooms/a", 21)]  # type: ignore[arg-type]
                proxy.publish("rooms/a", 22)
                chappe_world.advance(1)
                assert values(heard.poll()) == [("rooms/a", 22)]  # type: ignore[arg-type]
                assert values(plain.poll()) == [("rooms/a", 22)]  # type: ignore[arg-type]


def test_a_publisher_keeps_its_own_and_gaps_begin_with_the_value(chappe_world: World) -> None:
    gaps: list[Gap] = []
    with Endpoint(last_values=10) as publisher, Endpoint() as other:
        other.peer("127.0.0.1", publisher.listen(), timeout=10)
        publisher.publish_batch([("t", number) for number in range(5)])
        with other.subscribe("t", last=True, on_gap=gaps.append) as heard:
            chappe_world.advance(1)
            publisher.publish("t", 5)
            chappe_world.advance(1)
            assert [(each.value, each.number) for each in heard.poll()] == [(4, 5), (5, 6)]
            assert gaps == []
            heard.add("u")
            publisher.publish("u", 1)
            chappe_world.advance(1)
            assert [each.value for each in heard.poll()] == [1]


def test_a_restart_with_the_same_id_is_newer(chappe_world: World) -> None:
    id = "11111111-1111-1111-1111-111111111111"
    with Endpoint(last_values=10) as proxy, proxy.subscribe("t"):
        port = proxy.listen()
        with Endpoint() as late:
            late.peer("127.0.0.1", port, timeout=10)
            with late.subscribe("t", last=True) as heard:
                for value in (1, 2):
                    with Endpoint(id=id) as publisher:
                        publisher.peer("127.0.0.1", port, timeout=10)
                        chappe_world.advance(1)
                        publisher.publish("t", value)
                        chappe_world.advance(1)
                    assert [each.value for each in heard.poll()] == [value]
            with late.subscribe("t", last=True) as heard:
                chappe_world.advance(1)
                assert [each.value for each in heard.poll()] == [2]


def test_a_loop_has_them_too(chappe_world: World) -> None:
    async def program() -> list[object]:
        async with AsyncEndpoint(last_values=10) as one, AsyncEndpoint() as other:
            await one.publish("t", 7)
            await other.peer("127.0.0.1", await one.listen(), timeout=10)
            found = await other.subscribe("t", last=True).get(timeout=10)
            assert found is not None
            return [found.value, found.origin == one.id]

    assert asyncio.run(program()) == [7, True]


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "9"])
def test_numbers_of_topics_that_are_none(chappe_world: World, wrong: int) -> None:
    with pytest.raises(UsageError, match="last_values is a number of topics, 0 for none"):
        Endpoint(last_values=wrong)


def test_values_of_any_age_are_not_asked_for_with_an_age(chappe_world: World) -> None:
    with Endpoint() as endpoint, pytest.raises(UsageError, match="last=True gets values of any age"):
        endpoint.subscribe("t", last=True, max_age_s=5)
