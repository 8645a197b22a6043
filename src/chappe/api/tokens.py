"""Tokens: a line of text by which a program or a web page is an identity where it has no certificate to show.

A token names an identity and the end of its time, signed with the key of that identity's certificate. So whoever has
that key makes tokens, on its own machine; who takes one needs nothing but the permissions; and to revoke the identity
ends them all. Whoever has a token is that identity to servers over HTTP until it ends, and nowhere else.

::

    token = base64url(NAME " " END) "." base64url(signature)    # without padding; END in seconds since 1970
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from chappe.errors import NotPermitted, UsageError
from chappe.permissions.rules import Identity, Permissions
from chappe.security import Keys
from chappe.storage.key_files import read_permissions, signing_key

CONTEXT: Final = b"chappe token 1\n"  # before what is signed, so that nothing else that the key signs is a token
TOKEN_MAX: Final = 512  # characters
TOKEN_S_MAX: Final = 397 * 86_400.0  # as long as an identity


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a token is of, and until when; seconds since 1970."""

    name: str
    end: float


def make_token(keys: Keys, lifetime_s: float, now: datetime | None = None) -> str:
    """A token of this identity that counts for so many seconds, at most ``TOKEN_S_MAX``; it is a secret.

    Raises:
        UsageError: There is no such identity, its key cannot be used, or the number of seconds is out of bounds.
    """
    if not 0 < lifetime_s <= TOKEN_S_MAX:
        raise UsageError(f"a token counts for up to {TOKEN_S_MAX / 86_400:.0f} days, not {lifetime_s!r} seconds")
    now = datetime.now(UTC) if now is None else now
    secret = signing_key(keys)
    identity = _in_force(keys.name, read_permissions(keys.directory), now)
    from chappe.sealing.primitives import point_of, signer

    if identity.signs != point_of(secret.public_key()):
        raise UsageError(f"the permissions do not say by which key {keys.name} signs: `chappe keys renew {keys.name}`")
    body = f"{keys.name} {math.ceil(now.timestamp() + lifetime_s)}".encode()
    return f"{_text(body)}.{_text(signer(secret)(CONTEXT + body))}"


def token_holder(token: str, permissions: Permissions, now: datetime) -> Holder:
    """Whom a token is of. Raises NotPermitted, which says why it counts for nothing."""
    from chappe.sealing.primitives import SIGNATURE_BYTES, verifier

    first, _, second = token.partition(".")
    try:
        if len(token) > TOKEN_MAX:
            raise ValueError
        body, signature = _bytes(first), _bytes(second)
        name, _, end = body.decode("ascii").partition(" ")
        if not end.isdecimal() or len(end) > 12 or len(signature) != SIGNATURE_BYTES:
            raise ValueError
    except ValueError:  # of Unicode too
        raise NotPermitted("this is no token: `chappe keys token NAME` makes one") from None
    known = permissions.identities.get(name)
    if known is None or not known.signs or not verifier(known.signs)(signature, CONTEXT + body):
        raise NotPermitted("the token is not signed by an identity of these permissions")
    if now.timestamp() >= int(end):
        raise NotPermitted("the token has expired: `chappe keys token` makes another one")
    try:
        _in_force(name, permissions, now)
    except UsageError as why:
        raise NotPermitted(str(why)) from None
    return Holder(name, float(end))


def _in_force(name: str, permissions: Permissions, now: datetime) -> Identity:
    found = permissions.identities.get(name)
    if found is None:
        raise UsageError(f"the permissions know no identity {name[:100]}")
    why = permissions.refusal(now) or found.refusal(now)
    if why:
        raise UsageError(why)
    return found


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    found = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if _text(found) != text:  # one spelling each; others have characters that are skipped
        raise ValueError
    return found
