"""Permissions for tests of the mesh's core: identities by role, and rules in a line each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from tests.mesh.net_rig import Net

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
    return Identity(name, role, curve, id, expires, b"", NOW if revoked else None)


def permissions(
    *identities: Identity, rules: tuple[str, ...] = ("allow everything * *",), version: int = 1
) -> Permissions:
    """What a file says."""
    by_curve = {each.curve: each for each in identities}
    named: Mapping[str, Identity] = {each.name: each for each in identities}
    return Permissions(version, NOW, LATER, named, tuple(map(rule, rules)), by_curve)


def rules(
    *identities: Identity, rules: tuple[str, ...] = ("allow everything * *",), at: datetime = NOW, version: int = 1
) -> MeshRules:
    """What an endpoint's core goes by."""
    return MeshRules(permissions(*identities, rules=rules, version=version), at, b"version %d" % version)


def judged(
    roles: str, links: str, *lines: str, leaves: Collection[int] = (), more: Collection[Identity] = (), **options: Any
) -> Net:
    """Nodes that all go by the same rules: ``roles`` of each in order, and ``links`` as chains, as in ``0-1-2 0-2``."""
    members = roles.split()
    net = Net(len(members), leaves=leaves, **options)
    net.names = [f"n{number}" for number in range(len(members))]
    go_by(net, roles, *lines, more=more)
    for chain in links.split():
        for one, two in pairwise(chain.split("-")):
            net.link(int(one), int(two))
    net.settle()
    return net


def go_by(net: Net, roles: str, *lines: str, more: Collection[Identity] = ()) -> None:
    """From now on all go by these."""
    members = zip(net.names, roles.split(), net.nodes, strict=True)
    made = rules(*(identity(name, role, endpoint=node.id) for name, role, node in members), *more, rules=lines)
    for node in net.nodes:
        node.do(node.core.set_rules(made, node.now))
    net.pump()
