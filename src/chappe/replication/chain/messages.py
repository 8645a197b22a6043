"""Messages between servers of a chain and clients, in msgpack.

``number`` is that of the sender's configuration: messages of an older one are refused, those of a newer one wait until
it is known here. Entries of the log are numbered from 1.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.defaults import MIB
from chappe.replication.agreement import core as agreement
from chappe.replication.agreement.core import SERVERS_MAX
from chappe.replication.chain.configuration import Word

COMMAND_BYTES_MAX: Final = 4 * MIB
RESULT_BYTES_MAX: Final = 4 * MIB
PIECE_BYTES_MAX: Final = 1 * MIB
ENTRIES_MAX: Final = 65_536  # in one message
STEP_MAX: Final = 256  # commands in one step ...
STEP_BYTES: Final = 64 * 1024  # ... of so many bytes together, or one alone; as many bytes of results in one message
NONCE_BYTES_MAX: Final = 64

Command = Annotated[bytes, msgspec.Meta(max_length=COMMAND_BYTES_MAX)]
Commands = Annotated[tuple[Command, ...], msgspec.Meta(max_length=STEP_MAX - 1)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=1, max_length=NONCE_BYTES_MAX)]
Result = Annotated[bytes, msgspec.Meta(max_length=RESULT_BYTES_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=1_000)]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the log.

    Args:
        term: Number of the configuration whose head numbered it.
        at_us: When the head did, by the time of day; never earlier than the entry before.
        session: Its session; 0: this one opens a session, or is the head's own.
        seq: Its number in the session, from 1; without a session 1: the head's own command.
        done: The client has the results of the steps up to this one.
        command: For the machine; of one that opens a session the token by which the client recognizes it.
        also: Further commands of the same step, in order; or the origin, in an entry that opens a session.
    """

    term: Word
    at_us: Word
    session: Word
    seq: Word
    done: Word
    command: Command
    also: Commands = ()

    @property
    def own(self) -> bool:
        """True if the head gave the command itself, and no client."""
        return not self.session and self.seq > 0

    @property
    def origin(self) -> bytes:
        return self.also[0] if self.also else b""


# -- between servers --------------------------------------------------------------------------------------------


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """The state that all servers tell all others several times a second; ``hears``: a bit for each that is heard."""

    number: Word
    disk: Word
    life: Word
    end: Word
    synced: Word
    committed: Word
    hears: Word
    leaves: bool = False


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """To the predecessor, on entering a configuration: the last entry of each term in the log, oldest first."""

    number: Word
    runs: Annotated[tuple[tuple[Word, Word], ...], msgspec.Meta(max_length=ENTRIES_MAX)]
    committed: Word


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """To the successor: entries behind ``base``; ``first``: it drops its entries beyond that.

    ``synced`` is how far all members up to the sender are on disk.
    """

    number: Word
    base: Word
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=ENTRIES_MAX)]
    synced: Word
    committed: Word
    first: bool


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """To the predecessor: it has everything up to ``end``; up to ``committed`` it is confirmed.

    ``full``: from a joiner that takes no entries for now, as its disk is behind.
    """

    number: Word
    life: Word
    end: Word
    synced: Word
    committed: Word
    full: bool = False


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """To the tail, from a server that is not a member: send entries behind ``committed``; ``lost``: once more."""

    number: Word
    life: Word
    committed: Word
    lost: bool


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """A piece of the state behind the entry ``index``; ``check`` is CRC-32C of all ``size`` bytes."""

    number: Word
    index: Word
    term: Word
    size: Word
    check: Word
    offset: Word
    data: Annotated[bytes, msgspec.Meta(max_length=PIECE_BYTES_MAX)]


class Want(msgspec.Struct, frozen=True, array_like=True, tag="want"):
    """There is room for pieces of the state behind ``index`` up to ``credit``; those up to ``offset`` are there."""

    number: Word
    index: Word
    offset: Word
    credit: Word


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="confirm"):
    """Is ``number`` still the newest configuration? ``round`` numbers the questions of a life."""

    number: Word
    life: Word
    round: Word


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed"):
    """``disk`` has voted for no newer one; ``committed``: the entry that a tail has to show."""

    number: Word
    life: Word
    round: Word
    disk: Word
    committed: Word


# -- clients ------------------------------------------------------------------------------------------------------

OK: Final = 0
RAISED: Final = 1  # the machine has raised an exception; the result is its text
EXPIRED: Final = 2  # the session is over: whether it was done, nobody knows
Outcome: TypeAlias = tuple[int, bytes]
Outcomes: TypeAlias = tuple[Outcome, ...]  # of the commands of a step


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    nonce: Nonce


class Listen(msgspec.Struct, frozen=True, array_like=True, tag="listen"):
    """To any server, the tail above all: this client is to get the answers of a session, or to an ``Open``."""

    session: Word
    nonce: Nonce


class Do(msgspec.Struct, frozen=True, array_like=True, tag="do"):
    """To the head: the step ``seq`` of a session, one command or several; repeated as it was."""

    session: Word
    seq: Word
    done: Word
    command: Command
    also: Commands = ()


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """To any member: a question for the machine."""

    token: Word
    query: Command


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="opened"):
    nonce: Nonce
    session: Word


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """The outcome of a step: committed, as ``members`` servers have it, on disk if ``durable``.

    ``outcome`` and ``result`` are of its command number ``first``, from 0, and ``also`` of those that follow: the
    results of one step may come in several messages.
    """

    session: Word
    seq: Word
    outcome: Word
    result: Result
    members: Word
    durable: bool
    first: Word = 0
    also: Annotated[tuple[tuple[Word, Result], ...], msgspec.Meta(max_length=STEP_MAX - 1)] = ()


class Says(msgspec.Struct, frozen=True, array_like=True, tag="says"):
    token: Word
    outcome: Word
    result: Result


class Chain(msgspec.Struct, frozen=True, array_like=True, tag="chain"):
    """The members' places, head first, to a client that asks the wrong server. ``why`` if nobody serves."""

    number: Word
    members: Annotated[tuple[Word, ...], msgspec.Meta(max_length=SERVERS_MAX)]
    why: Text


Link: TypeAlias = Beat | Resume | Append | Ack | Join | Piece | Want | Confirm | Confirmed
Between: TypeAlias = Link | agreement.Message
Request: TypeAlias = Open | Listen | Do | Read
Answer: TypeAlias = Opened | Done | Says | Chain

_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return _ENCODER.encode(message)
