"""Subscribers that are told how many messages of whom are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from chappe import AsyncEndpoint, Endpoint, Gap
from chappe.api.mesh.arguments import encode_value
from chappe.testing import World

PATIENCE_S = 30.0


@pytest.fixture
def pair(chappe_world: World) -> Iterator[tuple[Endpoint, Endpoint]]:
    with Endpoint() as one, Endpoint() as other:
        other.peer("127.0.0.1", one.listen(), timeout=10)
        yield one, other


def publish(world: World, publisher: Endpoint, topic: str, *values: int) -> None:
    world.advance(1)  # so that what is wanted is known
    publisher.publish_batch([(topic, value) for value in values])
    world.advance(1)


def test_numbers_rise_by_topic_and_the_origin_is_told(chappe_world: World, pair: tuple[Endpoint, Endpoint]) -> None:
    one, other = pair
    with one.subscribe("a/", "b") as heard:
        publish(chappe_world, other, "a/1", 0, 1, 2)
        publish(chappe_world, other, "b", 3)
        publish(chappe_world, other, "unheard", 4)
        publish(chappe_world, other, "a/1", 5)
        other.publish("a/1", 6, to=one.id)
        chappe_world.advance(1)
        found = heard.poll()
        assert [each.number for each in found] == [1, 2, 3, 1, 4, None]
        assert {each.origin for each in found} == {other.id}


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_a_full_queue_of_its_own_is_a_gap(policy: str, chappe_world: World, pair: tuple[Endpoint, Endpoint]) -> None:
    one, other = pair
    gaps: list[Gap] = []
    with one.subscribe("t", on_full=policy, messages_max=10, on_gap=gaps.append) as slow:  # type: ignore[arg-type]
        publish(chappe_world, other, "t", *range(100))
        assert gaps == []  # nobody has taken anything
        assert len(slow.poll()) == 10
        assert gaps == [Gap(other.id, "t", 90)]
        assert slow.dropped == 90
        publish(chappe_world, other, "t", 100)
        assert slow.get(0) is not None
        assert len(gaps) == 1


def test_what_is_too_old_is_a_gap(chappe_world: World, pair: tuple[Endpoint, Endpoint]) -> None:
    one, other = pair
    gaps: list[Gap] = []
    with one.subscribe("t", max_age_s=5, on_stale="drop", on_gap=gaps.append) as snail:
        publish(chappe_world, other, "t", 0, 1, 2)
        chappe_world.advance(10)
        publish(chappe_world, other, "t", 3)
        received = snail.get(0)
        assert received is not None
        assert received.value == 3
        assert snail.get(0) is None
        assert gaps == [Gap(other.id, "t", 3)]


def test_a_gap_is_told_before_anything_is_taken_and_what_it_raises_loses_nothing(
    chappe_world: World, pair: tuple[Endpoint, Endpoint]
) -> None:
    one, other = pair

    def refuse(gap: Gap) -> None:
        raise RuntimeError(str(gap))

    with one.subscribe("t", messages_max=2, on_gap=refuse) as slow:
        for take in (
            slow.get,
            lambda timeout: slow.get_many(9, timeout),
            lambda timeout: slow.take_messages(9, timeout),
        ):
            publish(chappe_world, other, "t", 1, 2, 3)
            with pytest.raises(RuntimeError, match=f"1 message of endpoint {other.id} to 't' is missing"):
                take(0)
            assert [each.value for each in slow.poll()] == [2, 3]


def test_a_life_that_follows_is_no_gap_and_neither_is_what_was_not_wanted(chappe_world: World) -> None:
    gaps: list[Gap] = []
    id = "11111111-1111-1111-1111-111111111111"
    with Endpoint() as one, one.subscribe("t", "u", messages_max=5, on_gap=gaps.append) as heard:
        port = one.listen()
        for values in (range(4), range(2)):
            with Endpoint(id=id) as other:
                other.peer("127.0.0.1", port, timeout=10)
                publish(chappe_world, other, "t", *values)
                assert len(heard.poll()) == len(values)
                publish(chappe_world, other, "u", 1)
                heard.remove("u")
                publish(chappe_world, other, "u", 2, 3)
                heard.add("u")
                chappe_world.advance(1)
                publish(chappe_world, other, "u", 4)
                assert [each.value for each in heard.poll()] == [1, 4]
                assert gaps == []
                publish(chappe_world, other, "u", *range(6))
                heard.poll()
                assert gaps == [Gap(id, "u", 1)]
                gaps.clear()


def test_a_loop_is_told_too(chappe_world: World) -> None:
    gaps: list[Gap] = []

    async def program() -> list[object]:
        async with AsyncEndpoint() as one, AsyncEndpoint() as other:
            heard = one.subscribe("t", messages_max=2, on_gap=gaps.append)
            await other.peer("127.0.0.1", await one.listen(), timeout=10)
            await other.publish_batch([("t", value) for value in range(5)])
            await asyncio.sleep(1)
            found = [await heard.get(), *await heard.get_many(9)]
            assert gaps == [Gap(other.id, "t", 3)]
            return [each.value for each in found if each is not None]

    assert asyncio.run(program()) == [3, 4]


def test_callbacks_are_told_in_their_thread(chappe_world: World, pair: tuple[Endpoint, Endpoint]) -> None:
    one, other = pair
    told: list[object] = []
    with one.subscribe("t", callback=lambda received: told.append(received.value), on_gap=told.append):
        publish(chappe_world, other, "t", 1)
        other.core.router.places.take(b"t", 3)  # as if three were lost on their way
        publish(chappe_world, other, "t", 5)
        chappe_world.wait_until(lambda: len(told) == 3)
    assert told == [1, Gap(other.id, "t", 3), 5]


def test_a_gap_of_an_event_that_cannot_be_read_is_none(chappe_world: World, pair: tuple[Endpoint, Endpoint]) -> None:
    one, other = pair
    gaps: list[Gap] = []
    with one.subscribe("t", on_gap=gaps.append) as heard:
        chappe_world.advance(1)
        for payload in (encode_value(1), b"\xff", encode_value(2)):
            other.try_publish(b"t", payload)
        chappe_world.advance(1)
        assert [each.number for each in heard.poll()] == [1, 2, 3]
        assert gaps == []
