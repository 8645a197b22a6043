"""What the frames of one call lead to."""

from __future__ import annotations

from chappe.mesh.actions import Action, Deliver, Flush
from chappe.mesh.messages import Message


class Turn:
    """Gathers it, so that a subscriber is called once."""

    __slots__ = ("actions", "boxes", "flushes")

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.boxes: dict[int, list[Message]] = {}
        self.flushes: dict[int, Flush] = {}

    def deliver(self, subscribers: tuple[int, ...], message: Message) -> None:
        """Put a message into the boxes of subscribers."""
        boxes = self.boxes
        for subscriber in subscribers:
            if subscriber in boxes:
                boxes[subscriber].append(message)
            else:
                boxes[subscriber] = [message]

    def deliver_all(self, subscribers: tuple[int, ...], messages: list[Message]) -> None:
        """As ``deliver``, several at once."""
        boxes = self.boxes
        for subscriber in subscribers:
            if subscriber in boxes:
                boxes[subscriber] += messages
            else:
                boxes[subscriber] = messages.copy()

    def close(self) -> None:
        """Put what was gathered into the actions: what follows happened later."""
        if self.boxes:
            self.actions += [Deliver(subscriber, messages) for subscriber, messages in self.boxes.items()]
            self.boxes = {}
        if self.flushes:
            self.actions += self.flushes.values()
            self.flushes = {}
