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
content. The place is where the message belongs, as its topic and its receiver. Keys and numbers are as ``records`` has
them, with a purpose of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.defaults import MESH_MESSAGE_BYTES_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.permissions.rules import Identity
from chappe.permissions.text import NAME_MAX, check_name
from chappe.sealing.frames import SALT_BYTES
from chappe.sealing.primitives import SIGNATURE_BYTES, TAG_BYTES, Cipher, Sign, Verify, derived, digest, verifier
from chappe.sealing.records import NUMBER_MAX, REMEMBERED_MAX, Lacking, Refused, untimely
from chappe.sealing.ring import EpochSecret, Ring

VERSION: Final = 1
EVENTS: Final = 1  # kinds: events of one topic ...
COMMAND: Final = 2  # ... commands of a data store ...
VALUE: Final = 3  # ... and a value of a shared map
LIVES_MAX: Final = 10_000  # of senders that are remembered
HEAD: Final = struct.Struct("<BBBBIQq16s")
_SIGNED: Final = b"chappe sealed message 1\n"
_KEY: Final = b"chappe sealed message key 1"


@dataclass(frozen=True, slots=True)
class Frame:
    """What was sealed; ``head`` is all of it that stands before the signature."""

    group: str
    sender: str
    kind: int
    epoch: int
    number: int
    sealed_at: int
    salt: bytes
    head: bytes
    signature: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """What a message says, and how it was sealed."""

    content: bytes
    frame: Frame


Outcome: TypeAlias = Opened | Refused | Lacking


def decode(raw: bytes) -> Frame:
    """What bytes say that may come from anybody. Raises ProtocolError."""
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
    return Frame(group, sender, kind, epoch, number, sealed_at, salt, raw[:at], raw[at:begin], raw[begin:])


def _bound(place: Sequence[bytes], head: bytes) -> bytes:
    """What is bound to the content."""
    return b"".join([part for each in place for part in (len(each).to_bytes(4), each)]) + head


def _to_sign(bound: bytes, content: bytes) -> bytes:
    """What a sender signs. A digest of the content, as other members know the key and could make another one."""
    return _SIGNED + digest(content) + bound


def _cipher(secret: EpochSecret, sender: str, salt: bytes, make: Callable[[bytes], Cipher] = Cipher) -> Cipher:
    parts = (secret.group.encode(), secret.number.to_bytes(4), sender.encode())
    return make(derived(secret.secret, _KEY, *parts, salt=salt))


class MessageSealer:
    """One life of one sender.

    Args:
        sender: The name of its identity.
        salt: ``SALT_BYTES`` random bytes, new for each life.
        sign: With the key of its certificate.
        cipher: Made of each key; see ``Sealer``.
    """

    def __init__(self, sender: str, salt: bytes, sign: Sign, cipher: Callable[[bytes], Cipher] = Cipher) -> None:
        assert len(salt) == SALT_BYTES
        self.sender = sender
        self.salt = salt
        self._sign = sign
        self._make = cipher
        self._number = 0
        self._ciphers: dict[str, tuple[EpochSecret, Cipher]] = {}  # by group, of the epoch in use

    def seal(self, secret: EpochSecret, kind: int, place: Sequence[bytes], text: bytes, sealed_at: int) -> bytes:
        """A message, sealed; ``sealed_at`` is the time in microseconds since 1970 UTC."""
        number, self._number = self._number, self._number + 1
        assert number < NUMBER_MAX
        known = self._ciphers.get(secret.group)
        if known is None or known[0] is not secret:
            known = self._ciphers[secret.group] = secret, _cipher(secret, self.sender, self.salt, self._make)
        group, sender = secret.group.encode(), self.sender.encode()
        sizes = len(group), len(sender)
        head = HEAD.pack(VERSION, *sizes, kind, secret.number, number, sealed_at, self.salt) + group + sender
        bound = _bound(place, head)
        content = known[1].seal(number, text, bound)
        return b"".join((head, self._sign(_to_sign(bound, content)), content))


class MessageOpener:
    """Opens what comes, in whichever order; ``Lives`` says whether that is right."""

    def __init__(self) -> None:
        self._ciphers: dict[tuple[bytes, EpochSecret, str], Cipher] = {}
        self._verifiers: dict[bytes, Verify] = {}

    def open(
        self, raw: bytes, kind: int, place: Sequence[bytes], ring: Ring, identities: Mapping[str, Identity]
    ) -> Outcome:
        """What a message says.

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
            return Refused(str(error))
        if frame.group != ring.keys.group:
            return Refused(f"they are sealed for {frame.group}, and the topic is of {ring.keys.group}")
        if frame.kind != kind:
            return Refused(f"they are sealed as messages of kind {frame.kind}, and not {kind}")
        newest = ring.keys.newest.number
        late = f"they are sealed in epoch {frame.epoch}, and the keys here end with {newest}"
        who = identities.get(frame.sender)
        if who is None:  # a new member begins with a new epoch, and files come one after the other
            if frame.epoch > newest:
                return Lacking(late)
            stranger = f"the permissions here do not have {frame.sender}, who is said to have sealed them"
            return Lacking(stranger) if ring.keys.has(frame.sender, frame.epoch) else Refused(stranger)
        if not who.signs:
            return Refused(f"the permissions have no key by which {frame.sender} signs")
        bound = _bound(place, frame.head)
        if not self._verifier(who.signs)(frame.signature, _to_sign(bound, frame.content)):
            return Refused(f"they are not as {frame.sender} has signed them, for this topic and this receiver")
        if frame.epoch > newest:
            return Lacking(late)
        refusal = untimely(ring, who, frame.epoch, frame.sealed_at)
        if refusal:
            return Refused(refusal)
        secret = ring.secret(frame.epoch)
        if secret is None:
            return Refused(f"they are sealed in epoch {frame.epoch} of {frame.group}, whose key was not given to us")
        text = self._cipher(secret, frame).open(frame.number, frame.content, bound)
        return Refused(f"they are not sealed with the key of {frame.sender}") if text is None else Opened(text, frame)

    def _cipher(self, secret: EpochSecret, frame: Frame) -> Cipher:
        key = frame.salt, secret, frame.sender
        found = self._ciphers.get(key)
        if found is None:
            found = self._ciphers[key] = _cipher(secret, frame.sender, frame.salt)
            if len(self._ciphers) > REMEMBERED_MAX:
                del self._ciphers[next(iter(self._ciphers))]
        return found

    def _verifier(self, point: bytes) -> Verify:
        found = self._verifiers.get(point)
        if found is None:
            found = self._verifiers[point] = verifier(point)
            if len(self._verifiers) > REMEMBERED_MAX:
                del self._verifiers[next(iter(self._verifiers))]
        return found


@dataclass(slots=True)
class _Life:
    number: int
    sealed_at: int


class Lives:
    """What came of each life of a sender last for a group: numbers only rise, as messages of one publisher keep order.

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

    def refusal(self, frame: Frame) -> str:
        """Why a message that was opened is not to be taken; else it is remembered."""
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
