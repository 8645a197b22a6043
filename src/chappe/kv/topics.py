"""The topics that a store's messages travel on, and its name."""

from __future__ import annotations

from typing import Final

from chappe.data.given import as_text
from chappe.defaults import STORE_NAME_BYTES_MAX
from chappe.errors import UsageError

MASTER_SUFFIX: Final = b"/<$>/data/master"
CLONE_SUFFIX: Final = b"/<$>/data/clone"
_SUFFIXES: Final = (MASTER_SUFFIX, CLONE_SUFFIX)
EVENTS_PREFIX: Final = b"<$>/local/data/store-events/"


def check_name(name: object) -> bytes:
    """The bytes of a store's name; raises UsageError if a store cannot have it."""
    try:
        raw = as_text(name, "the name of a store").encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name!r} cannot be the name of a store: it holds half of a surrogate pair") from None
    if not raw or len(raw) > STORE_NAME_BYTES_MAX or raw.startswith(b"<$>"):
        raise UsageError(f"a store's name has 1 to {STORE_NAME_BYTES_MAX} bytes and does not begin with <$>: {name!r}")
    return raw


def master_topic(name: bytes) -> bytes:
    """Where the master of a store listens; a slash at the end of the name stays, as the original has it."""
    return name + MASTER_SUFFIX


def clone_topic(name: bytes) -> bytes:
    """Where the clones of a store listen."""
    return name + CLONE_SUFFIX


def store_of(topic: bytes) -> bytes | None:
    """The name of the store that a topic is of; None if it is of none."""
    for suffix in _SUFFIXES:
        if topic.endswith(suffix):
            return topic[: -len(suffix)]
    return None
