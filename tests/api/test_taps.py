"""Taps on real sockets: what passes is seen, whoever looks or does not look slows nobody, garbage does no harm."""

from __future__ import annotations

import cProfile
import gc
import pstats
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq
from tests.api.members import PATIENCE_S, wait_until
from tests.runtime.rogues import garbage, junk, rogue, throw

from chappe import Consumer, Endpoint, Forwarder, Keys, Producer
from chappe.api import permissions, taps
from chappe.api.taps import Passed, Subscribed, Tap
from chappe.defaults import QUEUE_MESSAGES_MAX
from chappe.errors import AddressInUse, ChappeError, TimedOut, UsageError
from chappe.runtime import tap_ports
from chappe.security import LogSecurity
from chappe.tapping import sessions
from chappe.tapping.messages import Seen, Shown, decode_look, encode
from chappe.tapping.sessions import SESSIONS_MAX


class Looking:
    """Looks again and again, and keeps what it saw."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.seen: list[Seen] = []
        self.missed = 0

    def look(self) -> None:
        shown = self.tap.look(PATIENCE_S)
        self.seen += shown.seen
        self.missed += shown.missed

    def until(self, happened: Callable[[Seen], bool]) -> None:
        """Until something was seen."""

        def looked() -> bool:
            self.look()
            return any(happened(each) for each in self.seen)

        wait_until(looked, lambda: self.seen)

    def passed(self, kind: str) -> list[Passed]:
        return [each for each in self.seen if isinstance(each, Passed) and each.kind == kind]

    def wants(self) -> dict[tuple[str, bytes], tuple[str, ...]]:
        found = {(each.who, each.topic): each.kinds for each in self.seen if isinstance(each, Subscribed)}
        return {key: kinds for key, kinds in found.items() if kinds}


@pytest.fixture(autouse=True)
def _nobody_is_forgotten_or_asks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes until one who looks does so again, or is answered."""
    monkeypatch.setattr(sessions, "SILENT_S", PATIENCE_S)
    monkeypatch.setattr(taps, "ANSWER_S", PATIENCE_S)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def looking(stack: ExitStack, port: int, *topics: str) -> Looking:
    made = Looking(stack.enter_context(closing(Tap("127.0.0.1", port, topics))))
    made.look()  # from now on it is fed
    return made


def wants(topic: bytes, kind: str) -> Callable[[Seen], bool]:
    return lambda each: isinstance(each, Subscribed) and each.topic == topic and kind in each.kinds


def has(topic: bytes, kind: str) -> Callable[[Seen], bool]:
    return lambda each: isinstance(each, Passed) and each.topic == topic and each.kind == kind


def test_what_passes_a_forwarder_is_seen_and_who_wants_what(stack: ExitStack, tmp_path: Path) -> None:
    forwarder = stack.enter_context(Forwarder(tmp_path, listen="127.0.0.1:0"))
    port = forwarder.tap()
    consumer = stack.enter_context(Consumer("hello", forwarders=forwarder.address))
    consumer.wait_ready(PATIENCE_S)
    everything, other = looking(stack, port), looking(stack, port, "other")
    everything.until(wants(b"hello", "batch"))
    producer = stack.enter_context(Producer("hello", forwarders=forwarder.address))
    producer.wait_ready(PATIENCE_S)
    producer.send_many([b"one", b"two", b"three"])
    producer.flush(PATIENCE_S)
    another = stack.enter_context(Producer("other", forwarders=forwarder.address))
    another.wait_ready(PATIENCE_S)
    another.send(b"!")
    everything.until(has(b"hello", "batch"))
    (batch,) = everything.passed("batch")[:1]
    assert (batch.source, batch.first, batch.content) == (producer.partition, 0, b"one")
    assert sum(each.count for each in everything.passed("batch") if each.topic == b"hello") == 3
    other.until(has(b"other", "batch"))
    assert {each.topic for each in other.passed("batch")} == {b"other"}
    consumer.close()
    everything.until(lambda each: isinstance(each, Subscribed) and each.topic == b"hello" and not each.kinds)
    assert not everything.missed


