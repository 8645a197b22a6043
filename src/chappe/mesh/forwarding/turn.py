"""What the frames of one call lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chappe.core import Deliver, Effect, Flush
from chappe.mesh.forwarding.last_values import Newest
from chappe.mesh.messages import Message

Opens: TypeAlias = Callable[[list[Message]], list[Message]]  # what of messages of one topic can be read here


class Turn:
    """Gathers it, so that a subscriber is called once.

    Args:
        opens: Opens what comes in sealed topics; None where nobody can.
        newest: What subscribers with last values have had.
    """

    __slots__ = ("_newest", "_opens", "actions", "boxes", "flushes")

    def __init__(self, opens: Opens | None, newest: dict[int, Newest]) -> None:
        self._opens = opens
        self._newest = newest
        self.actions: list[Effect] = []
        self.boxes: dict[int, list[Message]] = {}
        self.flushes: dict[int, Flush] = {}

    def deliver(self, subscribers: tuple[int, ...], message: Message) -> None:
        """Put a message into the boxes of subscribers."""
        if self._opens is not None:
            self.deliver_all(subscribers, [message])
            return
        boxes = self.boxes
        for subscriber in subscribers:
            if subscriber in boxes:
                boxes[subscriber].append(message)
            else:
                boxes[subscriber] = [message]

    def deliver_all(self, subscribers: tuple[int, ...], messages: list[Message]) -> None:
        """As ``deliver``, several of one topic at once."""
        if self._opens is not None and subscribers:
            messages = self._opens(messages)
            if not messages:
                return
        boxes = self.boxes
        for subscriber in subscribers:
            if subscriber in boxes:
                boxes[subscriber] += messages
            else:
                boxes[subscriber] = messages.copy()

    def close(self) -> None:
        """Put what was gathered into the actions: what follows happened later."""
        if self.boxes:
            for subscriber in self._newest.keys() & self.boxes.keys() if self._newest else ():
                self.boxes[subscriber] = self._newest[subscriber].fresh(self.boxes[subscriber])
                if not self.boxes[subscriber]:
                    del self.boxes[subscriber]
            self.actions += [Deliver(subscriber, messages) for subscriber, messages in self.boxes.items()]
            self.boxes = {}
        if self.flushes:
            self.actions += self.flushes.values()
            self.flushes = {}
