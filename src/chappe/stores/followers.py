"""The clones that follow a master: each is sent all there is once, and from then on every change in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from chappe.channel import (
    ASK_HANDSHAKE,
    ChannelProducer,
    Dropped,
    Event,
    Handshake,
    Heartbeat,
    ProducerAction,
    ToAll,
    ToConsumer,
)
from chappe.core import Report
from chappe.defaults import CHANNEL_TICK_S, STORE_SNAPSHOT_BYTES_MAX
from chappe.stores import commands as cmd
from chappe.stores.actions import Action, Send
from chappe.stores.entity import NOBODY, Entity
from chappe.stores.events import CloneAttached, CloneDropped
from chappe.stores.topics import check_name, clone_topic
from chappe.stores.writers import Writers

_GREET_AGAIN_S: Final = 1.0  # a clone that asks again meanwhile has its snapshot under way


class Followers:
    """The output channel of a master, and what else is sent to clones.

    Args:
        name: Of the store.
        entity: The master.
        writers: Those among the clones that write; one that is dropped is detached there.
        snapshot: All that is durable, as it is sent to a clone.
        heartbeat_s: Longest silence towards the clones.
    """

    def __init__(
        self, name: str, entity: Entity, writers: Writers, snapshot: Callable[[], bytes], *, now: float,
        heartbeat_s: float,
    ) -> None:  # fmt: skip
        self.has_clones = False  # whether there are clones; asked with every write
        self.tick_at = now + heartbeat_s  # when to look after all channels of the master; an event brings it forward
        self._name = name
        self._entity = entity
        self._topic = clone_topic(check_name(name))
        self._writers = writers
        self._snapshot = snapshot
        self._heartbeat_s = heartbeat_s
        self._output: ChannelProducer[Entity, bytes] = ChannelProducer(len, now=now, heartbeat_s=heartbeat_s)
        self._greeted: dict[Entity, float] = {}  # clones whose handshake is under way
        self._beat_at = now + heartbeat_s

    @property
    def clones(self) -> tuple[Entity, ...]:
        """Those that are attached."""
        return self._output.consumers

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return self._output.seq

    def idle(self, gone: Collection[bytes]) -> bool:
        """Whether every clone has everything, but those at endpoints that are ``gone``."""
        return self._output.idle(lambda clone: clone.endpoint in gone)

    # -- what the master has to say ---------------------------------------------------------------------------------

    def tell(self, commands: Iterable[cmd.Action], now: float, actions: list[Action]) -> None:
        """Events for all of them, if there are any."""
        if self.has_clones:
            for command in commands:
                self._apply(self._output.produce(cmd.encode_command(command), now), now, actions)
            self.tick_at = min(self.tick_at, now + CHANNEL_TICK_S)

    def send(self, clone: Entity, command: cmd.Command, actions: list[Action]) -> None:
        """Say something to one of them."""
        payload = cmd.encode_message(0, self._entity, clone, cmd.encode_command(command))
        actions.append(Send(self._topic, clone.endpoint, payload))

    def drop(self, clone: Entity, reason: str, now: float, actions: list[Action]) -> None:
        """Forget one, if it is known."""
        self._apply(self._output.drop(clone, reason), now, actions)

    def hurry(self, now: float) -> None:
        """Have them say at once what they have."""
        self._output.hurry(now)
        self.tick_at = now

    # -- what clones say, and time ----------------------------------------------------------------------------------

    def handle_ack(self, clone: Entity, seq: int, now: float, actions: list[Action]) -> None:
        """One has everything up to ``seq``; the first time it says so it is attached."""
        attached = clone in self._greeted
        self._apply(self._output.handle_ack(clone, seq, now), now, actions)
        if attached and self._greeted.pop(clone, None) is not None and clone in self._output.consumers:
            actions.append(Report(CloneAttached(self._name, clone)))

    def handle_nack(self, clone: Entity, seqs: tuple[int, ...], now: float, actions: list[Action]) -> None:
        """One misses events, or asks for everything."""
        if seqs == ASK_HANDSHAKE and now < self._greeted.get(clone, -math.inf) + _GREET_AGAIN_S:
            return
        self._apply(self._output.handle_nack(clone, seqs, now), now, actions)

    def handle_timeout(self, now: float, actions: list[Action]) -> None:
        """Heartbeats, and clones that are gone."""
        self._apply(self._output.handle_timeout(now), now, actions)
        if not self._output.consumers and now >= self._beat_at:
            self._beat(self._output.seq, now, actions)  # only another master can hear it

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is due."""
        return self._output.next_timeout() if self._output.consumers else self._beat_at

    # -- inside -----------------------------------------------------------------------------------------------------

    def _apply(self, produced: list[ProducerAction[Entity]], now: float, actions: list[Action]) -> None:
        """What the output channel has to say."""
        for each in produced:
            if isinstance(each, ToAll):
                if isinstance(each.message, Heartbeat):
                    self._beat(each.message.seq, now, actions)
                else:
                    actions.append(self._event(each.message, None))
            elif isinstance(each, Dropped):
                self.has_clones = bool(self._output.consumers)
                self._greeted.pop(each.consumer, None)
                self._writers.detach(each.consumer)
                actions.append(Report(CloneDropped(self._name, each.consumer, each.reason)))
            elif isinstance(each, ToConsumer):
                message = each.message
                if isinstance(message, Event):
                    actions.append(self._event(message, each.consumer.endpoint))
                elif isinstance(message, Handshake):
                    self._greet(each.consumer, message, now, actions)
                    self.has_clones = bool(self._output.consumers)
                else:
                    self.send(each.consumer, cmd.RetransmitFailed(message.seq), actions)

    def _event(self, event: Event[Any], receiver: bytes | None) -> Send:
        return Send(self._topic, receiver, cmd.encode_message(event.seq, self._entity, NOBODY, event.payload))

    def _beat(self, seq: int, now: float, actions: list[Action]) -> None:
        """Clones of the original only listen to heartbeats that are addressed to them."""
        self._beat_at = now + self._heartbeat_s
        body = cmd.encode_command(cmd.Keepalive(seq))
        actions.append(Send(self._topic, None, cmd.encode_message(0, self._entity, NOBODY, body)))
        for clone in self._output.consumers:
            if not clone.is_chappe:
                actions.append(Send(self._topic, clone.endpoint, cmd.encode_message(0, self._entity, clone, body)))

    def _greet(self, clone: Entity, handshake: Handshake, now: float, actions: list[Action]) -> None:
        """Send a clone everything, as far as it is durable."""
        pairs = self._snapshot()
        if len(pairs) > STORE_SNAPSHOT_BYTES_MAX:
            self._output.drop(clone, "")
            reason = f"the store has {len(pairs):,} bytes, more than the {STORE_SNAPSHOT_BYTES_MAX:,} a clone can take"
            actions.append(Report(CloneDropped(self._name, clone, reason)))
            return
        self._greeted[clone] = now
        body = cmd.encode_command(cmd.AckClone(handshake.offset, cmd.ticks(self._heartbeat_s), pairs))
        payload = cmd.encode_message(handshake.offset, self._entity, clone, body)
        actions.append(Send(self._topic, clone.endpoint, payload))
