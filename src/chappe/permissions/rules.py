"""Identities and rules: who may do what with which topics.

The first rule that fits decides, so the most special stands first; what no rule fits is denied. A rule fits a verb, an
identity by name or role, and a topic, which its patterns name as retention does: ``orders``, or ``orders/*`` for all
that begin so. A request for all topics that begin alike (a subscription of the mesh) is allowed if a rule allows all of
them and no rule before it denies some.

``Decisions`` caches what the permissions in force decide, as every message asks. Pure.

Of several identities (``a+b``, of a socket that knows only that it is one of these) each has to be allowed. Of several
verbs one is enough. When the permissions change, or somebody expires, there are new ``Decisions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from uuid import UUID

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
STORE: Final = "store"
INTRODUCE: Final = "introduce"
ADMINISTER: Final = "administer"
PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
FORWARD: Final = "forward"
ATTACH_MASTER: Final = "attach-master"
ATTACH_CLONE: Final = "attach-clone"
WRITE: Final = "write"
VERBS: Final[Mapping[str, str]] = {
    PRODUCE: "write records into a topic of the log",
    CONSUME: "read records of a topic of the log",
    STORE: "keep a topic's records, and answer who reads them",
    INTRODUCE: "run a tower",
    ADMINISTER: "ask members how they are, and change what they do",
    PUBLISH: "publish messages into the mesh",
    SUBSCRIBE: "subscribe to topics of the mesh",
    FORWARD: "pass on messages of others in the mesh",
    ATTACH_MASTER: "hold a data store's master, or serve a shared map or a chain",
    ATTACH_CLONE: "hold a data store's clone, or read it; follow a shared map, read a chain",
    WRITE: "write to a data store, a shared map or a chain",
}
EVERYTHING: Final = "everything"  # all verbs, those to come included
EVERYBODY: Final = "*"
ROLES_OF_ALL: Final = 'there is no role "*": names = ["*"] is everybody'
CLOCK_SKEW: Final = timedelta(hours=1)  # not all clocks agree


@dataclass(frozen=True, slots=True)
class Identity:
    """A program that has keys.

    Attributes:
        curve: The public key of its ZeroMQ sockets, 32 bytes.
        endpoint: The id that its certificate names; None if it names none.
        revoked: When it was revoked; from then on it may nothing, whatever the hour.
        hosts: By which others dial it.
        signs: The public key of its certificate, by which it signs what it seals: a point of P-256 in 33 bytes.
        line: Where the file has it; 0 if that is not known.
    """

    name: str
    role: str
    curve: bytes
    endpoint: UUID | None
    expires: datetime
    signs: bytes
    revoked: datetime | None = None
    hosts: tuple[str, ...] = ()
    line: int = 0

    def refusal(self, now: datetime) -> str:
        """Return the reason for which it may nothing at all any more; empty if it may."""
        if self.revoked is not None:
            return f"{self.name} was revoked on {self.revoked:%Y-%m-%d}"
        if now >= self.expires:
            return f"{self.name} expired on {self.expires:%Y-%m-%d}"
        return ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows or denies ``verbs`` with ``topics`` to ``roles`` and ``names``."""

    allow: bool
    verbs: frozenset[str]
    roles: frozenset[str]
    names: frozenset[str]
    topics: tuple[str, ...]
    line: int = 0

    def concerns(self, identity: Identity, verb: str) -> bool:
        """True if it is about what this identity does there."""
        if verb not in self.verbs and EVERYTHING not in self.verbs:
            return False
        return EVERYBODY in self.names or identity.name in self.names or identity.role in self.roles

    def covers(self, topic: str, subtree: bool = False) -> bool:
        """True if it is about this topic, or if ``subtree`` about all that begin so."""
        for pattern in self.topics:
            if pattern.endswith("*"):
                if topic.startswith(pattern[:-1]):
                    return True
            elif pattern == topic and not subtree:
                return True
        return False

    def decides_before(self, other: Rule) -> bool:
        """True if this rule matches everything that ``other`` matches, so that ``other`` decides nothing behind it."""
        everybody = EVERYBODY in self.names
        return (
            (EVERYTHING in self.verbs or other.verbs <= self.verbs)
            and (everybody or (other.names <= self.names and other.roles <= self.roles))
            and all(self.covers(each.removesuffix("*"), subtree=each.endswith("*")) for each in other.topics)
        )

    def touches(self, prefix: str) -> bool:
        return self.covers(prefix, subtree=True) or any(
            pattern.removesuffix("*").startswith(prefix) for pattern in self.topics
        )


@dataclass(frozen=True, slots=True)
class Group:
    """The members for whom ``topics`` are sealed; see ``chappe.sealing``."""

    name: str
    topics: tuple[str, ...]
    roles: frozenset[str]
    names: frozenset[str]

    def has(self, identity: Identity) -> bool:
        if identity.revoked is not None:
            return False
        return EVERYBODY in self.names or identity.name in self.names or identity.role in self.roles

    def covers(self, topic: str) -> bool:
        return any(topic.startswith(each[:-1]) if each.endswith("*") else each == topic for each in self.topics)


