"""What a guard lets through, of whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest
from tests.permissions.test_permission_rules import NOW, identity, permissions, rule

from chappe.log.batch import encode_batch
from chappe.log.guard import DENIED, GIVERS, PRODUCERS, Guard, LogRefusal
from chappe.log.messages import (
    Ack,
    AskTraffic,
    BatchMessage,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    OnDisk,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
    TrafficTold,
)
from chappe.log.queries import (
    AttachSink,
    CatalogueAnswer,
    CatalogueRequest,
    ErrorAnswer,
    FindSink,
    GroupBeat,
    GroupList,
    GroupRow,
    GroupSet,
    HeadsAnswer,
    HeadsRequest,
    LastRequest,
    ReadAnswer,
    ReadRequest,
    Request,
    SeekRequest,
    Stage,
    TopicAnswer,
    TopicChange,
    TopicEntry,
)
from chappe.permissions.rules import Decisions, Verbs

BODY = encode_batch(0, [b"x"], 0)
FILE = permissions(
    rule("allow", "a/*", "one", verbs="produce", names="pro"),
    rule("allow", "a/*", "one", verbs="consume", names="con"),
    rule("allow", "a/*", verbs="store", names="keep"),
    rule("allow", "a/*", verbs="administer", names="look"),
    identities=tuple(identity(each) for each in ("pro", "con", "keep", "look")),
)
ALL = ("pro", "con", "keep", "look", "")


def _guard_of(decisions: Decisions) -> Guard:
    return Guard(lambda: decisions, lambda refusal: None)


class Rig:
    def __init__(self, takes: Verbs = GIVERS) -> None:
        self.refusals: list[LogRefusal] = []
        decisions = Decisions(FILE, NOW)
        self.guard = Guard(lambda: decisions, self.refusals.append, takes)

    def passes(self, message: Message, among: Iterable[str] = ALL) -> list[str]:
        """Of whom it is taken."""
        return [who for who in among if self.guard.message(who, message) is not None]


def test_what_passes_is_told_to_who_may_administer_everything_and_that_others_are_not_is_no_refusal() -> None:
    rig = Rig()
    everything = permissions(rule("allow", "*", verbs="administer", names="look"), identities=(identity("look"),))
    over_all = Decisions(everything, NOW)
    question = AskTraffic("P", "D", 1)

    assert rig.passes(question) == []
    assert Guard(lambda: over_all, rig.refusals.append).message("look", question) is question
    assert rig.passes(TrafficTold("D", "P", 1, b"")) == ["pro", "con", "keep"]
    assert rig.refusals == []
    assert rig.guard.subscribed("con", b"UD") == [b"UD"]
    assert rig.guard.subscribed("pro", b"UD") == []  # it would hear what is meant for another one
    assert rig.guard.subscribed("pro", b"U") == []


def about(topic: str) -> list[Message]:
    return [
        BatchMessage(topic, "P", topic, BODY),
        BatchMessage("C", "P", topic, BODY, direct=True),
        RecordMessage(topic, "P", topic, 0, b"x"),
        Head(topic, "P", topic, 0),
        Head("C", "P", topic, 0, direct=True),
    ]


@pytest.mark.parametrize("message", about("a/x"))
def test_records_are_taken_from_producers_and_by_consumers_from_stores_as_well(message: Message) -> None:
    assert Rig(PRODUCERS).passes(message) == ["pro"]
    assert Rig().passes(message) == ["pro", "keep"]


@pytest.mark.parametrize("message", about("b"))
def test_records_of_another_topic_are_taken_from_nobody(message: Message) -> None:
    rig = Rig()
    assert rig.passes(message) == []
    assert str(rig.refusals[0]) == "pro may not produce 'b': no rule allows it"


def test_what_producers_and_stores_are_told() -> None:
    rig = Rig()
    assert rig.passes(Stored("P", "S", "a/x", 5)) == ["keep"]
    assert rig.passes(Ack("P", "a/x", 5)) == ["keep"]
    assert rig.passes(OnDisk("a/x", "id", "P", 0, 5)) == ["keep"]
    assert rig.passes(StoreInfo("", "S", "id", "tcp://h:1#keep")) == ["keep"]
    assert rig.passes(StoreHello("C", "S")) == ["keep"]
    assert rig.passes(Fetch("P", "C", "a/x", 0, 1)) == ["con", "keep"]
    assert rig.passes(GetHeads("a/", "C")) == ["con", "keep"]
    assert rig.passes(GetHeads("", "C")) == []
    hello = ConsumerHello("S", "C", ("a/x", "one", "b"))
    rig.refusals.clear()
    assert rig.guard.message("con", hello) == ConsumerHello("S", "C", ("a/x",))
    assert [str(each) for each in rig.refusals] == [
        "con may not consume all topics that begin with 'b': no rule allows it"
    ]
    rig.refusals.clear()
    assert rig.passes(GetHeads("", "C"), ["con", "pro"]) == []
    assert [each.who for each in rig.refusals] == ["pro"], "who may have some of these topics gets them, and no refusal"


def test_a_subscription_to_records_is_narrowed() -> None:
    rig = Rig()
    found = {who: rig.guard.subscribed(who, b"R") for who in ALL}
    assert found == {"pro": [], "con": [b"Ra/", b"Rone\0"], "keep": [b"Ra/"], "look": [], "": []}
    assert [each.who for each in rig.refusals] == ["pro", "look", ""]
    assert rig.guard.subscribed("con", b"Mone") == [b"Mone\0"]
    assert rig.guard.subscribed("con", b"J") == [b"Ja/", b"Jone\0"], "also what stores have on disk"
    assert rig.guard.subscribed("pro", b"Ja/x") == []
    assert rig.guard.subscribed("con", b"Ha/b") == [b"Ha/b"]
    assert rig.guard.subscribed("con", b"Rone\0") == []


def test_nobody_subscribes_to_everything_or_to_what_nobody_knows() -> None:
    rig = Rig()
    for prefix in (b"", b"S", b"D", b"E", b"A", b"K", b"L", b"?", b"Sx\0"):
        assert [rig.guard.subscribed(who, prefix) for who in ALL] == [[]] * 5
    assert [who for who in ALL if rig.guard.subscribed(who, b"F")] == ["keep"]
    assert [who for who in ALL if rig.guard.subscribed(who, b"G")] == ["keep"]
    assert [who for who in ALL if rig.guard.subscribed(who, b"WC")] == ["keep"]
    assert [who for who in ALL if rig.guard.subscribed(who, b"FP")] == ["pro", "keep"]
    assert [who for who in ALL if rig.guard.subscribed(who, b"I")] == list(ALL)


def test_what_is_meant_for_one_is_heard_by_nobody_else() -> None:
    rig = Rig()
    guard = rig.guard
    assert guard.subscribed("con", b"SCCC") == [b"SCCC"]
    assert guard.subscribed("con", b"SCCC") == [b"SCCC"], "two programs may have one identity"
    for other in (b"SCCC", b"SC", b"SCCCC"):
        assert guard.subscribed("keep", other) == []
    assert guard.subscribed("keep", b"SDDD") == [b"SDDD"]

    assert rig.passes(Fetch("P", "CCC", "a/x", 0, 1)) == ["con"], "somebody asks in the name of another one"
    assert rig.passes(Fetch("P", "DDD", "a/x", 0, 1)) == ["keep"]

    guard.unsubscribed(b"SCCC")
    assert guard.subscribed("keep", b"SCCC") == []
    guard.unsubscribed(b"SCCC")
    assert guard.subscribed("keep", b"SCCC") == [b"SCCC"]


def test_queries_need_the_verb_that_fits() -> None:
    rig = Rig()

    def allowed(request: Request) -> list[str]:
        return [who for who in ALL if rig.guard.asks(who, request) is None]

    for kind in (ReadRequest(b"a/x", b"P", 0), SeekRequest(b"a/x", b"P", 0), LastRequest(b"a/x")):
        assert allowed(kind) == ["con", "keep"]
    assert allowed(ReadRequest(b"b", b"P", 0)) == []
    assert allowed(HeadsRequest(b"")) == ["pro", "con", "keep", "look"]
    assert allowed(HeadsRequest(b"b")) == []
    assert allowed(Stage("s", "r", 0, 0, 0, 0, b"a/x")) == ["pro"]
    assert allowed(Stage("s", "r", 0, 0, 0, 0, b"b")) == []
    assert allowed(TopicChange(b"a/x", delete=True)) == ["look"]
    assert allowed(TopicChange(b"one", delete=True)) == []
    assert allowed(TopicChange(b"a/x", entry=TopicEntry(b"a/x", 1))) == ["look"]
    assert allowed(TopicChange(b"a/x", entry=TopicEntry(b"one", 1))) == []
    assert allowed(CatalogueRequest()) == ["pro", "con", "keep", "look"]
    assert allowed(FindSink("s")) == allowed(AttachSink("s", "r", "h", True)) == ["pro"]
    row = GroupRow(b"a/x", b"P", 1, "life", "m", 0, False, 5, 0)
    assert allowed(GroupBeat("g", "life", "m", topics=[b"a/x"], rows=[row])) == ["con", "keep"]
    assert allowed(GroupBeat("g", "life", "m", topics=[b"a/*"])) == ["con", "keep"]
    assert allowed(GroupBeat("g", "life", "m", topics=[b"*"])) == []
    assert allowed(GroupBeat("g", "life", "m", claims=[msgspec.structs.replace(row, topic=b"b")])) == []
    assert allowed(GroupBeat("g")) == allowed(GroupList()) == ["pro", "con", "keep", "look"]
    assert allowed(GroupSet("g", [row])) == ["look"]
    assert allowed(GroupSet("g", floor=3)) == []
    refused = rig.guard.asks("look", ReadRequest(b"a/x", b"P", 0))
    assert refused == ErrorAnswer("look may not consume 'a/x': no rule allows it", DENIED)


def test_what_a_store_says_of_topics_is_believed_of_those_that_it_may_store() -> None:
    guard = Rig().guard
    change, mine, other = TopicChange(b"a/x", delete=True), TopicEntry(b"a/x", 1), TopicEntry(b"b", 1)

    assert guard.asking("keep", change) == change
    assert guard.answered("keep", TopicAnswer(mine, "id", 3)) == TopicAnswer(mine, "id", 3)
    assert isinstance(guard.answered("keep", TopicAnswer(other, "id", 3)), ErrorAnswer)
    believed = guard.answered("keep", CatalogueAnswer(7, False, [mine, other], "id", True))
    assert isinstance(believed, CatalogueAnswer)
    assert believed.entries == [mine]
    assert guard.asking("keep", CatalogueRequest(believed.version)) == CatalogueRequest(7)
    told = guard.told("con", CatalogueAnswer(7, False, [mine, other], "id", True))
    assert isinstance(told, CatalogueAnswer)
    assert told.entries == [mine]
    assert guard.asked(CatalogueRequest(told.version)) == CatalogueRequest(7)


def test_lists_name_only_what_somebody_may_know() -> None:
    rig = Rig()
    rows = [(topic, b"P", 0, 1, 1, 0, 0, 1) for topic in (b"a/x", b"b", b"one")]
    answer = HeadsAnswer(rows, 7, False, holes=[(row[0], b"P", 0, 0) for row in rows])

    def topics(who: str) -> list[bytes]:
        found = rig.guard.told(who, answer)
        assert isinstance(found, HeadsAnswer)
        assert [each[0] for each in found.holes] == [each[0] for each in found.partitions]
        return [each[0] for each in found.partitions]

    assert topics("con") == [b"a/x", b"one"]
    assert topics("look") == [b"a/x"]
    believed = rig.guard.answered("keep", answer)
    assert isinstance(believed, HeadsAnswer)
    assert [each[0] for each in believed.partitions] == [b"a/x"]
    assert believed.version % 1024 == 7


def test_a_store_is_asked_from_the_version_on_that_it_has_told() -> None:
    """Versions begin with the microseconds since 1970, and those that are told have 63 bits."""
    rig = Rig()
    for version in (1, 1_790_000_000_000_000, (1 << 52) - 1):
        answer = rig.guard.answered("keep", rig.guard.told("con", HeadsAnswer([], version, True)))
        assert isinstance(answer, HeadsAnswer)
        assert answer.version < 1 << 63
        request = rig.guard.asking("keep", HeadsRequest(b"", answer.version))
        assert request is not None
        assert rig.guard.asked(request) == HeadsRequest(b"", version)


def test_a_store_that_begins_again_by_other_rules_tells_all_anew() -> None:
    """Somebody who knows what it had told by rules that another life of the store went by is told all anew."""
    request = HeadsRequest(b"", 0)
    for version, expected in ((1, 0), (2, 0), (2, 7)):
        decisions = Decisions(replace(FILE, version=version), NOW)
        store = _guard_of(decisions)
        found, answer = store.asked(request), store.told("con", HeadsAnswer([], 7, False))
        assert isinstance(found, HeadsRequest)
        assert isinstance(answer, HeadsAnswer)
        assert found.since == expected
        request = HeadsRequest(b"", answer.version)


def test_who_had_less_told_by_former_rules_is_told_all_of_it_anew() -> None:
    """A store lists what changed since the last time; what rules left out then would never be told."""
    stores, askers = [Decisions(FILE, NOW)], [Decisions(FILE, NOW)]
    store, asker = Guard(lambda: stores[-1], lambda refusal: None), Guard(lambda: askers[-1], lambda refusal: None)

    def since() -> int:
        """From which of its versions on the store lists when it is asked once more."""
        request = asker.asking("keep", HeadsRequest(b"", known[-1]))
        assert request is not None
        found = store.asked(request)
        assert isinstance(found, HeadsRequest)
        answer = asker.answered("keep", store.told("con", HeadsAnswer([], 7, False)))
        assert isinstance(answer, HeadsAnswer)
        known.append(answer.version)
        return found.since

    known = [0]
    assert [since(), since(), since()] == [0, 7, 7]
    stores.append(Decisions(FILE, NOW))
    assert [since(), since()] == [0, 7]
    askers.append(Decisions(FILE, NOW))
    assert [since(), since()] == [0, 7]


def test_a_store_is_asked_for_what_it_may_store_and_believed_no_more() -> None:
    rig = Rig()
    assert rig.guard.asking("keep", ReadRequest(b"a/x", b"P", 0)) == ReadRequest(b"a/x", b"P", 0)
    assert rig.guard.asking("keep", ReadRequest(b"one", b"P", 0)) is None
    fine = ReadAnswer(b"a/x", b"P", 0, 1, True)
    assert rig.guard.answered("keep", fine) is fine
    assert isinstance(rig.guard.answered("keep", ReadAnswer(b"one", b"P", 0, 1, True)), ErrorAnswer)


def test_stores_hand_on_what_their_chain_has_ordered() -> None:
    ordered = "0123456789AB5DEF8123456789ABCDEF"
    store, consumer = Rig(PRODUCERS), Rig()

    for rig, others in ((store, ["pro"]), (consumer, ["pro", "keep"])):
        for message in (BatchMessage("a/x", ordered, "a/x", BODY), Head("a/x", ordered, "a/x", 5)):
            assert rig.passes(message, ("pro", "con", "keep")) == ["keep"]  # nobody else can show what is no record
        assert rig.passes(BatchMessage("a/x", "P", "a/x", BODY), ("pro", "con", "keep")) == others
