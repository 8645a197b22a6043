"""A server that decides without asking the others: the same inputs and effects as ``Agreement``, without its votes.

A number is a round and the place of the server that decided it, so two servers never decide the same number. Where two
decide at once, the caller judges whose value stands: it has a server begin again as another disk, or outbid the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from chappe.core import Effect
from chappe.errors import UsageError
from chappe.replication.agreement.core import SERVERS_MAX, Agreement, VoteRecord
from chappe.replication.agreement.messages import NUMBER_MAX, Ask, Decided, Message

PLACES: Final = SERVERS_MAX + 1  # numbers in one round


def decider(number: int) -> int:
    """The place of the server that decided ``number``."""
    return number % PLACES


class WithoutAgreement(Agreement):
    """See the module.

    Args:
        place: Of this server among the named ones, from 0.
        servers: How many are named.
        memory: As for ``Agreement``.
        disks_of: As for ``Agreement``.
        disk_in: The disk of this server once it has learned the value of a number: another one if what it has on disk
            is not what the value builds on.
    """

    def __init__(
        self,
        place: int,
        servers: int,
        memory: VoteRecord,
        disks_of: Callable[[bytes], tuple[int, ...]],
        disk_in: Callable[[int, bytes], int],
    ) -> None:
        super().__init__(place, servers, memory, disks_of)
        self._disk_in = disk_in

    @property
    def may_vote(self) -> bool:
        """True: a server needs nobody's consent."""
        return True

    @property
    def untouched(self) -> bool:
        """True: no vote is ever under way."""
        return True

    @property
    def majority(self) -> int:
        """One server decides."""
        return 1

    def propose(self, value: bytes, now: float, *, above: int = 0) -> list[Effect]:
        """Decide this at once, with a number beyond all that are known, and beyond ``above``."""
        number = (max(self.memory.number, above) // PLACES + 1) * PLACES + self.place
        if number > NUMBER_MAX:
            raise UsageError(f"a chain can change {NUMBER_MAX // PLACES:,} times: begin another one")
        decided = Decided(number, value)
        return [*self._learn(decided), *self._to_all(decided)]

    def handle_message(self, sender: int, message: Message, now: float) -> list[Effect]:
        """Another server tells or asks what is decided; votes do not count here."""
        match message:
            case Decided():
                return self._learn(message)
            case Ask():
                return self._tell_decided(sender) if message.number < self.memory.number else []
        return []

    def _learn(self, message: Decided) -> list[Effect]:
        if message.number > self.memory.number:
            self.memory = replace(self.memory, disk=self._disk_in(message.number, message.value))
        return super()._learn(message)
