from __future__ import annotations

import time
from datetime import timedelta

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.sealing.people import START, Group

from chappe.errors import ConfigError
from chappe.sealing import epochs
from chappe.sealing.epochs import FILE_BYTES_MAX, Epoch, GroupKeys, verified, written
from chappe.sealing.primitives import KEY_BYTES, digest, public_of
from chappe.sealing.ring import CHANGE, EARLY, Ring


def sign(text: bytes) -> bytes:
    return digest(text)  # who has no key can make it as well, which is not what these tests are about


def check(signature: bytes, text: bytes) -> bool:
    return signature == digest(text)


def secrets(ring: Ring) -> list[int]:
    """The epochs of which it has the secret."""
    return [each.number for each in ring.keys.epochs if ring.secret(each.number) is not None]


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
    group.keys = group.keeper.given(group.keys, "cat", group.members["cat"], 2)
    assert secrets(group.ring("cat")) == [2, 3, 4]
    group.keys = group.keeper.given(group.keys, "cat", group.members["cat"], 1)
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
    assert group.keeper.changed(group.keys, group.members, bytes(KEY_BYTES), group.now) is group.keys


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
    other = group.keeper.first("ward", group.members, group.rng.randbytes(KEY_BYTES), group.now)
    third = group.keeper.first("yard", group.members, other.newest.salt, group.now)
    found = [group.keeper.secret(keys, 1) for keys in (group.keys, other, third)]
    assert len(set(found)) == 3


def test_an_epoch_is_accepted_from_its_beginning_until_all_had_time_for_the_next() -> None:
    group = Group()
    group.pass_time(10)
    group.rotate()
    ring = group.ring("ann")
    assert ring.accepts(1, START - EARLY)
    assert not ring.accepts(1, START - EARLY - timedelta(seconds=1))
    assert ring.accepts(1, group.now + CHANGE)
    assert not ring.accepts(1, group.now + CHANGE + timedelta(seconds=1))
    assert ring.accepts(2, group.now + CHANGE + timedelta(days=1000))
    assert not ring.accepts(3, group.now)


def test_a_clock_that_goes_back_makes_no_epoch_that_is_older_than_the_one_before() -> None:
    group = Group()
    group.pass_time(-10)
    group.rotate()
    assert [each.made for each in group.keys.epochs] == [START, START]


# -- the file -------------------------------------------------------------------------------------------------


def test_a_file_says_what_was_written_into_it() -> None:
    group = Group()
    group.join("cat")
    assert verified(written(group.keys, sign), "ward", check) == group.keys


def test_any_byte_of_a_file_that_is_another_is_noticed() -> None:
    raw = written(Group().keys, sign)
    for at in range(len(raw) - 1):  # but for the last line's end
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(ConfigError):
            verified(changed, "ward", check)


def test_a_file_of_another_group_or_without_a_signature_is_refused() -> None:
    raw = written(Group().keys, sign)
    with pytest.raises(ConfigError, match="of the group ward, and not of yard"):
        verified(raw, "yard", check)
    with pytest.raises(ConfigError, match="not as the authority signed it"):
        verified(raw.rpartition(b"\n#")[0], "ward", check)
    with pytest.raises(ConfigError, match="larger than"):
        verified(bytes(FILE_BYTES_MAX + 1), "ward", check)


@pytest.mark.parametrize("numbers", [(1, 3), (2, 2), (3, 2)])
def test_epochs_that_do_not_follow_each_other_are_refused(numbers: tuple[int, int]) -> None:
    keys = Group().keys
    made = tuple(msgspec.structs.replace(keys.newest, number=n) for n in numbers)
    with pytest.raises(ConfigError, match="do not follow"):
        verified(written(msgspec.structs.replace(keys, epochs=made), sign), "ward", check)


def test_a_file_whose_first_epoch_nobody_can_derive_is_refused() -> None:
    keys = Group().keys
    stale = msgspec.structs.replace(keys, epochs=(msgspec.structs.replace(keys.newest, fresh=False),))
    with pytest.raises(ConfigError, match="do not follow"):
        verified(written(stale, sign), "ward", check)


@given(st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(msgspec.json.encode))
@example(b"[" * 100_000)
def test_whatever_the_authority_signs_is_keys_or_a_sentence(body: bytes) -> None:
    raw = body + b"\n# signed: ecdsa-p256-sha256 " + msgspec.json.encode(sign(epochs.CONTEXT + body + b"\n"))[1:-1]
    with pytest.raises(ConfigError):
        verified(raw, "ward", check)


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


# -- many -----------------------------------------------------------------------------------------------------


def many(count: int) -> tuple[Group, dict[str, bytes]]:
    group = Group()
    private = {f"member-{n}": group.rng.randbytes(KEY_BYTES) for n in range(count)}
    group.private |= private
    return group, {name: public_of(each) for name, each in private.items()}


def test_a_thousand_members_cost_about_a_hundred_kibibytes_an_epoch() -> None:
    group, members = many(1_000)
    began = time.perf_counter()
    keys = group.keeper.first("ward", members, group.rng.randbytes(KEY_BYTES), group.now)
    took_s = time.perf_counter() - began
    raw = written(keys, sign)
    print(f"an epoch of 1,000 members: {len(raw):,} bytes, made in {1000 * took_s:.0f} ms")
    assert len(raw) < 100 * 1024
    assert verified(raw, "ward", check) == keys
    found = {group.ring(name, keys).newest for name in ("member-0", "member-999")}
    assert len(found) == 1
    assert None not in found


def test_a_thousand_that_join_one_after_the_other_cost_a_thousand_entries() -> None:
    group, members = many(1_000)
    for name, curve in members.items():
        group.members[name] = curve
        group.join()
    raw = written(group.keys, sign)
    print(f"1,000 joins: {len(raw):,} bytes")
    assert len(raw) < 320 * 1024
    first, last = group.ring("ann"), group.ring("member-999")
    assert first.newest == last.newest
    assert secrets(last) == [1_001]
    assert secrets(first) == list(range(1, 1_002))


def test_the_oldest_epochs_go_at_the_bound_and_the_file_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "KEPT_BYTES_MAX", 2_000)
    group = Group()
    for turn in range(20):
        group.join(f"new-{turn % 3}")
        group.leave(f"new-{turn % 3}")
    keys = group.keys
    assert keys.epochs[0].number > 1
    assert keys.epochs[0].fresh
    assert keys.newest.number == 41
    assert len(written(keys, sign)) < 3_000
    assert verified(written(keys, sign), "ward", check) == keys
    assert secrets(group.ring("ann")) == [each.number for each in keys.epochs]


def test_the_largest_file_that_is_written_can_be_read() -> None:
    group = Group()
    names = [f"{'n' * 40}-{n}" for n in range(4_000)]
    entries = dict.fromkeys(names, bytes(48))
    one = Epoch(1, START, True, bytes(KEY_BYTES), entries)
    size = sum(epochs.ENTRY_BYTES + len(name) for name in names) + 2 * epochs.ENTRY_BYTES
    count = epochs.KEPT_BYTES_MAX // size
    made = tuple(msgspec.structs.replace(one, number=n + 1) for n in range(count + 5))
    bounded = epochs._bounded(GroupKeys("ward", 1, group.keys.authority, made))
    assert len(bounded.epochs) == count
    raw = written(bounded, sign)
    assert epochs.KEPT_BYTES_MAX / 2 < len(raw) <= FILE_BYTES_MAX
    assert len(verified(raw, "ward", check).epochs) == count
