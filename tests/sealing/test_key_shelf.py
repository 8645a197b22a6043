"""What a machine takes of keys that others hand on."""

from __future__ import annotations

import pytest
from tests.sealing.test_sealed_chain import Written, check, copied, eventful

from chappe.errors import ConfigError
from chappe.sealing.shelf import KeyShelf


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
