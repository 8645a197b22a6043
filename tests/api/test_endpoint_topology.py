"""What endpoints on real sockets know of each other over several hops, under both faces."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from uuid import uuid4

import pytest
from tests.endpoints import PATIENCE_S, Make, until

from chappe import AsyncEndpoint, Endpoint
from chappe.errors import Closed

HOPS = 4


def chain(make: Make) -> list[Endpoint]:
    """Five in a row, dialled from the far end, so that nobody knows at first how long it gets."""
    found = [make() for _ in range(HOPS + 1)]
    for near, far in reversed(list(pairwise(found))):
        near.peer("127.0.0.1", far.listen(), timeout=PATIENCE_S)
    return found


def test_the_far_end_of_a_chain_is_awaited_and_then_what_it_wants_is_known(make: Make) -> None:
    first, *between, last = [make() for _ in range(HOPS + 1)]
    subscriber = last.subscribe("/far")
    answers: list[bool] = []
    assert first.await_peer(last.id, None, callback=answers.append)
    assert not first.await_peer(last.id, 0.01)
    for near, far in zip([first, *between], [*between, last], strict=True):
        near.peer("127.0.0.1", far.listen(), timeout=PATIENCE_S)

    assert first.await_peer(last.id, PATIENCE_S)
    assert first.publish("/far/away", 1) == 1
    received = subscriber.get(PATIENCE_S)
    assert received is not None
    assert received.value == 1
    assert first.await_peer(last.id, 0)
    assert last.await_peer(first.id, PATIENCE_S)
    assert not first.await_peer(uuid4(), 0.01)
    until(lambda: answers == [True])


def test_the_far_end_of_a_chain_is_awaited_under_asyncio() -> None:
    async def body() -> None:
        ends = [AsyncEndpoint() for _ in range(HOPS + 1)]
        subscriber = ends[-1].subscribe("/far")
        waiting = asyncio.create_task(ends[0].await_peer(ends[-1].id, None))
        for near, far in pairwise(ends):
            assert not waiting.done()
            await near.peer("127.0.0.1", await far.listen(), timeout=PATIENCE_S)
        assert await waiting
        assert await ends[0].publish("/far/away", 1) == 1
        received = await subscriber.get(PATIENCE_S)
        assert received is not None
        assert received.value == 1
        network = await ends[0].topology()
        assert [(each.id, each.distance) for each in network.endpoints] == [
            (each.id, number) for number, each in enumerate(ends)
        ]
        assert network.endpoints[-1].filter == ("/far",)
        for each in ends:
            await each.close()

    asyncio.run(asyncio.wait_for(body(), 3 * PATIENCE_S))


def test_each_end_sees_the_whole_network_from_where_it_is(make: Make) -> None:
    ends = chain(make)
    ends[2].subscribe("/middle", "")
    ids = [each.id for each in ends]
    for one in ends:
        for other in ends:
            assert one is other or one.await_peer(other.id, PATIENCE_S)

    for at, one in enumerate(ends):
        network = one.topology()
        assert network.id == one.id
        assert {each.id: each.distance for each in network.endpoints} == {
            each: abs(number - at) for number, each in enumerate(ids)
        }
        for number, each in enumerate(ids):
            (found,) = [endpoint for endpoint in network.endpoints if endpoint.id == each]
            step = (number > at) - (number < at)
            assert found.via == (ids[at + step] if step else None)
            assert (found.original, found.forwards) == (False, True)
        assert {each.ends for each in network.links if each.confirmed} == {
            (min(pair), max(pair)) for pair in pairwise(ids)
        }
        assert sum(each.own for each in network.links) == (1 if at in (0, HOPS) else 2)


def test_a_subscription_and_an_end_are_seen_from_afar(make: Make) -> None:
    ends = chain(make)
    first, last = ends[0], ends[-1]
    assert first.await_peer(last.id, PATIENCE_S)
    last.subscribe("/new")
    assert first.node.turns.wait(lambda: first.topology().endpoints[-1].filter == ("/new",), PATIENCE_S)
    ends[3].close()
    left = [each.id for each in ends[:3]]
    assert first.node.turns.wait(lambda: [each.id for each in first.topology().endpoints] == left, PATIENCE_S)


def test_looking_is_possible_until_the_end_and_raises_nothing_after_it(make: Make) -> None:
    one = make()
    assert [each.id for each in one.topology().endpoints] == [one.id]
    one.close()
    assert [each.id for each in one.topology().endpoints] == [one.id]
    with pytest.raises(Closed):
        one.await_peer(uuid4())
