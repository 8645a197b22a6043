"""Who looks for stores: when it knows all of them."""

from __future__ import annotations

import math

from chappe.log.beacon import CONSUMING, PRODUCING
from chappe.log.consuming import TOLD_S, Scout
from chappe.log.messages import StoreInfo

SETTLE_S = 0.3
OTHERS = [PRODUCING + "p", CONSUMING + "c"]


def say(scout: Scout, *stores: str) -> None:
    for each in stores:
        scout.handle_message(StoreInfo("", each, f"id-{each}", f"tcp://{each}:1"), 0.0)


def test_at_a_tower_all_are_known_when_it_has_told_of_everybody_and_each_store_has_answered() -> None:
    scout = Scout("me", SETTLE_S, towers=1)
    assert scout.until(False, [], 1.0) == math.inf
    assert scout.until(True, [*OTHERS, "a", "b"], 2.0) == math.inf  # no store has answered
    say(scout, "a")
    assert scout.until(True, [*OTHERS, "a", "b"], 2.01) == 2.01 + SETTLE_S  # the other may be one
    say(scout, "b")
    assert scout.until(True, [*OTHERS, "a", "b"], 2.02) == 2.0 + TOLD_S
    assert scout.until(True, [*OTHERS, "a", "b", "new"], 2.1) == 2.01 + SETTLE_S


def test_who_is_no_store_or_left_is_waited_for_as_long_as_it_is_there() -> None:
    scout = Scout("me", SETTLE_S, towers=1)
    say(scout, "a", "b")
    assert scout.until(True, ["a", "b", "original"], 5.0) == 5.0 + SETTLE_S
    assert scout.until(True, ["a", "b"], 5.1) == 5.0 + TOLD_S
    scout.handle_gone("b", 5.1)
    assert set(scout.stores) == {"a"}
    assert scout.until(True, ["a"], 5.1) == 5.0 + TOLD_S


def test_a_tower_that_is_back_tells_anew() -> None:
    scout = Scout("me", SETTLE_S, towers=1)
    say(scout, "a")
    assert scout.until(True, ["a"], 5.0) == 5.0 + TOLD_S
    assert scout.until(False, ["a"], 5.1) == 5.0 + SETTLE_S
    assert scout.until(True, ["a"], 5.12) == 5.12 + TOLD_S


def test_with_several_towers_it_is_not_known_who_has_told() -> None:
    scout = Scout("me", SETTLE_S, towers=2)
    say(scout, "a")
    assert scout.until(True, ["a"], 5.0) == 5.0 + SETTLE_S


def test_forwarders_are_known_once_each_has_answered() -> None:
    scout = Scout("me", SETTLE_S, forwarders=2)
    assert scout.until(True, ["a"], 1.0) == math.inf
    say(scout, "a")
    assert scout.until(True, ["a"], 1.5) == 1.5 + SETTLE_S
    say(scout, "b")
    assert scout.until(True, ["a", "b"], 1.6) <= 1.6


def test_who_wants_any_store_waits_for_no_other() -> None:
    scout = Scout("me", 0.0, towers=1)
    say(scout, "a")
    assert scout.until(True, ["a", "b"], 5.0) == 5.0
