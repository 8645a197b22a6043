"""The file of a group's keys, and what of it is handed on."""

from __future__ import annotations

import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.sealing.people import START, Group

from chappe.errors import ConfigError
from chappe.sealing import chain as chains
from chappe.sealing.chain import FILE_BYTES_MAX, HANDED_BYTES_MAX, HANDED_MAX, KeyChain, read_chain
from chappe.sealing.epochs import Change, Epoch
from chappe.sealing.primitives import KEY_BYTES, digest, public_of


def sign(text: bytes) -> bytes:
    return digest(text)  # who has no key can make it as well, which is not what these tests are about


def check(signature: bytes, text: bytes) -> bool:
    return signature == digest(text)


class Written(Group):
    """A group that writes down what happens to it."""

    def __post_init__(self) -> None:
        self.chain: KeyChain | None = None
        super().__post_init__()

    def take(self, change: Change) -> None:
        super().take(change)
        self.chain = self.chain or KeyChain("ward", self.keeper.public)
        self.chain.add(change, sign)

    @property
    def file(self) -> KeyChain:
        assert self.chain is not None
        return self.chain


def eventful() -> Written:
    group = Written()
    group.join("cat")
    group.rotate()
    group.join("dan", "eve")
    group.give("dan", 1)
    group.leave("bob")
    return group


def copied(chain: KeyChain, version: int | None = None) -> KeyChain:
    """As a member has it that got it by itself; by default all of it."""
    found = read_chain(chain.raw(), "ward", check)
    if version is None:
        return found
    lines = chain.raw().split(b"\n")
    return read_chain(b"\n".join(lines[: 1 + version - found._first]), "ward", check)


def test_a_file_says_what_was_written_into_it() -> None:
    group = eventful()
    found = read_chain(group.file.raw(), "ward", check)
    assert found.keys == group.keys == group.file.keys
    assert found.raw() == group.file.raw()
    assert found.version == 6


def test_any_byte_of_a_file_that_is_another_is_noticed() -> None:
    raw = Written().file.raw()
    for at in range(len(raw) - 1):  # but for the last line's end
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(ConfigError):
            read_chain(changed, "ward", check)


def test_a_line_that_is_left_out_changed_places_or_comes_twice_is_noticed() -> None:
    head, *lines, _ = eventful().file.raw().split(b"\n")
    for at in range(len(lines) - 1):
        without = [*lines[:at], *lines[at + 1 :]]
        exchanged = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        twice = [*lines[: at + 1], *lines[at:]]
        for each in (without, exchanged, twice):
            with pytest.raises(ConfigError):
                read_chain(b"\n".join([head, *each]), "ward", check)


def test_a_file_of_another_group_or_without_a_line_is_refused() -> None:
    raw = Written().file.raw()
    with pytest.raises(ConfigError, match="of the group ward, and not of yard"):
        read_chain(raw, "yard", check)
    with pytest.raises(ConfigError, match="signature check failed"):
        read_chain(raw.replace(b'"ward"', b'"yard"'), "yard", check)
    with pytest.raises(ConfigError, match="signature check failed"):
        read_chain(raw.replace(b"ward", b"war\xff", 1), "ward", check)
    with pytest.raises(ConfigError, match="it has no epoch"):
        read_chain(raw.partition(b"\n")[0], "ward", check)
    with pytest.raises(ConfigError, match="larger than"):
        read_chain(bytes(FILE_BYTES_MAX + 1), "ward", check)
    with pytest.raises(ConfigError, match="too many lines"):
        read_chain(raw + b"\n" * 50_000, "ward", check)


@given(st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(msgspec.json.encode))
@example(b"[" * 100_000)
def test_whatever_the_authority_signs_is_keys_or_a_sentence(text: bytes) -> None:
    chain = KeyChain("ward", bytes(KEY_BYTES))
    line = text + b" " + msgspec.json.encode(sign(chain._to_sign(1, digest(bytes(KEY_BYTES) + text))))[1:-1]
    for raw in (text, chain.raw() + line):
        with pytest.raises(ConfigError):
            read_chain(raw, "ward", check)


# -- what is handed on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 7))
def test_who_was_away_gets_what_has_been_added_since(version: int) -> None:
    group = eventful()
    late = copied(group.file, version)
    assert late.version == version
    assert version == 6 or late.extend(group.file.after(version), check)
    assert late.keys == group.keys
    assert late.raw() == group.file.raw()
    assert group.file.after(6) == group.file.after(7) == b""


def test_who_has_nothing_gets_all() -> None:
    group = eventful()
    found = read_chain(group.file.after(0), "ward", check, handed=True)
    assert found.keys == group.keys


def test_what_is_known_already_changes_nothing() -> None:
    group = eventful()
    chain = copied(group.file)
    for version in range(6):
        assert not chain.extend(group.file.after(version), check)
    late = copied(group.file, 3)
    assert late.extend(group.file.after(1), check)  # which it knows in part
    assert late.raw() == group.file.raw()


