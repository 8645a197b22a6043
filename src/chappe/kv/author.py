"""What is written at one of several masters that is not the one now: a clone's channel of writes, to whoever is."""

from __future__ import annotations

import math
from typing import Final

from chappe.core import Effect
from chappe.defaults import CHANNEL_HEARTBEAT_S, CLONE_BUFFER_S, CLONE_STALE_S, MASTER_SILENT_S
from chappe.kv import commands as cmd
from chappe.kv.clone_writes import CloneWrites, Uplink
from chappe.kv.entity import Entity
from chappe.limits import KvLimits

_SHOWN: Final = 1 << 62  # what the active one has confirmed is shown here


class Author:
    """The channel, the master that it leads to, and since when there is none."""

    def __init__(self, name: str, entity: Entity, limits: KvLimits, now: float) -> None:
        self.writes = CloneWrites(
            name, Uplink(name, entity), limits, now=now, buffer_s=CLONE_BUFFER_S, heartbeat_s=CHANNEL_HEARTBEAT_S
        )
        self.master: Entity | None = None
        self.stale = False  # there was no master for too long
        self._entity = entity
        self._lost_at = now  # infinity while there is one
        self._heard_at = now

    @property
    def waits(self) -> bool:
        """Whether something written here is not confirmed."""
        return len(self.writes.pending) > 0

    def write(self, command: cmd.Mutation, ticket: int | None, now: float) -> list[Effect]:
        """One more. Raises RecordTooLarge, NoMaster or BufferFull."""
        return self.writes.write(command, ticket, now)

    def look(self, master: Entity | None, found: bool, now: float) -> list[Effect]:
        """Writes go to this ``master`` from now on; ``found``: there is one, here or elsewhere."""
        actions: list[Effect] = []
        if found:
            self._lost_at = math.inf
            self.writes.refusing = False
        elif self._lost_at == math.inf:
            self._lost_at = now
        self.stale = now >= self._lost_at + CLONE_STALE_S
        if master != self.master:
            if self.master is not None:
                self.writes.channel.drop(self.master, "")
            self.master = master
            if master is not None:
                self._heard_at = now
                self.writes.begin(master, now, actions)
        return actions

    def hear(self, message: cmd.Message, now: float) -> list[Effect]:
        """Somebody has said something to this author."""
        actions: list[Effect] = []
        master, command = message.sender, message.command
        if master == self.master and message.receiver == self._entity:
            self._heard_at = now
            if isinstance(command, cmd.WriterState):
                self.writes.take_state(master, command, now, actions)
                self.writes.settle(master, _SHOWN, actions)
            elif isinstance(command, cmd.MissingEvents):
                self.writes.take_nack(master, command.seqs, now, actions)
        return actions

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        return self.writes.refuse_at(self._lost_at) if self.master is None else self.writes.channel.next_timeout()

    def handle_timeout(self, now: float) -> list[Effect]:
        """Tell the master how far this is, or give up what waited for one for too long."""
        actions: list[Effect] = []
        if self.master is not None:
            if self.waits and now >= self._heard_at + MASTER_SILENT_S:  # it may have let go of us, as its clock was set
                self._heard_at = now
                self.writes.channel.drop(self.master, "")
                self.writes.begin(self.master, now, actions)
            self.writes.tick(now, actions)
        elif now >= self.writes.refuse_at(self._lost_at):
            self.writes.refuse(actions)
        return actions
