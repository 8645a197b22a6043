"""Opening a store: which folder holds which topic.

The manifest and the copies of the indexes say which topics there should be. A folder that is gone comes back empty, so
that what it had is known to be missing. A folder that holds another topic was renamed: if that one's is gone, it gets
its name back. Otherwise it is left alone, as is any folder in which nothing belongs to this store.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

from chappe.errors import StorageFormat
from chappe.storage.segments.blocks import SEGMENT_HEADER
from chappe.storage.segments.directory import COPIES, NAME_FILE, StoreDirectory, folder_name, topic_of
from chappe.storage.segments.files import FileOps, replace_file, sync_directory
from chappe.storage.segments.identity import STORE_FILE
from chappe.storage.segments.manifest import Known
from chappe.storage.segments.recovery import segment_numbers
from chappe.storage.segments.scanning import owns

logger: Final = logging.getLogger(__name__)


class Folders:
    """The folders of a store's topics.

    Args:
        ops: The operating system.
        directory: The store's.
        known: What the manifest says of each topic; None if there is none.
    """

    def __init__(self, ops: FileOps, directory: StoreDirectory, known: Mapping[str, Known] | None) -> None:
        self._ops = ops
        self._directory = directory
        self._known = known
        self._found: dict[str, str] = {}
        self._strange: dict[str, str] = {}  # nothing in them is of their topic

    def find(self) -> dict[str, str]:
        """The folder of each topic, sorted by topic.

        Raises:
            StorageFormat: The id of the store, which had no checksum yet, fits none of its blocks.
            OSError: A folder cannot be read.
        """
        expected = self._expected()
        proved = self._look(expected)
        if not self._directory.proved:
            if self._strange and not proved:
                raise StorageFormat(
                    f"no record in {self._directory.topics} belongs to the store_id in {STORE_FILE}: it was changed or "
                    "damaged; restore that file from a backup. Nothing else was changed"
                )
            self._prove()
        for topic, folder in self._strange.items():
            self._place(topic, folder, expected)
        for topic in expected:
            if topic not in self._found and topic not in self._strange:
                self._bring_back(topic)
        return dict(sorted(self._found.items()))

    def _look(self, expected: list[str]) -> bool:
        """Sort the folders; returns whether any block is of this store."""
        proved = False
        names = {folder_name(topic): topic for topic in expected}
        for name in sorted(os.listdir(self._directory.topics)):
            folder = os.path.join(self._directory.topics, name)
            topic = topic_of(self._ops, folder) if os.path.isdir(folder) else None
            if topic is None and name in names:
                topic = names[name]
                logger.error("%s had lost the name of its topic, which is %r", folder, topic)
                self._name(topic, folder)
            if topic is None:
                logger.error("%s is not the folder of a topic, or lost its name; it is left alone", folder)
                continue
            owned = self._owned(folder, topic)
            proved = proved or owned is True
            (self._strange if owned is False else self._found)[topic] = folder
        return proved

    def _owned(self, folder: str, topic: str) -> bool | None:
        """Whether a folder has a block of a topic; None if it has none of any."""
        answer: bool | None = None
        for number in sorted(segment_numbers(folder)[0], reverse=True):
            path = os.path.join(folder, f"{number:016d}.seg")
            if os.stat(path).st_size > len(SEGMENT_HEADER):
                answer = owns(self._ops, path, topic, self._directory.store_id, number)
            if answer:
                break
        return answer

    def _prove(self) -> None:
        try:
            self._directory.prove()
        except OSError as error:
            logger.warning("the identity of the store cannot be written as this version does: %s", error)

    def _expected(self) -> list[str]:
        """The topics that have, or had, something on disk."""
        expected: set[str] = set()
        for known, (oldest, mark) in (self._known or {}).items():
            if mark.length > len(SEGMENT_HEADER) or oldest < mark.segment:
                expected.add(known)
        copies = os.path.join(self._directory.path, COPIES)
        for name in os.listdir(copies) if os.path.isdir(copies) else ():
            topic = topic_of(self._ops, os.path.join(copies, name))
            if topic is not None and segment_numbers(os.path.join(copies, name))[1]:
                expected.add(topic)
        return sorted(expected)

    def _place(self, topic: str, folder: str, expected: list[str]) -> None:
        """Decide on a folder without a block of its topic."""
        for other in expected:
            if other != topic and self._owned(folder, other):
                self._of_another(topic, folder, other)
                return
        segments, indexes = segment_numbers(folder)
        unfinished = self._known is not None and len(segments) == 1 and not indexes
        if topic in expected or unfinished:  # all of it is damaged, or its first write never ended
            self._found[topic] = folder
        else:
            logger.error("%s holds nothing of topic %r and this store; it is left alone", folder, topic)

    def _of_another(self, topic: str, folder: str, other: str) -> None:
        right = os.path.join(self._directory.topics, folder_name(other))
        if os.path.exists(right):
            logger.error("%s holds topic %r, not %r; give it back its name; it is left alone", folder, other, topic)
            return
        self._ops.replace(folder, right)
        sync_directory(self._ops, self._directory.topics)
        self._found[other] = right
        logger.error("the folder of topic %r had been renamed to %s; a topic has one name: it is back", other, folder)

    def _bring_back(self, topic: str) -> None:
        folder = os.path.join(self._directory.topics, folder_name(topic))
        if os.path.exists(folder):
            logger.error("%s is in the way of topic %r; it is left alone", folder, topic)
            return
        logger.error("the folder of topic %r is gone: %s", topic, folder)
        self._ops.mkdir(folder)
        self._name(topic, folder)
        sync_directory(self._ops, self._directory.topics)
        self._found[topic] = folder

    def _name(self, topic: str, folder: str) -> None:
        if os.path.basename(folder).startswith("%%"):
            raw = topic.encode("utf-8", "surrogateescape")
            replace_file(self._ops, os.path.join(folder, NAME_FILE), [raw])
