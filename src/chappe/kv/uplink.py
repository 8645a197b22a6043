"""How one clone addresses what it says to masters."""

from __future__ import annotations

from chappe.channel import ASK_HANDSHAKE, Ack, Event, ToProducer
from chappe.kv import commands as cmd
from chappe.kv.actions import Action, Send
from chappe.kv.entity import Entity
from chappe.kv.topics import check_name, master_topic


class Uplink:
    """Makes the messages of the clone ``entity`` of the store ``name``; raises UsageError for a bad name."""

    def __init__(self, name: str, entity: Entity) -> None:
        self._topic = master_topic(check_name(name))
        self._entity = entity

    def ask(self, receiver: Entity, actions: list[Action]) -> None:
        """Ask for a snapshot, aloud: a master by name, or whichever there is with ``NOBODY``."""
        body = cmd.encode_command(cmd.MissingEvents(ASK_HANDSHAKE))
        actions.append(Send(self._topic, None, cmd.encode_message(0, self._entity, receiver, body)))

    def send(self, command: cmd.Command, master: Entity, actions: list[Action]) -> None:
        """Say something to a master."""
        payload = cmd.encode_message(0, self._entity, master, cmd.encode_command(command))
        # The original broadcasts what it says as a writer, and answers as a reader to its master alone.
        alone = master.is_chappe or isinstance(command, cmd.CumulativeAck | cmd.MissingEvents)
        actions.append(Send(self._topic, master.endpoint if alone else None, payload))

    def say(self, said: ToProducer, master: Entity, actions: list[Action]) -> None:
        """Send a master what the channel of its events has to say."""
        message = said.message
        command = cmd.CumulativeAck(message.seq) if isinstance(message, Ack) else cmd.MissingEvents(message.seqs)
        self.send(command, master, actions)

    def send_event(self, event: Event[bytes], master: Entity, actions: list[Action]) -> None:
        """Send a master a write."""
        payload = cmd.encode_message(event.seq, self._entity, master, event.payload)
        actions.append(Send(self._topic, master.endpoint if master.is_chappe else None, payload))
