"""Events that a server of a chain reports to the application. The text of each is a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entered:
    """A configuration is in force here; ``members`` are places, head first."""

    number: int
    members: tuple[int, ...]
    place: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        chain = " > ".join(self.names[each] for each in self.members)
        if self.place not in self.members:
            role = "is not a member"
        elif len(self.members) == 1:
            role = "is alone"
        elif self.place == self.members[0]:
            role = "is the head"
        else:
            role = "is the tail" if self.place == self.members[-1] else "is in the middle"
        return f"configuration {self.number}: {chain}; {self.names[self.place]} {role}"


@dataclass(frozen=True, slots=True)
class Waits:
    """This server does not take part in serving, or cannot; ``why`` is a sentence. Empty: it does again."""

    why: str

    def __str__(self) -> str:
        return self.why or "all that was waited for is there"


@dataclass(frozen=True, slots=True)
class ServerRemoved:
    """This server proposes a chain without a member."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} is to leave the chain: {self.why}"


@dataclass(frozen=True, slots=True)
class ServerJoins:
    """This server, the tail, proposes a chain with another at its end."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} has everything and is to be the tail"


@dataclass(frozen=True, slots=True)
class JoinAbandoned:
    """This server, the tail, goes on without a joiner; that asks again automatically when it can."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} does not join for now: its disk has been behind for too long"


@dataclass(frozen=True, slots=True)
class StateTooLarge:
    """The state has more bytes than a joiner takes."""

    name: str
    size: int
    most: int

    def __str__(self) -> str:
        return (
            f"{self.name} cannot join: the state has {self.size:,} bytes, of {self.most:,} that can be taken;"
            " have the machine keep less, or on a disk of its own"
        )


@dataclass(frozen=True, slots=True)
class EntriesDiscarded:
    """Entries that were never committed are gone from this server's log."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"commands {self.first} to {self.last} were never committed, and are thrown away"


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The disk refused a write; it is tried again. Reported at most once a minute while that lasts."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} cannot be written, and is tried again: {self.why}"


@dataclass(frozen=True, slots=True)
class Replaced:
    """The state of this server of a fixed chain is now that of the tail. ``apart``: it had gone on alone."""

    name: str
    had: int
    tail: str
    has: int
    apart: bool

    def __str__(self) -> str:
        if not self.apart:
            return (
                f"the state of {self.name} up to command {self.had} is replaced by that of {self.tail} up to {self.has}"
            )
        return (
            f"the chain was cut in two: the state of {self.name} up to command {self.had} is thrown away for that of"
            f" {self.tail} up to {self.has}; what was confirmed on the side of {self.name} alone, if anything, is lost"
        )


@dataclass(frozen=True, slots=True)
class Applied:
    """A command that was committed and done.

    Args:
        index: Of its entry in the log; commands of one step share it.
        at_us: When the head numbered it, by the time of day.
        outcome: 0, or 1 if the machine has raised something.
        result: What the machine returned, or the text of what it raised.
    """

    index: int
    at_us: int
    command: bytes
    outcome: int
    result: bytes
