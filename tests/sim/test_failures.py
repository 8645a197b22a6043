"""Every class of actions of every core: whether the simulator can let it fail, and that it really does."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, get_args, get_origin

from tests.worlds.registry import SCENARIOS

from chappe import channel, core
from chappe.channel import messages
from chappe.gateway.core import PublishToSide
from chappe.kv.backend import Commit
from chappe.log.catalogue import CatalogueJob
from chappe.log.exactly_once.staged import SinkJob
from chappe.log.producer import JournalBatch, JournalTrim
from chappe.log.storage import RunRetention, WriteRecords
from chappe.replication.agreement import core as agreement
from chappe.replication.binary_star import messages as star
from chappe.replication.binary_star import witness
from chappe.replication.chain import log

# What lies outside of the member can fail, and does in some world.
CAN: Final[dict[type, str]] = {
    channel.ToAll: "the message is lost",
    channel.ToConsumer: "the message is lost",
    channel.ToProducer: "the message is lost",
}
BROKEN: Final = "the connection breaks with it"
ABSENT: Final = "the connection breaks with it, or nobody is there"
# By scenario: effects of all features, or what they carry.
EFFECTS: Final[dict[str, dict[type, str]]] = {
    "sink": {
        core.Reply: "the answer is lost",
        SinkJob: "the disk is full, or the store dies within",
    },
    "log": {
        core.Publish: "it finds a full queue, or the connection breaks with it; a member is out of a tower's reach",
        core.Subscribe: BROKEN,
        core.Ask: "the question is lost, or nobody is there",
        core.Dial: "nobody is there",
        WriteRecords: "the disk is full; of a write under way any part may be there after a death",
        RunRetention: "the disk refuses",
        CatalogueJob: "the disk refuses",
        JournalBatch: "the journal refuses, and may have it all the same",
        JournalTrim: "whole files stay",
    },
    "mesh": {
        core.Dial: "it is refused, or not answered",
        core.Flush: "the connection is full, or cut",
        core.Close: "the peer does not take the rest",
    },
    "kv": {Commit: "the backend is full, or the master dies before it hears of it"},
    "gateway": {PublishToSide: "the domain falls into parts, or who gets it is gone"},
    "maps": {
        core.Publish: BROKEN,
        core.Subscribe: BROKEN,
        core.Reply: "the client is not there, its queue is full, or the connection breaks with it",
        core.Ask: ABSENT,
        Commit: "the disk is full",
        star.PairMemory: "the disk is full",
        witness.PairRecord: "the disk is full",
    },
    "chain": {
        core.Ask: ABSENT,
        core.Reply: ABSENT,
        agreement.VoteRecord: "the disk refuses",
        log.LogChange: "the disk refuses",
        log.SaveState: "the disk refuses",
    },
}
SEEDS_OF: Final[dict[str, tuple[int, ...]]] = {
    "sink": (1, 5),
    "log": (4, 5, 6),
    "mesh": (32, 60),
    "kv": (11,),
    "gateway": (),
    "maps": (28, 49, 8),
    "chain": (8,),
}  # had them all when they were looked for
HERE: Final = "it is done within the member"
CANNOT: Final[dict[type, str]] = {
    core.Deliver: HERE,
    core.Halt: HERE,
    core.Persist: "what it carries is listed itself",
    core.Report: HERE,
    core.Resolve: HERE,
    core.Send: "a connection takes it, of which Dial, Ask and Flush tell whether it is there",
    channel.Consume: HERE,
    channel.Lost: HERE,
    channel.ConsumerClosed: HERE,
    channel.HandshakeCompleted: HERE,
    channel.Dropped: HERE,
    channel.ProducerSilent: HERE,
}
PLAYED: Final = (  # scenario, whose actions, and seeds that had them all when they were looked for: tried first
    ("channel", messages, ()),
)
SEEDS: Final = 200  # of each at most


def all_actions() -> set[type]:
    """The classes in the unions that the cores' modules declare."""
    unions: tuple[Any, ...] = (
        messages.ProducerAction, messages.ConsumerAction, core.Effect,
    )  # fmt: skip
    return {get_origin(each) or each for union in unions for each in get_args(union)}


def test_the_table_has_every_class_of_actions() -> None:
    assert not set(CAN) & set(CANNOT)
    effects = {each for kinds in EFFECTS.values() for each in kinds if each.__module__ == core.__name__}
    assert not effects & set(CANNOT)
    assert {each.__qualname__ for each in all_actions() ^ (set(CAN) | set(CANNOT) | effects)} == set()


def test_what_can_fail_fails_in_some_world() -> None:
    failed: Counter[type] = Counter()
    for name, module, first in PLAYED:
        awaited = {each for each in CAN if each.__module__ == module.__name__}
        for seed in (*first, *range(SEEDS)):
            if awaited <= failed.keys():
                break
            world = SCENARIOS[name](seed)
            assert world.play().failure is None
            failed += world.failed
    assert {each.__qualname__ for each in CAN if not failed[each]} == set()


def test_effects_fail_in_some_world_of_each_feature() -> None:
    for name, kinds in EFFECTS.items():
        failed: Counter[type] = Counter()
        for seed in (*SEEDS_OF[name], *range(SEEDS)):
            if kinds.keys() <= failed.keys():
                break
            world = SCENARIOS[name](seed)
            assert world.play().failure is None
            failed += world.failed
        assert {each.__qualname__ for each in kinds if not failed[each]} == set(), name
