"""The keys of senders, and what is checked of everything that was sealed, be it records or messages.

Each group, epoch, sender and life of a sender has a key of its own: it is derived with a salt, which is random for each
life. Within a life each seal has the next number, which is the nonce; so no nonce is used twice, whatever a crash, a
restart or a restored backup makes of a sender, as nothing of it has to be remembered. Numbers are taken before anything
is encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from chappe.permissions.rules import Identity
from chappe.sealing.primitives import Cipher, Sign, Verify, derived, digest, verifier
from chappe.sealing.ring import EpochSecret, Ring

SALT_BYTES: Final = 16
NUMBER_MAX: Final = 1 << 32  # sealed with one key: far below what the cipher allows
REMEMBERED_MAX: Final = 10_000  # partitions, ciphers and keys of senders; beyond, the oldest are found anew
K = TypeVar("K")
V = TypeVar("V")
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Purpose:
    """Keeps the keys and signatures of one kind of seal apart from all others."""

    key: bytes
    signed: bytes  # begins what a sender signs
    where: str  # a part of the sentence that says where something was sealed for

    def to_sign(self, bound: bytes, content: bytes | memoryview) -> bytes:
        """Return the text to sign, with a digest of the content: others know the key and could make another one."""
        return self.signed + digest(content) + bound

    def cipher(self, secret: EpochSecret, sender: str, salt: bytes, make: Callable[[bytes], Cipher] = Cipher) -> Cipher:
        parts = (secret.group.encode(), secret.number.to_bytes(4), sender.encode())
        return make(derived(secret.secret, self.key, *parts, salt=salt))


def bound_to(place: Sequence[bytes], head: bytes) -> bytes:
    """Return the text that encryption binds to a content."""
    return b"".join([part for each in place for part in (len(each).to_bytes(4), each)]) + head


@dataclass(frozen=True, slots=True)
class SealedFrame:
    """The outer part of a sealed content; ``head`` is all of it that is bound to the content."""

    group: str
    sender: str
    epoch: int
    number: int
    sealed_at: int
    salt: bytes
    head: bytes
    signature: bytes
    content: bytes | memoryview


@dataclass(frozen=True, slots=True)
class SealRefused:
    """It is not what it says, or not for us; it will never be opened."""

    reason: str


@dataclass(frozen=True, slots=True)
class KeysLacking:
    """The keys here are older than those it was sealed with."""

    reason: str


class SenderLife:
    """One life of one sender.

    Args:
        sender: The name of its identity.
        salt: ``SALT_BYTES`` random bytes, new for each life.
        sign: With the key of its certificate.
        cipher: Made of each key; a check that no number serves twice brings its own.
    """

    purpose: Purpose

    def __init__(self, sender: str, salt: bytes, sign: Sign, cipher: Callable[[bytes], Cipher] = Cipher) -> None:
        assert len(salt) == SALT_BYTES
        self.sender = sender
        self.salt = salt
        self._sign = sign
        self._make = cipher
        self._number = 0
        self._ciphers: dict[str, tuple[EpochSecret, Cipher]] = {}  # by group, of the epoch in use

    def _next(self, secret: EpochSecret) -> tuple[int, Cipher]:
        number, self._number = self._number, self._number + 1
        assert number < NUMBER_MAX
        known = self._ciphers.get(secret.group)
        if known is None or known[0] is not secret:
            made = self.purpose.cipher(secret, self.sender, self.salt, self._make)
            known = self._ciphers[secret.group] = secret, made
        return number, known[1]

    def _signature(self, bound: bytes, content: bytes) -> bytes:
        return self._sign(self.purpose.to_sign(bound, content))


class SealChecks:
    """Opens what was sealed for one purpose, after it has found that the sender was allowed to seal it."""

    def __init__(self, purpose: Purpose) -> None:
        self._purpose = purpose
        self._ciphers: dict[tuple[bytes, EpochSecret, str], Cipher] = {}
        self._verifiers: dict[bytes, Verify] = {}

    def open(
        self, frame: SealedFrame, place: Sequence[bytes], ring: Ring, identities: Mapping[str, Identity]
    ) -> bytes | SealRefused | KeysLacking:
        """The content.

        Args:
            place: Where it was found.
            ring: Of the group that may write there, which is the group of the frame.
            identities: Those in the permissions.
        """
        newest = ring.keys.newest.number
        late = f"they are sealed in epoch {frame.epoch}, and the keys here end with {newest}"
        who = identities.get(frame.sender)
        if who is None:  # a new member begins with a new epoch, and files come one after the other
            if frame.epoch > newest:
                return KeysLacking(late)
            stranger = f"the permissions here do not have {frame.sender}, who is said to have sealed them"
            return KeysLacking(stranger) if ring.keys.has(frame.sender, frame.epoch) else SealRefused(stranger)
        bound = bound_to(place, frame.head)
        if not self._verifier(who.signs)(frame.signature, self._purpose.to_sign(bound, frame.content)):
            return SealRefused(f"they are not as {frame.sender} has signed them, for {self._purpose.where}")
        if frame.epoch > newest:
            return KeysLacking(late)
        refusal = _untimely(ring, who, frame.epoch, frame.sealed_at)
        if refusal:
            return SealRefused(refusal)
        secret = ring.secret(frame.epoch)
        if secret is None:
            return SealRefused(
                f"they are sealed in epoch {frame.epoch} of {frame.group}, whose key was not given to us"
            )
        text = self._cipher(secret, frame).open(frame.number, frame.content, bound)
        return SealRefused(f"they are not sealed with the key of {frame.sender}") if text is None else text

    def _cipher(self, secret: EpochSecret, frame: SealedFrame) -> Cipher:
        key = frame.salt, secret, frame.sender
        found = self._ciphers.get(key)
        if found is None:
            found = self._ciphers[key] = self._purpose.cipher(secret, frame.sender, frame.salt)
            keep_newest(self._ciphers)
        return found

    def _verifier(self, point: bytes) -> Verify:
        found = self._verifiers.get(point)
        if found is None:
            found = self._verifiers[point] = verifier(point)
            keep_newest(self._verifiers)
        return found


def _untimely(ring: Ring, who: Identity, epoch: int, at: int) -> str:
    """The reason why somebody could not seal in this epoch at this time, in microseconds."""
    if not ring.keys.has(who.name, epoch):
        return f"{who.name} is not of {ring.keys.group} in epoch {epoch}"
    try:
        sealed_at = _BEGINNING + timedelta(microseconds=at)
    except OverflowError:
        return "they were sealed at no time that there is"
    if not ring.accepts(epoch, sealed_at, who.name):
        return f"they say to be sealed on {sealed_at:%Y-%m-%d %H:%M} UTC, when epoch {epoch} was not in use"
    if who.revoked is not None and sealed_at > who.revoked:
        return f"{who.name} was revoked before it sealed them"
    if sealed_at >= who.expires:
        return f"{who.name} had expired when it sealed them"
    return ""


def keep_newest(remembered: dict[K, V]) -> None:
    """Forget the oldest entries beyond ``REMEMBERED_MAX``."""
    while len(remembered) > REMEMBERED_MAX:
        del remembered[next(iter(remembered))]
