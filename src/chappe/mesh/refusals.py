"""What was refused to neighbours by the permissions: counted by who and what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chappe.defaults import REFUSALS_MAX

OTHERS: Final = ""  # beyond the bound


@dataclass(frozen=True, slots=True)
class Refusal:
    """How often something was refused to an identity: ``verb`` is one of the permissions, or ``join``."""

    identity: str
    verb: str
    count: int


class Refusals:
    """The counts of one endpoint; they only rise.

    Attributes:
        heard: Told of each, if somebody wants to hear: identity, verb, the topic or none, how often.
    """

    def __init__(self) -> None:
        self.heard: Callable[[str, str, bytes, int], None] | None = None
        self.total = 0
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, identity: str, verb: str, count: int = 1, topic: bytes = b"") -> None:
        """Count; a ``topic`` ends in ``*`` if it is all that begin so."""
        if self.heard is not None:
            self.heard(identity, verb, topic, count)
        key = identity, verb
        if key not in self._counts and len(self._counts) >= REFUSALS_MAX:
            key = OTHERS, verb
        self._counts[key] = self._counts.get(key, 0) + count
        self.total += count

    def listed(self) -> list[Refusal]:
        """Everything, by who and what."""
        return [Refusal(*key, count) for key, count in sorted(self._counts.items())]
