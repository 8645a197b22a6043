"""What an endpoint's core asks of the driver, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.core import Report
from chappe.errors import ChappeError
from chappe.mesh.messages import Message


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect; answer with ``handle_dialled`` or ``handle_dial_failed``. ``dial`` is never used twice."""

    dial: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Something waits for the connection: ``take`` it when the socket is writable."""

    conn: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection once ``take`` gives nothing more, after ``CLOSE_FLUSH_S`` at the latest.

    The core has forgotten it: nothing that comes from it is handed in any more, its end neither.
    """

    conn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Put messages into the box of a subscriber. The list is the receiver's own."""

    subscriber: int
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Resolve:
    """The call with ``ticket`` is done. ``outcome`` is what it returns, or the error that it raises."""

    ticket: int
    outcome: bytes | bool | ChappeError


@dataclass(frozen=True, slots=True)
class OfferRules:
    """Somebody hands on what may be newer permissions: take them if the authority has signed them, by ``set_rules``."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class OfferKeys:
    """Somebody hands on what may be new keys of a group: take them if they are the authority's, by ``set_keys``."""

    group: str
    raw: bytes


Action: TypeAlias = Dial | Flush | Close | Deliver | Resolve | OfferRules | OfferKeys | Report

NOTHING: Final[tuple[Action, ...]] = ()