def test_what_passes_an_endpoint_is_seen_and_who_wants_what(stack: ExitStack) -> None:
    middle, left, right = (stack.enter_context(Endpoint()) for _ in range(3))
    port = middle.tap()
    at = middle.listen()
    subscriber = right.subscribe("/t")
    left.peer("127.0.0.1", at)
    right.peer("127.0.0.1", at)
    found, other = looking(stack, port), looking(stack, port, "/u")
    assert left.await_peer(right.id, PATIENCE_S)
    found.until(wants(b"/t", "data"))
    assert found.wants() == {(right.id, b"/t"): ("data",)}
    left.publish("/t/1", "passed on")
    left.publish_batch([("/t/2", each) for each in range(3)])
    left.publish("/t/3", "for you", to=right.id)
    assert len([subscriber.get(PATIENCE_S) for _ in range(5)]) == 5
    found.until(has(b"/t/3", "data"))
    messages = {each.topic: each for each in found.passed("data")}
    assert {each.source for each in messages.values()} == {left.id}
    assert messages[b"/t/3"].to == right.id
    assert sum(each.count for each in found.passed("data") if each.topic == b"/t/2") == 3
    assert b"passed on" in messages[b"/t/1"].content
    middle.publish("/t/4", "from here")
    middle.publish_batch([("/t/5", "from here, too")])
    found.until(has(b"/t/5", "data"))
    assert {each.source for each in found.passed("data") if each.topic in (b"/t/4", b"/t/5")} == {"here"}
    with middle.attach_master("settings") as master:
        master.put("a", 1)
        found.until(lambda each: isinstance(each, Passed) and each.kind == "command")
    subscriber.close()
    found.until(lambda each: isinstance(each, Subscribed) and not each.kinds)
    other.look()
    assert not other.passed("data")
    assert not found.missed


def test_who_does_not_keep_up_is_told_how_much_it_missed(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_ports, "LOOKS_MAX", 10)
    monkeypatch.setattr(tap_ports, "LOOKS_PER_S", 0)
    monkeypatch.setattr(tap_ports, "FEED_MESSAGES_MAX", 50)
    endpoint = stack.enter_context(Endpoint())
    found = looking(stack, endpoint.tap())
    for each in range(60):
        endpoint.publish("/t", each)
    found.look()
    assert (len(found.seen), found.missed) == (10, 50)
    for each in range(5):
        endpoint.publish("/t", each)
    found.look()
    assert (len(found.seen), found.missed) == (10, 55)


def test_who_is_silent_for_too_long_is_told_that_it_missed_something(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = stack.enter_context(Endpoint())
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    found = looking(stack, endpoint.tap())
    before = found.missed
    wait_until(lambda: endpoint._tap is None)
    endpoint.publish("/t", "which nobody notes")
    found.look()
    assert (before, found.missed) == (0, 1)


def test_answers_that_come_late_are_shown_with_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Seen] = [Passed(0, b"t", "data", "here", first=each) for each in range(3)]
    with rogue(zmq.ROUTER) as tap, closing(Tap("127.0.0.1", tap.bind_to_random_port("tcp://127.0.0.1"))) as looker:
        asked = []
        for wait_s in (PATIENCE_S, 0.0):  # the second one as there is no answer to the first
            monkeypatch.setattr(taps, "ANSWER_S", wait_s)
            with pytest.raises(TimedOut):
                looker.look(0.0)
            asked.append(tap.recv_multipart())
        monkeypatch.setattr(taps, "ANSWER_S", PATIENCE_S)
        for number, (client, question) in enumerate(asked):
            tap.send_multipart([client, encode(Shown([seen[number]], 10, decode_look(question).number))])
        assert looker.look(PATIENCE_S) == Shown(seen[:2], 20)
        with pytest.raises(TimedOut):
            looker.look(0.0)
        client, question = tap.recv_multipart()
        tap.send_multipart([client, encode(Shown([seen[2]], 0, decode_look(question).number))])
        assert looker.look(PATIENCE_S) == Shown(seen[2:])


