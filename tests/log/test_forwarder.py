"""A forwarder's core: what it passes on, to whom, in which form, and what it keeps to itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from errno import EMFILE
from itertools import accumulate

import pytest
from tests.log.effects import Listener, gone, is_end
from tests.log.store_rig import WALL, StoreRig, published, writes

from chappe.core import Effect, Publish, Report, Subscribe
from chappe.defaults import BATCH_RECORDS_MAX
from chappe.errors import ProtocolError, StorageError
from chappe.limits import LOG_LIMITS
from chappe.log.batch import Batch, encode_batch
from chappe.log.events import ForwarderFound, ForwarderLost
from chappe.log.forwarder import ANSWER_S, ASKERS_MAX, ECHO_S, LATELY_MAX, LogForwarder
from chappe.log.introducing import Forwarders
from chappe.log.messages import BatchMessage, Fetch, Head, Message, RecordMessage, Stored, StoreInfo
from chappe.log.storage import WriteRecords


class Rig(StoreRig):
    """A forwarder, and the store in it."""

    def __init__(self) -> None:
        super().__init__()
        self.forwarder = LogForwarder(self.core, now=self.now)
        self.forwarder.start(self.now)
        self.forwarder.handle_timeout(self.now)

    def take(self, message: Message) -> list[Effect]:
        return self.forwarder.handle_message(message, self.now)

    def hear(self, *prefixes: bytes, on: bool = True) -> None:
        for prefix in prefixes:
            self.forwarder.handle_subscription(prefix, on, self.now)

    def later(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.forwarder.handle_timeout(self.now)


def live(base: int, *values: bytes, partition: str = "P") -> BatchMessage:
    return BatchMessage("hello", partition, "hello", encode_batch(base, values, WALL))


def single(sequence: int, content: bytes, partition: str = "P") -> RecordMessage:
    return RecordMessage("hello", partition, "hello", sequence, content)


def batches(actions: Sequence[Effect]) -> list[tuple[str, int, list[bytes | None]]]:
    """Partition, first offset and values of what is published in batches."""
    found = [each for each in published(actions) if isinstance(each, BatchMessage)]
    parsed = [(each.address, Batch.parse(each.body)) for each in found]
    return [(partition, batch.base, list(batch.values())) for partition, batch in parsed]


def test_a_batch_goes_on_as_it_is_before_it_is_written() -> None:
    rig = Rig()
    message = live(0, b"a", b"b")
    actions = rig.take(message)
    assert actions[0] == Publish(message)
    assert len(writes(actions)) == 1


def test_it_is_acknowledged_only_from_the_disk() -> None:
    rig = Rig()
    rig.hear(b"AP")
    actions = rig.take(live(0, b"a", b"b"))
    assert not [each for each in published(actions) if isinstance(each, Stored)]
    assert Stored("P", "id-S", "hello", 1) in published(rig.written(actions))


def test_what_it_has_already_is_not_passed_on_again() -> None:
    rig = Rig()
    rig.take(live(0, b"a", b"b"))
    assert batches(rig.take(live(0, b"a", b"b"))) == []
    assert batches(rig.take(live(0, b"a", b"b", b"c"))) == [("P", 0, [b"a", b"b", b"c"])]


def test_what_comes_early_goes_on_at_once() -> None:
    rig = Rig()
    assert batches(rig.take(live(5, b"f"))) == [("P", 5, [b"f"])]


def test_a_disk_that_refuses_stops_nobody_who_listens() -> None:
    rig = Rig()
    (write,) = writes(rig.take(live(0, b"a")))
    rig.core.handle_done(WriteRecords(()), StorageError("no room"), rig.now)
    del write
    actions = rig.take(live(1, b"b"))
    assert (batches(actions), writes(actions)) == ([("P", 1, [b"b"])], [])


@pytest.mark.parametrize(
    "message",
    [
        BatchMessage("hello", "P", "hello", b"no batch"),
        BatchMessage("hello", "P", "hello", encode_batch(0, [b"a"], WALL)[:-8] + b"\xff" * 8),
    ],
)
def test_what_is_malformed_is_not_passed_on(message: Message) -> None:
    with pytest.raises(ProtocolError):
        Rig().take(message)


def test_what_has_no_name_is_not_passed_on() -> None:
    assert Rig().take(BatchMessage("", "P", "", encode_batch(0, [b"a"], WALL))) == []


def test_a_head_goes_on() -> None:
    message = Head("hello", "P", "hello", 41)
    assert message in published(Rig().take(message))


def test_a_head_goes_on_again_if_it_is_higher_or_after_a_while() -> None:
    rig = Rig()
    old, new = Head("hello", "P", "hello", 41), Head("hello", "P", "hello", 42)
    assert old in published(rig.take(old))
    assert new in published(rig.take(new))
    assert not {old, new} & set(published(rig.take(old) + rig.take(new)))
    rig.later(ECHO_S)
    assert old in published(rig.take(old))


def test_heads_that_are_passed_on_at_once_are_bounded() -> None:
    rig = Rig()
    for number in range(LATELY_MAX):
        rig.take(Head("hello", f"P{number}", "hello", 0))
    more = Head("hello", "more", "hello", 0)
    assert more not in published(rig.take(more))
    assert Head("hello", "P0", "hello", 1) in published(rig.take(Head("hello", "P0", "hello", 1)))
    rig.later(ECHO_S)
    assert more in published(rig.take(more))


ANSWER = encode_batch(0, [b"a"], WALL)


@pytest.mark.parametrize(
    "message",
    [
        Head("hello", "P", "hello", 41),
        Fetch("P", "C2", "hello", 0, 10),
        RecordMessage("C2", "P", "hello", 0, b"a", direct=True),
        BatchMessage("C2", "P", "hello", ANSWER, direct=True),
        live(0, b"a", b"b"),
        live(5, b"f"),
        single(0, b"a"),
        single(5, b"f"),
    ],
    ids=lambda each: f"{type(each).__name__} {getattr(each, 'sequence', '')}",
)
@pytest.mark.parametrize("refusing", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_who_hears_itself_or_another_who_hears_it_falls_silent(message: Message, refusing: bool, others: int) -> None:
    rigs = [Rig() for _ in range(1 + others)]
    for rig in rigs:
        rig.hear(b"Mhello")  # an original listens, too
        if refusing:
            rig.take(live(0, b"x", partition="other"))
            rig.core.handle_done(WriteRecords(()), StorageError("no room"), rig.now)
    said = [message]
    for turn in range(10):
        rig = rigs[turn % len(rigs)]
        heard = [each for one in said for each in published(rig.take(one))] + published(rig.later(0.001))
        said = [each for each in heard if isinstance(each, BatchMessage | RecordMessage | Head | Fetch)]
    assert said == []


def test_originals_that_listen_get_single_records_too() -> None:
    rig = Rig()
    rig.hear(b"Mhello")
    passed = published(rig.take(live(0, b"a", b"b")))
    assert [each for each in passed if isinstance(each, RecordMessage)] == [single(0, b"a"), single(1, b"b")]


def test_members_of_chappe_alone_get_no_single_records() -> None:
    rig = Rig()
    rig.hear(b"Mhello", b"Rhello")
    assert [type(each) for each in published(rig.take(live(0, b"a")))] == [BatchMessage]


def test_single_records_that_came_together_go_on_as_a_batch() -> None:
    rig = Rig()
    for offset, content in enumerate((b"a", b"b", b"c")):
        assert published(rig.take(single(offset, content))) == []
    rig.take(single(0, b"x", "Q"))
    assert rig.forwarder.next_timeout() <= rig.now
    assert batches(rig.later(0.0)) == [("P", 0, [b"a", b"b", b"c"]), ("Q", 0, [b"x"])]
    assert rig.forwarder.next_timeout() > rig.now


def test_single_records_with_something_missing_between_are_two_batches() -> None:
    rig = Rig()
    rig.take(single(0, b"a"))
    assert batches(rig.take(single(2, b"c"))) == [("P", 0, [b"a"])]
    assert batches(rig.later(0.0)) == [("P", 2, [b"c"])]


def gathered(rig: Rig, count: int, size: int) -> list[int]:
    """How many of single records that came together are in each batch."""
    actions = [each for number in range(count) for each in rig.take(single(number, bytes(size)))]
    found = batches(actions + rig.later(0.0))
    assert [base for _, base, _ in found] == [0, *accumulate(len(values) for _, _, values in found[:-1])]
    return [len(values) for _, _, values in found]


def test_what_is_gathered_is_no_more_than_a_batch_may_have() -> None:
    assert gathered(Rig(), BATCH_RECORDS_MAX + 1, 0) == [BATCH_RECORDS_MAX, 1]
    each = LOG_LIMITS.batch_bytes // 4
    assert gathered(Rig(), 9, each) == [4, 4, 1]
    assert gathered(Rig(), 2, 9 * each) == [1, 1]


def test_what_was_gathered_is_kept_while_the_machine_refuses_something(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.take(single(0, b"a"))
    rig.take(Fetch("P", "C2", "hello", 5, 10))

    def refuse(now: float) -> list[Effect]:
        raise OSError(EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(rig.core, "handle_timeout", refuse)
        with pytest.raises(OSError, match="too many"):
            rig.later(ANSWER_S)
    rig.take(single(1, b"b"))
    actions = rig.later(0.0)
    assert batches(actions) == [("P", 0, [b"a", b"b"])]
    assert [each for each in actions if is_end(each)] == [Subscribe(b"DC2", False)]
    assert rig.core.info() in published(actions)


def test_originals_get_the_single_records_of_originals_as_they_are() -> None:
    rig = Rig()
    rig.hear(b"Mhel")
    assert single(0, b"a") in published(rig.take(single(0, b"a")))
    assert rig.take(single(0, b"a")) == []


def test_who_asks_for_what_it_has_not_is_passed_to_the_producer_and_gets_the_answer() -> None:
    rig = Rig()
    rig.hear(b"SC")
    question = Fetch("P", "C", "hello", 0, 10)
    assert rig.take(question)[:3] == [Subscribe(b"SC"), Subscribe(b"DC"), Publish(question)]
    assert rig.take(question) == []  # it may be our own
    rig.later(ECHO_S)
    assert rig.take(question)[0] == Publish(question)  # subscribed to already
    answer = BatchMessage("C", "P", "hello", encode_batch(0, [b"a"], WALL), direct=True)
    assert rig.take(answer) == [Publish(answer)]
    assert rig.contents() == []
    assert not [each for each in rig.later(ANSWER_S - 0.1) if is_end(each)]
    gone = [each for each in rig.later(0.2) if is_end(each)]
    assert gone == [Subscribe(b"SC", False), Subscribe(b"DC", False)]


def test_an_original_does_not_pass_for_one_that_knows_of_all_that_it_asks_for() -> None:
    rig = Rig()
    rig.hear(b"DC")
    question = Fetch("P", "C", "hello", 0, 1_000)
    assert rig.take(question) == [Subscribe(b"DC"), Publish(question)]


def test_an_original_is_answered_from_the_disk_alone_if_that_has_it() -> None:
    rig = Rig()
    rig.keep(0, b"a", b"b")
    passed = published(rig.take(Fetch("P", "C", "hello", 0, 2)))
    assert [type(each) for each in passed] == [RecordMessage, RecordMessage]


def test_those_who_are_passed_answers_are_bounded() -> None:
    rig = Rig()
    for number in range(2 * ASKERS_MAX):
        rig.take(Fetch("P", f"C{number}", "hello", 0, 10))
    assert rig.take(Fetch("P", "late", "hello", 0, 10)) == []
    assert Publish(Fetch("P", "C1", "hello", 1, 10)) in rig.take(Fetch("P", "C1", "hello", 1, 10))


def test_what_it_asks_itself_it_takes_itself() -> None:
    rig = Rig()
    rig.take(live(1, b"b"))
    answer = BatchMessage("S", "P", "hello", encode_batch(0, [b"a"], WALL), direct=True)
    assert batches(rig.take(answer)) == []
    assert rig.core.story("hello", "P", rig.now).startswith("hello/P")


def test_it_says_once_a_second_who_it_is() -> None:
    rig = Rig()
    said = [each for _ in range(5) for each in published(rig.later(1.0)) if isinstance(each, StoreInfo)]
    assert len(said) >= 5
    assert set(said) == {rig.core.info()}


# -- as those see them who dial ----------------------------------------------------------------------------


@pytest.fixture
def two() -> Forwarders:
    return Forwarders(Listener(), ["one:1", "two:1"], now=0.0)


def test_each_is_found_when_it_is_heard(two: Forwarders) -> None:
    assert (two.tower, two.peers, two.told) == (False, 0, None)
    assert two.heard(1, "B", 1.0) == [Report(ForwarderFound("two:1"))]
    assert (two.tower, two.peers, two.told) == (True, 1, ForwarderFound("two:1"))
    assert two.heard(1, "B", 2.0) == []


def test_one_that_is_silent_is_lost_and_found_again(two: Forwarders) -> None:
    two.heard(0, "A", 0.0)
    two.heard(1, "B", 3.0)
    assert two.handle_timeout(two.next_timeout()) == [gone("A"), Report(ForwarderLost("one:1"))]
    assert (two.tower, two.peers) == (True, 1)
    assert two.heard(0, "A", 9.0) == [Report(ForwarderFound("one:1"))]


def test_one_that_never_answers_is_told_of_once(two: Forwarders) -> None:
    told = two.handle_timeout(two.next_timeout())
    assert told == [Report(ForwarderLost("one:1")), Report(ForwarderLost("two:1"))]
    assert two.told == ForwarderLost("one:1")
    assert (two.handle_timeout(1e9), two.next_timeout()) == ([], float("inf"))


def test_one_that_was_started_anew_is_another(two: Forwarders) -> None:
    two.heard(0, "A", 0.0)
    assert two.heard(0, "A2", 1.0) == [gone("A")]


def test_where_there_is_none_nothing_is_due() -> None:
    assert Forwarders(Listener(), [], now=0.0).next_timeout() == float("inf")


@pytest.mark.parametrize("call", [lambda f: f.claim("me", 0.0), lambda f: f.disclaim("me"), lambda f: f.goodbye()])
def test_nobody_is_told_of_identities(two: Forwarders, call: Callable[[Forwarders], list[Effect]]) -> None:
    assert call(two) == []
    assert not two.newcomer("me", 0.0)
