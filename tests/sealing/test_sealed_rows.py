from __future__ import annotations

import pytest
from tests.sealing.people import Group

from chappe.errors import ProtocolError
from chappe.sealing.primitives import KEY_BYTES
from chappe.sealing.ring import EpochSecret
from chappe.sealing.rows import NONCE_BYTES, SALT_BYTES, RowCipher, unwrapped, wrapped

KEY = bytes(range(KEY_BYTES))


def secret_of(group: Group) -> EpochSecret:
    found = group.ring("ann").newest
    assert found is not None
    return found


def test_equal_keys_look_alike_and_equal_values_do_not() -> None:
    rows = RowCipher(KEY)
    name = rows.seal_key(b"key")
    assert name == RowCipher(KEY).seal_key(b"key") != RowCipher(bytes(KEY_BYTES)).seal_key(b"key")
    one, two = (rows.seal_value(name, b"value", None, bytes([each]) * NONCE_BYTES) for each in (1, 2))
    assert one[NONCE_BYTES:] != two[NONCE_BYTES:]
    assert rows.open(name, one, None) == rows.open(name, two, None) == (b"key", b"value")


def test_any_bit_that_is_another_is_noticed() -> None:
    rows = RowCipher(KEY)
    name = rows.seal_key(b"key")
    value = rows.seal_value(name, b"value", 5, bytes(NONCE_BYTES))
    for what in (name, value):
        for at in range(8 * len(what)):
            changed = bytearray(what)
            changed[at // 8] ^= 1 << at % 8
            pair = (bytes(changed), value) if what is name else (name, bytes(changed))
            with pytest.raises(ProtocolError):
                rows.open(*pair, 5)
    for expires_ns in (None, 6):
        with pytest.raises(ProtocolError):
            rows.open(name, value, expires_ns)
    for size in range(len(value)):
        with pytest.raises(ProtocolError):
            rows.open(name, value[:size], 5)


def test_the_key_of_a_file_is_for_the_members_of_its_epoch_and_for_one_store() -> None:
    group = Group()
    header = wrapped(KEY, b"beds", secret_of(group), bytes(SALT_BYTES))
    assert unwrapped(header, b"beds", group.ring("bob")) == (1, KEY)
    assert KEY not in header
    with pytest.raises(ProtocolError):
        unwrapped(header, b"wards", group.ring("bob"))
    for at in range(8 * len(header)):
        changed = bytearray(header)
        changed[at // 8] ^= 1 << at % 8
        try:
            assert unwrapped(bytes(changed), b"beds", group.ring("bob"))[1] is None  # of an epoch that is not there
        except ProtocolError:
            pass
    group.join("cat")
    assert unwrapped(header, b"beds", group.ring("cat")) == (1, None)