def test_who_leaves_costs_nothing_any_more(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    endpoint = stack.enter_context(Endpoint())
    forwarder = stack.enter_context(Forwarder(tmp_path, listen="127.0.0.1:0"))
    for port in (endpoint.tap(), forwarder.tap()):
        with closing(Tap("127.0.0.1", port)) as tap:
            tap.look(PATIENCE_S)
    wait_until(lambda: endpoint.node.tapped is None)
    wait_until(lambda: forwarder._node.tapped is None)
    assert endpoint._tap is None
    assert endpoint.node.member.tapped is None


def calls(function: Callable[[], object]) -> int:
    """How many; without what a collection of garbage calls, which may be that of other tests."""
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()
    try:
        profile.runcall(function)
    finally:
        gc.enable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_tap_that_nobody_looks_at_costs_no_call(stack: ExitStack) -> None:
    plain, tapped = (stack.enter_context(Endpoint()) for _ in range(2))
    tapped.tap()
    chunk = [(b"/t", b"\x03" + bytes(8))] * 100

    def publish(endpoint: Endpoint) -> int:
        endpoint.try_publish_many(chunk)
        return calls(lambda: endpoint.try_publish_many(chunk))

    assert publish(plain) == publish(tapped)


def test_a_tap_that_is_looked_at_costs_a_batch_some_calls_and_a_message_none(stack: ExitStack) -> None:
    plain, tapped = (stack.enter_context(Endpoint()) for _ in range(2))
    looking(stack, tapped.tap())

    def more(count: int) -> int:
        chunk = [(b"/t", b"\x03" + bytes(8))] * count
        for endpoint in (plain, tapped):
            endpoint.try_publish_many(chunk)
        return calls(lambda: tapped.try_publish_many(chunk)) - calls(lambda: plain.try_publish_many(chunk))

    assert more(100) == more(10) < 20


def test_no_more_than_some_look_at_once_and_the_next_one_is_told(stack: ExitStack) -> None:
    port = stack.enter_context(Endpoint()).tap()
    for _ in range(SESSIONS_MAX):
        looking(stack, port)
    with pytest.raises(ChappeError, match="others look already"):
        looking(stack, port)


def test_garbage_at_a_tap_does_no_harm(stack: ExitStack) -> None:
    endpoint = stack.enter_context(Endpoint())
    port = endpoint.tap()
    for raw in garbage(port):
        throw(port, raw)
    with rogue(zmq.DEALER) as asker:
        asker.connect(f"tcp://127.0.0.1:{port}")
        for frames in junk(1):
            asker.send_multipart(frames)
    found = looking(stack, port)
    endpoint.publish("/t", 1)
    found.until(has(b"/t", "data"))


def test_a_tap_is_for_this_machine(stack: ExitStack) -> None:
    endpoint = stack.enter_context(Endpoint())
    with pytest.raises(UsageError, match="give the tap an identity"):
        endpoint.tap("0.0.0.0")
    port = endpoint.tap()
    with pytest.raises(AddressInUse):
        endpoint.tap(port=port)
    assert stack.enter_context(Endpoint(security="plain")).tap("0.0.0.0")


def test_who_looks_where_there_is_no_tap_is_told(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = stack.enter_context(Endpoint())
    port = endpoint.tap()
    endpoint.close()
    with closing(Tap("127.0.0.1", port)) as tap, pytest.raises(TimedOut, match="with --tap"):
        tap.look(0.05)
    with closing(Tap("127.0.0.1", port)) as tap:
        monkeypatch.setattr(taps, "ANSWER_S", 0.0)
        for _ in range(2 * QUEUE_MESSAGES_MAX):
            with pytest.raises(TimedOut):
                tap.look(0.0)
    monkeypatch.setattr(taps, "ANSWER_S", PATIENCE_S)
    with rogue(zmq.ROUTER) as stranger:
        port = stranger.bind_to_random_port("tcp://127.0.0.1")
        with closing(Tap("127.0.0.1", port)) as tap:
            with pytest.raises(TimedOut):
                tap.look(0.05)
            stranger.send_multipart([stranger.recv_multipart()[0], b"hello"])
            with pytest.raises(ChappeError, match="is not a tap"):
                tap.look(PATIENCE_S)
    with pytest.raises(UsageError):
        Tap("127.0.0.1", port, ["x"] * 100)


def test_with_keys_who_may_administer_looks_and_nobody_else(stack: ExitStack, tmp_path: Path) -> None:
    home = tmp_path / "keys"
    permissions.init(home, "hub", "server")
    permissions.add(home, "admin", "administrator")
    permissions.add(home, "reader", "consumer")
    path = home / "permissions.toml"
    rule = '[[rules]]\nallow = ["administer"]\nnames = ["reader"]\ntopics = ["open/*"]\n\n'
    path.write_text(path.read_text().replace("[[rules]]", rule + "[[rules]]", 1))
    permissions.sign(path)
    keys = {name: Keys(home / name) for name in ("hub", "admin", "reader")}
    forwarder = stack.enter_context(Forwarder(tmp_path / "kept", listen="127.0.0.1:0", security=keys["hub"]))
    endpoint = stack.enter_context(Endpoint(security=keys["hub"]))

    def look(port: int, who: LogSecurity, *topics: str, host: str = "127.0.0.1") -> Shown:
        with closing(Tap(host, port, topics, security=who)) as tap:
            return tap.look(PATIENCE_S)

    def refusal(tap: Tap) -> str:
        with pytest.raises(TimedOut) as refused:
            tap.look(0.05)
        return str(refused.value)

    for port, host in ((forwarder.tap(), "127.0.0.1"), (endpoint.tap("0.0.0.0"), "hub@127.0.0.1")):
        assert look(port, keys["admin"], host=host) == Shown([], 0)
        assert look(port, keys["reader"], "open/", host=host) == Shown([], 0)
        with pytest.raises(ChappeError, match="refuses: reader may not administer all topics: no rule"):
            look(port, keys["reader"], host=host)
        with pytest.raises(ChappeError, match="reader may not administer all topics that begin with 'o'"):
            look(port, keys["reader"], "open/", "o", host=host)
        with closing(Tap("127.0.0.1", port, security="plain")) as stranger:
            wait_until(lambda: "it asks for keys, and this program has none" in refusal(stranger))
    with pytest.raises(UsageError, match="has keys, and we have none"):
        look(port, "plain", host="hub@127.0.0.1")
    with pytest.raises(UsageError, match="give the tap an identity"):
        stack.enter_context(Endpoint()).tap("0.0.0.0")
