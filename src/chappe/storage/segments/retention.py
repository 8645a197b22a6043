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
from dataclasses import dataclass, field
from typing import Final

from chappe.data.topic import Filter
from chappe.errors import Damaged
from chappe.log.storage import Retention
from chappe.storage.segments.appender import Appender
from chappe.storage.segments.directory import segment_path
from chappe.storage.segments.files import FileOps
from chappe.storage.segments.index import Summary
from chappe.storage.segments.pins import Pins, load_pins, save_pins
from chappe.storage.segments.recovery import load_index

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do with a topic: seal the segment being filled first, or remove these."""

    seal: bool = False
    remove: list[Summary] = field(default_factory=list)


def policy_for(topic: str, policies: Sequence[tuple[str, Retention]]) -> Retention:
    """The first policy whose topic or prefix matches; without limits if none does."""
    return next((each for name, each in policies if Filter.parse(name).matches(topic)), Retention())


def choose(appender: Appender, topic: str, policies: Sequence[tuple[str, Retention]], now_us: int) -> Choice:
    """Apply the policy of a topic."""
    policy = policy_for(topic, policies)
    if not policy.limited():
        return Choice()
    oldest_us = None if policy.age_s is None else now_us - int(policy.age_s * 1_000_000)
    table = appender.table
    if oldest_us is not None and len(table) and min(table.timestamp_min) < oldest_us:
        return Choice(seal=True)
    size = table.length + sum(each.length for each in appender.sealed)
    records = table.records + sum(each.records for each in appender.sealed)
    remove = []
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
    return Choice(remove=remove)


def _newest(appender: Appender, segment: Summary) -> int:
    try:
        written_ns = os.stat(segment_path(appender.folder, segment.number)).st_mtime_ns
    except OSError:
        return segment.timestamp_max
    return min(segment.timestamp_max, written_ns // 1000)


def remove_first(ops: FileOps, appender: Appender, store_id: str, segments: list[Summary]) -> Pins:
    """Make it durable that ``segments`` are gone; return where the partitions in them start now.

    Raises:
        OSError: Nothing was removed.
    """
    firsts: Pins = {}
    for each in segments:
        try:
            index = load_index(ops, appender.folder, appender.topic, store_id, each.number)
        except Damaged as error:
            logger.error("retention removes a segment that is gone already: %s", error)
            continue
        for partition, _, next_, *_ in index.extents():
            firsts[partition] = max(firsts.get(partition, 0), next_)
        for partition, _, next_ in index.lost():
            firsts[partition] = max(firsts.get(partition, 0), next_)
    _pin(ops, appender.folder, firsts)
    del appender.sealed[: len(segments)]
    return firsts


def pin_resets(ops: FileOps, appenders: dict[str, Appender], resets: deque[tuple[str, str, int]]) -> None:
    """Make the resets durable, those of topics that are on disk; raises OSError."""
    by_folder: dict[str, Pins] = {}
    while resets:
        topic, partition, first = resets.popleft()
        appender = appenders.get(topic)
        if appender is not None:
            pins = by_folder.setdefault(appender.folder, {})
            pins[partition] = max(pins.get(partition, 0), first)
    for folder, pins in by_folder.items():
        _pin(ops, folder, pins)


def _pin(ops: FileOps, folder: str, firsts: Pins) -> None:
    pins = load_pins(ops, folder)
    for partition, first in firsts.items():
        pins[partition] = max(pins.get(partition, 0), first)
    save_pins(ops, folder, pins)
