"""The journals of one identity: that of its producer's topic, and one for each further topic, in folders below it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from chappe.data.topic import encode_topic
from chappe.errors import StorageError, StorageFormat
from chappe.storage.journal import Journal, topic_in

NO_TOPIC: Final = ""  # of the identity of a producer that has no topic of its own


class Journals:
    """In ``directory``; all name the same partition address.

    Args:
        directory: Belongs to one producer; two at once are refused.
        topic: The producer's own; None if it has none.
        address: Name of the partitions if the identity is new.

    Raises:
        As ``Journal``.
    """

    def __init__(self, directory: Path, topic: str | None, address: str) -> None:
        self._further = directory / "topics"
        self._first = Journal(directory, NO_TOPIC if topic is None else topic, address)
        self.address = self._first.address
        self.opened: dict[str, Journal] = {} if topic is None else {topic: self._first}
        try:
            for each in self._known():
                self.open(each)
        except BaseException:
            self.close()
            raise

    def open(self, topic: str) -> Journal:
        """The journal of one more topic. Raises as ``Journal``."""
        made = Journal(self._further / hashlib.sha256(encode_topic(topic)).hexdigest()[:32], topic, self.address)
        if made.address != self.address:
            made.close()
            raise StorageFormat(f"the journals in {self._further} are not of the identity beside them: remove them")
        self.opened[topic] = made
        return made

    def close(self) -> None:
        """Release all."""
        for each in {id(each): each for each in (*self.opened.values(), self._first)}.values():
            each.close()

    def _known(self) -> list[str]:
        """Further topics of former lives, in a fixed order."""
        try:
            folders = sorted(self._further.iterdir()) if self._further.exists() else []
        except OSError as error:
            raise StorageError(f"cannot read the journals in {self._further}: {error.strerror}") from None
        return [topic for folder in folders if (topic := topic_in(folder)) is not None]
