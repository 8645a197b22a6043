"""Topic names, the prefixes that select them, and endpoints of the log.

On the wire a topic is bytes without NUL, at most 255 of them. In Python it is ``str``; bytes that are not
UTF-8 survive through ``surrogateescape``, so a topic of an original Dafka producer is never refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from ipaddress import ip_address
from itertools import islice
from operator import ne
from typing import Final

from chappe.data.given import as_text
from chappe.defaults import ENDPOINT_BYTES_MAX, TOPIC_BYTES_MAX
from chappe.errors import UsageError

# A name or an address. Nothing of what else ZeroMQ understands, such as ``ADDRESS:PORT;HOST``, by which one dials from.
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
MASTER_SUFFIX: Final = b"/<$>/data/master"  # of the topic at which the master of a data store listens ...
CLONE_SUFFIX: Final = b"/<$>/data/clone"  # ... and its clones do


def is_endpoint(text: str) -> bool:
    """Return whether ``text`` is ``tcp://HOST:PORT``, printable and of at most ``ENDPOINT_BYTES_MAX`` characters.

    Where connections have keys ``#NAME`` follows, the identity whose key is to be there.
    Other transports are refused: what comes from the network must not make us open sockets of this machine. So are
    addresses at which nobody is: unspecified ones, and those of many.
    """
    where, mark, name = text.removeprefix("tcp://").partition("#")
    host, _, port = where.rpartition(":")
    return (
        text.startswith("tcp://")
        and len(text) <= ENDPOINT_BYTES_MAX
        and text.isascii()
        and text.isprintable()
        and _is_host(host)
        and port.isdigit()
        and 0 < int(port) < 65536
        and (not mark or _NAME.fullmatch(name) is not None)
    )


def _is_host(text: str) -> bool:
    """True if it can be the name or the address of a single machine."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _HOST.fullmatch(host) is None:
        return False
    if ":" not in host and _NUMBER.fullmatch(host.rpartition(".")[2]) is None:
        return True  # a name
    try:
        address = ip_address(host)
    except ValueError:
        return False  # also forms that systems accept as addresses, such as 0 or 127.1
    plain = getattr(address, "ipv4_mapped", None) or address
    return not plain.is_unspecified and not plain.is_multicast and str(plain) != "255.255.255.255"


def identity_of(endpoint: str) -> tuple[str, str]:
    """Split an endpoint into its address and the identity expected there, which is empty if it names none."""
    where, _, name = endpoint.partition("#")
    return where, name


SIMILAR_OF: Final = 2_000


def encode_topic(topic: str) -> bytes:
    """Return the bytes of a topic; raises UsageError if they cannot travel."""
    try:
        raw = topic.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{topic!a} is not a topic: it holds half of a surrogate pair") from None
    if len(raw) > TOPIC_BYTES_MAX:
        raise UsageError(f"topic is {len(raw)} bytes long, at most {TOPIC_BYTES_MAX} are possible")
    if b"\0" in raw:
        raise UsageError("a topic cannot contain a NUL byte")
    return raw


def decode_topic(raw: bytes) -> str:
    """Return the text of a topic."""
    return raw.decode("utf-8", "surrogateescape")


def check_topic(given: object) -> str:
    """Return the name of a topic that we write to; raise UsageError if it cannot be one.

    Topics of others may have names that this refuses, with control characters or ``*`` at the end; they can be read.
    """
    topic = as_topic(given)
    if topic.endswith("*"):
        raise UsageError(f"a topic to write to cannot end in *, as {topic!r} does: readers take that for a prefix")
    if any(ord(each) < 32 or 127 <= ord(each) < 160 for each in topic):
        raise UsageError(f"a topic to write to cannot hold control characters, as {topic!a} does")
    return topic


def as_topic(given: object) -> str:
    """Return a topic's name as others decode it; raises UsageError if it cannot be encoded.

    In a locale of ASCII each byte of ``ü`` arrives as a surrogate, which this repairs.
    """
    topic = as_text(given, "a topic")
    if not topic:
        raise UsageError("a topic needs a name of at least one character")
    return decode_topic(encode_topic(topic))


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects topics: one by its exact name, or all that start with a prefix."""

    name: str
    prefix: bool = False

    @classmethod
    def parse(cls, given: object) -> Filter:
        """``metrics`` is the topic itself; ``metrics.*`` and ``*`` are prefixes."""
        text = as_text(given, "a topic")
        if text.endswith("*"):
            return cls(decode_topic(encode_topic(text[:-1])), True)
        return cls(as_topic(text))

    def matches(self, topic: str) -> bool:
        return topic.startswith(self.name) if self.prefix else topic == self.name

    def __str__(self) -> str:
        return self.name + "*" if self.prefix else self.name


def similar(topic: str, names: Iterable[str]) -> list[str]:
    """Up to three of ``names`` that are spelt nearly as ``topic``, the nearest first; at most 2,000 are looked at."""
    others = filter(partial(ne, topic), names)  # compiled, a generator would be a list, and take all names at once
    known = dict.fromkeys(islice(others, SIMILAR_OF))
    return get_close_matches(topic, known, n=3)


def shown(name: str) -> str:
    """A name that a peer chose, for people: without what is not printable."""
    return name if name.isprintable() else repr(name)[1:-1]
