"""The state of a pair of map servers, as one of them knows it."""

from __future__ import annotations

from dataclasses import dataclass

from chappe.replication.binary_star.core import BinaryStar
from chappe.replication.binary_star.messages import NAMES


@dataclass(frozen=True, slots=True)
class PairStatus:
    """The state of one server of a pair.

    ``confirms`` says which writes may be confirmed to clients: ``paired``, those that the partner has too; ``alone``,
    also without it; or ``nothing`` now. ``partner`` is ``unknown``, ``here`` or ``silent``.
    """

    role: str
    state: str
    term: int
    confirms: str
    partner: str


def pair_status(star: BinaryStar) -> PairStatus:
    return PairStatus(NAMES[star.role], NAMES[star.state], star.term, star.confirms, star.partner)
