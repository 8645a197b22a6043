"""What the permissions in force decide, remembered: asked for every message, and looked up once. Pure.

Of several identities (``a+b``, of a socket that knows only that it is one of these) each has to be allowed. Of several
verbs one is enough. When the permissions change, or somebody expires, there are new ``Decisions``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeAlias

from chappe.permissions.rules import Permissions

REMEMBERED_MAX: Final = 50_000  # answers; beyond it all are forgotten
SCOPES_MAX: Final = 200  # prefixes and topics that one subscription is narrowed to; further ones are left out
AND: Final = "+"  # between names, none of which has it

Verbs: TypeAlias = tuple[str, ...]
Scope: TypeAlias = tuple[str, bool]  # how topics begin, and whether that is the whole topic


class Decisions:
    """Answers of one file at one time; ``now`` is before the next identity expires."""

    def __init__(self, permissions: Permissions, now: datetime) -> None:
        self.permissions = permissions
        self._now = now
        self._may: dict[tuple[str, Verbs, str], bool] = {}
        self._scopes: dict[tuple[str, Verbs, str], tuple[Scope, ...]] = {}
        self._somewhere: dict[tuple[str, Verbs, str], bool] = {}

    def may(self, who: str, verbs: Verbs, topic: str) -> bool:
        """True if somebody may do one of these with a topic."""
        key = (who, verbs, topic)
        found = self._may.get(key)
        if found is None:
            if len(self._may) >= REMEMBERED_MAX:
                self._may.clear()
            found = self._may[key] = all(
                any(self.permissions.decide(name, verb, topic, self._now).allowed for verb in verbs)
                for name in who.split(AND)
            )
        return found

    def may_somewhere(self, who: str, verbs: Verbs, prefix: str = "") -> bool:
        """True if there may be a topic that begins so with which somebody may do one of these."""
        key = (who, verbs, prefix)
        found = self._somewhere.get(key)
        if found is None:
            if len(self._somewhere) >= REMEMBERED_MAX:
                self._somewhere.clear()
            names = who.split(AND)
            found = self._somewhere[key] = all(self._one_somewhere(name, verbs, prefix) for name in names)
        return found

    def scopes(self, who: str, verbs: Verbs, prefix: str) -> tuple[Scope, ...]:
        """Narrow the topics that begin so to those with which somebody may do one of these.

        Each scope is allowed as a whole: where a rule denies some topics of a prefix, it is left out, as nobody can
        subscribe to all but these. ``(prefix, False)`` alone: all of it.
        """
        key = (who, verbs, prefix)
        found = self._scopes.get(key)
        if found is None:
            if len(self._scopes) >= REMEMBERED_MAX:
                self._scopes.clear()
            first, *others = (self._scopes_of(name, verbs, prefix) for name in who.split(AND))
            found = self._scopes[key] = tuple(each for each in first if all(each in other for other in others))
        return found

    def may_all(self, who: str, verbs: Verbs, prefix: str) -> bool:
        """True if somebody may do one of these with all topics that begin so."""
        return self.scopes(who, verbs, prefix) == ((prefix, False),)

    def why_not(self, who: str, verb: str, topic: str) -> str:
        """The reason why somebody may not, for people."""
        for name in who.split(AND):
            found = self.permissions.decide(name, verb, topic, self._now)
            if not found.allowed:
                return f"{found.why} (line {found.line})" if found.line else found.why
        return "the rules allow it"

    def _one_somewhere(self, name: str, verbs: Verbs, prefix: str) -> bool:
        identity = self.permissions.identities.get(name)
        if identity is None or self.permissions.refusal(self._now) or identity.refusal(self._now):
            return False
        return any(self.permissions.may_somewhere(identity, verb, prefix) for verb in verbs)

    def _scopes_of(self, name: str, verbs: Verbs, prefix: str) -> tuple[Scope, ...]:
        if self._allowed(name, verbs, (prefix, False)):
            return ((prefix, False),)
        wanted: dict[Scope, None] = {(prefix, True): None} if prefix else {}
        for rule in self.permissions.rules:
            if rule.allow:
                for pattern in rule.topics:
                    text = pattern.removesuffix("*")
                    if text.startswith(prefix):
                        wanted[text, text == pattern] = None
        found: list[Scope] = []
        for scope in sorted(wanted, key=lambda each: (each[0], each[1])):  # a prefix before what it covers
            covered = any(scope[0].startswith(text) for text, exact in found if not exact)
            if not covered and scope not in found and self._allowed(name, verbs, scope):
                found.append(scope)
                if len(found) == SCOPES_MAX:
                    break
        return tuple(found)

    def _allowed(self, name: str, verbs: Verbs, scope: Scope) -> bool:
        text, exact = scope
        return any(self.permissions.decide(name, verb, text, self._now, subtree=not exact).allowed for verb in verbs)
