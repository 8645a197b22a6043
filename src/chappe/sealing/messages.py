"""Sealing and opening single messages: events of the mesh, and commands of data stores. What was sealed is::

    version 1, bytes of the group, bytes of the sender, kind       4 x u8
    epoch                                                          u32
    number: how many its sender sealed before with this salt       u64
    sealed at, microseconds since 1970 UTC                         i64
    salt: random, of one life of the sender                        16 bytes
    group, sender                                                  UTF-8
    signature of the sender                                        64 bytes
    content: encrypted, and 16 bytes that show a change

All before the signature, with the place, is bound to the content by its encryption, and signed with a digest of the
content. The place is where the message belongs, as its topic and its receiver.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.defaults import MESH_MESSAGE_BYTES_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.permissions.rules import Identity
from chappe.permissions.text import NAME_MAX, check_name
from chappe.sealing.primitives import SIGNATURE_BYTES, TAG_BYTES
from chappe.sealing.ring import EpochSecret, Ring
from chappe.sealing.senders import KeysLacking, Purpose, SealChecks, SealedFrame, SealRefused, SenderLife, bound_to

VERSION: Final = 1
EVENTS: Final = 1  # kinds: events of one topic ...
COMMAND: Final = 2  # ... commands of a data store ...
VALUE: Final = 3  # ... and a value of a shared map
LIVES_MAX: Final = 10_000  # of senders that are remembered
HEAD: Final = struct.Struct("<BBBBIQq16s")
MESSAGES: Final = Purpose(b"chappe sealed message key 1", b"chappe sealed message 1\n", "this topic and this receiver")


@dataclass(frozen=True, slots=True)
class MessageFrame(SealedFrame):
    content: bytes
    kind: int


@dataclass(frozen=True, slots=True)
class OpenedContent:
    content: bytes
    frame: MessageFrame


MessageOutcome: TypeAlias = OpenedContent | SealRefused | KeysLacking


def decode(raw: bytes) -> MessageFrame:
    """Decode bytes that may come from anybody. Raises ProtocolError."""
    if not HEAD.size <= len(raw) <= MESH_MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a sealed message of {len(raw)} bytes")
    version, group_size, sender_size, kind, epoch, number, sealed_at, salt = HEAD.unpack_from(raw)
    if version != VERSION:
        raise ProtocolError("a sealed message of a newer version")
    at = HEAD.size + group_size + sender_size
    begin = at + SIGNATURE_BYTES
    if not (0 < group_size <= NAME_MAX and 0 < sender_size <= NAME_MAX and begin + TAG_BYTES < len(raw)):
        raise ProtocolError("a sealed message whose parts do not fill it")
    try:
        group, sender = raw[HEAD.size : at - sender_size].decode(), raw[at - sender_size : at].decode()
        check_name(group), check_name(sender)
    except (UnicodeDecodeError, UsageError):
        raise ProtocolError("a sealed message whose names are none") from None
    return MessageFrame(group, sender, epoch, number, sealed_at, salt, raw[:at], raw[at:begin], raw[begin:], kind)


class MessageSealer(SenderLife):
    purpose = MESSAGES

    def seal(self, secret: EpochSecret, kind: int, place: Sequence[bytes], text: bytes, sealed_at: int) -> bytes:
        """A message, sealed; ``sealed_at`` is the time in microseconds since 1970 UTC."""
        number, cipher = self._next(secret)
        group, sender = secret.group.encode(), self.sender.encode()
        sizes = len(group), len(sender)
        head = HEAD.pack(VERSION, *sizes, kind, secret.number, number, sealed_at, self.salt) + group + sender
        bound = bound_to(place, head)
        content = cipher.seal(number, text, bound)
        return b"".join((head, self._signature(bound, content), content))


class MessageOpener:
    """Opens what comes, in whichever order; ``Lives`` says whether that is right."""

    def __init__(self) -> None:
        self._checks = SealChecks(MESSAGES)

    def open(
        self, raw: bytes, kind: int, place: Sequence[bytes], ring: Ring, identities: Mapping[str, Identity]
    ) -> MessageOutcome:
        """Open a message.

        Args:
            raw: As the module describes it.
            kind: Of message.
            place: Where it was found.
            ring: Of the group that may write there.
            identities: Those in the permissions.
        """
        try:
            frame = decode(raw)
        except ProtocolError as error:
            return SealRefused(str(error))
        if frame.group != ring.keys.group:
            return SealRefused(f"they are sealed for {frame.group}, and the topic is of {ring.keys.group}")
        if frame.kind != kind:
            return SealRefused(f"they are sealed as messages of kind {frame.kind}, and not {kind}")
        text = self._checks.open(frame, place, ring, identities)
        return OpenedContent(text, frame) if isinstance(text, bytes) else text


@dataclass(slots=True)
class _Life:
    number: int
    sealed_at: int


class Lives:
    """The last message of each sender's life in a group: numbers only rise, as one publisher's messages keep order.

    Lives of before this began are not remembered, and of many the one that was heard of the longest ago is forgotten.
    So what was sealed before that is refused where its life is not known.

    Args:
        own: The salt of whoever listens: nothing of it is to come back.
        since: Microseconds since 1970: what was sealed before is refused, of lives that are not known.
    """

    def __init__(self, own: bytes, since: int) -> None:
        self._own = own
        self._since = since
        self._known: dict[tuple[str, bytes, int, str], _Life] = {}

    def refusal(self, frame: MessageFrame) -> str:
        """The reason to refuse a message that was opened; else it is remembered."""
        if frame.salt == self._own:
            return "they were published here, and somebody sent them back"
        key = frame.sender, frame.salt, frame.kind, frame.group  # what waits for keys of one group comes behind others
        life = self._known.pop(key, None)
        if life is None:
            if frame.sealed_at < self._since:
                return f"{frame.sender} has sealed them long before anything of it was heard here"
            life = _Life(-1, frame.sealed_at)
        self._known[key] = life
        if len(self._known) > LIVES_MAX:
            forgotten = self._known.pop(next(iter(self._known)))
            self._since = max(self._since, forgotten.sealed_at + 1)
        if frame.number <= life.number:
            return f"they came before, or were sealed before others that came already, by {frame.sender}"
        life.number, life.sealed_at = frame.number, max(life.sealed_at, frame.sealed_at)
        return ""
