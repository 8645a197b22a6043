"""Requests as users make them, over endpoints in between, and what becomes of those that nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from chappe import AsyncEndpoint, Endpoint, Request
from chappe.errors import Closed, NoResponders, NotPermitted, RequestFailed, TimedOut, UnsupportedValue, UsageError
from chappe.mesh.messages import Message
from chappe.mesh.requests import pack_request
from chappe.testing import World

Line = tuple[Endpoint, Endpoint, Endpoint]


@pytest.fixture
def line(chappe_world: World) -> Iterator[Line]:
    """An originator, an endpoint in between, and one where responders are."""
    with Endpoint() as one, Endpoint() as middle, Endpoint() as other:
        port = middle.listen()
        for each in (one, other):
            each.peer("127.0.0.1", port, timeout=10)
        assert one.await_peer(other.id)
        yield one, middle, other


def square(request: Request) -> object:
    return request.value * request.value


def test_the_first_request_of_an_endpoint_is_answered_over_others(line: Line, chappe_world: World) -> None:
    one, _, other = line
    with other.respond("square", square):
        chappe_world.advance(1)
        answer = one.request("square", 12)
        assert (answer.value, answer.responder, answer.error) == (144, other.id, None)
        assert [one.request("square/any", number).value for number in range(20)] == [n * n for n in range(20)]


def test_where_nobody_subscribes_the_request_ends_at_once(line: Line, chappe_world: World) -> None:
    one, _, other = line
    began = chappe_world.now
    with pytest.raises(NoResponders, match="nobody in reach subscribes to 'square'"):
        one.request("square", 12)
    with other.respond("square", square):
        chappe_world.advance(1)
        one.request("square", 12)
    chappe_world.advance(1)
    with pytest.raises(NoResponders):
        one.request("square", 12)
    assert chappe_world.now - began < 3
    assert one.node.member.requests.invariants() == []


def test_where_nobody_answers_the_time_is_over(line: Line, chappe_world: World) -> None:
    one, _, other = line
    with other.subscribe("square") as heard, other.responder("square") as responder:
        chappe_world.advance(1)
        began = chappe_world.now
        with pytest.raises(TimedOut, match="nobody answered the request to 'square' within 3 s"):
            one.request("square", 12, timeout=3)
        assert chappe_world.now - began == pytest.approx(3, abs=0.1)
        assert heard.get(0) is not None
        late = responder.get(0)
        assert late is not None
        assert late.reply(144)  # the originator is there, and waits no longer
        assert one.node.member.requests.next_timeout() > chappe_world.now


def test_an_error_of_the_function_is_raised_at_the_originator(line: Line, chappe_world: World) -> None:
    one, _, other = line

    def fail(request: Request) -> object:
        raise ValueError("too much: " + "x" * 5_000)

    with other.respond("a", fail), other.respond("b", lambda request: object()):
        chappe_world.advance(1)
        with pytest.raises(RequestFailed, match="ValueError: too much: xxx") as failed:
            one.request("a", 1)
        assert (len(str(failed.value)), failed.value.responder, failed.value.definite) == (1_000, other.id, False)
        with pytest.raises(RequestFailed, match="UnsupportedValue"):
            one.request("b", 1)


def test_several_answers_are_collected_up_to_a_number_or_until_the_time_is_over(
    line: Line, chappe_world: World
) -> None:
    one, middle, other = line

    def fail(request: Request) -> object:
        raise KeyError

    with middle.respond("t", square), other.respond("t", lambda request: 0), other.respond("t", fail):
        chappe_world.advance(1)
        found = one.request("t", 3, answers=3)
        assert sorted(each.value for each in found if each.error is None) == [0, 9]
        [failed] = [each for each in found if each.error is not None]
        with pytest.raises(RequestFailed, match=r"^KeyError$"):
            _ = failed.value
        began = chappe_world.now
        assert len(one.request("t", 3, timeout=2, answers=10)) == 3
        assert chappe_world.now - began == pytest.approx(2, abs=0.1)
        assert len(one.request("t", 3, answers=1)) == 1


def test_a_request_is_answered_once_by_whoever_takes_it(line: Line, chappe_world: World) -> None:
    one, _, other = line
    with other.responder("t") as responder:
        chappe_world.advance(1)
        asking = chappe_world.start(one.request, "t/1", {"a": 1})
        request = responder.get(10)
        assert request is not None
        assert (request.topic, request.value, request.originator, request.answered) == ("t/1", {"a": 1}, one.id, False)
        with pytest.raises(UnsupportedValue):
            request.reply(object())
        assert request.reply("first")
        assert request.answered
        with pytest.raises(UsageError, match="answered before"):
            request.fail("second")
        assert asking.result(10).value == "first"


def test_what_comes_again_or_is_no_request_is_left_out(line: Line, chappe_world: World) -> None:
    one, _, other = line
    with other.responder("t") as responder:
        chappe_world.advance(1)
        body = pack_request(7, b"<$>/inbox/x", b"\0")
        for _ in range(3):
            one.try_publish(b"t", body)
        one.publish("t", "not a request")
        chappe_world.advance(1)
        found = responder.poll()
        assert ([each.value for each in found], responder.ignored) == ([None], 1)
        assert not found[0].reply(1)  # nobody has that inbox


def test_a_request_without_an_answer_leaves_nothing_when_its_endpoint_closes(chappe_world: World) -> None:
    with Endpoint() as one, Endpoint() as other, other.subscribe("t"):
        one.peer("127.0.0.1", other.listen(), timeout=10)
        chappe_world.advance(1)
        asking = chappe_world.start(one.request, "t", 1, timeout=None)
        chappe_world.advance(100)
        one.close()
        with pytest.raises(Closed):
            asking.result(10)


def test_a_request_ends_with_the_time_though_its_responder_dies(chappe_world: World) -> None:
    with chappe_world.on("there"):
        other = Endpoint()
    with Endpoint() as one, other:
        other.responder("t")
        one.peer("127.0.0.1", other.listen(), timeout=10)
        chappe_world.advance(1)
        asking = chappe_world.start(one.request, "t", 1, timeout=20)
        chappe_world.advance(1)
        chappe_world.kill("there")
        with pytest.raises(TimedOut):
            asking.result(30)
        with pytest.raises(NoResponders):
            one.request("t", 1)


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"timeout": float("nan")}, {"answers": 0}, {"answers": True}, {"answers": 10_001}]
)
def test_wrong_arguments_are_refused_before_anything_is_sent(wrong: dict[str, float], line: Line) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        line[0].request("t", 1, **wrong)


def test_requests_that_are_too_fast_for_a_responder_are_dropped_as_its_policy_says(
    line: Line, chappe_world: World
) -> None:
    one, _, other = line
    with other.responder("t", messages_max=2, on_full="drop_newest") as responder:
        chappe_world.advance(1)
        for number in range(5):
            one.try_publish(b"t", pack_request(number, b"<$>/inbox/x", b"\0"))
        chappe_world.advance(1)
        assert (len(responder.poll()), responder.dropped) == (2, 3)


def test_a_request_that_cannot_be_answered_does_not_end_the_responder_of_an_event_loop(chappe_world: World) -> None:
    async def main() -> None:
        async with AsyncEndpoint() as one, AsyncEndpoint() as other:
            await one.peer("127.0.0.1", await other.listen(), timeout=10)
            publishing, other.endpoint.publishing = other.endpoint.publishing, refuse  # type: ignore[method-assign, assignment]
            async with other.respond("square", square):
                await asyncio.sleep(1)
                with pytest.raises(TimedOut):
                    await one.request("square", 2, timeout=1)
                other.endpoint.publishing = publishing  # type: ignore[method-assign]
                assert (await one.request("square", 12)).value == 144

    def refuse(*_: object) -> object:
        raise NotPermitted("it may not publish there")

    asyncio.run(main())


def test_for_asyncio(chappe_world: World) -> None:
    async def main() -> None:
        async def slowly(request: Request) -> object:
            await asyncio.sleep(1)
            return square(request)

        async with AsyncEndpoint() as one, AsyncEndpoint() as other:
            await one.peer("127.0.0.1", await other.listen(), timeout=10)
            with pytest.raises(NoResponders):
                await one.request("square", 12)
            async with other.respond("square", slowly), other.responder("t") as responder:
                await asyncio.sleep(1)
                assert (await one.request("square", 12)).value == 144
                with pytest.raises(RequestFailed, match="TypeError"):
                    await one.request("square", "x")
                asking = asyncio.ensure_future(one.request("t", 1, answers=2, timeout=3))
                request = await responder.get(10)
                assert request is not None
                assert await request.reply("hi")
                with pytest.raises(UsageError, match="answered before"):
                    await request.reply("again")
                assert [each.value for each in await asking] == ["hi"]
                asking = asyncio.ensure_future(one.request("t", 1, timeout=None, answers=1))
                assert await responder.get(10) is not None
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                assert one.endpoint.node.member.requests.hear([Message(b"", b"")]) == []
                assert one.endpoint.asked == {}
                assert responder.ignored == 0

    asyncio.run(main())
