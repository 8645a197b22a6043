"""Where a consumer begins in each partition: by its ``reset``, by the newest records, or where its group says."""

from __future__ import annotations

from collections.abc import Sequence

from chappe.core import Effect
from chappe.data.topic import Filter
from chappe.errors import ProtocolError
from chappe.log.delivery import LAST, LATEST, Delivery, Partition, Reset
from chappe.log.gap import UNDECIDED
from chappe.log.groups.member import NOWHERE, GroupMember
from chappe.log.last_values import LastTopics
from chappe.log.queries import Answer
from chappe.log.sources import Key, KnownStore, Sources
from chappe.log.storage import PartitionInfo


class Beginnings:
    """The beginnings of one consumer's partitions.

    Args:
        filters: The consumer's own list, which it changes.
        last: With ``reset`` LAST, the topics whose newest records are asked for.
        group: Partitions of its other members are not begun.
    """

    def __init__(
        self,
        reset: Reset,
        filters: list[Filter],
        delivery: Delivery,
        sources: Sources,
        last: LastTopics,
        group: GroupMember | None,
    ) -> None:
        self._reset = reset
        self._filters = filters
        self._delivery = delivery
        self._sources = sources
        self._last = last
        self._group = group
        self._first_seen: dict[Key, int] = {}  # of a group at the latest: where others' partitions were
        # Filters of which, without a store, partitions met from now on are read from their beginning.
        self.ready: set[Filter] = set()

    def partition(self, key: Key, first_seen: int, now: float) -> Partition:
        """Return the state of a partition that is heard of at offset ``first_seen``; a new one begins by ``reset``."""
        part = self._delivery.find(key)
        if part is None:
            begins = self._reset.when_heard(first_seen, new=self._is_new(key[0]))
            part = self._delivery.add(key, begins)
            if begins == UNDECIDED and self._reset is LAST:
                part.gap.next = self._begin_with_last(key, now)
        return part

    def others_heard(self, key: Key, first_seen: int, now: float) -> bool:
        """A partition is heard of; return True if another member of the group reads it."""
        if self._group is None or self._group.seen(key, now):
            return False
        if self._reset is LATEST:
            self._first_seen.setdefault(key, self._reset.when_heard(first_seen, new=self._is_new(key[0])))
        return True

    def others_listed(self, key: Key, info: PartitionInfo, *, new: bool, now: float) -> bool:
        """A store lists a partition; return True if another member of the group reads it."""
        if self._group is None or self._group.seen(key, now):
            return False
        if self._reset is LATEST:
            self._first_seen.setdefault(key, self._reset.when_listed(info, new=new))
        return True

    def of_group(self, key: Key, offset: int) -> int:
        """Return where to begin in a partition at the group's position; NOWHERE if ``reset`` decides."""
        return self._first_seen.get(key, NOWHERE) if offset == NOWHERE else offset

    def start(self, store: KnownStore, key: Key, info: PartitionInfo, *, new: bool, now: float) -> int:
        """Return where to begin in a partition that a store lists; another store may have earlier records."""
        if self._reset is LAST:
            return info.first if self._last.begun(key[0]) else self._begin_with_last(key, now)
        if self._reset.kind == "time" and not self._has_all(store, key, info, now):
            return UNDECIDED
        if self._reset.kind != "earliest":
            return self._reset.when_listed(info, new=new)
        if info.first and not self._sources.all_listed(now, but=store):
            return UNDECIDED
        return min([info.first, *(first for first, _ in self._sources.ranges(key))])

    def _has_all(self, store: KnownStore, key: Key, info: PartitionInfo, now: float) -> bool:
        if not self._sources.all_listed(now, but=store):
            return False
        return all(info.first <= first and next_ <= info.next for first, next_ in self._sources.ranges(key))

    def concerns(self, key: Key, end: int) -> bool:
        """True if an original store's end of a partition matters; it lists all that it ever had."""
        if key not in self._delivery.partitions:
            reached = self._delivery.settled.get(key)
            return self._reset is not LATEST if reached is None else reached < end
        return True

    def _begin_with_last(self, key: Key, now: float) -> int:
        """Return where a partition begins that is met now, for a consumer that wants the newest records first."""
        if self._last.begun(key[0]):
            return 0
        self._last.want(key, now)
        return UNDECIDED

    def last_came(
        self, store: KnownStore, topic: str, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        """A store told newest records of a topic: deliver those of partitions that have not begun."""
        actions, page = self._last.answered(store, topic, answer, now)
        try:
            for key, batch in () if page is None else self._last.records(topic, page, batches, now):
                part = self._delivery.find(key)
                if part is None or part.gap.next == UNDECIDED:
                    actions.append(self._delivery.ahead(key, batch))
        except ProtocolError:
            store.fail(now)
            self._last.malformed(topic, now)
            raise
        more = [] if self._delivery.paused else self._last.look(now)
        return [*actions, *more, *self.begin(now)]

    def begin(self, now: float) -> list[Effect]:
        """Begin partitions where their newest records end."""
        actions: list[Effect] = [*self._last.reports]
        self._last.reports.clear()
        begins, self._last.begins = self._last.begins, []
        over, self._last.over = self._last.over, []
        for key, offset in begins:
            part = self._delivery.find(key) or self._delivery.add(key, UNDECIDED)
            part.delivered = True
            if part.gap.next == UNDECIDED:
                actions += self._begin_at(key, part, offset, now)
        for key in over:
            found = self._delivery.partitions.get(key)
            if found is not None and found.gap.next == UNDECIDED:
                actions += self._begin_at(key, found, 0, now)
        return actions

    def _begin_at(self, key: Key, part: Partition, offset: int, now: float) -> list[Effect]:
        part.gap.retry_at = 0.0
        part.gap.head = max(part.gap.head, offset)
        self._delivery.gaps.want(key, part.gap)
        return self._delivery.begin(key, offset, now)

    def _is_new(self, topic: str) -> bool:
        """True if a partition of this topic that is met now is younger than the subscription."""
        matching = [each for each in self._filters if each.matches(topic)]
        return any(each in self.ready or self._sources.synced([each]) for each in matching)
