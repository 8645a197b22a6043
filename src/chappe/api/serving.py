"""The security of servers over HTTP: TLS, hosts to listen on, and accepted clients."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from chappe.api.tokens import Holder, token_holder
from chappe.errors import NotPermitted, UsageError
from chappe.log.guard import LogRefusal
from chappe.permissions.rules import ADMINISTER, Permissions
from chappe.security import Keys, LogSecurity, Security, Tls, check_reach, is_loopback
from chappe.storage.key_files import watched_permissions
from chappe.transports.gate import check_listening, keys_of
from chappe.transports.refusals import RefusalLog
from chappe.transports.tls import contexts, named_identity

BEARER: Final = "bearer "  # of an Authorization header, in whatever case
TOKEN_OFFER: Final = "chappe.token."  # how a page, which can set no header, offers its token: as a subprotocol


def may_be_dialled(found: Sequence[str], named: frozenset[str]) -> bool:
    """True if a client of a server on loopback may have dialled the ``Host`` that it names."""
    if len(found) != 1:
        return False
    try:
        host = urlsplit(f"//{found[0]}").hostname or ""
    except ValueError:
        return False
    return is_loopback(host) or host in {urlsplit(each).hostname for each in named}


def server_tls(security: Security, host: str, *, tokens: bool = False) -> ssl.SSLContext | None:
    """Return TLS for a server on ``host`` beside an endpoint with ``security``; None for plain connections.

    With certificates a client needs one of the same authority, as a peer does; with ``tokens`` it may come
    without one, and the server asks for a token instead (``Door``).

    Raises:
        UsageError: The host is reachable from other machines and the security does not allow that, or its files are
            wrong.
    """
    if isinstance(security, Tls):
        made = contexts(security)
        assert made is not None
        if tokens:
            made.accepting.verify_mode = ssl.CERT_OPTIONAL
        return made.accepting
    if security == "anonymous" and not is_loopback(host):
        raise UsageError(f"{host} is not this machine, and no browser knows anonymous TLS: use certificates")
    check_reach(security, host)
    return None


def certified(tls: ssl.SSLObject | ssl.SSLSocket | None) -> str:
    """Return the identity that the certificate at the other end names; empty without one."""
    return "" if tls is None else named_identity(tls)


class Door:
    """Identifies clients over HTTP with TLS, by the permissions in force: by certificate or token.

    Refusals are counted, and logged, each reason at most every ten seconds.
    """

    def __init__(self, permissions: Callable[[], Permissions]) -> None:
        self._permissions = permissions
        self.refusals = RefusalLog()

    def holder(
        self, host: str, by_certificate: str, authorization: Sequence[str], offered: Sequence[str] = ()
    ) -> Holder:
        """Return the identity of a client, and its end; a token counts before a certificate.

        Args:
            host: The client's address, for the log.
            by_certificate: The result of ``certified``.
            authorization: Its ``Authorization`` headers.
            offered: The subprotocols that it offers.

        Raises:
            NotPermitted: The client may not come in; the text says why.
        """
        try:
            return self._holder(by_certificate, authorization, offered)
        except NotPermitted as why:
            self.refusals.add_stranger(1, f"refused a client of {host or 'an unknown host'}: {why}", str(why))
            raise

    def _holder(self, by_certificate: str, authorization: Sequence[str], offered: Sequence[str]) -> Holder:
        tokens = [each[len(BEARER) :].strip() for each in authorization if each.lower().startswith(BEARER)]
        tokens += [each.removeprefix(TOKEN_OFFER) for each in offered if each.startswith(TOKEN_OFFER)]
        now, permissions = datetime.now(UTC), self._permissions()
        if len(tokens) > 1:
            raise NotPermitted("there is more than one token")
        if tokens:
            return token_holder(tokens[0], permissions, now)
        if not by_certificate:
            raise NotPermitted(
                "a token or the certificate of an identity is needed: `chappe keys token NAME` makes one"
            )
        known = permissions.identities.get(by_certificate)
        why = permissions.refusal(now) or (known.refusal(now) if known is not None else "")
        if known is None or why:
            raise NotPermitted(why or f"the permissions know no identity {by_certificate[:100]}")
        return Holder(by_certificate, math.inf)


class Office:
    """Lets in identities that may ``administer`` all topics, over ``tls``, by certificate or token."""

    @classmethod
    def of(cls, security: LogSecurity, host: str, what: str) -> Office | None:
        """Make one for ``what`` that listens on ``host``; None if everybody may come, without an identity here.

        Raises:
            UsageError: The host is reachable from other machines and no security was chosen, or files are wrong.
            ConfigError: The signature of the permissions is wrong.
        """
        check_listening(security, host, what)
        keys = keys_of(security)
        return None if keys is None else cls(keys)

    def __init__(self, keys: Keys) -> None:
        made = server_tls(keys.tls(), "", tokens=True)
        assert made is not None
        self.tls = made
        self._watched = watched_permissions(keys.directory)
        self._door = Door(lambda: self._watched.permissions)

    @property
    def refused(self) -> int:
        return self._door.refusals.count

    def name(self, host: str, by_certificate: str, authorization: Sequence[str]) -> str:
        """Return the identity of a client, whatever it may do. Raises NotPermitted as ``Door.holder`` does."""
        self._watched.refresh()  # there may be nobody else in this process who looks
        return self._door.holder(host, by_certificate, authorization).name

    def check(self, host: str, by_certificate: str, authorization: Sequence[str]) -> None:
        """Raise NotPermitted as ``Door.holder`` does, or because the client may not see this."""
        name = self.name(host, by_certificate, authorization)
        decision = self._watched.permissions.decide(name, ADMINISTER, "", datetime.now(UTC), subtree=True)
        if not decision.allowed:
            refusal = LogRefusal(name, ADMINISTER, "", decision.why, prefix=True)
            self._door.refusals.add_refusal(refusal)
            raise NotPermitted(str(refusal))
