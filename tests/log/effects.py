"""What tests say of the effects of the log's cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from chappe.core import Deliver, Effect, Persist, Report, Subscribe
from chappe.log.delivery import Records

J = TypeVar("J")


@dataclass(frozen=True)
class Left:
    """A member is gone, as the role of a discovery was told."""

    address: str


def gone(address: str) -> Report:
    """Returned by ``Listener`` when it is told so."""
    return Report(Left(address))


class Listener:
    """A role that only hears who is gone."""

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        return [gone(address)]


def jobs(effects: Iterable[Effect], kind: type[J]) -> list[J]:
    """What the disk is to do."""
    return [each.job for each in effects if isinstance(each, Persist) and isinstance(each.job, kind)]


def ended(prefix: bytes) -> Subscribe:
    """A subscription is taken back."""
    return Subscribe(prefix, False)


def is_end(effect: Any) -> bool:
    """Whether a subscription is taken back."""
    return isinstance(effect, Subscribe) and not effect.on


def delivered(effects: Iterable[Effect]) -> list[Records]:
    """The records that are handed to applications."""
    return [each.messages for each in effects if isinstance(each, Deliver) and isinstance(each.messages, Records)]
