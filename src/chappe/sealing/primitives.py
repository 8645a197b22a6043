"""The primitives of sealing, from ``cryptography``: HKDF with SHA-256, AES-256-GCM, X25519, ECDSA on P-256; and BLAKE3.

AES-GCM takes a sixth of the time of ChaCha20-Poly1305 on processors of today, and a signature of a certificate's key
needs no further key; both nonces and keys are the callers' affair. Of digests, BLAKE3 takes a fifth of the time of
SHA-256 in hardware. An importer of this module has both packages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from blake3 import blake3
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64  # two numbers of 32 bytes
NONCE_BYTES: Final = 12
_HALF: Final = SIGNATURE_BYTES // 2

Sign: TypeAlias = Callable[[bytes], bytes]  # a text's signature, SIGNATURE_BYTES long
Verify: TypeAlias = Callable[[bytes, bytes], bool]  # whether the first is a signature of the second


class Cipher:
    """AES-256-GCM with one key; each number is to be used once."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._aead = AESGCM(key)

    def seal(self, number: int, text: bytes | memoryview, beside: bytes) -> bytes:
        """``text`` encrypted, and ``TAG_BYTES`` that show any change of it, or of what stands beside it."""
        return self._aead.encrypt(number.to_bytes(NONCE_BYTES), text, beside)

    def open(self, number: int, sealed: bytes | memoryview, beside: bytes) -> bytes | None:
        """Return the sealed text; None if anything is other than it was."""
        try:
            return self._aead.decrypt(number.to_bytes(NONCE_BYTES), sealed, beside)
        except InvalidTag:
            return None


class SteadyCipher:
    """AES-256-SIV: the same text beside the same things looks the same, and needs no number; nothing else is told."""

    __slots__ = ("_siv",)

    def __init__(self, key: bytes) -> None:
        assert len(key) == 2 * KEY_BYTES
        self._siv = AESSIV(key)

    @classmethod
    def of(cls, secret: bytes, purpose: bytes) -> SteadyCipher:
        return cls(derived(secret, purpose, b"one") + derived(secret, purpose, b"two"))

    def seal(self, text: bytes, *beside: bytes) -> bytes:
        """``TAG_BYTES``, and ``text`` encrypted, which has at least one byte."""
        return self._siv.encrypt(text, list(beside))

    def open(self, sealed: bytes, *beside: bytes) -> bytes | None:
        if len(sealed) <= TAG_BYTES:
            return None
        try:
            return self._siv.decrypt(sealed, list(beside))
        except InvalidTag:
            return None


def derived(secret: bytes, purpose: bytes, *parts: bytes, salt: bytes = b"") -> bytes:
    """A key for one purpose; of parts each has its length before it, so that no two lists look alike."""
    info = purpose + b"".join(len(part).to_bytes(4) + part for part in parts)
    return HKDF(hashes.SHA256(), KEY_BYTES, salt or None, info).derive(secret)


def digest(text: bytes | memoryview) -> bytes:
    return blake3(text).digest()


def shared_secret(private: bytes, public: bytes) -> bytes | None:
    """Return the common secret of two X25519 keys; None with a key that has nothing in common with any."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return None


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def point_of(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)


def signer(key: ec.EllipticCurvePrivateKey) -> Sign:
    """Return the function that signs with a key on P-256."""

    def sign(text: bytes) -> bytes:
        first, second = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256())))
        return first.to_bytes(_HALF) + second.to_bytes(_HALF)

    return sign


def public_key(point: bytes) -> ec.EllipticCurvePublicKey:
    """The key of ``point_of``. Raises ValueError if it is not a point of the curve."""
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)


def verifier(point: bytes) -> Verify:
    """Checks signatures of the key of ``point_of``; with something else than a point every one is wrong."""
    try:
        key = public_key(point)
    except ValueError:
        return lambda signature, text: False

    def verify(signature: bytes, text: bytes) -> bool:
        numbers = int.from_bytes(signature[:_HALF]), int.from_bytes(signature[_HALF:])
        try:
            key.verify(encode_dss_signature(*numbers), text, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    return verify
