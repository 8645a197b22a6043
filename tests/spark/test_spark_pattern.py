"""Patterns of topics: what they match, against Python's own, and what they cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import UsageError
from chappe.reading.selection import Pattern, Selection, escaped

ATOMS = [
    "a",
    "b",
    ".",
    r"\.",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    "[a-c1]",
    r"\-",
    r"\W",
    r"[\d-]",
    r"[\W]",
    "^",
    "$",
    r"\x61",
]
patterns = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.builds("({})".format, inner)
        | st.builds("{}|{}".format, inner, inner)
        | st.builds("{}{}{}".format, inner, inner, inner)
        | st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}"]))
    ),
    max_leaves=8,
)


@given(patterns, st.text("ab1.-\n", max_size=6), st.booleans())
def test_what_both_know_matches_as_in_python(text: str, name: str, any_case: bool) -> None:
    text = f"(?i){text}" if any_case else text
    pattern = Pattern(text)

    python = text.replace("$", r"\Z")  # Python lets $ stand before a last line end, too
    found = re.fullmatch(python, name, re.ASCII | re.DOTALL) is not None

    assert pattern.matches(name) is found
    assert not found or name.startswith(pattern.beginning)


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        (r"\Qa.b*\E[0-9]+", ["a.b*7"], ["aXb*7", "a.b7"]),
        (r"(?<name>a)(?P<other>b)", ["ab"], ["a"]),
        (r"(?i)metrics\.CPU", ["Metrics.cpu"], ["metrics_cpu"]),
        ("(?i)[^a]", ["b"], ["A", "a"]),
        (r"\Aa\z|\Ab\Z", ["a", "b"], ["ab"]),
        ("", [""], ["a"]),
        ("a{0}b", ["b"], ["ab"]),
        ("(a*)*", ["", "aaa"], ["b"]),
    ],
)
def test_what_java_writes_otherwise(text: str, matching: list[str], others: list[str]) -> None:
    pattern = Pattern(text)
    assert all(map(pattern.matches, matching))
    assert not any(map(pattern.matches, others))


@pytest.mark.parametrize(
    "text",
    [
        *("*", "*.log", "a**", "(", "a)", "[", "[]", "[b-a]", "a++", "{2}", "a{x}", "a{300}", "a{3,1}", "a{1", "\\"),
        *("(?=a)", "(?<1>a)", "(?i", "a(?i)b", r"\1", r"\b", r"\p{L}", r"\x0", "[a[b]]", "[a&&b]", "(" * 200),
        "((a{255}){255}){255}",
    ],
)
def test_what_is_not_known_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Pattern(text)
    assert "\n" not in str(caught.value)


@given(st.text("ab.*+?{}()[]|\\^$-,:<>PQE1din&\udc80", max_size=10))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        Pattern(text).matches("ab1")
    except UsageError:
        pass


@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", "(.*a){20}b", "(a?){255}b"])
def test_names_that_stop_a_backtracking_matcher_cost_nothing(text: str) -> None:
    assert not Pattern(text).matches("a" * 255)


@given(st.text(max_size=8))
def test_any_name_can_be_written_as_a_pattern_of_its_own(name: str) -> None:
    pattern = Pattern(escaped(name))
    assert pattern.matches(name)
    assert pattern.beginning == name
    assert not pattern.matches(name + "x")


def test_what_nothing_matches_is_told_with_what_was_meant() -> None:
    assert Selection.of_pattern("sensor*").missing(set()) == (
        "that matches sensor* (a regular expression: all that begin with sensor are sensor.*)"
    )
    assert Selection.of_pattern("sensor.*").missing(set()) == "that matches sensor.*"
    assert Selection.of_pattern("sensor.*").missing({"sensor1"}) is None
    assert Selection.of_topics(["a", "b", "c*"]).missing({"a"}) == "named b"
