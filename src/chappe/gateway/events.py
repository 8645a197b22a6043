"""Events of a gateway for the application. The text of each is a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class GatewayPasses:
    domains: tuple[str, str]

    def __str__(self) -> str:
        return f"passing between {self.domains[0]} and {self.domains[1]}"


@dataclass(frozen=True, slots=True)
class GatewayWaits:
    """The gateway passes nothing from now on; ``reason`` is a part of a sentence."""

    domains: tuple[str, str]
    reason: str

    def __str__(self) -> str:
        return f"passing nothing between {self.domains[0]} and {self.domains[1]}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SameMesh:
    """Both sides of the gateway are one mesh; it passes nothing while that is so."""

    domains: tuple[str, str]

    def __str__(self) -> str:
        return (
            f"{self.domains[0]} and {self.domains[1]} are one mesh: the gateway sees its own other side there; take"
            " away the peering that joins them, or the gateway"
        )


@dataclass(frozen=True, slots=True)
class OtherName:
    """Another gateway, ``endpoint``, has another name for the domain: perhaps the sides are mistaken for each other."""

    endpoint: bytes
    ours: str
    theirs: str

    def __str__(self) -> str:
        return (
            f"gateway {UUID(bytes=self.endpoint)} says {self.theirs} of the domain that is {self.ours} here: are the"
            " sides of one of them mistaken for each other?"
        )


@dataclass(frozen=True, slots=True)
class NotPassed:
    """Messages came and were not passed; comes at most once a second for each side and reason."""

    domain: str
    count: int
    reason: str

    def __str__(self) -> str:
        return f"did not pass {self.count} messages from {self.domain}, {self.reason}"
