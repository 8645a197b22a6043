from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sealing.people import TEXT, Group

from chappe.data.binary import decode as decode_value
from chappe.data.zeek import Event
from chappe.errors import ProtocolError
from chappe.sealing import events, messages
from chappe.sealing.messages import (
    COMMAND,
    EVENTS,
    HEAD,
    MESSAGES,
    Lives,
    MessageFrame,
    MessageOpener,
    MessageOutcome,
    MessageSealer,
    OpenedContent,
    decode,
)
from chappe.sealing.primitives import Cipher
from chappe.sealing.records import RECORDS
from chappe.sealing.ring import CHANGE
from chappe.sealing.senders import SALT_BYTES, KeysLacking, SealRefused, bound_to

PLACE = (b"patients/1", bytes(16))


def sealer(group: Group, name: str = "ann", cipher: type[Cipher] = Cipher) -> MessageSealer:
    return MessageSealer(name, group.rng.randbytes(SALT_BYTES), group.sign(name), cipher)


def sealed(group: Group, by: MessageSealer | None = None, name: str = "ann", keys: object = None) -> bytes:
    secret = group.ring(name, keys).newest  # type: ignore[arg-type]
    assert secret is not None
    return (sealer(group, name) if by is None else by).seal(secret, EVENTS, PLACE, TEXT, group.micros)


def opened(group: Group, raw: bytes, by: str = "bob", kind: int = EVENTS, place: object = PLACE) -> MessageOutcome:
    return MessageOpener().open(raw, kind, place, group.ring(by), group.identities)  # type: ignore[arg-type]


def frame_of(outcome: MessageOutcome) -> MessageFrame:
    assert isinstance(outcome, OpenedContent), outcome
    return outcome.frame


def refusal_of(outcome: MessageOutcome) -> str:
    assert isinstance(outcome, SealRefused), outcome
    return outcome.reason


def test_what_was_sealed_is_opened_and_its_sender_known() -> None:
    group = Group()
    raw = sealed(group)
    outcome = opened(group, raw)
    assert isinstance(outcome, OpenedContent)
    assert (outcome.content, outcome.frame.sender, outcome.frame.number) == (TEXT, "ann", 0)
    assert TEXT[:8] not in raw


def test_any_bit_of_what_was_sealed_that_is_another_is_refused() -> None:
    group = Group()
    raw, ring = sealed(group), group.ring("bob")
    for at in range(len(raw)):
        for bit in range(8):
            changed = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
            outcome = MessageOpener().open(changed, EVENTS, PLACE, ring, group.identities)
            assert isinstance(outcome, SealRefused), (at, bit)


def test_what_was_cut_off_or_has_something_behind_it_is_refused() -> None:
    group = Group()
    raw = sealed(group)
    for changed in [raw[:size] for size in range(len(raw))] + [raw + bytes(size) for size in range(1, 9)]:
        assert isinstance(opened(group, changed), SealRefused)


@pytest.mark.parametrize(
    "place",
    [
        (b"patients/2", bytes(16)),
        (b"patients/1", bytes(15) + b"\1"),
        (b"patients/1" + bytes(16), b""),
        (b"patients/1",),
        (*PLACE, b""),
    ],
)
def test_what_is_put_elsewhere_is_refused(place: tuple[bytes, ...]) -> None:
    group = Group()
    assert "not as ann has signed them" in refusal_of(opened(group, sealed(group), place=place))


def test_events_are_no_command() -> None:
    group = Group()
    assert "sealed as messages of kind 1" in refusal_of(opened(group, sealed(group), kind=COMMAND))


def forged(group: Group, raw: bytes, *, epoch: int, sender: str, signer: str) -> bytes:
    """What a member makes who knows all secrets, and has the key that ``signer`` signs with."""
    was = decode(raw)
    secret = group.ring("ann").secret(epoch)
    assert secret is not None
    names = b"ward" + sender.encode()
    head = HEAD.pack(1, 4, len(sender), EVENTS, epoch, was.number, was.sealed_at, was.salt) + names
    bound = bound_to(PLACE, head)
    content = MESSAGES.cipher(secret, sender, was.salt).seal(was.number, b"forged", bound)
    return head + group.sign(signer)(MESSAGES.to_sign(bound, content)) + content


