"""What ``chappe produce`` makes of its arguments, and how fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.cli import rates
from chappe.cli.formats import FullRecord, Item
from chappe.cli.produce_input import ProduceInput
from chappe.cli.rates import BURST_S, Throttle
from chappe.errors import UsageError


def read(source: ProduceInput) -> list[Item]:
    source.check()
    with source.chunks() as (chunks, _):
        return [each for records in source.records(chunks) for each in records]


def test_a_message_is_a_record_whatever_is_in_it() -> None:
    assert read(ProduceInput(["hello", "two\nlines", "", "\udcff"])) == [b"hello", b"two\nlines", b"", b"\xff"]
    assert read(ProduceInput(['{"a":1}', "2"], form="json")) == [b'{"a":1}', b"2"]
    assert read(ProduceInput(['{"value":"v","key":"k"}'], form="records")) == [FullRecord(b"v", b"k", True)]


def test_what_stands_before_the_separator_is_the_key(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a:1\nb::2\n:3\nnone\n")
    keyed = [FullRecord(b"1", b"a", True), FullRecord(b":2", b"b", True), FullRecord(b"3", b"", True), b"none"]
    assert read(ProduceInput(file=str(lines), key_separator=":")) == keyed
    assert read(ProduceInput(["k\tv\n", r"k\tv"], key_separator=r"\t")) == [FullRecord(b"v\n", b"k", True), rb"k\tv"]
    assert read(ProduceInput(["k\udcffv"], key_separator=r"\xff")) == [FullRecord(b"v", b"k", True)]


@given(st.lists(st.tuples(st.binary(), st.binary())))
def test_keys_and_values_are_told_apart_byte_for_byte(pairs: list[tuple[bytes, bytes]]) -> None:
    pairs = [(key.replace(b"=", b"").replace(b"\n", b""), value.replace(b"\n", b"")) for key, value in pairs]
    chunks = [b"%b=%b\n" % each for each in pairs]
    found = [each for records in ProduceInput(key_separator="=").records(chunks) for each in records]
    assert found == [FullRecord(value, key, True) for key, value in pairs]


def test_a_message_that_is_the_name_of_a_file_is_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines"
    file.write_text("a\n")
    assert read(ProduceInput([str(file)])) == [str(file).encode()]
    assert "is written as a message; --file writes what is in the file of that name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (ProduceInput(["a"], file="f"), "give messages or --file, not both"),
        (ProduceInput(["a"], form="length"), "--format length is for files and standard input"),
        (ProduceInput(form="json", key_separator=":"), "--key-separator is for lines, not for --format json"),
        (ProduceInput(key_separator=""), "--key-separator is empty"),
        (ProduceInput(key_separator=r"\q"), r"\\q is not an escape"),
        (ProduceInput(file="/nosuch"), "cannot read /nosuch: No such file"),
        (ProduceInput(file="/"), "cannot read /: Is a directory"),
    ],
)
def test_contradictions_are_one_sentence(source: ProduceInput, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read(source)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("per_s", [0.1, 3.0, 1_000.0, 1e6])
def test_records_go_at_a_rate_and_a_pause_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch, per_s: float) -> None:
    clock = Clock()
    monkeypatch.setattr(rates, "time", clock)
    throttle = Throttle(per_s)

    def sent_within(seconds: float) -> int:
        end, count = clock.now + seconds, 0
        while clock.now < end:
            count += throttle.wait(1_000_000_000)
        return count

    whole_s = 100 if per_s < 1e6 else 2  # a million steps take a second
    assert sent_within(whole_s) == pytest.approx(whole_s * per_s, abs=2 + per_s * BURST_S)
    clock.now += 3_600
    assert sent_within(whole_s / 10) == pytest.approx(whole_s / 10 * per_s, abs=2 + 2 * per_s * BURST_S)
