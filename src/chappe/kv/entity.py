"""The identity of a participant of a data store: an endpoint, and one object in it.

The topics that a store's messages travel on, and its name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from chappe.data.given import as_text
from chappe.data.topic import CLONE_SUFFIX, MASTER_SUFFIX
from chappe.defaults import STORE_NAME_BYTES_MAX
from chappe.errors import UsageError

_SUFFIXES: Final = (MASTER_SUFFIX, CLONE_SUFFIX)
EVENTS_PREFIX: Final = b"<$>/local/data/store-events/"


def check_name(name: object) -> bytes:
    """Return the bytes of a store's name; raises UsageError if a store cannot have it."""
    try:
        raw = as_text(name, "the name of a store").encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name!r} cannot be the name of a store: it holds half of a surrogate pair") from None
    if not raw or len(raw) > STORE_NAME_BYTES_MAX or raw.startswith(b"<$>"):
        raise UsageError(f"a store's name has 1 to {STORE_NAME_BYTES_MAX} bytes and does not begin with <$>: {name!r}")
    return raw


def master_topic(name: bytes) -> bytes:
    """Return the topic of a store's master; a slash at the end of the name stays, as the original has it."""
    return name + MASTER_SUFFIX


def clone_topic(name: bytes) -> bytes:
    return name + CLONE_SUFFIX


def store_of(topic: bytes) -> bytes | None:
    """Return the name of the store that a topic is of; None if it is of none."""
    for suffix in _SUFFIXES:
        if topic.endswith(suffix):
            return topic[: -len(suffix)]
    return None


ENDPOINT_BYTES: Final = 16
ENTITY_BYTES: Final = 24
_MARK: Final = 0x63687070  # "chpp", in the upper half of the object numbers of chappe's masters and clones
_FAR_MARK: Final = 0x63687066  # "chpf": the same where they are behind an original, which passes on only what it knows
_MARK_BITS: Final = 32


class Entity(NamedTuple):
    """A master or clone: the 16 bytes of its endpoint and a number of 64 bits.

    The original numbers objects by small integers. Masters and clones of chappe have a mark in the upper half and a
    number of their own, different in each life, in the lower: so they know each other without having to ask.
    """

    endpoint: bytes
    number: int

    @property
    def is_chappe(self) -> bool:
        return self.number >> _MARK_BITS == _MARK

    def __str__(self) -> str:
        hexed = self.endpoint.hex()
        parts = (hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:])
        marked = self.number >> _MARK_BITS in (_MARK, _FAR_MARK)
        return f"{self.number & 0xFFFFFFFF if marked else self.number}@{'-'.join(parts)}"


NOBODY: Final = Entity(bytes(ENDPOINT_BYTES), 0)


def chappe_entity(endpoint: bytes, life: int) -> Entity:
    """Return an entity of chappe; ``life`` is 32 bits that no other master or clone of the endpoint has, or had."""
    return Entity(endpoint, _MARK << _MARK_BITS | (life & 0xFFFFFFFF))


def far(number: int) -> int:
    """The number of an object of chappe whose messages come over an original: it is to be taken for an original's.

    An original drops every command that it does not know, so nothing that chappe adds gets through.
    """
    return number ^ (_MARK ^ _FAR_MARK) << _MARK_BITS if number >> _MARK_BITS == _MARK else number


def near(number: int) -> int:
    return number ^ (_MARK ^ _FAR_MARK) << _MARK_BITS if number >> _MARK_BITS == _FAR_MARK else number