def test_a_member_cannot_speak_for_another() -> None:
    group = Group()
    raw = sealed(group)
    assert isinstance(opened(group, forged(group, raw, epoch=1, sender="bob", signer="bob")), OpenedContent)
    assert isinstance(opened(group, forged(group, raw, epoch=1, sender="ann", signer="bob")), SealRefused)
    was = decode(raw)
    ours = forged(group, raw, epoch=1, sender="ann", signer="bob")
    other = was.head + was.signature + decode(ours).content  # other contents under the signature of ann
    assert isinstance(opened(group, other), SealRefused)


def test_what_was_sealed_in_one_epoch_is_nothing_in_another() -> None:
    group = Group()
    was = decode(sealed(group))
    group.rotate()
    head = HEAD.pack(1, 4, 3, EVENTS, 2, was.number, was.sealed_at, was.salt) + b"wardann"
    for signature in (was.signature, group.sign("ann")(MESSAGES.to_sign(bound_to(PLACE, head), was.content))):
        assert isinstance(opened(group, head + signature + was.content), SealRefused)


def test_a_key_of_records_is_none_of_messages() -> None:
    """Both count from 0, and their salts could be the same."""
    group = Group()
    secret = group.ring("ann").newest
    assert secret is not None
    one, other = RECORDS.cipher(secret, "ann", bytes(16)), MESSAGES.cipher(secret, "ann", bytes(16))
    assert one.seal(0, TEXT, b"") != other.seal(0, TEXT, b"")


def test_who_has_left_opens_nothing_later_and_seals_for_no_longer_than_it_takes_to_change() -> None:
    group = Group()
    old, before = group.keys, sealed(group)
    group.leave("bob")
    after = sealed(group)
    assert isinstance(opened(group, before), OpenedContent)
    assert "whose key was not given to us" in refusal_of(opened(group, after))
    late = MessageOpener().open(after, EVENTS, PLACE, group.ring("bob", old), group.identities)
    assert late == KeysLacking("they are sealed in epoch 2, and the keys here end with 1")
    assert isinstance(opened(group, sealed(group, name="bob", keys=old), "ann"), OpenedContent)
    group.pass_time(2 * CHANGE.days)
    assert "when epoch 1 was not in use" in refusal_of(opened(group, sealed(group, name="bob", keys=old), "ann"))
    assert isinstance(opened(group, forged(group, before, epoch=2, sender="bob", signer="bob"), "ann"), SealRefused)


def test_a_member_that_was_off_for_days_is_read_though_it_seals_with_older_keys() -> None:
    group = Group()
    old = group.keys
    group.rotate()
    group.pass_time(30)
    assert isinstance(opened(group, sealed(group, keys=old)), OpenedContent)


def test_who_joins_opens_nothing_earlier() -> None:
    group = Group()
    before = sealed(group)
    group.join("cat")
    assert isinstance(opened(group, before, "cat"), SealRefused)
    assert isinstance(opened(group, sealed(group), "cat"), OpenedContent)


# -- order ----------------------------------------------------------------------------------------------------


def lives(since: int = 0) -> Lives:
    return Lives(b"own" + bytes(13), since)


def frames(group: Group, count: int, by: MessageSealer | None = None) -> list[MessageFrame]:
    by = sealer(group) if by is None else by
    return [frame_of(opened(group, sealed(group, by))) for _ in range(count)]


def test_each_message_is_taken_once_and_in_the_order_of_its_sender() -> None:
    group = Group()
    known = lives()
    one, two, three = frames(group, 3)
    assert known.refusal(one) == ""
    assert known.refusal(three) == ""  # what is between may be of another topic
    for each in (one, two, three):
        assert "came before, or were sealed before others" in known.refusal(each)
    assert known.refusal(frames(group, 1)[0]) == ""  # of another life


