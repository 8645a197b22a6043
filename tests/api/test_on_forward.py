"""What an endpoint does with what it forwards, as its user says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from chappe import Endpoint, Forwarded, Gap, Subscriber
from chappe.errors import Sealed, UsageError
from chappe.mesh.events import MessagesDropped
from chappe.mesh.messages import Message
from chappe.sealing.events import wrap
from chappe.testing import World


@contextmanager
def chain(on_forward: Any) -> Iterator[tuple[Endpoint, Endpoint, Subscriber]]:
    """One who publishes, one in the middle, and what comes at the far end."""
    with ExitStack() as stack:
        left, middle, right = (
            stack.enter_context(each) for each in (Endpoint(), Endpoint(on_forward=on_forward), Endpoint())
        )
        heard = right.subscribe("")
        port = middle.listen()
        left.peer("127.0.0.1", port)
        right.peer("127.0.0.1", port)
        assert left.await_peer(right.id)
        yield left, middle, heard


def values(heard: Subscriber, count: int) -> list[object]:
    found = [heard.get(timeout=10) for _ in range(count)]
    assert heard.get(timeout=1) is None
    return [each.value for each in found if each is not None]


def test_it_holds_back_changes_and_passes_on(chappe_world: World) -> None:
    def redact(message: Forwarded) -> Forwarded | None:
        if message.topic.startswith("secret/"):
            return None
        return message.with_value({**message.value, "name": "?"}) if message.topic == "people" else message

    with chain(redact) as (left, middle, heard):
        own = middle.subscribe("people")
        chappe_world.advance(1)
        assert left.publish("people", {"name": "Ada", "age": 36}) == 2
        left.publish("secret/1", 1)
        left.publish_batch([("secret/2", n) for n in range(50)])
        left.publish("open", [1, 2])
        assert values(heard, 2) == [{"name": "?", "age": 36}, (1, 2)]
        assert values(own, 1) == [{"name": "Ada", "age": 36}]
        assert (middle.filtered, middle.dropped) == (51, 0)
        middle.publish("secret/3", 3)  # what it publishes itself it is not shown
        assert values(heard, 1) == [3]


def test_it_is_shown_who_published_and_decodes_nothing_by_itself(
    chappe_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Forwarded] = []

    def look(message: Forwarded) -> Forwarded:
        seen.append(message)
        return message

    with chain(look) as (left, _, heard):
        monkeypatch.setattr("chappe.api.mesh.received.decode", lambda raw: pytest.fail("nobody has asked for it"))
        left.publish("a", 1)
        assert heard.get_many(2, timeout=10)[0].topic == "a"
        monkeypatch.undo()
        [message] = seen
        assert (message.topic, message.origin, message.sender, message.sealed) == ("a", left.id, left.id, False)
        assert message.value == 1
        assert repr(message) == "Forwarded('a', 9 bytes)"


WRONG: dict[str, Callable[[Forwarded], object]] = {
    "raises": lambda message: 1 // 0,
    "a verdict": lambda message: True,
    "a value": lambda message: message.payload,
    "another message": lambda message: Forwarded(Message(message.message.topic, message.payload)),
    "no value": lambda message: message.with_value(object()),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_it_fails_on_is_held_back_counted_and_told(chappe_world: World, kind: str) -> None:
    with chain(lambda message: WRONG[kind](message) if message.topic == "bad" else message) as (left, middle, heard):
        statuses = middle.statuses()
        for topic in ("bad", "good", "bad"):
            left.publish(topic, topic)
        assert values(heard, 1) == ["good"]
        assert (middle.filtered, middle.dropped) == (0, 2)
        told = [each for each in statuses.poll() if isinstance(each, MessagesDropped)]
        assert sum(each.count for each in told) == 2
        assert str(told[0]).endswith("that on_forward failed on")


def test_it_may_not_call_its_endpoint(chappe_world: World) -> None:
    refused: list[str] = []

    def call(message: Forwarded) -> Forwarded:
        node = middle
        for each in (
            lambda: node.publish("x", 1),
            lambda: node.publish_batch([("x", 1)]),
            lambda: node.subscribe("x"),
            lambda: own.get(),
            lambda: own.add("y"),
            lambda: node.statuses(),
            lambda: node.peers(),
            lambda: node.unpeer("127.0.0.1", 1),
            lambda: node.await_peer(left.id),
            lambda: node.attach_master("store"),
            lambda: store.put("a", 1),
            lambda: store.erase("a"),
            lambda: publisher.publish(1),
            lambda: node.close(),
        ):
            with pytest.raises(UsageError, match="runs while its endpoint works, and may not call it") as error:
                each()
            refused.append(str(error.value))
        return message

    with chain(call) as (left, middle, heard):
        own, store, publisher = middle.subscribe("other"), middle.attach_master("rooms"), middle.publisher("x")
        left.publish("a", 1)
        assert values(heard, 1) == [1]
        assert len(refused) == 14
        left.publish("a", 2)
        assert values(heard, 1) == [2]


def test_what_is_sealed_passes_unopened_or_not_at_all(chappe_world: World) -> None:
    problems: list[str] = []

    def look(message: Forwarded) -> Forwarded | None:
        assert message.sealed
        for each in (lambda: message.value, lambda: message.with_value(1)):
            with pytest.raises(Sealed) as error:
                each()
            problems.append(str(error.value))
        return message if message.topic == "a" else None

    with chain(look) as (left, middle, heard):
        for topic in ("a", "b"):
            left.try_publish(topic.encode(), wrap(b"sealed"))
        found = heard.get(timeout=10)
        assert found is not None
        assert found.payload == wrap(b"sealed")
        assert heard.get(timeout=1) is None
        assert problems[0] == "topic 'a' is sealed: its messages pass, or are held back, as they are"
        assert (len(problems), middle.filtered) == (4, 1)


def test_data_stores_on_both_sides_are_in_step_though_everything_is_held_back(chappe_world: World) -> None:
    with chain(lambda message: None) as (left, _, heard):
        master = left.attach_master("rooms")
        clone = heard._endpoint.attach_clone("rooms")  # type: ignore[attr-defined]
        clone.put("a", 20)
        assert clone.await_idle()
        assert master.get("a") == 20


def test_what_cannot_be_called_is_refused() -> None:
    async def look(message: Forwarded) -> Forwarded:
        return message

    for wrong in (5, look):
        with pytest.raises(UsageError, match="on_forward is a function, and no coroutine function, not"):
            Endpoint(on_forward=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_forward is for endpoints that forward: leave out forwarding=False"):
        Endpoint(forwarding=False, on_forward=lambda message: message)


def test_last_values_are_kept_as_they_are_passed_on(chappe_world: World) -> None:
    shown: list[str] = []

    def redact(message: Forwarded) -> Forwarded | None:
        shown.append(message.topic)
        return None if message.topic == "rooms/secret" else message.with_value("redacted")

    with Endpoint(last_values=10, on_forward=redact) as middle, middle.subscribe("rooms/") as own:
        port = middle.listen()
        with Endpoint() as publisher:
            publisher.peer("127.0.0.1", port, timeout=10)
            chappe_world.advance(1)
            publisher.publish_batch([("rooms/a", 1), ("rooms/a", 2), ("rooms/secret", 3)])
            chappe_world.advance(1)
        assert [each.value for each in own.poll()] == [1, 2, 3]
        assert shown == ["rooms/a", "rooms/a", "rooms/secret"]
        with Endpoint() as late, late.subscribe("rooms/", last=True) as heard:
            late.peer("127.0.0.1", port, timeout=10)
            chappe_world.advance(1)
            assert [(each.topic, each.value) for each in heard.poll()] == [("rooms/a", "redacted")]


def test_messages_of_a_batch_keep_their_numbers_where_some_are_held_back(chappe_world: World) -> None:
    gaps: list[Gap] = []

    def tenfold(message: Forwarded) -> Forwarded | None:
        return None if message.value in (2, 3) else message.with_value(message.value * 10)

    with Endpoint() as left, Endpoint(on_forward=tenfold) as middle, Endpoint() as right:
        heard, port = right.subscribe("t", on_gap=gaps.append), middle.listen()
        left.peer("127.0.0.1", port)
        right.peer("127.0.0.1", port)
        assert left.await_peer(right.id)
        chappe_world.advance(1)
        left.publish_batch([("t", n) for n in range(6)])
        chappe_world.advance(1)
        assert [(each.value, each.number) for each in heard.poll()] == [(0, 1), (10, 2), (40, 5), (50, 6)]
        assert [each.missing for each in gaps] == [2]
