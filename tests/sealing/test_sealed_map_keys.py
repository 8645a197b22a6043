from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.sealing.people import Group

from chappe.sealing.map_keys import KeyCipher


def cipher(name: str = "map") -> KeyCipher:
    return KeyCipher(bytes(range(32)), name)


@given(st.binary(max_size=60))
def test_keys_come_out_as_they_were(key: bytes) -> None:
    sealed = cipher().seal(key)
    assert cipher().open(sealed) == key
    assert sealed.count(b"/") == key.count(b"/")
    assert sealed.isascii()


def test_what_begins_alike_still_does_and_nothing_else_is_alike() -> None:
    made = cipher()
    assert made.seal(b"/wards/7").startswith(made.seal(b"/wards/"))
    assert made.seal(b"/wards/7") != made.seal(b"/wards/77")[: len(made.seal(b"/wards/7"))]
    one, other = made.seal(b"/a/bed"), made.seal(b"/b/bed")
    assert one.split(b"/")[2] != other.split(b"/")[2]
    assert made.seal(b"/a") != cipher("other").seal(b"/a")
    assert made.seal(b"") == b""


@given(st.binary(max_size=60))
def test_what_nobody_sealed_is_no_key(raw: bytes) -> None:
    found = cipher().open(raw)
    assert found is None or cipher().seal(found) == raw


def test_any_bit_that_is_another_is_no_key() -> None:
    sealed = cipher().seal(b"/wards/7")
    for at in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[at // 8] ^= 1 << at % 8
        assert cipher().open(bytes(changed)) is None


def test_the_secret_that_lasts_is_the_same_in_all_epochs_and_for_members_alone() -> None:
    group = Group()
    lasting = group.ring("ann").lasting
    assert lasting is not None
    group.join("cat")
    group.rotate()
    before = group.keys
    group.leave("bob")
    assert {group.ring(name).lasting for name in ("ann", "cat", "bob")} == {lasting}  # whoever was there has it
    group.join("dan")
    assert group.ring("dan").lasting == lasting
    assert group.ring("dan", before).lasting is None
    assert lasting not in b"".join(each.lasting for each in group.keys.epochs)
