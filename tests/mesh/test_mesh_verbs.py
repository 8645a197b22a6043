"""Which verb of the permissions each message of the mesh and its data stores needs."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.mesh.rules_rig import identity, rules

from chappe.kv import commands as cmd
from chappe.kv.entity import NOBODY, Entity, clone_topic, master_topic
from chappe.mesh.messages import COMMAND, DATA
from chappe.mesh.rules import COMMAND_HEAD

ENTITY = Entity(b"e" * 16, 1)
WRITES: list[cmd.Command] = [cmd.Put(1, 2, None, ENTITY), cmd.Erase(1, ENTITY), cmd.Clear(ENTITY)]
OTHERS: list[cmd.Command] = [cmd.AttachWriter(0, 1), cmd.CumulativeAck(1), cmd.Leave(0)]
VERBS = ("publish", "subscribe", "forward", "attach-master", "attach-clone", "write")
MADE = rules(
    *(identity(verb, verb) for verb in VERBS), identity("small", "small"),
    rules=(*(f"allow {verb} {verb} *" for verb in VERBS), "allow publish,subscribe small /a*"),
)  # fmt: skip


def command(body: cmd.Command) -> bytes:
    return cmd.encode_message(1, ENTITY, NOBODY, cmd.encode_command(body))


@pytest.mark.parametrize("verb", VERBS)
def test_each_message_needs_a_verb_of_its_kind(verb: str) -> None:
    def check(needed: str, others: tuple[str, ...], kind: int, topic: bytes, payload: bytes = b"") -> None:
        allowed = verb in (needed, *others, "forward")
        assert MADE.sending(verb, kind, topic, payload[:COMMAND_HEAD]) == ("" if allowed else needed)

    check("publish", (), DATA, b"/t")
    check("publish", (), DATA, master_topic(b"s"))
    check("publish", (), COMMAND, b"/t", command(WRITES[0]))
    for each in WRITES:
        check("write", ("attach-master",), COMMAND, master_topic(b"s"), command(each))
    for other in OTHERS:
        check("attach-clone", ("attach-master",), COMMAND, master_topic(b"s"), command(other))
    check("write", ("attach-master",), COMMAND, master_topic(b"s"), b"cut off")
    check("attach-master", (), COMMAND, clone_topic(b"s"))


@pytest.mark.parametrize("verb", VERBS)
def test_each_topic_needs_a_verb_to_be_sent(verb: str) -> None:
    def check(topic: bytes, needed: str, *others: str) -> None:
        refused = "" if verb in (needed, *others, "forward") else needed
        assert MADE.getting(verb, topic) == MADE.wanting(verb, topic) == refused

    check(b"/t", "subscribe")
    check(master_topic(b"s"), "attach-master")
    check(clone_topic(b"s"), "attach-clone", "attach-master")
    check(b"/<$>/data/elsewhere", "subscribe")
    assert MADE.forwards(verb) == (not MADE.forwarding(verb, b"/t")) == (verb == "forward")


def test_rules_go_by_topics_and_unknown_names_may_nothing() -> None:
    assert MADE.sending("small", DATA, b"/a/1", b"") == ""
    assert MADE.sending("small", DATA, b"/b", b"") == "publish"
    assert MADE.getting("small", b"/a") == ""
    assert MADE.getting("small", b"/b") == "subscribe"
    assert MADE.sending("nobody", DATA, b"/a", b"") == "publish"
    assert MADE.sending("small", DATA, b"/a\xff", b"") == ""


def test_a_filter_counts_as_far_as_something_of_it_may_be_sent() -> None:
    assert MADE.wanted("small", (b"", b"/", b"/a/1", b"/b")) == (b"", b"/", b"/a/1")
    assert MADE.wanted("nobody", (b"",)) == ()
    denied = rules(identity("a"), rules=("deny subscribe * /a/secret*", "allow subscribe * /a*"))
    assert denied.wanted("a", (b"/a", b"/a/secret/1")) == (b"/a",)
    assert denied.getting("a", b"/a/secret/1") == "subscribe"
    assert denied.getting("a", b"/a/open") == ""


def test_who_is_elsewhere_is_known_by_the_endpoint_id_of_its_certificate_and_others_are_not_judged() -> None:
    known = identity("a", endpoint=b"a" * 16), identity("b", "forwarder", endpoint=b"b" * 16), identity("c")
    made = rules(*known, rules=("allow subscribe member /a", "allow forward forwarder /f"))
    assert [made.forwards_as(each * 16) for each in (b"a", b"b", b"x")] == [False, True, True]
    assert [made.gets_as(each * 16, b"/a") for each in (b"a", b"b", b"x")] == [True, False, True]
    assert [made.wanted_as(each * 16, (b"/a", b"/z")) for each in (b"a", b"x")] == [(b"/a",), (b"/a", b"/z")]


def test_nobody_takes_the_endpoint_id_of_another_identity() -> None:
    made = rules(identity("a", endpoint=b"a" * 16), identity("c"))
    assert made.refusal("c", (), b"a" * 16) == f"{UUID(bytes=b'a' * 16)} is the endpoint id of a"
    assert made.refusal("c", (), b"x" * 16) == made.refusal("a", (b"a" * 16,), b"a" * 16) == ""


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.mesh.rules.REMEMBERED_MAX", 3)
    made = rules(identity("a"), rules=("allow subscribe * /1*",))
    for _ in range(2):
        assert [made.getting("a", b"/%d" % each) for each in range(5)] == ["subscribe", "", *3 * ["subscribe"]]
    assert len(made._gets) <= 3


def test_an_endpoint_administers_if_its_identity_may_administer_all_topics() -> None:
    made = rules(
        identity("desk", "desk", endpoint=b"d" * 16), identity("part", "part", endpoint=b"p" * 16),
        identity("member", endpoint=b"m" * 16),
        rules=("allow administer desk *", "allow administer part /a*", "allow publish member *"),
    )  # fmt: skip

    assert [made.administers_as(each * 16) for each in (b"d", b"p", b"m", b"?")] == [True, False, False, False]
