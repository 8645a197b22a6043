from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sealing.people import SPAN, TEXT, Group, text_of

from chappe.errors import ProtocolError
from chappe.sealing.epochs import GroupKeys
from chappe.sealing.primitives import TAG_BYTES, Cipher
from chappe.sealing.records import HEAD, RECORDS, OpenedRecords, Opener, RecordSpan, decode, encode, encode_head
from chappe.sealing.ring import CHANGE
from chappe.sealing.senders import KeysLacking, SealRefused, bound_to


def test_what_was_sealed_is_opened_and_its_sender_known() -> None:
    group = Group()
    assert group.opened(group.sealed()) == OpenedRecords(TEXT, "ann", SPAN)


def test_nothing_of_the_text_stands_in_what_was_sealed() -> None:
    assert TEXT[:8] not in Group().sealed()


def test_any_bit_of_what_was_sealed_that_is_another_is_refused() -> None:
    group = Group()
    raw = group.sealed()
    ring = group.ring("bob")
    for at in range(len(raw)):
        for bit in range(8):
            changed = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
            outcome = Opener().open(changed, "patients/1", "P", SPAN, ring, group.identities)
            assert isinstance(outcome, SealRefused), (at, bit)


def test_what_was_cut_off_or_has_something_behind_it_is_refused() -> None:
    group = Group()
    raw = group.sealed()
    for changed in [raw[:size] for size in range(len(raw))] + [raw + bytes(size) for size in range(1, 17)]:
        assert isinstance(group.opened(changed), SealRefused)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"topic": "patients/2"}, "not as ann has signed them"),
        ({"partition": "Q"}, "not as ann has signed them"),
        ({"topic": "patients/1P", "partition": ""}, "not as ann has signed them"),
        ({"span": RecordSpan(41, 3, 1_000, 2_000)}, "said to be other records"),
        ({"span": RecordSpan(39, 3, 1_000, 2_000)}, "said to be other records"),
        ({"span": RecordSpan(40, 4, 1_000, 2_000)}, "said to be other records"),
        ({"span": RecordSpan(40, 0, 1_000, 2_000)}, "said to be other records"),
        ({"span": RecordSpan(40, 3, 999, 2_000)}, "said to be other records"),
        ({"span": RecordSpan(40, 3, 1_000, 2_001)}, "said to be other records"),
    ],
)
def test_what_is_put_elsewhere_is_refused(place: dict[str, object], said: str) -> None:
    group = Group()
    outcome = group.opened(group.sealed(), **place)  # type: ignore[arg-type]
    assert isinstance(outcome, SealRefused)
    assert said in outcome.reason


def test_some_of_the_records_that_were_sealed_together_may_be_asked_for() -> None:
    group = Group()
    assert text_of(group.opened(group.sealed(), span=RecordSpan(41, 1, 1_000, 2_000))) == TEXT


def forged(group: Group, raw: bytes, *, epoch: int, sender: str, signer: str, key: Cipher | None = None) -> bytes:
    """What a member makes who knows all secrets, and has the key that ``signer`` signs with."""
    was = decode(raw)
    secret = group.ring("ann").secret(epoch)
    assert secret is not None
    cipher = RECORDS.cipher(secret, sender, was.salt) if key is None else key
    head = encode_head("ward", sender, epoch, was.number, was.sealed_at, was.span, was.salt, len(b"forged") + TAG_BYTES)
    bound = bound_to((b"patients/1", b"P"), head)
    content = cipher.seal(was.number, b"forged", bound)
    return b"".join(encode(head, group.sign(signer)(RECORDS.to_sign(bound, content)), content))


def test_a_member_cannot_speak_for_another() -> None:
    group = Group()
    raw = group.sealed()
    assert isinstance(group.opened(forged(group, raw, epoch=1, sender="bob", signer="bob")), OpenedRecords)
    assert isinstance(group.opened(forged(group, raw, epoch=1, sender="ann", signer="bob")), SealRefused)


def test_a_member_cannot_put_other_contents_under_the_signature_of_another() -> None:
    group = Group()
    was = decode(group.sealed())
    secret = group.ring("bob").newest
    assert secret is not None
    other = b"!" * len(TEXT)
    content = RECORDS.cipher(secret, "ann", was.salt).seal(was.number, other, bound_to((b"patients/1", b"P"), was.head))
    outcome = group.opened(b"".join(encode(was.head, was.signature, content)))
    assert outcome == SealRefused("they are not as ann has signed them, for this topic and these offsets")


