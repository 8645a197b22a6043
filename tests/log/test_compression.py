"""Compressed batches: the same records for every reader, within bounds whatever bytes come."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixed_clock import FixedClock

from chappe.arrow import to_arrow
from chappe.core import Publish
from chappe.defaults import BATCH_BYTES_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.limits import LOG_LIMITS
from chappe.log.batch import (
    COMPRESSED,
    CRC_AT,
    HEADER,
    TIMESTAMPS,
    Batch,
    bare,
    compress,
    encode_batch,
    merge,
    rebase,
)
from chappe.log.compression import CODECS, LZ4, ZSTD, check_compression, unpack
from chappe.log.messages import BatchMessage, RecordMessage
from chappe.log.producer import LogProducer
from chappe.log.writing import _runs

LINES = [
    json.dumps({"level": "info", "user": n, "text": f"user {n} logged in from 10.0.0.{n % 200}"}).encode()
    for n in range(500)
]
PLAIN = encode_batch(7, LINES, 5, keys=[b"%d" % (n % 9) for n in range(500)], headers=[(("a", b"b"),)] * 500)
both = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def signed(raw: bytes | bytearray) -> bytes:
    """The same bytes with a right checksum."""
    return bytes(raw[:4]) + struct.pack("<I", crc32c(bytes(raw[CRC_AT:]))) + bytes(raw[CRC_AT:])


def use_everything(raw: bytes) -> None:
    """Read a batch in every way; nothing but a ProtocolError comes of it."""
    uses: list[Callable[[Batch], Any]] = [
        lambda batch: list(batch.records("t", "p")),
        lambda batch: to_arrow(batch, "t", "p", batch.base, batch.next),
        lambda batch: batch.slice(batch.base, batch.next - batch.count // 2),
        lambda batch: bare(bytes(batch.raw)),
        lambda batch: rebase(bytes(batch.raw), 3),
        lambda batch: merge([batch, Batch.parse(encode_batch(batch.next, [b""], 1))]),
        Batch.check_order,
        lambda batch: Batch.parse(batch.raw),
    ]
    for use in uses:
        with suppress(ProtocolError):
            use(Batch.parse(raw, check=False))


@both
@settings(max_examples=30)
@given(st.data())
def test_the_same_records_come_out_in_every_way(codec: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    values = data.draw(st.lists(st.none() | st.binary(max_size=9), min_size=count, max_size=count))
    stamps = data.draw(st.none() | st.lists(st.integers(0, 2**50), min_size=count, max_size=count))
    plain = encode_batch(3, [each and each * 60 for each in values], 5, timestamps=stamps, keys=[b"key" * 9] * count)
    raw = compress(plain, codec)
    batch, same = Batch.parse(raw), Batch.parse(plain)
    assert list(batch.records("t", "p")) == list(same.records("t", "p"))
    assert (batch.base, batch.next, batch.timestamp_min, batch.timestamp_max) == (
        (same.base, same.next, same.timestamp_min, same.timestamp_max)
    )
    assert to_arrow(batch, "t", "p", 3, batch.next) == to_arrow(same, "t", "p", 3, same.next)
    at = data.draw(st.integers(3, batch.next - 1))
    assert list(Batch.parse(batch.slice(at)).records("t", "p")) == list(same.records("t", "p", at))
    assert Batch.parse(rebase(raw, 90)).values() == same.values()
    assert bare(raw) == bare(plain)


@pytest.mark.parametrize(("codec", "times"), [(ZSTD, 4), (LZ4, 3)])
def test_json_lines_become_much_smaller_and_stay_so_whole(codec: int, times: int) -> None:
    raw = compress(PLAIN, codec)
    assert len(raw) * times < len(PLAIN)
    assert len(raw) % 8 == 0
    batch = Batch.parse(raw)
    assert batch.compressed
    assert batch.slice(7, 507) == raw
    assert compress(raw, ZSTD) is raw


@pytest.mark.parametrize("values", [[b"short"], [struct.pack("<Q", n * 0x9E3779B97F4A7C15 % 2**64) for n in range(90)]])
@both
def test_what_would_not_get_smaller_stays_as_it_is(codec: int, values: list[bytes]) -> None:
    raw = encode_batch(0, values, 5)
    assert compress(raw, codec) is raw


def test_a_codec_has_a_name() -> None:
    assert [check_compression(each) for each in (None, "zstd", "lz4")] == [0, ZSTD, LZ4]
    with pytest.raises(UsageError, match="compression is 'zstd', 'lz4' or None, not 'gzip'"):
        check_compression("gzip")


def block(codec: int, size: int, packed: bytes, length: int | None = None) -> bytes:
    """A batch of one record with this block."""
    body = struct.pack("<B3xII4x", codec, size, len(packed) if length is None else length) + packed
    body += bytes(-len(packed) % 8)
    tail = struct.pack("<QIIqq", 0, 1, HEADER.size + len(body), 1, 1)
    return signed(b"CB\x01" + bytes((COMPRESSED,)) + bytes(4) + tail + body)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (block(3, 10, b"x" * 10), "codec of a newer version"),
        (block(ZSTD, 0, b"x" * 10), "sizes are wrong"),
        (block(ZSTD, BATCH_BYTES_MAX + 1, b"x" * 10), "sizes are wrong"),
        (block(ZSTD, 10, b"x" * 10, length=99), "sizes are wrong"),
    ],
)
def test_a_block_whose_head_is_wrong_is_refused_at_once(raw: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        Batch.parse(raw)


@both
def test_a_block_that_is_not_as_large_as_it_says_is_refused(codec: int) -> None:
    packed = bytes(memoryview(compress(PLAIN, codec))[HEADER.size :])
    _, size, length = struct.unpack_from("<B3xII", packed)
    for wrong in (size - 1, size + 1, 16, BATCH_BYTES_MAX):
        raw = block(codec, wrong, packed[16 : 16 + length])
        with pytest.raises(ProtocolError, match="compressed batch"):
            Batch.parse(raw)
        with pytest.raises(ProtocolError, match="compressed batch"):
            Batch.parse(raw, check=False).values()


@both
def test_a_bomb_takes_no_more_memory_than_it_says(codec: int) -> None:
    bomb = bytes(memoryview(compress(encode_batch(0, [bytes(BATCH_BYTES_MAX // 2)], 5), codec))[HEADER.size + 16 :])
    batch = Batch.parse(block(codec, 1000, bomb), check=False)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            batch.values()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@both
@settings(max_examples=150)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255))
def test_one_evil_byte_with_a_right_checksum_does_no_harm(codec: int, at: int, value: int) -> None:
    raw = bytearray(compress(PLAIN, codec))
    raw[CRC_AT + at % (len(raw) - CRC_AT)] = value
    use_everything(signed(raw))


@settings(max_examples=150)
@given(st.integers(0, 3), st.integers(0, 200), st.binary(max_size=200))
def test_random_blocks_are_refused(codec: int, size: int, packed: bytes) -> None:
    use_everything(block(codec, size, packed))


@both
def test_columns_that_are_none_are_refused(codec: int) -> None:
    raw = bytearray(compress(PLAIN, codec))
    raw[3] = COMPRESSED | TIMESTAMPS  # then they begin elsewhere, and do not fill it
    with pytest.raises(ProtocolError, match="columns"):
        Batch.parse(signed(raw))
    with pytest.raises(ProtocolError, match="columns"):
        Batch.parse(signed(raw), check=False).timestamps()


@both
def test_a_batch_that_was_checked_is_kept_compressed(codec: int) -> None:
    raw = compress(encode_batch(0, [bytes(1 << 20)], 5), codec)
    tracemalloc.start()
    try:
        kept = [Batch.parse(raw) for _ in range(20)]
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        assert all(each.compressed for each in kept)
    finally:
        tracemalloc.stop()


def test_opened_columns_cannot_be_written() -> None:
    with pytest.raises(TypeError):
        unpack(memoryview(compress(PLAIN, ZSTD))[HEADER.size :])[0] = 1


# -- a producer ---------------------------------------------------------------------------------------------


def published(producer: LogProducer, values: list[bytes]) -> bytes:
    for each in values:
        producer.append(each)
    (batch,) = [
        each.message.body
        for each in producer.flush(1.0)
        if isinstance(each, Publish) and isinstance(each.message, BatchMessage)
    ]
    return bytes(batch)


def test_a_producer_publishes_and_keeps_compressed_batches_and_leaves_short_ones() -> None:
    producer = LogProducer("t", "p", clock=FixedClock(), codec=ZSTD)
    producer.start(0.0)
    assert not Batch.parse(published(producer, [b"short"])).compressed
    raw = published(producer, LINES)
    assert Batch.parse(raw).compressed
    assert Batch.parse(raw).values() == LINES
    assert producer.kept_bytes < len(PLAIN) // 4


def test_originals_get_the_records_of_a_compressed_batch_one_by_one() -> None:
    producer = LogProducer("t", "p", clock=FixedClock(), codec=LZ4)
    producer.start(0.0)
    producer.handle_subscription(b"Mt", True, 0.0)
    for each in LINES:
        producer.append(each)
    messages = [each.message for each in producer.flush(1.0) if isinstance(each, Publish)]
    assert [each.content for each in messages if isinstance(each, RecordMessage)] == LINES
    assert [Batch.parse(each.body).compressed for each in messages if isinstance(each, BatchMessage)] == [True]


def test_a_batch_that_cannot_be_opened_is_not_sent() -> None:
    producer = LogProducer("t", "p", clock=FixedClock())
    with pytest.raises(ProtocolError, match="cannot be opened"):
        producer.append_batch(block(ZSTD, 10, b"garbage!"), 1.0)
    assert producer.next_offset == 0
    compressed = compress(rebase(PLAIN, 0), ZSTD)
    assert any(isinstance(each, Publish) for each in producer.append_batch(compressed, 1.0))


# -- a store ------------------------------------------------------------------------------------------------


def test_small_compressed_batches_stay_as_they_are_in_a_store() -> None:
    first = compress(rebase(PLAIN, 0), ZSTD)
    staged = [Batch.parse(each) for each in (first, compress(rebase(PLAIN, 500), ZSTD))]
    assert [len(run) for run in _runs(staged, LOG_LIMITS)] == [1, 1]
    plain = [Batch.parse(encode_batch(n, [b"a"], 1)) for n in range(2)]
    assert [len(run) for run in _runs(plain, LOG_LIMITS)] == [2]
