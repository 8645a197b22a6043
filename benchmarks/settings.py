"""How much is measured, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the suite.

    Args:
        work: A directory on a real disk, made for this run and removed after it.
        peer_python: An interpreter that has the peers' clients, or None.
        quick: A tenth of the records and few repeats: shows that everything works, not how fast.
        kafka: An installation of Kafka, or None: the directory that has its ``libs``.
    """

    work: Path
    peer_python: str | None = None
    quick: bool = False
    kafka: str | None = None

    @property
    def repeats(self) -> int:
        """Rounds of each throughput; the median counts."""
        return 1 if self.quick else 3

    def count(self, full: int) -> int:
        """Records of a round that has ``full`` of them in a full run."""
        return full // 20 if self.quick else full

    def seconds(self, full: float) -> float:
        """Seconds of a round that takes ``full`` of them in a full run."""
        return full / 5 if self.quick else full
