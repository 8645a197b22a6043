"""Guards of a small network: a hub that stores, a sensor that produces, a reader that consumes, and one that idles."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from chappe.log.guard import Guard, LogRefusal
from chappe.permissions.rules import CONSUME, PRODUCE, PUBLISH, STORE, Decisions, Identity, Permissions, Rule

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MAY = {"hub": STORE, "sensor": PRODUCE, "reader": CONSUME, "idle": PUBLISH}


def guard(refused: list[LogRefusal]) -> Guard:
    far = NOW + timedelta(days=100)
    identities = {each: Identity(each, "member", each.encode(), None, far, b"") for each in MAY}
    rules = tuple(Rule(True, frozenset([MAY[each]]), frozenset(), frozenset([each]), ("*",)) for each in MAY)
    decisions = Decisions(Permissions(1, NOW, far, identities, rules, {}), NOW)
    return Guard(lambda: decisions, refused.append)
