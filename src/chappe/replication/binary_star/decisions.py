"""What the effects of a server of a pair carry: jobs for the disk, heartbeats, and decisions for its owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from chappe.replication.binary_star.messages import Record

Confirms: TypeAlias = Literal["nothing", "alone", "paired"]
NO_RECORD: Final = Record()
OWNER: Final = "owner"  # decisions are delivered to it
PARTNER: Final = "partner"
WITNESS: Final = "witness"


@dataclass(frozen=True, slots=True)
class PairMemory:
    """What a durable server keeps: the term that it was active in last, and what its data is worth."""

    term: int = 0
    record: Record = NO_RECORD


@dataclass(frozen=True, slots=True)
class PartnerBeat:
    """For the partner: ``state`` if it is an original (nothing if empty), ``beat`` if it is an end of chappe."""

    state: bytes
    beat: bytes


@dataclass(frozen=True, slots=True)
class Leading:
    """Serve clients, in this term."""

    term: int


@dataclass(frozen=True, slots=True)
class FollowingPartner:
    """Take everything from the partner, whose life this is; ``life`` and ``term`` are 0 of an original."""

    term: int
    life: int


@dataclass(frozen=True, slots=True)
class Resting:
    """Serve nobody and follow nobody, until it is known who is active."""


@dataclass(frozen=True, slots=True)
class Confirming:
    """What may be confirmed to clients from now on: what is here, what the partner ``life`` has too, or nothing."""

    what: Confirms
    life: int


Does: TypeAlias = Leading | FollowingPartner | Resting
Decision: TypeAlias = Does | Confirming
