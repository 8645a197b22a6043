"""Which segments of a topic may go, and what has to be remembered of them.

Whole segments go, oldest first, and never one that must stay is passed over: what is left of a partition is
always its newest part. A timestamp in the future does not keep a segment for ever: a record counts as no newer
than the last write to its segment.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Final

import msgspec
from crc32c import crc32c

from chappe.data.topic import Filter, decode_topic
from chappe.errors import Damaged
from chappe.log.storage import Retention
from chappe.storage.segments.appender import Appender
from chappe.storage.segments.directory import TopicFolder
from chappe.storage.segments.files import encode_name
from chappe.storage.segments.index import Summary
from chappe.storage.segments.index_files import load_index

logger: Final = logging.getLogger(__name__)
PINS_FILE: Final = "partitions"
_PINS_MAGIC: Final = b"CHPINS1\n"
_pins: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int]])

Pins = dict[str, int]  # partition -> its first offset, where its segments alone would not tell


def choose(appender: Appender, policies: Sequence[tuple[str, Retention]], now_us: int) -> list[Summary] | None:
    """What to remove by the first policy whose topic or prefix matches; None: seal the segment being filled first."""
    topic = appender.folder.topic
    policy = next((each for name, each in policies if Filter.parse(name).matches(topic)), Retention())
    oldest_us = None if policy.age_s is None else now_us - int(policy.age_s * 1_000_000)
    table = appender.table
    if oldest_us is not None and len(table) and min(table.timestamp_min) < oldest_us:
        return None
    size = table.length + sum(each.length for each in appender.sealed)
    records = table.records + sum(each.records for each in appender.sealed)
    remove: list[Summary] = []
    for each in appender.sealed:
        size -= each.length
        records -= each.records
        if not (
            (policy.bytes is not None and size >= policy.bytes)
            or (policy.records is not None and records >= policy.records)
            or (oldest_us is not None and _newest(appender, each) < oldest_us)
        ):
            break
        remove.append(each)
    return remove


def _newest(appender: Appender, segment: Summary) -> int:
    try:
        written_ns = os.stat(appender.folder.segment(segment.number)).st_mtime_ns
    except OSError:
        return segment.timestamp_max
    return min(segment.timestamp_max, written_ns // 1000)


def remove_first(appender: Appender, segments: list[Summary]) -> Pins:
    """Make it durable that ``segments`` are gone; return where the partitions in them start now.

    Raises OSError: nothing was removed.
    """
    firsts: Pins = {}
    for each in segments:
        try:
            index = load_index(appender.folder, each.number)
        except Damaged as error:
            logger.error("retention removes a segment that is gone already: %s", error)
            continue
        for partition, _, next_ in chain((each[:3] for each in index.extents()), index.lost()):
            firsts[partition] = max(firsts.get(partition, 0), next_)
    _pin(appender.folder, firsts)
    del appender.sealed[: len(segments)]
    return firsts


def pin_resets(appenders: dict[str, Appender], resets: deque[tuple[str, str, int]]) -> None:
    """Make the resets durable, those of topics that are on disk; raises OSError."""
    by_topic: dict[str, Pins] = {}
    while resets:
        topic, partition, first = resets.popleft()
        if topic in appenders:
            pins = by_topic.setdefault(topic, {})
            pins[partition] = max(pins.get(partition, 0), first)
    for topic, pins in by_topic.items():
        _pin(appenders[topic].folder, pins)


def _pin(folder: TopicFolder, firsts: Pins) -> None:
    pins = load_pins(folder)
    for partition, first in firsts.items():
        pins[partition] = max(pins.get(partition, 0), first)
    body = msgspec.msgpack.encode([(encode_name(name), first) for name, first in pins.items()])
    head = _PINS_MAGIC + crc32c(body).to_bytes(4, "little")
    folder.ops.replace_file(os.path.join(folder.path, PINS_FILE), [head, body])


def load_pins(folder: TopicFolder) -> Pins:
    """Where partitions start whose first records are gone, as a small file of the topic says; empty without one."""
    path = os.path.join(folder.path, PINS_FILE)
    try:
        raw = folder.ops.read_file(path)
    except FileNotFoundError:
        return {}
    body = memoryview(raw)[len(_PINS_MAGIC) + 4 :]
    try:
        if not raw.startswith(_PINS_MAGIC) or raw[8:12] != crc32c(body).to_bytes(4, "little"):
            raise ValueError("checksum")
        return {decode_topic(name): first for name, first in _pins.decode(body)}
    except (ValueError, msgspec.DecodeError):
        logger.error("%s is damaged; partitions without any record left begin anew", path)
        return {}
