"""What a machine takes of keys that others hand on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.sealing.test_sealed_chain import Written, check, copied, eventful

from chappe.errors import ConfigError
from chappe.sealing.chain import ASKED_S, BEHIND_S, KeyShelf
from chappe.sealing.ring import CHANGE


def shelf_at(group: Written, version: int) -> KeyShelf:
    made = KeyShelf(check)
    assert made.put("ward", copied(group.file, version))
    return made


def test_newer_keys_are_taken_and_older_ones_change_nothing() -> None:
    group = eventful()
    shelf = shelf_at(group, 4)
    assert not shelf.put("ward", copied(group.file, 3))
    assert shelf.version("ward") == 4
    assert shelf.offer("ward", group.file.after(4))
    assert shelf.keys("ward") == group.keys
    assert not shelf.offer("ward", group.file.after(4))
    assert shelf.after("ward", 5) == group.file.after(5)
    assert shelf.raw("ward") == group.file.raw()


def test_a_group_of_which_nothing_is_known_is_taken_as_a_whole() -> None:
    group, shelf = eventful(), KeyShelf(check)
    assert (shelf.keys("ward"), shelf.version("ward"), shelf.after("ward", 0)) == (None, 0, b"")
    with pytest.raises(ConfigError, match="no epoch"):
        shelf.offer("ward", group.file.raw().split(b"\n")[0] + b"\n")
    assert shelf.offer("ward", group.file.after(0))
    assert shelf.keys("ward") == group.keys


def test_what_does_not_follow_is_told_once_and_taken_when_it_does() -> None:
    group = eventful()
    shelf, other = shelf_at(group, 2), shelf_at(group, 4)
    last = group.file.after(4)
    with pytest.raises(ConfigError, match="does not follow"):
        shelf.offer("ward", last)
    assert not shelf.offer("ward", last)  # and nobody is told again
    assert shelf.offer("ward", other.after("ward", 2))
    assert shelf.offer("ward", last)
    assert shelf.keys("ward") == group.keys


def test_old_keys_are_in_doubt_until_somebody_says_which_he_has_or_for_a_while() -> None:
    shelf = shelf_at(eventful(), 4)
    keys = shelf.keys("ward")
    assert keys is not None
    young, old = keys.newest.made + CHANGE, keys.newest.made + CHANGE + timedelta(seconds=1)
    assert shelf.doubt("ward", 0.0, 100.0, young) == ""
    assert "nobody has said yet" in shelf.doubt("ward", 0.0, 100.0, old)
    assert "nobody has said yet" in shelf.doubt("ward", ASKED_S - 0.1, 100.0, old)
    assert shelf.doubt("ward", ASKED_S, 100.0, old) == ""
    shelf.hear("ward", 4, 100.0)
    assert shelf.doubt("ward", 0.0, 100.0, old) == ""
    shelf.hear("yard", 4, 100.0)
    assert shelf.doubt("yard", 0.0, 100.0, old) == ""  # of which nothing is known


def test_keys_are_in_doubt_while_others_have_newer_ones_that_have_not_come() -> None:
    group = eventful()
    shelf = shelf_at(group, 4)
    keys = shelf.keys("ward")
    assert keys is not None
    today = keys.newest.made
    shelf.hear("ward", 6, 100.0)
    assert "older than what others have" in shelf.doubt("ward", ASKED_S, 100.0, today)
    assert "older than what others have" in shelf.doubt("ward", ASKED_S, 100.0 + BEHIND_S - 0.1, today)
    assert shelf.doubt("ward", ASKED_S, 100.0 + BEHIND_S, today) == ""  # nobody says so any more
    shelf.hear("ward", 6, 200.0)
    assert shelf.offer("ward", group.file.after(4))
    assert shelf.version("ward") == 6
    assert shelf.doubt("ward", ASKED_S, 200.0, today) == ""
