"""What the cores of a store ask of their driver, besides ``core.Report``; done in order, each before the next."""

from __future__ import annotations

from typing import TypeAlias

from chappe.compiled import Frozen
from chappe.core import Report
from chappe.data.values import Value
from chappe.kv.backend import Operation
from chappe.kv.engine import Kind
from chappe.kv.entity import Entity


class Send(Frozen, frozen=True):
    """Publish a command message on ``topic``; with a ``receiver`` to that endpoint only, whatever it subscribed to."""

    topic: bytes
    receiver: bytes | None
    payload: bytes


class Notify(Frozen, frozen=True):
    """Tell those who watch the store that a key has changed.

    ``value`` is what it has now and ``before`` what it had, None where there is nothing (``kind`` tells that from a
    stored none). ``expiry_ns`` is what was asked for with the write. ``publisher`` is who wrote, None if unknown.
    ``version`` is the engine's number of the change.
    """

    kind: Kind
    key: Value
    value: Value
    before: Value
    expiry_ns: int | None
    publisher: Entity | None
    version: int


class Resolve(Frozen, frozen=True):
    """A call that was given ``ticket`` is over: ``outcome`` is its result, or the exception that it raises."""

    ticket: int
    outcome: object


class Commit(Frozen, frozen=True):
    """Have the backend do all of these at once, durably, then call ``handle_committed`` or ``handle_commit_failed``.

    There is never more than one under way: what comes meanwhile goes into the next, which makes one sync serve many.
    """

    number: int
    operations: tuple[Operation, ...]


class Propose(Frozen, frozen=True):
    """Have the chain of this server do these commands, in order, as its head's own; not, if it is not the head.

    Then ``handle_place`` tells of that. What the chain commits comes by ``handle_fed``.
    """

    commands: tuple[bytes, ...]


Action: TypeAlias = Send | Notify | Resolve | Commit | Propose | Report
