"""Takes the writes of clones from their channels, has each done once, and confirms it when it is durable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Final

from chappe.channel import Ack, Consume, ConsumerAction, Lost, Nack, ToProducer
from chappe.core import Clock, Effect, Report
from chappe.defaults import CHANNEL_SILENT_S, CHANNEL_TICK_S, STORE_WRITER_FORGET_S
from chappe.errors import BackendFailure
from chappe.kv import commands as cmd
from chappe.kv.entity import NOBODY, Entity
from chappe.kv.events import CommandRefused
from chappe.kv.followers import NS, CloneWriter, Followers, Writers
from chappe.kv.ordering import Ordering
from chappe.kv.role import new_input
from chappe.limits import KvLimits

_FORGET_NS: Final = int(CHANNEL_SILENT_S * NS)
OF_WRITERS: Final = (*cmd.ACTIONS, cmd.Keepalive, cmd.RetransmitFailed, cmd.Settled)  # what those that write say
_OFFSET_MAX: Final = 2**62  # numbers of writes stay within what backends can keep


class Taking:
    """The input channels of a master, one from each clone that writes."""

    def __init__(
        self, name: str, writers: Writers, ordering: Ordering, followers: Followers, limits: KvLimits, *,
        now: float, clock: Clock,
    ) -> None:  # fmt: skip
        self._name = name
        self._writers = writers
        self._ordering = ordering
        self._followers = followers
        self._limits = limits
        self._forget_at = now
        self._clock = clock

    @property
    def endpoints(self) -> set[bytes]:
        return {writer.entity.endpoint for writer in self._writers.attached.values()}

    def idle(self, gone: Collection[bytes]) -> bool:
        """Return True if no write of theirs is missing, except at endpoints that are ``gone``."""
        return all(
            writer.entity.endpoint in gone or (writer.channel is not None and writer.channel.idle())
            for writer in self._writers.attached.values()
        )

    def invariants(self) -> list[str]:
        bound = self._limits.outcomes_max + self._limits.held_max  # one message may fill a gap in front of many
        kept = {each.entity: Counter(each.outcomes.values()) for each in self._writers.known.values()}
        found = {each: codes.total() - codes[BackendFailure.code] for each, codes in kept.items()}  # a disk refuses all
        return [f"{count} outcomes of {each} are kept, not {bound}" for each, count in found.items() if count > bound]

    def attach(self, entity: Entity, command: cmd.AttachWriter, now: float, actions: list[Effect]) -> None:
        """Open a clone's channel, or open it again: writes that are done already are not taken again."""
        if entity == NOBODY:
            actions.append(Report(CommandRefused(self._name, "nobody begins to write")))
            return
        if command.offset > _OFFSET_MAX:
            actions.append(Report(CommandRefused(self._name, f"{entity} begins with write {command.offset}")))
            return
        writer = self._writers.known.get(entity) or self._writers.make(entity, command.offset)
        if writer is None:
            actions.append(Report(CommandRefused(self._name, f"{entity} is one writing clone too many")))
            return
        writer.heard_ns = self._clock.wall_ns()
        writer.taken = max(writer.taken, command.offset)
        if writer.channel is None:
            writer.channel = new_input(self._limits, now)
            self._writers.attached[entity] = writer
            taken = writer.channel.take_handshake(writer.taken, command.ticks * CHANNEL_TICK_S, now)
        else:
            taken = writer.channel.skip_to(command.offset, now)
        self._take(writer, taken, now, actions)
        self._ordering.catch_up()
        self._writers.due[entity] = None

    def handle(self, entity: Entity, seq: int, command: cmd.Command, now: float, actions: list[Effect]) -> None:
        """Take a message of a clone that writes; it repeats a write if there is no room now."""
        writer = self._writers.attached.get(entity)
        if writer is None or writer.channel is None:
            return
        if isinstance(command, cmd.ACTIONS):
            if writer.full or self._ordering.commits.full:
                return
            if entity.is_chappe:  # an original names an object of another number
                command = cmd.bound(command, entity)
            taken = writer.channel.take_event(seq, command, now)
        elif isinstance(command, cmd.Keepalive):  # it hears how far it is done
            writer.heard_ns = self._clock.wall_ns()
            self._writers.due[entity] = None
            taken = writer.channel.take_heartbeat(command.seq, now)
        elif isinstance(command, cmd.RetransmitFailed):
            taken = writer.channel.take_retransmit_failed(command.seq, now)
        else:
            assert isinstance(command, cmd.Settled)
            if writer.settle(command.seq):
                self._writers.due[entity] = None
            return
        self._take(writer, taken, now, actions)

    def confirm(self, actions: list[Effect]) -> None:
        """Confirm writes, once for all of a writer's that were done meanwhile."""
        for entity in self._writers.due:
            writer = self._writers.known.get(entity)
            if writer is not None and entity.is_chappe:
                applied, outcomes = writer.told()
                self._followers.send(entity, cmd.WriterState(applied, self._followers.output.seq, outcomes), actions)
        self._writers.due.clear()

    def tick(self, now: float, actions: list[Effect]) -> None:
        """Acknowledge, ask for missing writes, drop clones that are gone."""
        for writer in list(self._writers.attached.values()):
            if writer.channel is not None:
                self._take(writer, writer.channel.tick(now), now, actions)
            if (
                self._clock.wall_ns() - writer.heard_ns > _FORGET_NS
                and writer.entity not in self._followers.output.consumers
            ):
                self._writers.detach(writer.entity)
        if now >= self._forget_at:
            self.forget(now)

    def next_timeout(self) -> float:
        channels = [each.channel.next_timeout() for each in self._writers.attached.values() if each.channel is not None]
        return min(channels, default=math.inf)

    def forget(self, now: float) -> None:
        self._forget_at = now + STORE_WRITER_FORGET_S / 24
        for entity in self._writers.forget():
            self._ordering.commits.forget(entity)

    def _take(
        self, writer: CloneWriter, taken: list[ConsumerAction[cmd.Mutation]], now: float, actions: list[Effect]
    ) -> None:
        """Do the writes of a clone's channel; a lost write is passed over: its clone has given it up."""
        while taken:
            lost = False
            for each in taken:
                if isinstance(each, Consume):
                    self._ordering.do_for(writer, each.seq, each.payload, now, actions)
                elif isinstance(each, Lost):
                    writer.taken = each.seq
                    self._ordering.catch_up()
                    lost = True
                elif isinstance(each, ToProducer):
                    self._answer(writer, each.message, actions)
            taken = writer.channel.skip_lost(now) if lost and writer.channel is not None else []

    def _answer(self, writer: CloneWriter, message: Ack | Nack, actions: list[Effect]) -> None:
        chappe = writer.entity.is_chappe
        if isinstance(message, Ack):
            if not chappe:  # those of chappe hear of each commit, and ask if they do not
                self._followers.send(writer.entity, cmd.CumulativeAck(writer.applied), actions)
        # To an original that says that all before has arrived, so it must not run ahead of the disk.
        elif not writer.full and (chappe or writer.applied == writer.taken):
            self._followers.send(writer.entity, message, actions)
