"""Blocks of compressed columns: what follows the header of a batch with the flag COMPRESSED.

Layout, little endian::

    codec: 1 zstd, 2 lz4 (a block without a frame)   u8, then 3 zero bytes
    size of the columns                              u32
    size of the packed bytes                         u32, then 4 zero bytes
    packed bytes, padded to eight

The size of the columns is bounded before any memory is taken, and no codec may write beyond it.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Literal, TypeAlias

import cramjam

from chappe.defaults import BATCH_BYTES_MAX
from chappe.errors import ProtocolError, UsageError

Compression: TypeAlias = Literal["zstd", "lz4"]
ZSTD: Final = 1
LZ4: Final = 2
CODECS: Final[dict[str, int]] = {"zstd": ZSTD, "lz4": LZ4}
ZSTD_LEVEL: Final = 1  # 3 takes a fifth more time, and makes JSON lines no smaller
WORTH_BYTES: Final = 256  # fewer are not worth the processor's time at both ends
_HEAD: Final = struct.Struct("<B3xII4x")


def check_compression(given: str | None) -> int:
    """Return the number of a codec, 0 for None. Raises UsageError."""
    if given is None:
        return 0
    codec = CODECS.get(given, 0)
    if not codec:
        raise UsageError(f"compression is 'zstd', 'lz4' or None, not {given!r}")
    return codec


def pack(codec: int, columns: memoryview) -> bytes | None:
    """Return the block of these columns; None if it would save less than a tenth."""
    size = len(columns)
    if size < WORTH_BYTES:
        return None
    packed: Any
    if codec == ZSTD:
        packed = cramjam.zstd.compress(columns, ZSTD_LEVEL)
    else:
        packed = cramjam.lz4.compress_block(columns, store_size=False)
    length = len(packed)
    if _HEAD.size + length > size - size // 10:
        return None
    return b"".join((_HEAD.pack(codec, size, length), packed, bytes(-length % 8)))


def check_block(block: memoryview) -> int:
    """Return the size of a block's columns. Raises ProtocolError if its head is wrong."""
    if len(block) < _HEAD.size:
        raise ProtocolError("a compressed batch that is cut off")
    codec, size, length = _HEAD.unpack_from(block)
    if codec not in (ZSTD, LZ4):
        raise ProtocolError("a batch compressed by a codec of a newer version")
    if not 0 < size <= BATCH_BYTES_MAX or _HEAD.size + length + -length % 8 != len(block):
        raise ProtocolError("a compressed batch whose sizes are wrong")
    return size  # type: ignore[no-any-return]


def unpack(block: memoryview) -> memoryview:
    """Return the columns of a block. Raises ProtocolError if it is not sound."""
    size = check_block(block)
    codec, _, length = _HEAD.unpack_from(block)
    packed = block[_HEAD.size : _HEAD.size + length]
    columns = bytearray(size)
    written: Any
    try:
        if codec == ZSTD:
            written = cramjam.zstd.decompress_into(packed, columns)
        else:
            written = cramjam.lz4.decompress_block_into(packed, columns, output_len=size)
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"a compressed batch that cannot be opened: {error}") from None
    if written != size:
        raise ProtocolError(f"a compressed batch of {written} bytes that says it has {size}")
    return memoryview(columns).toreadonly()
