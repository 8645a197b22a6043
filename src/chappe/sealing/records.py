"""Sealing and opening batches of records.

Each group, epoch, sender and life of a sender has a key of its own: it is derived with a salt, which is random for each
life. Within a life each batch has the next number, which is the nonce; so no nonce is used twice, whatever a crash, a
restart or a restored backup makes of a sender, as nothing of it has to be remembered. Numbers are taken before anything
is encrypted.

What is opened is what was sealed, by who is named, for this topic, partition and offsets, in this epoch. In a partition
offsets come in order, and with them epochs and, within a life, numbers; a partition has one sender. So replay, another
order, and what was cut out and put elsewhere are noticed. What is withheld is noticed as missing offsets are.

Who does not know offsets yet seals for a *place* instead, which grows within a partition. Several lives may write one
such partition, and some of them have the next epoch before others have it; so there places alone are to come in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, TypeVar

from chappe.data.topic import encode_topic
from chappe.errors import ProtocolError
from chappe.permissions.rules import Identity
from chappe.sealing.frames import SALT_BYTES, Frame, Span, beside, decode, encode, encode_head, to_sign
from chappe.sealing.primitives import TAG_BYTES, Cipher, Sign, Verify, derived, verifier
from chappe.sealing.ring import EpochSecret, Ring

NUMBER_MAX: Final = 1 << 32  # of batches sealed with one key: far below what the cipher allows
REMEMBERED_MAX: Final = 10_000  # partitions, ciphers and keys of senders; beyond, the oldest are found anew
K = TypeVar("K")
V = TypeVar("V")
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Opened:
    """What was sealed, and by whom."""

    content: bytes
    sender: str
    span: Span
    placed_later: bool = False  # then the offsets in it are none yet


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not what it says, or not for us; it will never be opened."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lacking:
    """The keys here are older than those it was sealed with."""

    reason: str


Outcome: TypeAlias = Opened | Refused | Lacking


def _cipher(secret: EpochSecret, sender: str, salt: bytes, make: Callable[[bytes], Cipher] = Cipher) -> Cipher:
    parts = (secret.group.encode(), secret.number.to_bytes(4), sender.encode())
    return make(derived(secret.secret, b"chappe sealed sender 1", *parts, salt=salt))


class Sealer:
    """One life of one sender.

    Args:
        sender: The name of its identity.
        salt: ``SALT_BYTES`` random bytes, new for each life.
        sign: With the key of its certificate.
        cipher: Made of each key; who looks whether a number serves twice has another one.
    """

    def __init__(self, sender: str, salt: bytes, sign: Sign, cipher: Callable[[bytes], Cipher] = Cipher) -> None:
        assert len(salt) == SALT_BYTES
        self.sender = sender
        self._salt = salt
        self._sign = sign
        self._make = cipher
        self._number = 0
        self._ciphers: dict[str, tuple[EpochSecret, Cipher]] = {}  # by group, of the epoch in use

    def seal(
        self,
        secret: EpochSecret,
        topic: str,
        partition: str,
        span: Span,
        text: bytes,
        sealed_at: int,
        place: int | None = None,
    ) -> tuple[bytes, ...]:
        """A batch of records, sealed, in parts.

        Args:
            sealed_at: The time in microseconds since 1970 UTC.
            place: In the partition, if offsets are given later.
        """
        number, self._number = self._number, self._number + 1
        assert number < NUMBER_MAX
        known = self._ciphers.get(secret.group)
        if known is None or known[0] is not secret:
            known = self._ciphers[secret.group] = secret, _cipher(secret, self.sender, self._salt, self._make)
        size = len(text) + TAG_BYTES
        head = encode_head(secret.group, self.sender, secret.number, number, sealed_at, span, self._salt, size, place)
        bound = beside(head, encode_topic(topic), encode_topic(partition))
        content = known[1].seal(number, text, bound)
        return encode(head, self._sign(to_sign(bound, content)), content)


@dataclass(slots=True)
class _Place:
    """How far a partition was opened."""

    sender: str
    span: Span
    epoch: int
    place: int | None
    salt: bytes
    number: int


class Opener:
    """Opens what comes of all partitions, each in the order of its offsets."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], _Place] = {}
        self._ciphers: dict[tuple[bytes, EpochSecret, str], Cipher] = {}
        self._verifiers: dict[bytes, Verify] = {}

    def open(
        self,
        raw: bytes | memoryview,
        topic: str,
        partition: str,
        span: Span,
        ring: Ring,
        identities: Mapping[str, Identity],
    ) -> Outcome:
        """What was sealed.

        Args:
            raw: As ``frames`` describes it.
            span: Which records it is said to be; all that were sealed together, or some of them.
            ring: Of the group that may write the topic.
            identities: Those in the permissions.
        """
        try:
            frame = decode(raw)
        except ProtocolError as error:
            return Refused(str(error))
        refusal = _misplaced(frame, span, ring)
        if refusal:
            return Refused(refusal)
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
        bound = beside(frame.head, encode_topic(topic), encode_topic(partition))
        if not self._verifier(who.signs)(frame.signature, to_sign(bound, frame.content)):
            return Refused(f"they are not as {frame.sender} has signed them, for this topic and these offsets")
        if frame.epoch > newest:
            return Lacking(late)
        refusal = untimely(ring, who, frame.epoch, frame.sealed_at)
        if refusal:
            return Refused(refusal)
        secret = ring.secret(frame.epoch)
        if secret is None:
            return Refused(f"they are sealed in epoch {frame.epoch} of {frame.group}, whose key was not given to us")
        text = self._cipher(secret, frame).open(frame.number, frame.content, bound)
        if text is None:
            return Refused(f"they are not sealed with the key of {frame.sender}")
        refusal = self._disordered(frame, topic, partition)
        return Refused(refusal) if refusal else Opened(text, frame.sender, frame.span, frame.place is not None)

    def _disordered(self, frame: Frame, topic: str, partition: str) -> str:
        """Why this cannot come after what came before; else it is remembered."""
        place = self._places.pop((topic, partition), None)
        if place is not None:
            self._places[topic, partition] = place
            if place.sender != frame.sender:
                return f"they are of {frame.sender}, and the partition is of {place.sender}"
            later = frame.span.base >= place.span.next
            if frame.place is not None or place.place is not None:
                return self._displaced(frame, place, later, (topic, partition))
            if later and frame.epoch < place.epoch:
                return f"they are sealed in epoch {frame.epoch}, after records of epoch {place.epoch}"
            if later and frame.salt == place.salt and frame.number <= place.number:
                return f"they were sealed before those that they follow, by {frame.sender}"
        self._remember(frame, (topic, partition))
        return ""

    def _displaced(self, frame: Frame, place: _Place, later: bool, key: tuple[str, str]) -> str:
        """The same where offsets were given later."""
        if frame.place is None or place.place is None:
            return "they were sealed in another way than others of the partition"
        again = frame.span == place.span
        if (frame.place == place.place) != again or (frame.place > place.place) != (later and not again):
            return f"they were sealed for another place among those of {frame.sender}"
        self._remember(frame, key)
        return ""

    def _remember(self, frame: Frame, key: tuple[str, str]) -> None:
        self._places[key] = _Place(frame.sender, frame.span, frame.epoch, frame.place, frame.salt, frame.number)
        _bound(self._places)

    def _cipher(self, secret: EpochSecret, frame: Frame) -> Cipher:
        found = self._ciphers.get((frame.salt, secret, frame.sender))
        if found is None:
            found = self._ciphers[frame.salt, secret, frame.sender] = _cipher(secret, frame.sender, frame.salt)
            _bound(self._ciphers)
        return found

    def _verifier(self, point: bytes) -> Verify:
        found = self._verifiers.get(point)
        if found is None:
            found = self._verifiers[point] = verifier(point)
            _bound(self._verifiers)
        return found


def _misplaced(frame: Frame, span: Span, ring: Ring) -> str:
    sealed = frame.span
    if frame.group != ring.keys.group:
        return f"they are sealed for {frame.group}, and the topic is of {ring.keys.group}"
    within = sealed.base <= span.base and span.next <= sealed.next and span.count > 0
    if not within or (span.low, span.high) != (sealed.low, sealed.high):
        return f"they are said to be other records than {sealed.base} to {sealed.next - 1}, which were sealed"
    return ""


def untimely(ring: Ring, who: Identity, epoch: int, at: int) -> str:
    """Why somebody could not seal in this epoch at this time, in microseconds."""
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


def _bound(remembered: dict[K, V]) -> None:
    while len(remembered) > REMEMBERED_MAX:
        del remembered[next(iter(remembered))]
