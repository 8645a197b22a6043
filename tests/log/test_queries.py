"""Queries and their answers survive the wire; what is none, or names numbers that cannot be, is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.data.topic import decode_topic
from chappe.defaults import ATTEMPTS_MAX
from chappe.errors import ProtocolError
from chappe.log.queries import (
    FORMAT,
    UNKNOWN,
    Answer,
    AttachSink,
    CatalogueAnswer,
    CatalogueRequest,
    Commit,
    CommitAnswer,
    Drop,
    ErrorAnswer,
    FindSink,
    HeadsAnswer,
    HeadsRequest,
    LastAnswer,
    LastRequest,
    ReadAnswer,
    ReadRequest,
    Request,
    SeekAnswer,
    SeekRequest,
    SinkAnswer,
    Stage,
    StagedAnswer,
    TopicAnswer,
    TopicChange,
    TopicEntry,
    decode_answer,
    decode_request,
    encode_query,
    heads_answer,
    unknown_kind,
)
from chappe.log.storage import PartitionInfo

names = st.binary(max_size=30).map(lambda raw: raw.replace(b"\0", b""))
offsets = st.integers(0, 2**63 - 1)
times = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=40)
ids = st.integers(0, 2**63 - 1)
parts = names.filter(len)  # a topic or partition that exists has a name
settings = st.booleans() | times | st.floats(allow_nan=False) | texts
floors = st.lists(st.tuples(names, ids), max_size=3)
values = st.dictionaries(texts, settings, max_size=3)
entries = st.builds(TopicEntry, names, ids, texts, st.booleans(), values, ids, ids, floors)
requests = st.one_of(
    st.builds(ReadRequest, names, names, offsets, offsets),
    st.builds(HeadsRequest, names, offsets, offsets),
    st.builds(SeekRequest, names, names, times),
    st.builds(
        TopicChange,
        names,
        st.dictionaries(texts, st.none() | settings, max_size=3),
        st.booleans(),
        st.booleans(),
        ids,
        st.none() | entries,
    ),
    st.builds(CatalogueRequest, ids),
    st.builds(FindSink, texts),
    st.builds(AttachSink, texts, texts, texts, st.booleans()),
    st.builds(Stage, texts, texts, ids, ids, ids, ids, names),
    st.builds(Commit, texts, texts, ids, st.lists(st.tuples(ids, ids, ids, ids), max_size=3)),
    st.builds(Drop, texts, texts, ids, st.lists(st.tuples(ids, ids), max_size=3)),
)
infos = st.builds(
    PartitionInfo,
    parts.map(decode_topic),
    parts.map(decode_topic),
    offsets,
    offsets,
    offsets,
    times,
    times,
    offsets,
)
answers = st.one_of(
    st.builds(ReadAnswer, names, names, offsets, offsets, st.booleans(), st.integers(-1, 2**63 - 1), offsets),
    st.builds(heads_answer, st.lists(infos, max_size=3), offsets, st.just(10), offsets),
    st.builds(TopicAnswer, entries, texts, ids),
    st.builds(CatalogueAnswer, ids, st.booleans(), st.lists(entries, max_size=3), texts, st.booleans()),
    st.builds(SeekAnswer, names, names, st.integers(-1, 2**63 - 1)),
    st.builds(SinkAnswer, texts, texts, texts, st.integers(-1, 2**63 - 1)),
    st.builds(StagedAnswer, st.integers(-1, 2**63 - 1)),
    st.builds(CommitAnswer, ids, st.booleans(), st.lists(st.tuples(names, names, ids, ids), max_size=3)),
    st.builds(
        ErrorAnswer, st.text(max_size=20), st.sampled_from(["", "fenced", "missing", "full", "elsewhere", "new"])
    ),
)


@given(requests)
def test_a_request_survives_the_wire(request: Request) -> None:
    assert decode_request(encode_query(request)) == request


@given(answers)
def test_an_answer_survives_the_wire(answer: Answer) -> None:
    assert decode_answer(encode_query(answer)) == answer


@given(st.lists(infos, max_size=3))
def test_partitions_come_out_of_an_answer_as_the_storage_described_them(partitions: list[PartitionInfo]) -> None:
    answer = decode_answer(encode_query(heads_answer(partitions, 0, 10, 7)))

    assert isinstance(answer, HeadsAnswer)
    assert answer.infos() == partitions


def test_a_cut_answer_goes_on_where_its_last_partition_changed() -> None:
    one = PartitionInfo("t", "p", 0, 1, 1, 1, 1, version=4)
    two = PartitionInfo("t", "q", 0, 1, 1, 1, 1, version=6)

    cut = heads_answer([one, two], since=0, limit=2, version=9)
    whole = heads_answer([one, two], since=0, limit=3, version=9)

    assert (cut.version, cut.more) == (6, True)
    assert (whole.version, whole.more) == (9, False)


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_mean_something(raw: bytes) -> None:
    for decode in (decode_request, decode_answer):
        try:
            decode(raw)
        except ProtocolError:
            pass


@given(st.one_of(requests, answers), st.data())
def test_one_wrong_byte_is_refused_or_means_something(message: Request | Answer, data: st.DataObject) -> None:
    wrong = bytearray(encode_query(message))
    wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.integers(0, 255))
    for decode in (decode_request, decode_answer):
        try:
            decode(bytes(wrong))
        except ProtocolError:
            pass


@given(st.one_of(requests, answers))
def test_every_cut_is_refused(message: Request | Answer) -> None:
    raw = encode_query(message)
    for size in range(len(raw)):
        with pytest.raises(ProtocolError):
            decode_request(raw[:size])
        with pytest.raises(ProtocolError):
            decode_answer(raw[:size])


def test_a_deeply_nested_message_is_refused() -> None:
    for decode in (decode_request, decode_answer):
        with pytest.raises(ProtocolError):
            decode(b"\x91" * 100_000)


@pytest.mark.parametrize(
    "answer",
    [
        ["read", b"t", b"p", -1, 5, True, -1],
        ["read", b"t", b"p", 0, 2**63, True, -1],
        ["read", b"t", b"p", 0, 5, True, -2],
        ["read", b"t" * 256, b"p", 0, 5, True, -1],
        ["heads", [[b"t", b"p", -5, 5, 0, 0, 0, 1]], 1, False],
        ["heads", [[b"t", b"p", 0, 2**64 - 1, 0, 0, 0, 1]], 1, False],
        ["heads", [[b"t" * 256, b"p", 0, 5, 0, 0, 0, 1]], 1, False],
        ["heads", [[b"t", b"p" * 256, 0, 5, 0, 0, 0, 1]], 1, False],
        ["heads", [[b"t\0", b"p", 0, 5, 0, 0, 0, 1]], 1, False],
        ["heads", [[b"t", b"", 0, 5, 0, 0, 0, 1]], 1, False],
        ["heads", [], -1, False],
        ["seek", b"t", b"p", -2],
        ["seek", b"t", b"p", 2**63],
    ],
    ids=lambda answer: str(answer)[:40],
)
def test_an_answer_with_impossible_numbers_or_names_is_refused(answer: list[object]) -> None:
    """A consumer would go on with them: it would ask for offset -5, or of a topic that cannot travel."""
    with pytest.raises(ProtocolError):
        read(msgspec.msgpack.encode(answer))


@pytest.mark.parametrize(
    "request_",
    [
        ["find-sink", "q" * 256],
        ["stage", "q", "r", -1, 0, 0, 0, b"t"],
        ["stage", "q", "r", 0, 0, 0, 2**63, b"t"],
        ["stage", "q", "r", 0, 0, 0, 0, b"t" * 256],
        ["commit", "q", "r", 0, [[0, 0, 0]]],
        ["commit", "q", "r", 0, [[0, 0, 0, -1]]],
        ["commit", "q", "r", 0, [[0, 0, 0, 0]] * (ATTEMPTS_MAX + 1)],
        ["drop", "q", "r", 0, [[0, -1]]],
    ],
    ids=lambda request: str(request)[:40],
)
def test_a_request_with_impossible_numbers_or_names_is_refused(request_: list[object]) -> None:
    with pytest.raises(ProtocolError):
        decode_request(msgspec.msgpack.encode(request_))


def test_an_error_of_an_older_store_has_no_kind() -> None:
    assert decode_answer(msgspec.msgpack.encode(["error", "why"])) == ErrorAnswer("why", "")


def read(raw: bytes) -> object:
    answer = decode_answer(raw)
    return answer.infos() if isinstance(answer, HeadsAnswer) else answer


# Questions and answers as the first format has them, which it wrote itself.
FIRST = (
    (ReadRequest(b"t", b"p", 7, 1000), "95a472656164c40174c4017007cd03e8"),
    (HeadsRequest(b"t", 5, 10), "94a56865616473c40174050a"),
    (SeekRequest(b"t", b"p", 99), "94a47365656bc40174c4017063"),
    (LastRequest(b"t", 1, 2, 3), "95a46c617374c40174010203"),
    (FindSink("s"), "92a966696e642d73696e6ba173"),
    (AttachSink("s", "r", "h", True), "95ab6174746163682d73696e6ba173a172a168c3"),
    (Stage("s", "r", 1, 2, 3, 4, b"t"), "98a57374616765a173a17201020304c40174"),
    (Commit("s", "r", 1, [(1, 2, 3, 4)]), "95a6636f6d6d6974a173a17201919401020304"),
    (Drop("s", "r", 1, [(1, 2)]), "95a464726f70a173a1720191920102"),
    (ReadAnswer(b"t", b"p", 1, 9, True, -1), "97a472656164c40174c401700109c3ff"),
    (
        HeadsAnswer([(b"t", b"p", 0, 9, 100, 1, 2, 3)], 3, False, 4, [("who", "consume", 2)]),
        "96a568656164739198c40174c4017000096401020303c2049193a377686fa7636f6e73756d6502",
    ),
    (SeekAnswer(b"t", b"p", 4), "94a47365656bc40174c4017004"),
    (
        LastAnswer(b"t", 1, [(b"p", 3)], [b"p"], 0, 2, True, False),
        "99a46c617374c40174019192c401700391c401700002c3c2",
    ),
    (SinkAnswer("i", "h", "r", 3), "95a473696e6ba169a168a17203"),
    (StagedAnswer(2), "92a673746167656402"),
    (CommitAnswer(1, True, [(b"t", b"p", 0, 3)]), "94a6636f6d6d697401c39194c40174c401700003"),
    (ErrorAnswer("why", "full"), "93a56572726f72a3776879a466756c6c"),
)


@pytest.mark.parametrize(("message", "raw"), FIRST)
def test_what_the_first_format_wrote_is_understood_and_what_is_written_begins_as_it_did(
    message: Request | Answer, raw: str
) -> None:
    former = bytes.fromhex(raw)
    decode = decode_answer if type(message).__name__.endswith(("Answer",)) else decode_request

    found = decode(former)

    assert found == message
    assert encode_query(message)[1:].startswith(former[1:]), (
        "an older one reads what it knows, and passes over the rest"
    )


def test_stores_say_the_format_of_what_they_answer() -> None:
    found = decode_answer(encode_query(heads_answer([], 0, 10, 1)))
    assert isinstance(found, HeadsAnswer)
    assert found.format == FORMAT


def test_a_question_that_only_newer_stores_know_is_answered_in_a_sentence() -> None:
    answer = unknown_kind(msgspec.msgpack.encode(["compact", b"t", 5]))

    assert answer is not None
    assert answer.kind == UNKNOWN
    assert "'compact'" in answer.text
    assert "upgrade this store" in answer.text
    for garbage in (b"", b"\xc1", msgspec.msgpack.encode(["read"]), msgspec.msgpack.encode({}), b"\x91" * 5_000):
        assert unknown_kind(garbage) is None