def test_a_member_cannot_sign_what_another_sealed() -> None:
    group = Group()
    was = decode(group.sealed())
    head = encode_head("ward", "bob", 1, was.number, was.sealed_at, was.span, was.salt, len(was.content))
    bound = bound_to((b"patients/1", b"P"), head)
    outcome = group.opened(
        b"".join(encode(head, group.sign("bob")(RECORDS.to_sign(bound, was.content)), bytes(was.content)))
    )
    assert outcome == SealRefused("they are not sealed with the key of bob")


def test_what_was_sealed_in_one_epoch_is_nothing_in_another() -> None:
    group = Group()
    was = decode(group.sealed())
    group.rotate()
    head = encode_head("ward", "ann", 2, was.number, was.sealed_at, was.span, was.salt, len(was.content))
    for signature in (
        was.signature,
        group.sign("ann")(RECORDS.to_sign(bound_to((b"patients/1", b"P"), head), was.content)),
    ):
        assert isinstance(group.opened(b"".join(encode(head, signature, bytes(was.content)))), SealRefused)


def test_who_has_left_cannot_seal_any_more() -> None:
    group = Group()
    raw = group.sealed("bob")
    group.leave("bob")
    assert group.ring("bob").newest is None
    group.pass_time(2)
    late = group.sealed("bob", keys=Group(seed=1).keys)  # with the keys that it had
    assert text_of(group.opened(raw, "ann")) == TEXT
    outcome = group.opened(late, "ann")
    assert isinstance(outcome, SealRefused)
    assert "when epoch 1 was not in use" in outcome.reason
    assert isinstance(group.opened(forged(group, raw, epoch=2, sender="bob", signer="bob"), "ann"), SealRefused)


def test_what_somebody_seals_after_its_revocation_is_refused_at_once() -> None:
    group = Group()
    raw = group.sealed("bob")
    revoked = replace(group.identities["bob"], revoked=group.now - timedelta(seconds=1))
    group.identities["bob"] = revoked
    outcome = group.opened(raw, "ann")
    assert outcome == SealRefused("bob was revoked before it sealed them")


def test_what_was_sealed_before_its_sender_expired_is_opened_and_nothing_later() -> None:
    group = Group()
    raw = group.sealed("bob")
    group.identities["bob"] = replace(group.identities["bob"], expires=group.now - timedelta(seconds=1))
    assert group.opened(raw, "ann") == SealRefused("bob had expired when it sealed them")
    group.identities["bob"] = replace(group.identities["bob"], expires=group.now + timedelta(seconds=1))
    group.pass_time(2)
    assert text_of(group.opened(raw, "ann")) == TEXT


def test_who_has_left_opens_what_it_could_and_nothing_later() -> None:
    group = Group()
    before = group.sealed()
    group.leave("bob")
    after = group.sealed()
    assert text_of(group.opened(before)) == TEXT
    outcome = group.opened(after)
    assert isinstance(outcome, SealRefused)
    assert "whose key was not given to us" in outcome.reason
    assert isinstance(group.opened(after, keys=Group(seed=1).keys), KeysLacking)  # with the old file


def test_who_joins_opens_nothing_earlier() -> None:
    group = Group()
    before = group.sealed()
    group.join("cat")
    assert isinstance(group.opened(before, "cat"), SealRefused)
    assert text_of(group.opened(group.sealed(), "cat")) == TEXT


def test_two_epochs_are_opened_while_it_changes_and_one_whose_keys_are_not_there_yet_is_waited_for() -> None:
    group = Group()
    old = group.keys
    group.pass_time(1)
    group.rotate()
    assert text_of(group.opened(group.sealed(keys=old))) == TEXT
    outcome = group.opened(group.sealed(), keys=old)
    assert outcome == KeysLacking("they are sealed in epoch 2, and the keys here end with 1")
    group.pass_time(30)  # ann was off for so long, and is a member as before
    assert text_of(group.opened(group.sealed(keys=old))) == TEXT


def test_who_has_left_seals_with_its_old_keys_for_a_day_at_most() -> None:
    group = Group()
    old = group.keys
    group.pass_time(1)
    group.leave("ann")
    group.pass_time(CHANGE / timedelta(days=1))
    assert text_of(group.opened(group.sealed(keys=old))) == TEXT
    group.pass_time(1)
    outcome = group.opened(group.sealed(keys=old))
    assert isinstance(outcome, SealRefused)
    assert "when epoch 1 was not in use" in outcome.reason


