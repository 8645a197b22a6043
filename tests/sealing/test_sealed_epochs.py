from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from tests.sealing.people import START, Group

from chappe.errors import ConfigError
from chappe.sealing.epochs import Given, GroupKeys
from chappe.sealing.primitives import KEY_BYTES
from chappe.sealing.ring import CHANGE, EARLY, Ring


def secrets(ring: Ring) -> list[int]:
    """The epochs of which it has the secret."""
    return [each.number for each in ring.keys.epochs if ring.secret(each.number) is not None]


def begun(group: Group, name: str, members: dict[str, bytes], salt: bytes) -> GroupKeys:
    keys = GroupKeys(name, group.keeper.public, 0, ())
    return keys.after(group.keeper.rotated(keys, members, salt, group.now))


def test_all_members_find_the_same_secret_and_others_none() -> None:
    group = Group()
    group.join("cat")

    ann, bob = group.ring("ann"), group.ring("bob")
    assert secrets(ann) == secrets(bob) == [1, 2]
    assert [ann.secret(n) for n in (1, 2)] == [bob.secret(n) for n in (1, 2)]
    stranger = Ring(group.keys, "eve", group.rng.randbytes(KEY_BYTES))
    posing = Ring(group.keys, "ann", group.rng.randbytes(KEY_BYTES))
    assert secrets(stranger) == secrets(posing) == []


def test_who_joins_reads_nothing_earlier_unless_it_is_given() -> None:
    group = Group()
    group.rotate()
    group.join("cat")
    assert secrets(group.ring("cat")) == [3]
    assert group.ring("cat").secret(3) == group.ring("ann").secret(3)

    group.rotate()
    group.give("cat", 2)
    assert secrets(group.ring("cat")) == [2, 3, 4]
    group.give("cat", 1)
    assert secrets(group.ring("cat")) == [1, 2, 3, 4]
    assert [group.ring("cat").secret(n) for n in (1, 2, 3, 4)] == [group.ring("bob").secret(n) for n in (1, 2, 3, 4)]


def test_no_two_epochs_have_a_secret_in_common() -> None:
    group = Group()
    group.join("cat")
    group.join("dan")
    group.rotate()
    group.leave("dan")
    ring = group.ring("ann")
    found = [ring.secret(each.number) for each in group.keys.epochs]
    assert len({each.secret for each in found if each is not None}) == 5


def test_who_leaves_reads_nothing_later() -> None:
    group = Group()
    group.join("cat")
    group.leave("bob")
    group.join("dan")
    group.rotate()
    assert secrets(group.ring("bob")) == [1, 2]
    assert secrets(group.ring("cat")) == [2, 3, 4, 5]
    assert secrets(group.ring("ann")) == [1, 2, 3, 4, 5]


def test_who_comes_back_has_what_it_had() -> None:
    group = Group()
    group.leave("bob")
    group.join("bob")
    assert secrets(group.ring("bob")) == [1, 3]
    assert [group.keys.has("bob", n) for n in (0, 1, 2, 3, 4)] == [False, True, False, True, False]


def test_nothing_changes_where_the_members_are_the_same() -> None:
    group = Group()
    assert group.keeper.changed(group.keys, group.members, bytes(KEY_BYTES), group.now) is None
    assert group.keeper.given(group.keys, "ann", group.members["ann"], 1) is None


def test_a_join_costs_one_entry_and_a_leave_one_for_each_who_stays() -> None:
    group = Group()
    group.join("cat", "dan")
    assert [(each.fresh, sorted(each.keys)) for each in group.keys.epochs] == [
        (True, ["ann", "bob"]),
        (False, ["cat", "dan"]),
    ]
    group.leave("cat")
    assert group.keys.newest.fresh
    assert sorted(group.keys.newest.keys) == ["ann", "bob", "dan"]


def test_no_secret_comes_again_though_members_and_numbers_do() -> None:
    group = Group()
    other = begun(group, "ward", group.members, group.rng.randbytes(KEY_BYTES))
    third = begun(group, "yard", group.members, other.newest.salt)
    found = [group.keeper.secret(keys, 1) for keys in (group.keys, other, third)]
    assert len(set(found)) == 3


def test_an_epoch_is_accepted_from_its_beginning_until_all_had_time_for_the_next() -> None:
    group = Group()
    group.join("cat")
    group.pass_time(10)
    group.leave("cat")
    ring = group.ring("ann")
    assert ring.accepts(1, START - EARLY, "ann")
    assert not ring.accepts(1, START - EARLY - timedelta(seconds=1), "ann")
    assert ring.accepts(2, group.now + CHANGE, "cat")
    assert not ring.accepts(2, group.now + CHANGE + timedelta(seconds=1), "cat")
    assert ring.accepts(3, group.now + CHANGE + timedelta(days=1000), "ann")
    assert not ring.accepts(4, group.now, "ann")


def test_who_is_a_member_still_may_be_late_for_the_next_epoch() -> None:
    group = Group()
    group.pass_time(10)
    group.rotate()
    assert group.ring("ann").accepts(1, group.now + timedelta(days=1000), "bob")


def test_a_clock_that_goes_back_makes_no_epoch_that_is_older_than_the_one_before() -> None:
    group = Group()
    group.pass_time(-10)
    group.rotate()
    assert [each.made for each in group.keys.epochs] == [START, START]


def test_what_was_given_of_an_epoch_that_went_is_nothing() -> None:
    group = Group()
    group.rotate()
    keys = group.keys.since(2)
    assert keys.after(Given("cat", {1: bytes(48)})).epochs == keys.epochs


@pytest.mark.parametrize("numbers", [(1, 3), (2, 2), (3, 2)])
def test_epochs_that_do_not_follow_each_other_are_refused(numbers: tuple[int, int]) -> None:
    keys = Group().keys
    first, second = (msgspec.structs.replace(keys.newest, number=n) for n in numbers)
    with pytest.raises(ConfigError, match="do not follow"):
        GroupKeys("ward", keys.authority, 0, ()).after(first, second)


def test_a_first_epoch_that_nobody_can_derive_is_refused() -> None:
    keys = Group().keys
    stale = msgspec.structs.replace(keys.newest, fresh=False)
    with pytest.raises(ConfigError, match="do not follow"):
        GroupKeys("ward", keys.authority, 0, ()).after(stale)


def test_a_member_with_a_key_that_has_nothing_in_common_with_any_gets_none() -> None:
    group = Group()
    group.members["odd"] = bytes(KEY_BYTES)  # a point of small order
    group.rotate()
    assert sorted(group.keys.newest.keys) == ["ann", "bob"]


def test_secrets_stand_in_no_text() -> None:
    group = Group()
    ring = group.ring("ann")
    secret = ring.newest
    assert secret is not None
    for each in (ring, secret, group.keeper):
        assert repr(secret.secret) not in repr(each)
        assert repr(group.keeper.key) not in repr(each)
