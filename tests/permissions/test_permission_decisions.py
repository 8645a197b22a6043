"""What is remembered of decisions, and to what a wish for many topics is narrowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.permissions.test_permission_rules import NOW, identity, permissions, rule

from chappe.permissions.rules import Decisions, Permissions


def decisions(made: Permissions) -> Decisions:
    return Decisions(made, NOW)


BOTH = ("consume", "store")


def test_one_of_several_verbs_is_enough_and_each_of_several_identities_has_to_be_allowed() -> None:
    found = decisions(
        permissions(
            rule("allow", "orders", verbs="consume", roles="consumer"),
            rule("allow", "*", verbs="store", names="ann"),
        )
    )
    assert [found.may(who, BOTH, "orders") for who in ("ann", "bob", "ann+bob", "ann+eve", "")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert [found.may_somewhere(who, ("store",)) for who in ("ann", "bob", "ann+bob", "eve")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert found.scopes("ann+bob", BOTH, "orders") == ()


def test_a_wish_for_many_topics_is_narrowed_to_what_is_allowed_as_a_whole() -> None:
    found = decisions(
        permissions(
            rule("deny", "eu/secret", verbs="consume", names="*"),
            rule("allow", "orders", "eu/*", "us/*", "us/ny/*", verbs="consume", roles="consumer"),
        )
    )
    assert found.scopes("bob", BOTH, "") == (("orders", True), ("us/", False))
    assert found.scopes("bob", BOTH, "us/ny") == (("us/ny", False),)
    assert found.scopes("bob", BOTH, "order") == (("orders", True),)
    assert found.scopes("bob", BOTH, "orders") == (("orders", True),)
    assert found.scopes("bob", BOTH, "eu") == (), "nobody can subscribe to all but one"
    assert found.scopes("bob", BOTH, "eu/") == (("eu/", True),)
    assert found.scopes("bob", BOTH, "eu/open") == (("eu/open", False),)
    assert found.scopes("bob", BOTH, "others") == ()
    assert found.may_all("bob", BOTH, "us/")
    assert not found.may_all("bob", BOTH, "u")


def test_who_is_nobody_any_more_may_nothing() -> None:
    gone = (identity("ann", days=-1), identity("bob", revoked=True))
    found = decisions(permissions(rule("allow", "*", verbs="everything", names="*"), identities=gone))
    for who in ("ann", "bob"):
        assert not found.may(who, BOTH, "orders")
        assert not found.may_somewhere(who, BOTH)
        assert found.scopes(who, BOTH, "") == ()


TEXTS = st.text("ab", max_size=3)
RULES = st.lists(st.tuples(st.booleans(), TEXTS.filter(bool) | TEXTS.map(lambda each: each + "*")), max_size=5)


@given(RULES, TEXTS, st.text("ab", min_size=1, max_size=5))
def test_what_is_narrowed_to_is_allowed_and_begins_as_wished(
    drawn: list[tuple[bool, str]], prefix: str, topic: str
) -> None:
    made = permissions(*(rule("allow" if allow else "deny", each, roles="producer") for allow, each in drawn))
    found = decisions(made)
    scopes = found.scopes("ann", ("produce",), prefix)
    covered = any(topic == text if exact else topic.startswith(text) for text, exact in scopes)
    if covered:
        assert made.decide("ann", "produce", topic, NOW).allowed
        assert topic.startswith(prefix)
    if prefix and made.decide("ann", "produce", prefix, NOW).allowed:
        assert any(prefix == text for text, _ in scopes)
