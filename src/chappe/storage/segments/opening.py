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
from chappe.storage.segments.directory import (
    COPIES,
    StoreDirectory,
    TopicFolder,
    folder_name,
    segment_numbers,
    topic_of,
)
from chappe.storage.segments.files import FileOps
from chappe.storage.segments.identity import STORE_FILE
from chappe.storage.segments.manifest import Known
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
        self._found: dict[str, TopicFolder] = {}
        self._strange: dict[str, TopicFolder] = {}  # nothing in them is of their topic

    def find(self) -> list[TopicFolder]:
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
            try:
                self._directory.prove()
            except OSError as error:
                logger.warning("the identity of the store cannot be written as this version does: %s", error)
        for folder in self._strange.values():
            self._place(folder, expected)
        for topic in expected:
            if topic not in self._found and topic not in self._strange:
                self._bring_back(topic)
        return [folder for _, folder in sorted(self._found.items())]

    def _look(self, expected: list[str]) -> bool:
        """Sort the folders; returns whether any block is of this store."""
        proved = False
        names = {folder_name(topic): topic for topic in expected}
        for name in sorted(os.listdir(self._directory.topics)):
            path = os.path.join(self._directory.topics, name)
            topic = topic_of(self._ops, path) if os.path.isdir(path) else None
            if topic is None and name in names:
                topic = names[name]
                logger.error("%s had lost the name of its topic, which is %r", path, topic)
                self._directory.folder(topic, path).keep_name()
            if topic is None:
                logger.error("%s is not the folder of a topic, or lost its name; it is left alone", path)
                continue
            folder = self._directory.folder(topic, path)
            owned = _owned(folder)
            proved = proved or owned is True
            (self._strange if owned is False else self._found)[topic] = folder
        return proved

    def _expected(self) -> list[str]:
        """The topics that have, or had, something on disk."""
        expected = {
            topic
            for topic, (oldest, mark) in (self._known or {}).items()
            if mark.length > len(SEGMENT_HEADER) or oldest < mark.segment
        }
        copies = os.path.join(self._directory.path, COPIES)
        for name in os.listdir(copies) if os.path.isdir(copies) else ():
            topic = topic_of(self._ops, os.path.join(copies, name))
            if topic is not None and segment_numbers(os.path.join(copies, name))[1]:
                expected.add(topic)
        return sorted(expected)

    def _place(self, folder: TopicFolder, expected: list[str]) -> None:
        """Decide on a folder without a block of its topic."""
        topic = folder.topic
        for other in expected:
            if other != topic and _owned(self._directory.folder(other, folder.path)):
                self._of_another(folder, other)
                return
        segments, indexes = segment_numbers(folder.path)
        unfinished = self._known is not None and len(segments) == 1 and not indexes
        if topic in expected or unfinished:  # all of it is damaged, or its first write never ended
            self._found[topic] = folder
        else:
            logger.error("%s holds nothing of topic %r and this store; it is left alone", folder.path, topic)

    def _of_another(self, folder: TopicFolder, other: str) -> None:
        right = self._directory.folder(other)
        path, topic = folder.path, folder.topic
        if os.path.exists(right.path):
            logger.error("%s holds topic %r, not %r; give it back its name; it is left alone", path, other, topic)
            return
        self._ops.replace(path, right.path)
        self._ops.sync_directory(self._directory.topics)
        self._found[other] = right
        logger.error("the folder of topic %r had been renamed to %s; a topic has one name: it is back", other, path)

    def _bring_back(self, topic: str) -> None:
        folder = self._directory.folder(topic)
        if os.path.exists(folder.path):
            logger.error("%s is in the way of topic %r; it is left alone", folder.path, topic)
            return
        logger.error("the folder of topic %r is gone: %s", topic, folder.path)
        self._ops.mkdir(folder.path)
        folder.keep_name()
        self._ops.sync_directory(self._directory.topics)
        self._found[topic] = folder


def _owned(folder: TopicFolder) -> bool | None:
    """Whether a folder has a block of its topic; None if it has none of any."""
    answer: bool | None = None
    for number in sorted(segment_numbers(folder.path)[0], reverse=True):
        if os.stat(folder.segment(number)).st_size > len(SEGMENT_HEADER):
            answer = owns(folder, number)
        if answer:
            break
    return answer
