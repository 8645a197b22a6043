"""Tokens: a line of text by which a program or a web page is an identity where it has no certificate to show.

A token is a JSON Web Token (RFC 7519), signed by ES256 with the key of the identity's certificate: ``sub`` is the name
of the identity, ``exp`` the end in seconds since 1970, ``aud`` is ``chappe``. The holder of that key makes tokens on
its own machine; a server needs only the permissions to check one, and revoking the identity ends them all. To
servers over HTTP the holder of a token is that identity until it ends, and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from chappe.errors import NotPermitted, UsageError
from chappe.permissions.rules import Identity, Permissions
from chappe.security import Keys
from chappe.storage.key_files import read_permissions, signing_key

if TYPE_CHECKING:
    from jwt.types import Options

ALGORITHM: Final = "ES256"
AUDIENCE: Final = "chappe"
TOKEN_MAX: Final = 1_024  # characters
TOKEN_S_MAX: Final = 397 * 86_400.0  # as long as an identity


@dataclass(frozen=True, slots=True)
class Holder:
    """A token's identity and its end, in seconds since 1970."""

    name: str
    end: float


def make_token(keys: Keys, lifetime_s: float, now: datetime | None = None) -> str:
    """Return a token of this identity that counts for this many seconds, at most ``TOKEN_S_MAX``; it is a secret.

    Raises:
        UsageError: There is no such identity, its key cannot be used, or the number of seconds is out of bounds.
    """
    if not 0 < lifetime_s <= TOKEN_S_MAX:
        raise UsageError(f"a token counts for up to {TOKEN_S_MAX / 86_400:.0f} days, not {lifetime_s!r} seconds")
    now = datetime.now(UTC) if now is None else now
    secret = signing_key(keys)
    identity = _in_force(keys.name, read_permissions(keys.directory), now)
    import jwt

    from chappe.sealing.primitives import point_of

    if identity.signs != point_of(secret.public_key()):
        raise UsageError(f"the permissions do not say by which key {keys.name} signs: `chappe keys renew {keys.name}`")
    claims = {"sub": keys.name, "exp": math.ceil(now.timestamp() + lifetime_s), "aud": AUDIENCE}
    return jwt.encode(claims, secret, ALGORITHM)


def token_holder(token: str, permissions: Permissions, now: datetime) -> Holder:
    """Return the identity of a token. Raises NotPermitted, which says why the token does not count."""
    import jwt

    from chappe.sealing.primitives import public_key

    try:
        if len(token) > TOKEN_MAX:
            raise jwt.DecodeError
        name = jwt.decode(token, options={"verify_signature": False}).get("sub")  # whose signature it should have
        known = permissions.identities.get(name) if isinstance(name, str) else None
        if known is None:
            raise jwt.InvalidSignatureError
        checked: Options = {"require": ["sub", "exp", "aud"], "verify_exp": False}  # the end is compared with ``now``
        claims = jwt.decode(token, public_key(known.signs), [ALGORITHM], checked, audience=AUDIENCE)
        end = claims["exp"]
        if not isinstance(end, int):
            raise jwt.DecodeError
    except jwt.InvalidSignatureError:
        raise NotPermitted("the token is not signed by an identity of these permissions") from None
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise NotPermitted("invalid token: `chappe keys token NAME` makes one") from None
    if now.timestamp() >= end:
        raise NotPermitted("the token has expired: `chappe keys token` makes another one")
    try:
        _in_force(known.name, permissions, now)
    except UsageError as why:
        raise NotPermitted(str(why)) from None
    return Holder(known.name, float(end))


def _in_force(name: str, permissions: Permissions, now: datetime) -> Identity:
    found = permissions.identities.get(name)
    if found is None:
        raise UsageError(f"the permissions know no identity {name[:100]}")
    why = permissions.refusal(now) or found.refusal(now)
    if why:
        raise UsageError(why)
    return found
