"""Filters: small, and they match what the list of prefixes they were made of matches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chappe.mesh.filters import EVERYTHING, NOTHING, announced, matches, minimal, union

topics = st.text("ab/", max_size=6).map(str.encode)
topic_lists = st.lists(topics, max_size=60)


def matches_any(prefixes: list[bytes], topic: bytes) -> bool:
    return any(topic.startswith(prefix) for prefix in prefixes)


@given(topic_lists, topics)
def test_a_minimal_filter_matches_the_same(prefixes: list[bytes], topic: bytes) -> None:
    assert matches(minimal(prefixes), topic) == matches_any(prefixes, topic)


@given(st.lists(st.binary(max_size=3), max_size=200), st.binary(max_size=5))
def test_a_large_filter_matches_the_same(prefixes: list[bytes], topic: bytes) -> None:
    assert matches(minimal(prefixes), topic) == matches_any(prefixes, topic)


def test_many_prefixes_are_searched() -> None:
    wanted = minimal([b"/%03d" % number for number in range(500)])
    assert len(wanted) == 500
    assert matches(wanted, b"/000")
    assert matches(wanted, b"/499/x")
    assert not matches(wanted, b"/500")
    assert not matches(wanted, b"/49")
    assert not matches(wanted, b"")


@given(topic_lists)
def test_a_minimal_filter_is_sorted_and_has_no_prefix_of_another(prefixes: list[bytes]) -> None:
    wanted = minimal(prefixes)
    assert list(wanted) == sorted(set(wanted))
    assert set(wanted) <= set(prefixes)
    assert not [(one, two) for one in wanted for two in wanted if one != two and two.startswith(one)]
    assert minimal(wanted) == wanted
    assert minimal(reversed(prefixes)) == wanted


@given(st.lists(topic_lists, max_size=4), topics)
def test_a_union_matches_what_one_of_them_matches(lists: list[list[bytes]], topic: bytes) -> None:
    each = [minimal(prefixes) for prefixes in lists]
    assert matches(union(each), topic) == any(matches(wanted, topic) for wanted in each)
    assert union(each) == minimal([prefix for prefixes in lists for prefix in prefixes])


def test_prefixes_are_bytes_not_levels() -> None:
    assert matches((b"/foo",), b"/foobar")
    assert matches(EVERYTHING, b"")
    assert not matches(NOTHING, b"")
    assert minimal([b"/a", b"", b"/b"]) == EVERYTHING


def test_what_is_local_is_not_announced() -> None:
    assert announced([b"<$>/local/data/errors", b"/a/b", b"/a"]) == (b"/a",)
