"""What a master knows of the clones that write to it: how far each is done, and which writes did not go well.

It is kept beyond the end of a connection, and in the backend beyond the end of the master, because a clone that comes
back repeats what was not confirmed to it, and nothing may be done twice.
"""

from __future__ import annotations

from chappe.channel import ChannelConsumer
from chappe.core import Clock
from chappe.defaults import STORE_WRITER_FORGET_S, STORE_WRITERS_MAX
from chappe.kv.backend import WriterRow
from chappe.kv.commands import Mutation
from chappe.kv.entity import NOBODY, Entity
from chappe.limits import KvLimits

NS: int = 1_000_000_000


class CloneWriter:
    """One clone that writes, or wrote.

    ``taken`` counts what was done in memory, ``applied`` what is durable and may be confirmed.
    """

    __slots__ = ("_outcomes_max", "applied", "channel", "entity", "heard_ns", "outcomes", "taken")

    def __init__(self, entity: Entity, applied: int, heard_ns: int, limits: KvLimits) -> None:
        self._outcomes_max = limits.outcomes_max
        self.entity = entity
        self.applied = applied
        self.taken = applied
        self.outcomes: dict[int, int] = {}  # by the number of the write
        self.heard_ns = heard_ns
        self.channel: ChannelConsumer[Mutation] | None = None  # while it is attached

    @property
    def full(self) -> bool:
        """Whether it must first settle what went wrong."""
        return len(self.outcomes) >= self._outcomes_max

    def told(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """How far it may be told that it is done, and the outcomes up to there: as many as one message holds."""
        if not self.outcomes:
            return self.applied, ()
        found = sorted([each for each in self.outcomes.items() if each[0] <= self.applied])
        end = self._outcomes_max  # a disk that is full may refuse more writes than that at once
        return (found[end][0] - 1 if len(found) > end else self.applied), tuple(found[:end])

    def settle(self, seq: int) -> bool:
        """It knows what became of everything up to ``seq``; returns whether there was more than it could be told."""
        more = len(self.outcomes) > self._outcomes_max
        self.outcomes = {each: code for each, code in self.outcomes.items() if each > seq}
        return more


class Writers:
    """All of them."""

    def __init__(self, rows: tuple[WriterRow, ...], limits: KvLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self.known: dict[Entity, CloneWriter] = {}
        self.attached: dict[Entity, CloneWriter] = {}
        self.due: dict[Entity, None] = {}  # who is to be told how far it is done; in order
        for row in rows:
            if row.entity == NOBODY:
                continue  # it keeps the numbers of events: see ``Numbers``
            writer = self.known[row.entity] = CloneWriter(row.entity, row.applied, row.heard_ns, limits)
            writer.outcomes = dict(row.outcomes)

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        found: list[str] = []
        for entity, writer in self.known.items():
            if writer.applied > writer.taken:
                found.append(f"write {writer.applied} of {entity} is confirmed, {writer.taken} are done")
            if (writer.channel is not None) is not (self.attached.get(entity) is writer):
                found.append(f"{entity} has a channel and is not attached, or the other way round")
            if writer.channel is not None:
                found += [f"of {entity} {each}" for each in writer.channel.invariants()]
            if any(seq > writer.taken for seq in writer.outcomes):
                found.append(f"{entity} has outcomes of writes that are not done")
        return found

    def make(self, entity: Entity, applied: int) -> CloneWriter | None:
        """A new one; None if there are too many that must be remembered."""
        if len(self.known) >= STORE_WRITERS_MAX and not self.forget():
            return None
        writer = self.known[entity] = CloneWriter(entity, applied, self._clock.wall_ns(), self._limits)
        return writer

    def row(self, entity: Entity) -> WriterRow | None:
        """What a backend keeps of a clone that writes, or has left since; None if it is forgotten."""
        each = self.known.get(entity)
        return None if each is None else WriterRow(entity, each.taken, tuple(each.outcomes.items()), each.heard_ns)

    def rows(self) -> tuple[WriterRow, ...]:
        """What is known of all, as far as it is durable."""
        found = []
        for each in self.known.values():
            outcomes = tuple([outcome for outcome in each.outcomes.items() if outcome[0] <= each.applied])
            found.append(WriterRow(each.entity, each.applied, outcomes, each.heard_ns))
        return tuple(found)

    def apply(self, entity: Entity, seq: int) -> None:
        """Its write ``seq`` may be confirmed."""
        writer = self.known.get(entity)
        if writer is not None:
            writer.applied = max(writer.applied, seq)
            self.due[entity] = None

    def detach(self, entity: Entity) -> None:
        """Its channel ends; of an original nothing is remembered, for it never repeats itself."""
        writer = self.attached.pop(entity, None)
        if writer is not None:
            writer.channel = None
            if not entity.is_chappe:
                del self.known[entity]

    def forget(self) -> list[Entity]:
        """Forget those not heard of for ``STORE_WRITER_FORGET_S``, and say whom."""
        old = self._clock.wall_ns() - int(STORE_WRITER_FORGET_S * NS)
        gone = [entity for entity, each in self.known.items() if each.heard_ns < old and each.channel is None]
        for entity in gone:
            del self.known[entity]
        return gone
