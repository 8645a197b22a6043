"""The setting ``audit``: what the commands that serve refuse is written into a topic; see ``chappe.api.audit``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from chappe.cli import options
from chappe.errors import UsageError
from chappe.security import Keys
from chappe.system import settings


def audited(at: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose refusals are written down, if the setting names a topic and it has an identity.

    ``at`` is the parameter with its own address, if it is a tower or forwarder itself: then it writes there.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(*args: Any, **given: Any) -> None:
            topic = os.environ.get("CHAPPE_AUDIT")  # where ``app`` puts that of the file
            keys = _keys(given)
            if not topic or keys is None:
                function(*args, **given)
                return
            from chappe.api.audit import Audit

            with Audit(topic, security=keys, **_where(given, at, keys)):
                function(*args, **given)

        return command

    return decorate


def _keys(given: dict[str, Any]) -> Keys | None:
    """Who the command will be: by ``--as`` or ``--tls``, unless a word says that it has no keys."""
    if given.get("plain") or given.get("anonymous"):
        return None
    tls = given.get("tls")
    acting = given.get("acting") if tls is None else str(tls[0] / tls[1])
    return options.keys_of(acting or settings.identity())


def _where(given: dict[str, Any], at: str, keys: Keys) -> dict[str, Any]:
    """How it reaches the log: itself, as the command says, or as the settings say."""
    if not at:
        if (forwarders := settings.forwarders()) is not None:
            return {"forwarders": forwarders}
        return {"tower": given.get("tower")}
    host, colon, rest = str(given[at]).partition(":")
    if not host or "[" in host:
        raise UsageError(f"{given[at]!r}: refusals are written where it listens, which has to be a name or IPv4")
    here = f"{keys.name}@{'127.0.0.1' if host in ('*', '0.0.0.0') else host}{colon}{rest}"
    return {"forwarders": here} if at == "at" else {"tower": here, "listen": settings.listen(default=host)}
