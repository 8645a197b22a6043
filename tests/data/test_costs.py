"""What costs a reader little that was made to cost much: each of these took minutes, and takes well under a second."""

from __future__ import annotations

import random
from itertools import islice, product
from typing import Final

import pytest

from chappe.data.binary import decode, encode, pack_varbyte
from chappe.data.json import loads
from chappe.data.order import sort_key
from chappe.data.quirks import repair
from chappe.data.values import Set, Table, Value
from chappe.errors import InvalidData

MODULUS: Final = 2**61 - 1  # numbers that differ by it have one hash
COLLIDING: Final = [
    tuple([each * MODULUS for each in digits]) for digits in islice(product(range(4), repeat=8), 12_000)
]


def in_a_container(tag: bytes, after: bytes, shuffled: bool) -> bytes:
    members = [encode(each) + after for each in COLLIDING]
    if shuffled:
        random.Random(1).shuffle(members)
    return tag + pack_varbyte(len(members)) + b"".join(members)


def test_the_vectors_collide() -> None:
    assert len(set(map(hash, COLLIDING))) < 10


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_set_of_vectors_that_python_hashes_alike(shuffled: bool) -> None:
    found = decode(in_a_container(b"\x0c", b"", shuffled))
    assert isinstance(found, Set)
    assert found.members == tuple(sorted(COLLIDING))
    assert COLLIDING[-1] in found


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_table_of_them(shuffled: bool) -> None:
    found = decode(in_a_container(b"\x0d", b"\x01\x01", shuffled))
    assert isinstance(found, Table)
    assert found[COLLIDING[-1]] is True
    assert Table(dict.fromkeys(COLLIDING, True)) == found


def test_keys_of_containers_hash_apart() -> None:
    for kind in (tuple, Set):
        keys = [sort_key(kind(each)) for each in COLLIDING[:1000]]
        assert len(set(map(hash, keys))) == len(set(keys)) > 5


@pytest.mark.parametrize("pair", [(-0.0, 0.0), (b"x", "x")])
def test_what_is_the_same_hashes_the_same(pair: tuple[Value, Value]) -> None:
    one, two = [sort_key((each,)) for each in pair]
    assert one == two
    assert hash(one) == hash(two)


@pytest.mark.parametrize("piece", ['\\"', '"', '"\\', "\\", "-", '"a'])
@pytest.mark.parametrize("end", ["", "\\", '"'])
def test_text_that_is_no_json(piece: str, end: str) -> None:
    text = piece * (1_000_000 // len(piece)) + end
    assert len(repair(text)) >= len(text)
    with pytest.raises(InvalidData):
        loads(text)


def test_what_the_original_writes_is_repaired_as_ever() -> None:
    text = r'{"a":inf,"b":"inf\v\"nan\"","c":-nan,"d":"\\","e":[-inf,nan]}'
    assert repair(text) == r'{"a":Infinity,"b":"inf\u000b\"nan\"","c":NaN,"d":"\\","e":[-Infinity,NaN]}'
