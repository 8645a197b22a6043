"""The state of a server of a chain, for people and monitors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chappe.replication.chain.wire import Seen


@dataclass(frozen=True, slots=True)
class ChainLag:
    """Another server's progress: its last command, and the last that is safe and committed there."""

    end: int
    synced: int
    committed: int


@dataclass(frozen=True, slots=True)
class ChainServerStatus:
    """A server's view of its chain.

    Attributes:
        name: The server's name.
        number: The number of the newest configuration that it knows; 0: the chain is not founded.
        members: Names, head first.
        out: Servers that an administrator has removed.
        durable: True if confirmed means on disk at all members.
        end: The last command in its log.
        synced: Up to this command they are as safe here as the chain promises.
        committed: Up to this one they are committed, and applied here.
        others: The progress of the servers that it hears, by name.
        sessions: Clients that are remembered.
        malformed: Messages that were dropped as malformed.
        why: The reason for which it waits, in a sentence; empty if it does not wait.
    """

    name: str
    number: int
    members: tuple[str, ...]
    out: tuple[str, ...]
    durable: bool
    end: int
    synced: int
    committed: int
    others: Mapping[str, ChainLag]
    sessions: int
    malformed: int
    why: str

    @property
    def role(self) -> str:
        """``head``, ``middle``, ``tail``, ``alone``, or ``outside`` of the chain."""
        if self.name not in self.members:
            return "outside"
        if len(self.members) == 1:
            return "alone"
        if self.name == self.members[0]:
            return "head"
        return "tail" if self.name == self.members[-1] else "middle"


def status_of(seen: Seen, names: tuple[str, ...]) -> ChainServerStatus:
    others = {each.name: ChainLag(each.end, each.synced, each.committed) for each in seen.others}
    return ChainServerStatus(
        names[seen.place], seen.number, seen.members, seen.out, seen.durable, seen.end, seen.synced, seen.committed,
        others, seen.clients, seen.malformed, seen.why,
    )  # fmt: skip
