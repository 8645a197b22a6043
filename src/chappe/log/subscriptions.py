"""Who subscribed to what, as a publishing socket tells it: how many peers hold each prefix."""

from __future__ import annotations

from chappe.data.topic import decode_topic
from chappe.defaults import ADDRESS_BYTES_MAX


def address_in(prefix: bytes) -> str | None:
    """The member that a subscription to ``L`` or ``W`` names; None if that cannot be the address of one."""
    raw = prefix[1:]
    return decode_topic(raw) if 0 < len(raw) <= ADDRESS_BYTES_MAX and b"\0" not in raw else None


class PeerSubscriptions:
    """Counts of subscribers by prefix.

    A member of chappe that wants a topic subscribes to ``H``, ``R`` and ``M`` of it, in this order, and unsubscribes in
    the opposite one; an original wants ``M`` and ``H``. So where somebody wants ``M``, and ``M`` or ``H`` outnumber
    ``R``, an original listens. A member that wants only what stores have subscribes to ``H`` and then ``J``, so ``J``
    counts against ``H``. While subscriptions come in one by one an original may be seen that is not there, but none is
    overlooked.
    """

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._original_stores: bool | None = None  # as found since the last change
        self._originals: dict[bytes, bool] = {}  # found since the last change: asked for every batch

    def change(self, prefix: bytes, on: bool) -> None:
        """Count one subscriber more or less."""
        self._originals.clear()
        self._original_stores = None
        count = self._counts.get(prefix, 0) + (1 if on else -1)
        if count > 0:
            self._counts[prefix] = count
        else:
            self._counts.pop(prefix, None)

    def count(self, prefix: bytes) -> int:
        """How many hold exactly this prefix."""
        return self._counts.get(prefix, 0)

    def has(self, prefix: bytes) -> bool:
        """Whether somebody holds exactly this prefix."""
        return prefix in self._counts

    def wanted(self, topic: bytes, kind: bytes = b"M") -> bool:
        """Return True if a subscriber wants messages of this kind on the topic."""
        record = kind + topic
        return any(record[:end] in self._counts for end in range(1, len(record) + 1))

    def original_stores(self) -> bool:
        """Whether the reader of an original store listens; one of ours subscribes to batches meant for it, too."""
        if self._original_stores is None:
            self._original_stores = any(
                prefix[:1] == b"W" and len(prefix) > 1 and b"S" + prefix[1:] not in self._counts
                for prefix in self._counts
            )
        return self._original_stores

    def original(self, requester: bytes) -> bool:
        """Whether a requester is known, and wants single records because it does not know batches.

        Its request may be faster than its subscriptions, which come over another connection; until they are here
        nobody would get the answer.
        """
        return self.has(b"D" + requester) and not self.has(b"S" + requester)

    def originals(self, topic: bytes) -> bool:
        """Whether somebody wants single records of the topic because it does not know batches."""
        found = self._originals.get(topic)
        if found is None:
            counts = self._counts
            found = self._originals[topic] = any(
                (records := counts.get(b"M" + topic[:end], 0))
                and max(records, counts.get(b"H" + topic[:end], 0) - counts.get(b"J" + topic[:end], 0))
                > counts.get(b"R" + topic[:end], 0)
                for end in range(len(topic) + 1)
            )
        return found
