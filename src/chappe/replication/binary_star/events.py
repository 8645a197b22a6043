"""Events that a pair reports to the application. The text of each is a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass

from chappe.replication.binary_star.messages import NAMES


@dataclass(frozen=True, slots=True)
class BecameActive:
    """This server serves from now on; ``why`` is a part of a sentence."""

    term: int
    why: str

    def __str__(self) -> str:
        return f"active in term {self.term}: {self.why}"


@dataclass(frozen=True, slots=True)
class BecamePassive:
    """The partner serves; term 0 if it is an original, which has none."""

    term: int

    def __str__(self) -> str:
        return f"passive: the partner is active in term {self.term}" if self.term else "passive: the partner is active"


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """This server serves no longer. If it was ``alone``, writes that it confirmed meanwhile may be lost with this."""

    term: int
    seen: int
    why: str
    alone: bool

    def __str__(self) -> str:
        text = f"no longer active in term {self.term}: {self.why}"
        return f"{text}; what was confirmed here alone may be lost" if self.alone and self.seen > self.term else text


@dataclass(frozen=True, slots=True)
class PartnerFound:
    """The partner is heard, and hears this server."""

    original: bool

    def __str__(self) -> str:
        return "the partner is there" + (", one of the Guide's programs" if self.original else "")


@dataclass(frozen=True, slots=True)
class PartnerLost:
    """The partner is not heard, or does not hear this server."""

    silent_s: float

    def __str__(self) -> str:
        return f"the partner has been silent for {self.silent_s:.2f} s"


@dataclass(frozen=True, slots=True)
class Paired:
    """Nothing is confirmed from now on that the partner does not have."""

    term: int

    def __str__(self) -> str:
        return "the partner has everything"


@dataclass(frozen=True, slots=True)
class Alone:
    """Writes are confirmed from now on that the partner does not have."""

    term: int

    def __str__(self) -> str:
        return f"alone in term {self.term}: writes are confirmed without the partner"


@dataclass(frozen=True, slots=True)
class SameRole:
    """Both servers are configured alike; this one will not become active while the other is there."""

    role: int

    def __str__(self) -> str:
        return f"both servers of the pair are configured as {NAMES[self.role]}: make one of them the other kind"


@dataclass(frozen=True, slots=True)
class OtherPair:
    """Heartbeats of another pair come from where the partner should be; they are ignored."""

    name: bytes

    def __str__(self) -> str:
        return f"the server at the partner's address belongs to the pair {self.name.decode(errors='replace')!r}"


@dataclass(frozen=True, slots=True)
class MayNotServe:
    """A client asks, the partner is silent, and yet this server does not take over; reported once for each ``why``."""

    why: str

    def __str__(self) -> str:
        return f"a client asks and nobody serves: {self.why}"


@dataclass(frozen=True, slots=True)
class TermNotKept:
    """The disk refused a record, so this server does not become active, or steps down."""

    def __str__(self) -> str:
        return "the term cannot be kept on disk: this server does not serve"


@dataclass(frozen=True, slots=True)
class Granted:
    """A witness let a server confirm alone in a term, or recorded that it no longer does."""

    pair: bytes
    role: int
    term: int
    alone: bool

    def __str__(self) -> str:
        how = "alone" if self.alone else "with its partner"
        return f"pair {self.pair.decode(errors='replace')!r}: the {NAMES[self.role]} leads in term {self.term}, {how}"


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """A witness refused a server: the pair is in another term, or the other one confirms alone."""

    pair: bytes
    role: int
    term: int
    held: int

    def __str__(self) -> str:
        return (
            f"pair {self.pair.decode(errors='replace')!r}: refused the {NAMES[self.role]} term {self.term}, term"
            f" {self.held} is the other one's"
        )
