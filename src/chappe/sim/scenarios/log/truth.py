"""What producers really sent, what was acknowledged, and what may be lost because the faults took every copy."""

from __future__ import annotations

from dataclasses import dataclass, field

from chappe.log.batch import Batch
from chappe.sim.world import Violation

Key = tuple[str, str]
Content = tuple[bytes | None, bytes | None]  # value, key


def contents(batch: Batch, start: int) -> list[Content]:
    """Values and keys of a batch from offset ``start`` on."""
    values = batch.values()[start - batch.base :]
    keys = batch.keys()
    return [(value, None) for value in values] if keys is None else list(
        zip(values, keys[start - batch.base :], strict=True)
    )  # fmt: skip


@dataclass(slots=True)
class Sent:
    """One partition as its producer sent it."""

    records: list[Content] = field(default_factory=list)
    acknowledged: int = 0  # every offset before it was acknowledged by enough stores
    lost: set[int] = field(default_factory=set)  # offsets of which the faults took every copy
    gone: bool = False  # its producer is dead and will not come back
    original: bool = False


class Truth:
    """All partitions."""

    def __init__(self) -> None:
        self.parts: dict[Key, Sent] = {}

    def of(self, key: Key) -> Sent:
        """One partition."""
        found = self.parts.get(key)
        if found is None:
            found = self.parts[key] = Sent()
        return found

    def sent(self, key: Key, base: int, records: list[Content]) -> None:
        """A producer published records; raises Violation if it gives an offset twice, or leaves one out."""
        part = self.of(key)
        if base > len(part.records):
            raise Violation("identity", f"{key} goes on at {base}, it had come to {len(part.records)}")
        known = part.records[base : base + len(records)]
        if known != records[: len(known)]:
            raise Violation("identity", f"{key} uses offset {base} again, for something else")
        part.records += records[len(known) :]
