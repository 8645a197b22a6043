"""Batches of sealed topics, opened for a reader, or the reason why not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from chappe.log.batch import Batch


class UnreadWhy(Enum):
    WRONG = 0  # they are not what they say to be, or not for us: they never can be
    NOT_OURS = 1  # nobody of the group is here
    NO_KEYS_YET = 2  # other files may have their keys


@dataclass(frozen=True, slots=True)
class Unread:
    why: UnreadWhy
    reason: str


@dataclass(frozen=True, slots=True)
class OpenedRead:
    """Records that can be read; ``sender`` is None where the topic is plain."""

    batch: Batch
    sender: str | None = None
