"""What a node of the log tells of what passes, and what it does not answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.test_hostile_names import HOSTILE

from chappe.data.label import LABEL_MAX, is_label
from chappe.errors import ProtocolError
from chappe.log import traffic as module
from chappe.log.messages import Ack, AskTraffic, BatchMessage, Fetch, Head, RecordMessage, Stored, TrafficTold, decode
from chappe.log.traffic import (
    ANSWERS_MAX,
    POSITIONS_MAX,
    READERS_MAX,
    ROWS_MAX,
    SENDERS_MAX,
    Reading,
    Traffic,
    TrafficReport,
    parse_report,
    reading_of,
    where_kept,
)

QUESTION = AskTraffic("node", "asker", 7)


def told(traffic: Traffic, *carries: str, waiting: int = 0, full: bool = False) -> TrafficReport:
    answer = traffic.answer(QUESTION, carries, waiting, full, 0.0)
    assert answer is not None
    return parse_report("node", answer.body)


def test_what_came_is_counted_by_who_says_it_and_what_stores_answered_by_where_they_are_asked() -> None:
    traffic = Traffic()
    traffic.took(BatchMessage("t", "partition", "t", b"x" * 90), 100)
    traffic.took(BatchMessage("t", "partition", "t", b"x" * 40), 50)
    traffic.took(Fetch("partition", "reader", "t", 0, 1), 20)
    traffic.took(Stored("partition", "store", "t", 3), 30)
    traffic.asked("tcp://h:1")
    traffic.asked("tcp://h:1")
    traffic.answered("tcp://h:1", 500)

    found = told(traffic, "a", "b", waiting=4, full=True)

    assert found.carries == ("a", "b")
    assert sorted(found.came) == [("partition", 2, 150), ("reader", 1, 20), ("store", 1, 30)]
    assert found.answered == (("tcp://h:1", 1, 500, 2),)
    assert (found.waiting, found.full) == (4, True)


def test_what_does_not_say_who_sent_it_is_not_counted() -> None:
    traffic = Traffic()
    traffic.took(Ack("partition", "t", 3), 30)
    traffic.took(RecordMessage("asker", "partition", "t", 1, b"x", direct=True), 30)  # by a store of the original
    traffic.took(Head("asker", "partition", "t", 1, direct=True), 30)
    assert told(traffic).came == ()

    traffic.took(BatchMessage("asker", "partition", "t", b"x", direct=True), 30)  # by its producer alone
    assert told(traffic).came == (("partition", 1, 30),)


def test_an_address_of_others_that_is_not_text_is_left_out_and_stops_nobody() -> None:
    traffic = Traffic()
    rogue = decode([b"F" + b"partition" + b"\0\x01" + b"\x03re\xff" + b"\x01t" + bytes(12)])
    assert isinstance(rogue, Fetch)
    assert rogue.address == "re\udcff"
    traffic.took(rogue, 20)
    traffic.asked("tcp://h\udcff:1")
    traffic.took(Fetch("partition", "léser", "t", 0, 1), 20)

    found = told(traffic)

    assert (found.came, found.answered) == ((("léser", 1, 20),), ())


def reader(address: str, count: int, heads: dict[tuple[str, str], int]) -> Callable[[int], Reading]:
    committed = {("t", f"p{number}"): number for number in range(count)}
    return lambda most: reading_of(address, "billing", where_kept("web1", "/kept"), committed, heads, most)


def test_members_are_named_and_readers_tell_where_they_are_furthest_behind() -> None:
    traffic = Traffic()
    traffic.names |= {"node": "chappe store@web1", "a": "boiler 3"}
    traffic.readers["a"] = reader("a", 3, {("t", "p0"): 1, ("t", "p1"): 9, ("t", "p2"): 2})

    found = told(traffic, "a")

    assert found.names == (("node", "chappe store@web1"), ("a", "boiler 3"))
    (reading,) = found.readers
    assert (reading.address, reading.identity, reading.left_out) == ("a", "billing", 0)
    assert reading.positions == ((b"t", b"p1", 1), (b"t", b"p0", 0), (b"t", b"p2", 2))
    assert reading.committed() == {("t", "p1"): 1, ("t", "p0"): 0, ("t", "p2"): 2}
    assert reading.kept == where_kept("web1", "/kept") != where_kept("web2", "/kept")


def test_names_and_positions_in_an_answer_are_bounded_and_those_left_out_are_counted() -> None:
    traffic = Traffic()
    traffic.names |= {f"a{number}": "x" for number in range(ROWS_MAX + 10)}
    heads = {("t", "p7"): 1_000_000}
    traffic.readers |= {f"a{number}": reader(f"a{number}", 500, heads) for number in range(READERS_MAX + 10)}

    found = told(traffic, *traffic.names)

    assert len(found.names) == ROWS_MAX
    assert len(found.readers) == READERS_MAX
    share = POSITIONS_MAX // READERS_MAX
    assert {(len(each.positions), each.left_out) for each in found.readers} == {(share, 500 - share)}
    assert all(each.positions[0] == (b"t", b"p7", 7) for each in found.readers)


def test_what_no_partition_can_be_called_is_left_out_of_positions() -> None:
    committed = {("t", "x" * 300): 1, ("t", "a\0b"): 1, ("\ud800", "p"): 1, ("t\udcff", "p"): 2**70}

    found = reading_of("a", "billing", b"", committed, {}, 10)

    assert (found.positions, found.left_out) == (((b"t\xff", b"p", 2**63 - 1),), 3)


HOSTILE_NAMES = [HOSTILE, "", "x" * (LABEL_MAX + 1), "a\nb", "\x1b[2J", "\u202ex"]


def test_names_that_are_no_labels_are_passed_over() -> None:
    names = [("a", each) for each in HOSTILE_NAMES] + [("a", "boiler 3")]

    found = parse_report("a", msgspec.msgpack.encode((1, (), (), (), 0, False, names, ())))

    assert found.names == (("a", "boiler 3"),)


def test_a_node_tells_of_itself_and_whom_it_carries_and_of_nobody_else() -> None:
    names = [("N", "store@a"), ("P", "boiler 3"), ("X", "forged")]
    readers = [(each, "billing", b"", 0, ()) for each in "PX"]

    found = parse_report("N", msgspec.msgpack.encode((1, ("P",), (), (), 0, False, names, readers)))

    assert [address for address, _ in found.names] == ["N", "P"]
    assert [each.address for each in found.readers] == ["P"]


def test_a_report_with_more_than_may_be_in_it_is_cut() -> None:
    many = [(f"a{number}", 1, 1) for number in range(ROWS_MAX + 5)]
    carries, names = [each[0] for each in many], [(each[0], "x") for each in many]
    positions = [(b"t", b"p%d" % number, 1) for number in range(POSITIONS_MAX - 5)]
    readers = [(f"a{number}", "i", b"", 2, positions) for number in range(READERS_MAX + 5)]
    body = msgspec.msgpack.encode((1, carries, many, [(*each, 1) for each in many], 0, False, names, readers))

    found = parse_report("a", body)

    assert {len(each) for each in (found.carries, found.came, found.answered, found.names)} == {ROWS_MAX}
    assert len(found.readers) == READERS_MAX
    assert sum(len(each.positions) for each in found.readers) == POSITIONS_MAX
    assert {len(each.positions) + each.left_out for each in found.readers} == {POSITIONS_MAX - 3}


@given(st.data())
def test_a_report_with_something_changed_in_it_is_a_report_or_refused(data: st.DataObject) -> None:
    traffic = Traffic()
    traffic.names["node"] = "chappe store@web1"
    traffic.readers["a"] = reader("a", 3, {})
    answer = traffic.answer(QUESTION, ("a",), 0, False, 0.0)
    assert answer is not None
    body = bytearray(answer.body)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    try:
        found = parse_report("node", bytes(body[: data.draw(st.integers(0, len(body)))]))
    except ProtocolError:
        return
    assert all(is_label(label) for _, label in found.names)
    assert all(offset >= 0 for each in found.readers for offset in each.committed().values())


def test_an_answer_goes_to_who_asked_under_the_number_of_the_question() -> None:
    answer = Traffic().answer(QUESTION, (), 0, False, 0.0)

    assert isinstance(answer, TrafficTold)
    assert (answer.topic, answer.address, answer.number) == ("asker", "node", 7)


def test_so_many_are_answered_in_a_second_and_no_more() -> None:
    traffic = Traffic()

    answers = [traffic.answer(QUESTION, (), 0, False, 5.0) for _ in range(ANSWERS_MAX + 3)]

    assert [each is not None for each in answers] == [True] * ANSWERS_MAX + [False] * 3
    assert traffic.answer(QUESTION, (), 0, False, 6.0) is not None


def test_an_answer_is_bounded_and_has_those_from_whom_most_came() -> None:
    traffic = Traffic()
    for number in range(ROWS_MAX + 10):
        traffic.took(Stored("p", f"s{number}", "t", 1), number)

    found = told(traffic, *(f"p{number}" for number in range(ROWS_MAX + 10)))

    assert len(found.carries) == len(found.came) == ROWS_MAX
    assert min(size for _, _, size in found.came) == 10


def test_beyond_so_many_senders_all_are_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SENDERS_MAX", 3)
    traffic = Traffic()
    for number in range(4):
        traffic.took(Stored("p", f"s{number}", "t", 1), 1)

    assert told(traffic).came == (("s3", 1, 1),)
    assert SENDERS_MAX > ROWS_MAX


@given(st.binary(max_size=60))
@example(b"\x96\x02\x91\xa1\x80\x90\x90\x00\xc2")  # text that is not UTF-8
def test_what_is_no_report_of_what_passes_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_report("a", body)


@pytest.mark.parametrize(
    "report",
    [
        (1, (), (("a", -1, 0),), (), 0, False),
        (1, (), (("a", 1),), (), 0, False),
        (1, (), (), (("a", 1, 1, -1),), 0, False),
        (1, (), (), (), -1, False),
        (1, (5,), (), (), 0, False),
        (1, (), (), (), 0, False, (("a", 5),), ()),
        (1, (), (), (), 0, False, (), (("a", "i", b"", 0, ((b"t", b"p", -1),)),)),
        (1, (), (), (), 0, False, (), (("a", "i" * 101, b"", 0, ()),)),
        (1, (), (), (), 0, False, (), (("a", "i", b"", 0, ((b"t" * 256, b"p", 1),)),)),
        (1, (), (), ()),
    ],
)
def test_a_report_of_what_passes_with_something_else_in_it_is_refused(report: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError):
        parse_report("a", msgspec.msgpack.encode(report))


def test_what_a_newer_format_has_at_its_end_is_passed_over() -> None:
    assert parse_report("a", msgspec.msgpack.encode((3, (), (), (), 3, True, (), (), "more"))).waiting == 3
