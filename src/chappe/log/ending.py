"""Where the topics of a consumer end, and whether they are read so far.

On a log that grows there is no last record, only one that was the last when somebody looked. So the end is what the
stores list who were asked after it was sought, and what producers have told of by then: whatever a store acknowledged
before that is in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from chappe.data.topic import Filter
from chappe.defaults import BEACON_INTERVAL_S
from chappe.log.delivery import Delivery
from chappe.log.sources import Key, Sources

MEET_S: Final = 0.3  # members are met within milliseconds: after the first store, others get this long
ALONE_S: Final = BEACON_INTERVAL_S + MEET_S  # once a second members say that they are there, and producers their heads


class Ending:
    """What is known of the end.

    Args:
        delivery: How far partitions are known and were delivered.
        sources: The stores.
    """

    def __init__(self, delivery: Delivery, sources: Sources) -> None:
        self._delivery = delivery
        self._sources = sources
        self.heard_at = math.inf  # when anything of a wanted partition was heard first

    def heads(self) -> dict[Key, int]:
        """The offset after the last one known to exist, of every partition."""
        known = {key: max(part.gap.head, part.gap.next) for key, part in self._delivery.partitions.items()}
        return {**self._delivery.settled, **known}

    def listed(self, filters: Iterable[Filter], since: float, now: float) -> bool:
        """Whether stores are known, others had time to be met too, and all were asked at ``since`` or later."""
        sources = self._sources
        return bool(sources.stores) and now >= sources.met_at + MEET_S and sources.listed(filters, since)

    def known(self, filters: Iterable[Filter], since: float, now: float) -> bool:
        """Whether the end as of ``since`` is known: from the stores, or where there is none, from producers."""
        if self._sources.stores:
            return self.listed(filters, since, now)
        return now >= max(since, self.heard_at) + ALONE_S

    def lacks(self, key: Key, end: int) -> bool:
        """Whether anything of a partition before offset ``end`` is still to be delivered, and may be."""
        part = self._delivery.partitions.get(key)
        # Not what nobody has of what was told of it, either.
        return part is not None and not part.gap.complete and part.gap.next < end
