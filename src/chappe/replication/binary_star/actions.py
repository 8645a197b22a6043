"""What a server of a pair asks of its owner, besides ``core.Report``; done in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from chappe.core import Report
from chappe.replication.binary_star.messages import Record

Confirms: TypeAlias = Literal["nothing", "alone", "paired"]
NO_RECORD: Final = Record()


@dataclass(frozen=True, slots=True)
class Memory:
    """What a durable server keeps: the term that it was active in last, and what its data is worth."""

    term: int = 0
    record: Record = NO_RECORD


@dataclass(frozen=True, slots=True)
class Persist:
    """Have this on disk before what follows. If that fails, leave what follows and call ``handle_not_kept``."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the partner: ``state`` if it is an original (nothing if empty), ``beat`` if it is an end of chappe."""

    state: bytes
    beat: bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this to the witness."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Lead:
    """Serve clients, in this term."""

    term: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Take everything from the partner, whose life this is; ``life`` and ``term`` are 0 of an original."""

    term: int
    life: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Serve nobody and follow nobody, until it is known who is active."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """What may be confirmed to clients from now on: what is here, what the partner ``life`` has too, or nothing."""

    what: Confirms
    life: int


Action: TypeAlias = Persist | Tell | Ask | Lead | Follow | Rest | Confirm | Report
Does: TypeAlias = Lead | Follow | Rest
