"""What rules decide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.permissions.rules import EVERYTHING, VERBS, Identity, Permissions, Rule

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
DAY: Final = timedelta(days=1)


def rule(effect: str, *topics: str, verbs: str = "produce", roles: str = "", names: str = "", line: int = 0) -> Rule:
    return Rule(
        effect == "allow", frozenset(verbs.split()), frozenset(roles.split()), frozenset(names.split()), topics, line
    )


def identity(name: str, role: str = "producer", *, days: float = 30, revoked: bool = False) -> Identity:
    revoked_at = NOW if revoked else None
    return Identity(name, role, name.encode().ljust(32, b"."), None, NOW + days * DAY, b"", revoked_at, (name,), 7)


def permissions(*rules: Rule, identities: tuple[Identity, ...] = ()) -> Permissions:
    named = {each.name: each for each in identities or (identity("ann"), identity("bob", "consumer"))}
    return Permissions(1, NOW - DAY, NOW + 100 * DAY, named, rules, {each.curve: each for each in named.values()})


def test_nothing_is_allowed_where_no_rule_says_so() -> None:
    decision = permissions().decide("ann", "produce", "orders", NOW)

    assert (decision.allowed, decision.why) == (False, "no rule allows it")


@pytest.mark.parametrize(
    ("denial", "before", "why"),
    [
        (rule("deny", "*", names="*"), None, []),
        (rule("deny", "*", roles="consumer"), None, []),
        (rule("deny", "*", roles="*"), None, ['there is no role "*": names = ["*"] is everybody']),
        (rule("deny", "*", roles="producer consumers"), None, ["no identity has the role consumers"]),
        (rule("deny", "*", names="ann eve"), None, ["there is no identity eve"]),
        (rule("deny", "a/b", names="ann"), rule("allow", "a/*", names="*", line=3), ["line 3"]),
        (rule("deny", "a/b", names="ann"), rule("allow", "a/*", roles="producer"), []),
        (rule("deny", "a/*", names="ann"), rule("allow", "a/b", names="*"), []),
        (rule("deny", "a/b", names="ann"), rule("allow", "a/*", names="*", verbs="consume"), []),
        (rule("deny", "a/b", names="ann", verbs=EVERYTHING), rule("allow", "a/*", names="*"), []),
        (rule("deny", "a/b", names="*"), rule("allow", "a/*", names="ann"), []),
        (rule("allow", "*", roles="*"), None, []),
    ],
    ids=map(str, range(12)),  # the text of a set of names differs between processes
)
def test_denials_that_deny_less_than_they_may_seem(denial: Rule, before: Rule | None, why: list[str]) -> None:
    found = permissions(*([] if before is None else [before]), denial).idle_denials()

    assert len(found) == len(why)
    assert all(text in told and each is denial for (each, told), text in zip(found, why, strict=True))


@pytest.mark.parametrize(
    ("name", "verb", "topic", "allowed", "line"),
    [
        ("ann", "produce", "orders", True, 3),
        ("ann", "produce", "orders/secret/1", False, 2),
        ("ann", "produce", "others", False, 0),
        ("ann", "consume", "orders", False, 0),
        ("bob", "produce", "orders", False, 0),
        ("bob", "produce", "bobs", True, 4),
        ("eve", "produce", "orders", False, 0),
    ],
)
def test_the_first_rule_that_fits_decides(name: str, verb: str, topic: str, allowed: bool, line: int) -> None:
    found = permissions(
        rule("deny", "orders/secret/*", names="*", line=2),
        rule("allow", "orders*", roles="producer", line=3),
        rule("allow", "bobs", names="bob", line=4),
        rule("deny", "*", names="*", verbs=EVERYTHING, line=0),
    )

    decision = found.decide(name, verb, topic, NOW)

    assert (decision.allowed, decision.line) == (allowed, line)


def test_everything_is_every_verb() -> None:
    found = permissions(rule("allow", "*", names="ann", verbs=EVERYTHING))

    assert all(found.decide("ann", verb, "any", NOW).allowed for verb in VERBS)


def test_a_topic_without_a_star_is_that_one_alone() -> None:
    found = permissions(rule("allow", "orders", names="*"))

    assert found.decide("ann", "produce", "orders", NOW).allowed
    assert not found.decide("ann", "produce", "orders/1", NOW).allowed
    assert not found.decide("ann", "produce", "orders", NOW, subtree=True).allowed


def test_all_topics_that_begin_so_are_allowed_if_none_of_them_is_denied_before() -> None:
    found = permissions(rule("deny", "a/b/*", names="*", line=2), rule("allow", "a/*", names="*", line=3))

    assert found.decide("ann", "produce", "a/c", NOW, subtree=True).allowed
    assert found.decide("ann", "produce", "a/b", NOW, subtree=True).line == 2  # a/b/1 is denied
    assert not found.decide("ann", "produce", "a/", NOW, subtree=True).allowed
    assert not found.decide("ann", "produce", "", NOW, subtree=True).allowed


def test_whoever_expired_or_was_revoked_may_nothing() -> None:
    found = permissions(
        rule("allow", "*", names="*"),
        identities=(identity("old", days=0), identity("gone", revoked=True), identity("ann")),
    )

    assert found.decide("ann", "produce", "x", NOW).allowed
    assert found.decide("old", "produce", "x", NOW).why == "old expired on 2026-01-01"
    gone = found.decide("gone", "produce", "x", NOW)
    assert (gone.why, gone.line) == ("gone was revoked on 2026-01-01", 7)
    assert found.holder(b"gone".ljust(32, b"."), NOW) == "gone was revoked on 2026-01-01"
    assert found.holder(b"ann".ljust(32, b"."), NOW) == found.identities["ann"]
    assert found.holder(bytes(32), NOW) == "a key that the permissions do not name"


def test_permissions_have_a_beginning_and_an_end() -> None:
    found = permissions(rule("allow", "*", names="*"), identities=(identity("ann", days=1000),))

    assert "compare the clocks" in found.decide("ann", "produce", "x", NOW - 2 * DAY).why
    assert "sign them again" in found.decide("ann", "produce", "x", NOW + 100 * DAY).why


def test_a_server_is_who_may_serve_some_topic() -> None:
    found = permissions(
        rule("allow", "orders/*", names="ann", verbs="store"),
        rule("deny", "*", names="bob", verbs="store"),
        rule("allow", "orders/*", names="bob", verbs="store"),
    )

    assert found.may_somewhere(found.identities["ann"], "store")
    assert not found.may_somewhere(found.identities["ann"], "introduce")
    assert not found.may_somewhere(found.identities["bob"], "store")


def test_whom_to_dial_is_told_by_who_may_serve_and_where_it_is() -> None:
    rules = (rule("allow", "*", roles="server", verbs="store"), rule("allow", "*", roles="boss", verbs=EVERYTHING))
    boss, one, two = identity("boss", "boss"), identity("one", "server"), identity("two", "server")

    alone = permissions(*rules, identities=(boss, one, identity("ann"), identity("gone", "server", revoked=True)))
    assert alone.server("store", "anywhere", NOW) == one  # not the one that may everything
    assert permissions(*rules, identities=(boss,)).server("store", "anywhere", NOW) == boss
    both = permissions(*rules, identities=(boss, one, two))
    assert both.server("store", "two", NOW) == two
    assert both.server("store", "anywhere", NOW) == "one and two may both store: say who it is, one@anywhere"
    assert both.server("store", "two", NOW, "one") == one
    assert both.server("store", "two", NOW, "eve") == "there is no identity eve"
    assert alone.server("store", "two", NOW, "ann") == "ann may not store"
    assert "revoked" in str(alone.server("store", "two", NOW, "gone"))
    assert permissions().server("store", "two", NOW) == "no identity may store"
    assert both.next_expiry(NOW) == NOW + 30 * DAY


TOPICS = st.text("ab", max_size=4)
PATTERNS = st.builds(lambda topic, star: topic + star, TOPICS, st.sampled_from(["", "*"])).filter(bool)
RULES = st.lists(
    st.builds(
        lambda effect, topics, who: rule(effect, *topics, **who),
        st.sampled_from(["allow", "deny"]),
        st.lists(PATTERNS, min_size=1, max_size=2),
        st.sampled_from([{"names": "*"}, {"names": "ann"}, {"roles": "consumer"}]),
    ),
    max_size=5,
)


@given(RULES, TOPICS, st.lists(TOPICS, max_size=10))
def test_whoever_may_do_all_that_begins_so_may_do_each_of_it(rules: list[Rule], prefix: str, ends: list[str]) -> None:
    found = permissions(*rules)
    if found.decide("ann", "produce", prefix, NOW, subtree=True).allowed:
        assert all(found.decide("ann", "produce", prefix + end, NOW).allowed for end in ["", *ends])


@given(RULES, TOPICS)
def test_a_rule_that_allows_is_needed_for_a_yes(rules: list[Rule], topic: str) -> None:
    found = permissions(*rules)
    if found.decide("ann", "produce", topic, NOW).allowed:
        assert any(each.allow and each.covers(topic) for each in rules)
        assert found.may_somewhere(found.identities["ann"], "produce")
    denied = permissions(rule("deny", "*", names="*"), *rules)
    assert not denied.decide("ann", "produce", topic, NOW).allowed
