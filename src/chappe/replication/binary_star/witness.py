"""The witness of pairs: decides when the two servers of one do not see each other. It has no data, only a record.

The record of a pair says in which term who may confirm writes alone. A claim is granted to

* whoever comes first;
* data of a later term than the record's: the two went on together, and nobody has been alone since;
* data of the record's term, if nobody is alone in it, or the claimant itself is;
* the same life that holds the grant, which may not have heard of it.

That somebody no longer confirms alone is recorded unless the term is over.

So of two that do not see each other one is refused, and who was without what the other confirmed alone is refused too.
What it grants is on disk before it says so: a witness that forgot could grant twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chappe.core import Effect, Persist, Reply, Report
from chappe.errors import ProtocolError, StorageError
from chappe.replication.binary_star.events import ClaimRefused, Granted
from chappe.replication.binary_star.messages import Answer, Claim, decode_claim, encode_answer

PAIRS_MAX: Final = 10_000  # of one witness; claims of further ones are refused


@dataclass(frozen=True, slots=True)
class Grant:
    """A pair as its witness knows it: ``role`` leads in ``term``, and confirms alone or not.

    ``base`` is the term of the data with which the grant was asked for, ``life`` and ``count`` those of the claim.
    """

    term: int
    role: int
    alone: bool
    base: int
    life: int
    count: int


@dataclass(frozen=True, slots=True)
class PairRecord:
    pair: bytes
    held: Grant


class WitnessCore:
    """The state of a witness of ``pairs_max`` pairs at most; ``records`` are those on disk."""

    def __init__(self, records: Mapping[bytes, Grant], pairs_max: int = PAIRS_MAX) -> None:
        self.records = dict(records)
        self._pairs_max = pairs_max
        self._before: Grant | None = None  # the record that the last ``Persist`` replaced
        self._refused: dict[tuple[bytes, int], int] = {}  # by pair and role: the term whose refusal was reported

    def next_timeout(self) -> float:
        return math.inf

    def handle_timeout(self, now: float) -> list[Effect]:
        return []

    def flush(self, now: float) -> list[Effect]:
        return []

    def handle_request(self, client: bytes, frame: bytes, now: float) -> list[Effect]:
        """Take a server's claim; raises ProtocolError."""
        claim, pair = decode_claim(frame)
        held = self.records.get(pair)
        if held is None and len(self.records) >= self._pairs_max:
            raise ProtocolError(f"claim of a further pair: there are {self._pairs_max}")
        if held is not None and (held.life, held.term) == (claim.life, claim.term) and claim.count <= held.count:
            if claim.count < held.count:
                return []  # overtaken by a later one
            return [self._reply(client, claim, True, held.term)]
        granted = held is None or self._may(claim, held)
        if not granted:
            assert held is not None
            effects: list[Effect] = [self._reply(client, claim, False, held.term)]
            if claim.alone and self._refused.get((pair, claim.role)) != held.term:  # it repeats its claim
                self._refused[pair, claim.role] = held.term
                effects.append(Report(ClaimRefused(pair, claim.role, claim.term, held.term)))
            return effects
        base = claim.base if claim.alone else claim.term
        self._before = held
        new = Grant(claim.term, claim.role, claim.alone, base, claim.life, claim.count)
        self.records[pair] = new
        effects = [Persist(PairRecord(pair, new), first=True), self._reply(client, claim, True, claim.term)]
        if held is None or (held.term, held.alone) != (new.term, new.alone):
            effects.append(Report(Granted(pair, claim.role, claim.term, claim.alone)))
        return effects

    def handle_done(self, job: PairRecord, error: StorageError | None, now: float) -> list[Effect]:
        """Note that the last record is on disk; or that the disk refused it, and it was not granted."""
        if error is None:
            return []
        if self._before is None:
            del self.records[job.pair]
        else:
            self.records[job.pair] = self._before
        return [Report(error)]

    def invariants(self) -> list[str]:
        return [
            f"{pair!r} has data of term {held.base} in term {held.term}" for pair, held in self.records.items()
            if held.base > held.term
        ]  # fmt: skip

    def _may(self, claim: Claim, held: Grant) -> bool:
        ours = claim.role == held.role
        if claim.term < held.term or (claim.term == held.term and not ours):
            return False
        return (
            not claim.alone
            or claim.base > held.term
            or (claim.base == held.term and (ours or not held.alone))
            or (claim.life == held.life and ours and claim.base >= held.base)
        )

    def _reply(self, client: bytes, claim: Claim, granted: bool, term: int) -> Reply:
        return Reply(client, encode_answer(Answer(granted, claim.life, claim.count, term)))
