"""The records that ``chappe consume`` chooses, and what a format string makes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import PATIENCE_S

from chappe import Consumer, Producer
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.cli import consume_choice, topics
from chappe.cli.consume import consume
from chappe.cli.consume_choice import Choice
from chappe.cli.record_format import parse_format
from chappe.errors import ChappeError, OffsetOutOfRange, UnknownTopic, UsageError
from chappe.log.batch import Record

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BATCHES, EACH = 20, 50
Printed = Callable[..., list[str]]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with two partitions: numbers, a second apart and every tenth with a key, and words of long ago."""
    with Tower("127.0.0.1:0") as made, Store(tmp_path_factory.mktemp("store"), tower=made.address):
        with Producer("t", tower=made.address) as numbers:
            for n in range(BATCHES * EACH):
                at = BEGAN + timedelta(seconds=n)
                numbers.send(b"%d" % n, None if n % 10 else b"k\xff", timestamp=at)
                if n % EACH == EACH - 1:
                    numbers.flush(PATIENCE_S)
        with Producer("t", tower=made.address) as words:
            words.send_many([b"one", b"two", None], timestamp=BEGAN - timedelta(days=1))
            words.flush(PATIENCE_S)
        yield made.address


@pytest.fixture
def printed(tower: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printed:
    monkeypatch.setattr(topics, "DISCOVER_S", PATIENCE_S)

    def run(**given: Any) -> list[str]:
        reach = {"tower": tower, "listen": "127.0.0.1", "forwarders": None}
        consume(**{"topics": ["t"], "until_end": True, "form": r"%s\n", **reach, **given})
        return sorted(capfd.readouterr().out.split("\n")[:-1])

    return run


def test_the_newest_of_each_partition_are_printed_and_nothing_before_them_is_read(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    poll = Consumer.poll

    def count(self: Consumer, timeout: float | None = 0.0) -> ConsumedBatch | None:
        batch = poll(self, timeout)
        read.append(0 if batch is None else len(batch))
        return batch

    monkeypatch.setattr(Consumer, "poll", count)
    assert printed(last=2) == ["", "998", "999", "two"]
    assert sum(read) == 4
    assert printed(last=BATCHES * EACH + 1) == sorted(["", "one", "two", *map(str, range(BATCHES * EACH))])


def test_the_newest_come_first_where_more_comes(printed: Printed, tower: str) -> None:
    ended = threading.Event()

    def go_on() -> None:
        with Producer("live", tower=tower) as producer:
            n = 0
            while not ended.is_set():
                producer.send(b"%d" % n)
                producer.flush(PATIENCE_S)
                n += 1
                first.set()

    first = threading.Event()
    sending = threading.Thread(target=go_on)
    sending.start()
    try:
        assert first.wait(PATIENCE_S)
        found = printed(topics=["live"], last=1, count=3, until_end=False)
    finally:
        ended.set()
        sending.join()
    numbers = sorted(map(int, found))
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_a_time_ends_it_before_the_first_record_that_is_not_older(printed: Printed) -> None:
    assert printed(until="2026-01-01T00:01:00Z", until_end=False) == sorted(["", "one", "two", *map(str, range(60))])
    assert printed(until="2026-01-01T00:01:00Z", last=1) == ["", "59"]
    assert printed(until="2025-12-31T12:00Z", start="2025-12-01T12:00Z") == ["", "one", "two"]
    assert printed(until="2000-01-01", until_end=False) == []
    with pytest.raises(UsageError, match="--until 2126-01-01 is in the future"):
        printed(until="2126-01-01")
    with pytest.raises(UsageError, match="--from is not before --until"):
        printed(until="2026-01-01T00:01:00Z", start="2026-01-01T00:01:00Z")


def test_a_partition_alone(printed: Printed, tower: str) -> None:
    ids = {line.split()[0] for line in printed(form=r"%p %o\n", count=1003)}
    (numbers,) = (each for each in ids if printed(partition=each, last=1) == ["999"])
    assert printed(partition=numbers, start="990") == [str(n) for n in range(990, 1000)]
    (words,) = ids - {numbers}
    short = next(words[:n] for n in range(1, 33) if not numbers.startswith(words[:n]))
    assert printed(partition=short) == ["", "one", "two"]
    with pytest.raises(OffsetOutOfRange, match="offset 500 is not there yet: the last one is 2"):
        printed(partition=words, start="500")
    with pytest.raises(UnknownTopic, match="no partition begins with 'nosuch'"):
        printed(partition="nosuch", until_end=False)


def test_keys_and_patterns(printed: Printed) -> None:
    assert printed(key="k\udcff", until="2026-01-01T00:00:31Z") == ["0", "10", "20", "30"]
    assert printed(grep="^(77|t)[0-9wo]*$") == ["77", *(str(n) for n in range(770, 780)), "two"]
    assert printed(grep="0$", key="k\udcff", start="990", count=2) == ["990"]
    with pytest.raises(UsageError, match=r"^--grep '\(a' is not a regular expression: missing \), unterminated"):
        printed(grep="(a")


def test_a_pattern_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_choice, "SEARCH_S", 0.05)
    record = Record("t", "p", 0, 0, None, b"a" * 40 + b"b", ())
    with Choice(grep="^(a+)+$").matching() as match:
        assert match is not None
        with pytest.raises(ChappeError, match="takes too long for a value"):
            match(record)


def test_workers_have_all_that_comes() -> None:
    with pytest.raises(UsageError, match="--grep does not go with --exec"):
        Choice(grep="x").check_no_workers()


RECORD = Record("a\x1bb", "P1", 7, 1_500_001, None, b"\xffv\x1b", (("h", b"1"), ("i", b"\n")))


def test_every_letter_of_a_format() -> None:
    text = r"%t|%p|%o|%k|%K|%s|%v|%S|%T|%h|%%\t\\\x41\xff\r\n"
    plain = b"a\\x1bb|P1|7||-1|\xffv\x1b|\xffv\x1b|3|1500|h=1,i=\n|%\t\\A\xff\r\n"
    assert parse_format(text, escaped=False).render(RECORD) == plain
    escaped = plain.replace(b"\xffv\x1b", rb"\xffv\x1b").replace(b"i=\n", rb"i=\n")
    assert parse_format(text, escaped=True).render(RECORD) == escaped
    assert [parse_format(each, escaped=False).headers for each in ("%s", "%h", "%%h")] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("%q", "--format knows no %q; the letters are %t %p %o %k %K %s %v %S %T %h %%"),
        ("100%", "--format knows no %; the letters are"),
        (r"\q", r"\q is not an escape; these are: \n \t \r \0 \\ \xNN"),
        (r"\xg1", r"\x is not an escape"),
        ("\\", "\\ is not an escape"),
    ],
)
def test_mistakes_in_a_format_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_format(text, escaped=False)
    assert str(caught.value).startswith(sentence)


@given(st.text().filter(lambda text: not {"%", "\\"} & set(text)))
def test_other_text_is_printed_as_it_is(text: str) -> None:
    assert parse_format(text, escaped=True).render(RECORD) == text.encode()
