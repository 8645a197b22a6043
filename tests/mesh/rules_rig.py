"""Permissions for tests of the mesh's core: identities by role, and rules in a line each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from chappe.mesh.rules import MeshRules
from chappe.permissions.rules import Identity, Permissions, Rule

NOW = datetime(2026, 11, 24, tzinfo=UTC)
LATER = NOW + timedelta(days=100)


def rule(line: str) -> Rule:
    """``allow publish,subscribe sensor /a*,/b``: verbs, roles, topics."""
    word, verbs, roles, topics = line.split()
    names = frozenset("*") if roles == "*" else frozenset()
    return Rule(
        word == "allow", frozenset(verbs.split(",")), frozenset(roles.split(",")), names, tuple(topics.split(","))
    )


def identity(
    name: str, role: str = "member", *, endpoint: bytes | None = None, revoked: bool = False, expires: datetime = LATER
) -> Identity:
    """One of them."""
    curve = name.encode().ljust(32, b"\0")
    id = None if endpoint is None else UUID(bytes=endpoint)
    return Identity(name, role, curve, id, expires, NOW if revoked else None)


def permissions(
    *identities: Identity, rules: tuple[str, ...] = ("allow everything * *",), version: int = 1
) -> Permissions:
    """What a file says."""
    by_curve = {each.curve: each for each in identities}
    named: Mapping[str, Identity] = {each.name: each for each in identities}
    return Permissions(version, NOW, LATER, named, tuple(map(rule, rules)), by_curve)


def rules(*identities: Identity, rules: tuple[str, ...] = ("allow everything * *",), at: datetime = NOW) -> MeshRules:
    """What an endpoint's core goes by."""
    return MeshRules(permissions(*identities, rules=rules), at)
