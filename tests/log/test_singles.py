"""Single records of originals, which a consumer hands on together with those that come at once."""

from __future__ import annotations

import pytest
from tests.fixed_clock import FixedClock
from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import WALL

from chappe.core import Deliver, Effect, Publish
from chappe.data.topic import Filter
from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import ProtocolError
from chappe.limits import LogLimits
from chappe.log.batch import StampedHere, encode_batch
from chappe.log.consumer import EARLIEST, LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.messages import BatchMessage, Fetch, Head, Message, RecordMessage, StoreHello

CLOCK = FixedClock(us=WALL)

NOW = 1000.0


class Rig:
    """A consumer core whose driver calls ``flush`` when a test says so."""

    def __init__(self, limits: LogLimits | None = None) -> None:
        self.core = LogConsumer("C", [Filter("hello")], EARLIEST, limits=limits or LogLimits(), clock=CLOCK)
        self.core.start(NOW)

    def hear(self, *messages: Message) -> list[Deliver]:
        return deliveries([action for each in messages for action in self.core.handle_message(each, NOW)])

    def flush(self) -> list[Deliver]:
        return deliveries(self.core.flush(NOW))


def deliveries(actions: list[Effect]) -> list[Deliver]:
    return [each for each in actions if isinstance(each, Deliver)]


def record(sequence: int, content: bytes | None = None, *, partition: str = "P", to: str = "") -> RecordMessage:
    value = b"%d" % sequence if content is None else content
    return RecordMessage(to or "hello", partition, "hello", sequence, value, bool(to))


def shown(found: list[Deliver]) -> list[tuple[str, int, list[bytes | None]]]:
    return [(each.messages.partition, each.messages.start, each.messages.batch.values()) for each in found]


def test_records_that_come_at_once_become_one_batch() -> None:
    rig = Rig()
    assert rig.hear(*map(record, range(5)), record(0, partition="Q")) == []
    assert rig.core.gathers
    assert rig.core.invariants()
    waiting = rig.core.load().waiting_bytes

    found = rig.flush()

    assert shown(found) == [("P", 0, [b"0", b"1", b"2", b"3", b"4"]), ("Q", 0, [b"0"])]
    assert all(
        isinstance(each.messages.batch, StampedHere) and each.messages.batch.timestamp_min == WALL for each in found
    )
    assert 0 < waiting < rig.core.load().waiting_bytes == sum(len(each.messages.batch.raw) for each in found)
    assert rig.core.positions() == {("hello", "P"): 5, ("hello", "Q"): 1}
    assert not rig.core.gathers
    assert rig.core.invariants() == []
    assert rig.flush() == []


def test_a_batch_is_handed_on_when_it_is_full() -> None:
    rig = Rig(LogLimits(batch_bytes=100))
    assert shown(rig.hear(record(0, b"x" * 60), record(1, b"y" * 60), record(2))) == [("P", 0, [b"x" * 60, b"y" * 60])]
    assert shown(rig.flush()) == [("P", 2, [b"2"])]


def test_a_consumer_is_full_of_what_it_has_not_handed_on() -> None:
    rig = Rig(LogLimits(consumer_queue_bytes=100))
    rig.hear(record(0, b"x" * 99))
    assert not rig.core.paused
    rig.hear(record(1))
    assert rig.core.paused
    (found,) = rig.flush()
    rig.core.taken(len(found.messages.batch.raw), NOW)
    assert rig.core.load().waiting_bytes == 0


def test_what_comes_otherwise_of_the_partition_comes_behind() -> None:
    rig = Rig()
    batch = BatchMessage("hello", "P", "hello", encode_batch(2, [b"two"], WALL))
    assert shown(rig.hear(record(0), record(1), batch, record(3))) == [("P", 0, [b"0", b"1"]), ("P", 2, [b"two"])]
    assert shown(rig.flush()) == [("P", 3, [b"3"])]
    assert shown(rig.hear(record(4), StoreHello("C", "STORE"))) == [("P", 4, [b"4"])]
    assert shown(rig.hear(record(5), Head("hello", "P", "hello", 5))) == [("P", 5, [b"5"])]


def test_what_was_early_comes_behind_what_was_missing() -> None:
    rig = Rig()
    found = rig.hear(record(0), record(3), record(4), record(1), record(2), record(5)) + rig.flush()
    assert [value for _, _, values in shown(found) for value in values] == [b"%d" % n for n in range(6)]
    starts = [each.messages.start for each in found]
    assert starts == sorted(starts)
    assert rig.core.load().partitions == []


def test_the_answer_to_a_fetch_becomes_batches_too() -> None:
    rig = Rig()
    actions = rig.core.handle_message(Head("hello", "P", "hello", 99), NOW)
    assert Publish(Fetch("P", "C", "hello", 0, 100)) in actions
    found = rig.hear(*(record(n, to="C") for n in range(100))) + rig.flush()
    assert [each.messages.start for each in found] == [0]
    assert found[0].messages.batch.count == 100
    assert rig.core.load().partitions == []


def test_a_repetition_is_not_handed_on_again() -> None:
    rig = Rig()
    found = rig.hear(record(0), record(0), record(1), record(1), record(0)) + rig.flush()
    assert [value for _, _, values in shown(found) for value in values] == [b"0", b"1"]


def test_a_record_that_is_too_large_is_refused() -> None:
    rig = Rig()
    rig.hear(record(0))
    with pytest.raises(ProtocolError):
        rig.hear(record(1, b"x" * (RECORD_BYTES_MAX + 1)))
    assert shown(rig.flush()) == [("P", 0, [b"0"])]


def test_a_node_hands_on_what_all_its_consumers_gathered() -> None:
    node = ConsumingMember("N")
    for address in ("A", "B"):
        node.add(LogConsumer(address, [Filter("hello")], EARLIEST, clock=CLOCK), NOW)
    assert [node.handle_message(record(n), NOW) for n in range(3)] == [[], [], []]
    parts = [each for each in node.flush(NOW) if isinstance(each, Deliver)]
    assert [each.to for each in parts] == ["A", "B"]
    assert shown(parts) == [("P", 0, [b"0", b"1", b"2"])] * 2
    assert node.flush(NOW) == []

    node.handle_message(record(3), NOW)
    node.remove("A", NOW)
    assert [each.to for each in node.flush(NOW) if isinstance(each, Deliver)] == ["B"]


def test_the_rig_of_other_tests_hands_on_at_once() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.record(0, b"0")
    assert rig.delivered == [("hello", "P", 0, b"0")]