def test_what_waits_for_keys_of_one_group_may_come_behind_what_was_sealed_for_another() -> None:
    group = Group()
    known = lives()
    one, two, three = frames(group, 3)
    assert known.refusal(replace(two, group="lab")) == ""
    assert known.refusal(one) == ""  # its keys came later
    assert known.refusal(three) == ""
    assert "came before" in known.refusal(replace(two, group="lab"))


def test_what_was_published_here_does_not_come_back() -> None:
    group = Group()
    ours = sealer(group)
    assert "published here" in Lives(ours.salt, 0).refusal(frames(group, 1, ours)[0])


def test_what_was_sealed_before_anything_was_remembered_is_refused() -> None:
    group = Group()
    old, first = frames(group, 2)
    known = lives(group.micros + 1)
    assert "long before anything of it was heard" in known.refusal(old)
    group.pass_time(1)
    assert known.refusal(frames(group, 1)[0]) == ""
    assert "long before" in known.refusal(first)


def test_a_life_that_was_forgotten_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LIVES_MAX", 2)
    group = Group()
    known = lives()
    found = []
    for _ in range(4):
        group.pass_time(1)
        found += frames(group, 1)
        assert known.refusal(found[-1]) == ""
    assert len(known._known) == 2
    assert all(known.refusal(each) for each in found)


# -- how it travels -------------------------------------------------------------------------------------------


def test_to_others_it_is_an_event_of_zeek() -> None:
    payload = events.wrap(b"\0\xff" * 100)
    assert events.is_sealed(payload)
    event = Event.parse(payload)
    assert (event.name, event.metadata) == ("chappe_sealed", ())
    assert decode_value(payload)[2][0] == "chappe_sealed"  # type: ignore[index]
    assert all(type(each) is str and each.isascii() for each in event.args)
    assert events.unwrap(payload) == b"\0\xff" * 100


@pytest.mark.parametrize("raw", [b"", b"x", b"four", b"fives" * 100])
def test_any_bit_of_how_it_travels_that_is_another_is_noticed(raw: bytes) -> None:
    payload = events.wrap(raw)
    for at in range(len(payload)):
        for bit in range(8):
            changed = payload[:at] + bytes([payload[at] ^ 1 << bit]) + payload[at + 1 :]
            if events.is_sealed(changed):
                try:
                    assert events.unwrap(changed) != raw
                except ProtocolError:
                    pass


@given(st.binary(max_size=300))
def test_what_anybody_sends_is_opened_or_refused(raw: bytes) -> None:
    for decoder in (decode, events.parse_values, lambda each: events.unwrap(events.BEGIN + each)):
        try:
            decoder(raw)
        except ProtocolError:
            pass


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=600))
def test_values_that_are_sealed_together_come_out_as_they_were(payloads: list[bytes]) -> None:
    lots = events.in_lots(payloads)
    assert all(0 < len(each) <= events.VALUES_MAX for each in lots)
    assert [each for lot in lots for each in events.parse_values(events.pack_values(lot))] == payloads


def test_large_values_are_sealed_one_by_one() -> None:
    large = bytes(events.VALUES_BYTES_MAX)
    assert events.in_lots([large, large, b"a", b"b"]) == [[large], [large], [b"a", b"b"]]


def test_no_nonce_serves_twice_with_one_key_over_lives_epochs_and_refusals() -> None:
    used: list[tuple[bytes, int]] = []

    class Noted(Cipher):
        __slots__ = ("_key",)

        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self._key = key

        def seal(self, number: int, text: bytes | memoryview, beside: bytes) -> bytes:
            used.append((self._key, number))
            return super().seal(number, text, beside)

    group = Group()
    for _ in range(5):  # lives: nothing of one is known to the next
        one, other = sealer(group, "ann", Noted), sealer(group, "bob", Noted)
        for _ in range(3):
            for each in (one, one, other):
                sealed(group, each, each.sender)
            group.rotate()
            sealed(group, one)
            sealed(group, one, keys=Group(seed=1).keys)  # a file that is put back
    assert len(used) == 5 * 3 * 5
    assert len(set(used)) == len(used)
