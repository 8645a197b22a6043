"""Worlds in which every endpoint holds back and changes some of what it passes on, all by one rule.

So what is held back comes only to those beside its publisher, and what is changed comes as it was to these, and changed
to all others. There are no originals, to which one of several endpoints passes on what others have; and nobody
publishes in two ways, on one of which may come late what is held back on the other.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from chappe.mesh.messages import Message

FILTERS: Final = 0.08  # of the worlds
_MARK: Final = b"!"  # at the end of what was changed
_KINDS: Final = 4


def is_held(payload: bytes) -> bool:
    """Whether nobody passes on what was published so."""
    return crc32(payload) % _KINDS == 0


def is_changed(payload: bytes) -> bool:
    """Whether everybody changes what was published so."""
    return crc32(payload) % _KINDS == 1


def show(message: Message) -> bytes | None:
    """What an endpoint passes on; what was changed before stays as it is."""
    payload = message.payload
    if payload.endswith(_MARK):
        return payload
    if is_held(payload):
        return None
    return payload + _MARK if is_changed(payload) else payload


def as_published(message: Message) -> tuple[Message, str]:
    """A message as it was published, and what is wrong with how it came; empty if nothing is."""
    payload = message.payload.removesuffix(_MARK)
    before = Message(
        message.topic, payload, message.kind, message.sender, message.receiver, message.ttl, message.origin,
        message.sequence, message.published, message.place,
    )  # fmt: skip
    beside = message.sender == message.origin
    if not beside and is_held(payload):
        return before, "it was to be held back"
    changed = payload != message.payload
    if is_changed(payload) and not beside and not changed:
        return before, "it was to be changed"
    if changed and not is_changed(payload):
        return before, "it was not to be changed"
    return before, ""  # what was sent around may come over its publisher, changed