@dataclass(frozen=True, slots=True)
class Decision:
    """Yes or no, and why; ``line`` is what decides in the file, 0 if it is what is not there."""

    allowed: bool
    why: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Permissions:
    """The content of a file of permissions.

    Attributes:
        version: Grows with each file that is signed; of two the higher counts.
        issued, expires: When it is in force. Before and after nobody may do anything.
    """

    version: int
    issued: datetime
    expires: datetime
    identities: Mapping[str, Identity]
    rules: tuple[Rule, ...]
    by_curve: Mapping[bytes, Identity]
    sealed: tuple[Group, ...] = ()

    def group(self, topic: str) -> Group | None:
        """Return the first group that names a topic, for which it is sealed; None if it is plain."""
        return next((each for each in self.sealed if each.covers(topic)), None)

    def refusal(self, now: datetime) -> str:
        """Return the reason for which the file is not in force; empty if it is."""
        if now < self.issued - CLOCK_SKEW:
            return f"the permissions begin on {self.issued:%Y-%m-%d %H:%M} UTC: compare the clocks of both machines"
        if now >= self.expires:
            return f"the permissions expired on {self.expires:%Y-%m-%d}: sign them again"
        return ""

    def holder(self, curve: bytes, now: datetime) -> Identity | str:
        """Return the identity that has this CURVE key, or why there is none that may do anything."""
        found = self.by_curve.get(curve)
        if found is None:
            return "a key that the permissions do not name"
        return self.refusal(now) or found.refusal(now) or found

    def decide(self, name: str, verb: str, topic: str, now: datetime, *, subtree: bool = False) -> Decision:
        """Decide whether an identity may do this with a topic, or if ``subtree`` with all topics that begin so."""
        identity = self.identities.get(name)
        if identity is None:
            return Decision(False, f"there is no identity {name}")
        refusal = self.refusal(now) or identity.refusal(now)
        if refusal:
            return Decision(False, refusal, 0 if self.refusal(now) else identity.line)
        for rule in self.rules:
            if not rule.concerns(identity, verb):
                continue
            if rule.covers(topic, subtree):
                return Decision(rule.allow, f"the rule {'allows' if rule.allow else 'denies'} it", rule.line)
            if subtree and not rule.allow and rule.touches(topic):
                return Decision(False, "the rule denies some of these topics", rule.line)
        return Decision(False, "no rule allows it")

    def idle_denials(self) -> list[tuple[Rule, str]]:
        """Return rules that deny nothing to anybody, or not to everybody they name, and why."""
        roles = {each.role for each in self.identities.values()}
        found: list[tuple[Rule, str]] = []
        for number, rule in enumerate(self.rules):
            if rule.allow:
                continue
            if EVERYBODY in rule.roles:
                found.append((rule, ROLES_OF_ALL))
            found += [(rule, f"no identity has the role {each}") for each in sorted(rule.roles - roles - {EVERYBODY})]
            unknown = rule.names - self.identities.keys() - {EVERYBODY}
            found += [(rule, f"there is no identity {each}") for each in sorted(unknown)]
            first = next((each for each in self.rules[:number] if each.allow and each.decides_before(rule)), None)
            if first is not None:
                at = f" in line {first.line}" if first.line else ""
                found.append((rule, f"the rule{at}, which stands before it, allows all that it denies"))
        return found

    def server(self, verb: str, host: str, now: datetime, name: str = "") -> Identity | str:
        """Return the member to dial at a host: ``name``, or the only one allowed; else the reason for none."""
        if name:
            found = self.identities.get(name)
            if found is None:
                return f"there is no identity {name}"
            refusal = self.refusal(now) or found.refusal(now)
            return refusal or (found if self.may_somewhere(found, verb) else f"{name} may not {verb}")
        fitting = [
            each for each in self.identities.values() if not each.refusal(now) and self.may_somewhere(each, verb)
        ]
        # Who may do everything is an administrator rather than a server, if there are others.
        meant = [each for each in fitting if self._named(each, verb)] or fitting
        if len(meant) > 1:
            meant = [each for each in meant if host in each.hosts] or meant
        if len(meant) == 1:
            return self.refusal(now) or meant[0]
        if not meant:
            return f"no identity may {verb}"
        return f"{meant[0].name} and {meant[1].name} may both {verb}: say who it is, {meant[0].name}@{host}"

    def _named(self, identity: Identity, verb: str) -> bool:
        return any(rule.allow and verb in rule.verbs and rule.concerns(identity, verb) for rule in self.rules)

    def next_expiry(self, now: datetime) -> datetime:
        """Return the time at which the next identity expires, or all of it does."""
        return min([each.expires for each in self.identities.values() if each.expires > now] + [self.expires])

    def may_somewhere(self, identity: Identity, verb: str, prefix: str = "") -> bool:
        """True if there may be a topic that begins so with which it may do this.

        Without a prefix that is what the role of a server is told by.
        """
        for rule in self.rules:
            if rule.concerns(identity, verb):
                if rule.allow and rule.touches(prefix):
                    return True
                if not rule.allow and rule.covers(prefix, subtree=True):
                    return False
        return False


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

    @property
    def serial(self) -> int:
        """A number that grows with each version, and with each identity that expires."""
        return self.permissions.version + sum(
            self._now >= each.expires for each in self.permissions.identities.values()
        )

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
