"""What callers hand in is taken, or refused in a sentence that names the argument."""

from __future__ import annotations

import pytest

from chappe.data.given import as_bytes, as_index, as_text, pairs, several, two
from chappe.data.topic import Filter, as_topic, check_topic
from chappe.errors import UsageError
from chappe.log.batch import as_batch, as_headers

HALVES = ["a\ud800", "\udcff"]


@pytest.mark.parametrize(
    ("given", "taken"),
    [(b"x", b"x"), ("ü", "ü".encode()), (None, None), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x")],
)
def test_bytes_and_text(given: object, taken: bytes | None) -> None:
    found = as_bytes(given, "the value")
    assert found == taken
    assert found is None or type(found) is bytes


@pytest.mark.parametrize("given", [5, 3_000_000_000, True, 1.5, [], {}, ..., ["x"]], ids=repr)
def test_anything_else(given: object) -> None:
    kind = type(given).__name__
    with pytest.raises(UsageError, match=f"the value is bytes or text, not {kind}: encode it first"):
        as_bytes(given, "the value")
    with pytest.raises(UsageError, match=f"the name is text, not {kind}"):
        as_text(given, "the name")


@pytest.mark.parametrize("text", HALVES, ids=ascii)
def test_text_that_utf_8_cannot_hold(text: str) -> None:
    with pytest.raises(UsageError, match=r"the key is '.*', which is not text in UTF-8: decode it"):
        as_bytes(text, "the key")
    with pytest.raises(UsageError, match=r"the name of a header is '.*', which is not text in UTF-8"):
        as_headers([(text, b"x")])
    with pytest.raises(UsageError, match=r"the value of header 'a' is '.*', which is not text in UTF-8"):
        as_headers({"a": text})


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"attempt": 5}, "the value of header 'attempt' is bytes or text, not int"),
        ({"attempt": 3_000_000_000}, "the value of header 'attempt' is bytes or text, not int"),
        ({"a": None}, "the value of header 'a' is bytes or text, not None: leave the header out"),
        ({"a": ["x"]}, "the value of header 'a' is bytes or text, not list"),
        ({b"a": b"x"}, "the name of a header is text, not bytes"),
        ([("a", b"b", b"c")], "a header is a name and a value, not tuple"),
        (["ab"], "a header is a name and a value, not str"),
        ([5], "a header is a name and a value, not int"),
        (5, "headers are several, in a list or what else can be iterated, not int"),
        ("ab", "headers are several, in a list or what else can be iterated, not str"),
        (b"ab", "headers are several, in a list or what else can be iterated, not bytes"),
    ],
    ids=repr,
)
def test_headers_that_are_none(headers: object, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        as_headers(headers)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [5, 3_000_000_000, None, "text", ["x"]], ids=repr)
def test_a_batch_is_bytes(given: object) -> None:
    with pytest.raises(UsageError, match="a batch is bytes"):
        as_batch(given)


def test_whole_numbers() -> None:
    assert as_index(3, "an offset") == 3
    for given, why in ((-1, "an offset is at least 0, not -1"), (1.5, "an offset is a whole number, not 1.5")):
        with pytest.raises(UsageError, match=why):
            as_index(given, "an offset")


def test_several_and_pairs() -> None:
    assert [*several(iter([1, 2]), "values")] == [1, 2]
    assert [two(each, "an item") for each in pairs({"a": 1}, "items")] == [("a", 1)]
    for given in ("text", b"bytes", 5, None):
        with pytest.raises(UsageError, match="values are several"):
            several(given, "values")


@pytest.mark.parametrize("given", [5, b"x", ["x"], {}], ids=repr)
def test_topics_are_text(given: object) -> None:
    for check in (check_topic, as_topic, Filter.parse):
        with pytest.raises(UsageError, match=f"a topic is text, not {type(given).__name__}"):
            check(given)


def test_a_topic_out_of_a_locale_of_ascii_is_the_text_that_its_bytes_are() -> None:
    """Each byte of ``é`` is a surrogate there; bytes that are not UTF-8 stay as they are."""
    assert check_topic("caf\udcc3\udca9") == as_topic("caf\udcc3\udca9") == "café"
    assert Filter.parse("caf\udcc3\udca9") == Filter("café")
    assert Filter.parse("caf\udcc3\udca9*") == Filter("café", prefix=True)
    assert check_topic("caf\udce9") == "caf\udce9"