def test_a_sender_that_only_newer_files_have_is_waited_for_and_a_stranger_is_not() -> None:
    group = Group()
    old, known = group.keys, dict(group.identities)
    group.join("cat")
    raw = group.sealed("cat")
    group.identities = known
    outcome = group.opened(raw)
    assert outcome == KeysLacking("the permissions here do not have cat, who is said to have sealed them")
    outcome = group.opened(raw, keys=old)
    assert outcome == KeysLacking("they are sealed in epoch 2, and the keys here end with 1")
    del group.identities["ann"]
    raw = group.sealed("ann", keys=old)
    outcome = group.opened(forged(group, raw, epoch=1, sender="eve", signer="ann"))
    assert outcome == SealRefused("the permissions here do not have eve, who is said to have sealed them")


def test_nobody_is_made_to_wait_by_what_its_sender_has_not_signed() -> None:
    group = Group()
    old = group.keys
    group.rotate()
    raw = bytearray(group.sealed())
    assert isinstance(group.opened(bytes(raw), keys=old), KeysLacking)
    raw[-20] ^= 1
    assert isinstance(group.opened(bytes(raw), keys=old), SealRefused)


def test_what_is_sealed_for_another_group_is_refused() -> None:
    group = Group()
    raw = group.sealed()
    other = GroupKeys("yard", group.keeper.public, 0, ())
    other = other.after(group.keeper.rotated(other, group.members, bytes(32), group.now))
    assert isinstance(group.opened(raw, keys=other), SealRefused)


# -- order ----------------------------------------------------------------------------------------------------


def spans(count: int) -> list[RecordSpan]:
    return [RecordSpan(10 * n, 10, 0, 0) for n in range(count)]


def test_batches_that_change_places_are_refused() -> None:
    """Somebody who can change offsets could at most sign for others, too; the numbers tell all the same."""
    group = Group()
    ann, opener = group.sealer("ann"), Opener()
    first, second, third = spans(3)
    late = group.sealed(by=ann, span=second)
    early = group.sealed(by=ann, span=third)
    group.sealed(by=ann, span=first)
    assert text_of(group.opened(early, opener=opener, span=third)) == TEXT
    again = group.sealed(by=ann, span=first)
    assert text_of(group.opened(again, opener=opener, span=first)) == TEXT  # whoever seeks goes back
    outcome = group.opened(late, opener=opener, span=second)
    assert outcome == SealRefused("they were sealed before those that they follow, by ann")


def test_a_partition_does_not_go_back_to_an_earlier_epoch() -> None:
    group = Group()
    old, opener = group.keys, Opener()
    first, second = spans(2)
    group.rotate()
    assert text_of(group.opened(group.sealed(span=first), opener=opener, span=first)) == TEXT
    outcome = group.opened(group.sealed(span=second, keys=old), opener=opener, span=second)
    assert outcome == SealRefused("they are sealed in epoch 1, after records of epoch 2")


def test_a_partition_has_one_sender() -> None:
    group = Group()
    opener = Opener()
    first, second = spans(2)
    assert text_of(group.opened(group.sealed(span=first), opener=opener, span=first)) == TEXT
    outcome = group.opened(group.sealed("bob", span=second), opener=opener, span=second)
    assert outcome == SealRefused("they are of bob, and the partition is of ann")
    assert text_of(group.opened(group.sealed("bob", partition="Q"), opener=opener, partition="Q")) == TEXT


def test_a_producer_goes_on_in_another_life_and_another_epoch() -> None:
    group = Group()
    opener = Opener()
    for place, span in enumerate(spans(6)):
        if place % 2:
            group.rotate()
        assert text_of(group.opened(group.sealed(span=span), opener=opener, span=span)) == TEXT


# -- whatever comes -------------------------------------------------------------------------------------------


@given(st.binary(max_size=400))
def test_bytes_are_a_frame_or_an_error(raw: bytes) -> None:
    try:
        decode(raw)
    except ProtocolError:
        return
    pytest.fail("random bytes are no frame")


@given(
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 200),
)
def test_a_head_that_says_anything_is_a_frame_or_an_error(
    group: bytes, sender: bytes, epoch: int, count: int, base: int, size: int
) -> None:
    fixed = (epoch, 1, 2, base, count, size, 5, 6, bytes(16))
    raw = HEAD.pack(1, len(group), len(sender), 0, *fixed) + group + sender + bytes(64 + size)
    raw += bytes(-len(raw) % 8)
    try:
        found = decode(raw)
    except ProtocolError:
        return
    assert (found.group.encode(), found.sender.encode(), found.span.count) == (group, sender, count)
    assert len(found.content) == size
    assert isinstance(Group().opened(raw), SealRefused)


@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**62), st.integers(1, 65_536))
def test_whatever_is_sealed_comes_out_again(text: bytes, base: int, count: int) -> None:
    group = Group()
    span = RecordSpan(base, count, -5, 5)
    raw = group.sealed(text=text, span=span)
    assert len(raw) % 8 == 0
    assert text_of(group.opened(raw, span=span)) == text
