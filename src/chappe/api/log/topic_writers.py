"""All topics of a producer: begun when first written to, or when an identity was in a former life."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chappe.api.log.topic_writer import Common, TopicWriter
from chappe.defaults import PRODUCER_TOPICS_MAX
from chappe.errors import StorageError, UsageError
from chappe.log.producer import LogProducer
from chappe.log.producers import LogProducers
from chappe.storage.journal import Journals
from chappe.system import time

SHOWN = 3  # topics named in one sentence; of the rest it is said how many there are


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """How far a producer is with one topic.

    ``next_offset`` is the offset that the next record gets; every one before ``stored`` is held by ``min_acks`` stores.
    """

    next_offset: int
    stored: int


class TopicWriters:
    """With the producer's lock held, but for what only looks.

    Args:
        core: The partitions.
        journals: Of an identity.
        min_acks: Stores that must hold each record.
    """

    def __init__(self, core: LogProducers, journals: Journals | None, min_acks: int) -> None:
        self.by_topic: dict[str, TopicWriter] = {}
        self._core = core
        self._journals = journals
        self._min_acks = min_acks

    def begin(self, own: str | None, common: Common) -> None:
        """Open the producer's own topic, and those of an identity's former lives."""
        self._common = common
        known = [] if self._journals is None else list(self._journals.opened)
        for topic in known if own is None else dict.fromkeys((own, *known)):
            self.open(topic)

    def open(self, topic: str) -> TopicWriter:
        """Begin to write one more topic.

        Raises:
            UsageError: There are ``PRODUCER_TOPICS_MAX``.
            StorageFull, StorageError: Its journal cannot be made.
        """
        if len(self.by_topic) >= PRODUCER_TOPICS_MAX:
            raise UsageError(f"a producer writes at most {PRODUCER_TOPICS_MAX} topics: make another one for {topic!r}")
        journals = self._journals
        journal = None if journals is None else journals.opened.get(topic) or journals.open(topic)
        core = LogProducer(
            topic,
            self._core.address,
            min_acks=self._min_acks,
            journal=journal.batches if journal else None,
            next_offset=journal.next_offset if journal else 0,
            resumed=journal.resumed if journal else False,
            subscriptions=self._core.subscriptions,
            kept=self._core.kept,
        )
        made = TopicWriter(core, journal, self._common)
        self.by_topic[topic] = made
        self._common.node.add_topic(core)
        return made

    # -- what is done to all --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Publish what is gathered. Raises what the journal of one topic does, after the others were published."""
        refused: StorageError | None = None
        for each in self.by_topic.values():
            try:
                each.flush_batch()
            except StorageError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def hurry(self, waiting: bool) -> None:
        """Somebody waits for acknowledgements, or no longer."""
        now = time.monotonic()
        for each in self.by_topic.values():
            each.core.hurry(now, waiting)
        self._common.node.perform(())  # it may be due earlier
        self._common.node.tell()

    def look_again(self) -> None:
        """Have no record take the short way before something was looked at."""
        for each in self.by_topic.values():
            each.core.plain = False

    # -- looking, from any thread -----------------------------------------------------------------------------

    def cores(self) -> list[LogProducer]:
        """In the order in which the topics were begun; a list, as another thread may add one."""
        return [each.core for each in list(self.by_topic.values())]

    def progress(self) -> dict[str, TopicProgress]:
        """How far each is."""
        return {each.topic: TopicProgress(each.next_offset, each.stored) for each in self.cores()}

    def __str__(self) -> str:
        cores = self.cores()
        shown = [f"{each.topic!r} at {each.next_offset} ({each.stored} stored)" for each in cores[:SHOWN]]
        return _and_more(", ".join(shown), len(cores), "") or "no topic yet"


def counted(missing: Iterable[tuple[str, int]]) -> str:
    """How many records of which topics, for people; empty if there are none."""
    found = [f"{count} records of topic {topic!r}" for topic, count in missing if count > 0]
    return _and_more(" and ".join(found[:SHOWN]), len(found), "of ")


def _and_more(text: str, count: int, of: str) -> str:
    return f"{text} and {of}{count - SHOWN} topics more" if count > SHOWN else text