def test_what_does_not_follow_is_refused() -> None:
    group = eventful()
    late = copied(group.file, 2)
    for raw in (group.file.after(3), Written(seed=2).file.after(0), group.file.after(1).replace(b"eve", b"bob")):
        with pytest.raises(ConfigError):
            late.extend(raw, check)
    other = Written(seed=1)
    for _ in range(3):
        other.pass_time(1)
        other.rotate()
    with pytest.raises(ConfigError, match="does not follow"):
        late.extend(other.file.after(0), check)  # of the same authority, which has begun anew
    assert late.raw() == copied(group.file, 2).raw()


def test_each_signature_of_what_is_handed_on_is_looked_at_as_it_goes_on_from_there() -> None:
    head, first, second, *rest = eventful().file.raw().split(b"\n")
    other = first.rpartition(b" ")[0] + b" " + second.rpartition(b" ")[2]
    raw = b"\n".join([head, other, second, *rest])
    assert read_chain(raw, "ward", check).version == 6  # as the last one tells
    with pytest.raises(ConfigError, match="signature check failed"):
        read_chain(raw, "ward", check, handed=True)


def test_what_is_handed_on_is_bounded_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "HANDED_BYTES_MAX", 2_500)
    group = Written()
    for turn in range(20):
        group.join(f"new-{turn}")
    late = copied(group.file, 1)
    steps = 0
    while late.version < group.file.version:
        raw = group.file.after(late.version)
        assert len(raw) <= 2_500
        assert late.extend(raw, check)
        steps += 1
    assert 1 < steps < 20
    assert late.raw() == group.file.raw()
    with pytest.raises(ConfigError, match="larger than"):
        late.extend(bytes(2_501), check)


# -- many -------------------------------------------------------------------------------------------------------


def many(count: int) -> tuple[Written, dict[str, bytes]]:
    group = Written()
    private = {f"member-{n}": group.rng.randbytes(KEY_BYTES) for n in range(count)}
    group.private |= private
    return group, {name: public_of(each) for name, each in private.items()}


def test_a_thousand_members_cost_about_a_hundred_kibibytes_an_epoch() -> None:
    group, members = many(1_000)
    group.members |= members
    began = time.perf_counter()
    group.rotate()
    took_s = time.perf_counter() - began
    raw = group.file.after(1)
    print(f"an epoch of 1,000 members: {len(raw):,} bytes, made in {1000 * took_s:.0f} ms")
    assert len(raw) < 100 * 1024
    late = copied(group.file, 1)
    assert late.extend(raw, check)
    found = {group.ring(name, late.keys).newest for name in ("member-0", "member-999")}
    assert len(found) == 1
    assert None not in found


def test_a_thousand_that_join_one_after_the_other_cost_a_thousand_lines() -> None:
    group, members = many(1_000)
    for name, curve in members.items():
        group.members[name] = curve
        group.join()
    print(f"1,000 joins: {len(group.file.raw()):,} bytes")
    assert len(group.file.raw()) < 400 * 1024
    first, last = group.ring("ann"), group.ring("member-999")
    assert first.newest == last.newest
    assert [each.number for each in group.keys.epochs if last.secret(each.number)] == [1_001]
    assert all(first.secret(each.number) for each in group.keys.epochs)
    late = copied(group.file, 1)
    steps = 0
    while raw := group.file.after(late.version):
        assert late.extend(raw, check)
        steps += 1
    assert steps == 1_000 / HANDED_MAX
    assert late.keys == group.keys


def test_the_oldest_epochs_go_at_the_bound_and_the_file_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "KEPT_BYTES_MAX", 3_000)
    group = Written()
    follower = copied(group.file)
    for turn in range(20):
        group.join(f"new-{turn % 3}")
        group.leave(f"new-{turn % 3}")
        assert follower.extend(group.file.after(follower.version), check)
        assert follower.raw() == group.file.raw()
    keys = group.file.keys
    assert keys.epochs[0].number > 1
    assert keys.epochs[0].fresh
    assert keys.newest.number == 41
    assert all(b.number == a.number + 1 for a, b in pairwise(keys.epochs))
    assert len(group.file.raw()) < 4_000
    assert read_chain(group.file.raw(), "ward", check).keys == keys
    ring = group.ring("ann", keys)
    assert all(ring.secret(each.number) for each in keys.epochs)
    assert read_chain(group.file.after(0), "ward", check, handed=True).keys.epochs == keys.epochs
    late = copied(Written().file)
    with pytest.raises(ConfigError, match="does not follow"):
        late.extend(group.file.after(late.version), check)  # it was away too long: a copy helps


def test_the_largest_file_that_is_written_can_be_read_and_handed_on() -> None:
    names = [f"{'n' * 40}-{n}" for n in range(4_000)]
    chain = KeyChain("ward", bytes(KEY_BYTES))
    for number in range(1, 35):
        chain.add(Epoch(number, START, True, bytes(KEY_BYTES), dict.fromkeys(names, bytes(48))), sign)
    raw = chain.raw()
    assert chains.KEPT_BYTES_MAX / 2 < len(raw) <= FILE_BYTES_MAX
    assert chain.keys.epochs[0].number > 1
    assert read_chain(raw, "ward", check).keys == chain.keys
    first = chain.after(0)
    assert len(first) <= HANDED_BYTES_MAX
    late = read_chain(first, "ward", check, handed=True)
    while late.version < chain.version:
        assert late.extend(chain.after(late.version), check)
    assert late.keys == chain.keys
