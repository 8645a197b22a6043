"""One of N named servers that agree on values 1, 2, 3, ...: each is decided once, by a majority of the N.

Source: Paxos (Lamport, *Paxos Made Simple*), one instance for each number. Departures:

* Number n + 1 is voted on by who knows n, so a server keeps one vote, and of what is decided the newest alone.
* A **disk** votes, not a name: a value says which disk each server has (``disks_of``), and the next number counts the
  votes of those. A server that lost its disk comes back with another one, and votes again when a value names that.
* The **first** value needs all N, each with the disk that it names: there is no value before it that could say whose
  votes count. Once it is decided a server without memory is somebody who lost it.

What is promised and voted for is on disk before it is said. Messages may be lost, repeated and late. All fields are
immutable values, so ``copy.copy`` makes a second server in the same state.

Messages are msgpack. ``number`` is the value to decide; a *ballot* is a round and the disk of the server that began it,
so no two attempts ever have the same. *Disk* is a number that was drawn when a server's memory was made: a server that
lost its memory counts as another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.core import Effect, Persist, Send
from chappe.errors import ProtocolError, StorageError, UsageError

VALUE_BYTES_MAX: Final = 16_384
NUMBER_MAX: Final = 2**62

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Disk = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Value = Annotated[bytes, msgspec.Meta(max_length=VALUE_BYTES_MAX)]
Ballot: TypeAlias = tuple[Number, Disk]
NO_BALLOT: Final[Ballot] = (0, 0)


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Phase one: do not vote below this ballot any more, and report your vote."""

    number: Number
    ballot: Ballot


class Promise(msgspec.Struct, frozen=True, array_like=True, tag="promise"):
    """The answer of ``disk``: its vote and the ballot, if it has voted."""

    number: Number
    ballot: Ballot
    disk: Disk
    accepted: Ballot
    value: Value


class Accept(msgspec.Struct, frozen=True, array_like=True, tag="accept"):
    number: Number
    ballot: Ballot
    value: Value


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """``disk`` has voted for it."""

    number: Number
    ballot: Ballot
    disk: Disk


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse"):
    """The answer to a ballot that is too low: ``promised`` is a higher one."""

    number: Number
    ballot: Ballot
    promised: Ballot


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="decided"):
    number: Number
    value: Value


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    number: Number


Message: TypeAlias = Prepare | Promise | Accept | Accepted | Refuse | Decided | Ask

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode(frame: bytes) -> Message:
    """Decode a message. Raises ProtocolError: it is not one."""
    try:
        return _DECODER.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid message of an agreement, of {len(frame)} bytes: {error}") from None


SERVERS_MAX: Final = 15
AGAIN_S: Final = 0.1  # what is not answered is said again
PAUSES_MAX: Final = 8  # a refused server waits that many times as long at most


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """A server's persistent state: the newest decision, and its vote on the next number."""

    disk: int
    number: int = 0
    value: bytes = b""
    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT
    proposal: bytes = b""


class Agreement:
    """One server. The newest decision is in ``number`` and ``value``, and once it is on disk also told to the others.

    Args:
        place: Of this server among the named ones, from 0.
        servers: How many are named.
        memory: The state that was kept last; a new one has a disk that was drawn at random, and nothing else.
        disks_of: The disk of each server as a value names it, 0 where a server has no vote. Raises ProtocolError.
    """

    def __init__(
        self, place: int, servers: int, memory: VoteRecord, disks_of: Callable[[bytes], tuple[int, ...]]
    ) -> None:
        if not 0 <= place < servers <= SERVERS_MAX:
            raise UsageError(f"at least one server has to be named, and at most {SERVERS_MAX} can be")
        assert memory.disk > 0
        self.place = place
        self.memory = memory
        self._servers = servers
        self._disks_of = disks_of
        self._disks = disks_of(memory.value) if memory.number else ()
        self._kept: VoteRecord | None = memory  # None: nobody knows what is on the disk
        # -- its own proposal
        self._wish = b""
        self._ballot = NO_BALLOT  # under way
        self._value: bytes | None = None  # put to the vote; None: still asking
        self._promises: dict[int, tuple[Ballot, bytes]] = {}
        self._votes: frozenset[int] = frozenset()
        self._seen = memory.promised[0]  # the highest round
        self._refused = 0  # times in a row
        self._at = math.inf

    # -- looks ------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return self.memory.number

    @property
    def value(self) -> bytes:
        return self.memory.value

    @property
    def may_vote(self) -> bool:
        return not self.memory.number or self._disks[self.place] == self.memory.disk

    @property
    def untouched(self) -> bool:
        """True if it has not voted on the next number: when a majority says so, nothing newer was decided before."""
        return self.memory.accepted == NO_BALLOT

    @property
    def kept(self) -> bool:
        return self._kept is not None

    @property
    def proposing(self) -> bool:
        return bool(self._wish)

    def counts(self, place: int, disk: int) -> bool:
        return bool(self._disks) and self._disks[place] == disk

    @property
    def majority(self) -> int:
        return self._servers // 2 + 1 if self.memory.number else self._servers

    def next_timeout(self) -> float:
        return self._at

    def invariants(self) -> list[str]:
        found = []
        if self.memory.accepted > self.memory.promised:
            found.append(f"voted in {self.memory.accepted}, promised {self.memory.promised}")
        if self._ballot > self.memory.promised:
            found.append(f"asks for {self._ballot} that it has not promised itself: {self.memory.promised}")
        if (self._ballot == NO_BALLOT) and self._value is not None:
            found.append("votes are counted for no ballot")
        return found

    def story(self) -> str:
        memory = self.memory
        return f"decided {memory.number}, promised {memory.promised[0]}, voted in {memory.accepted[0]}"

    # -- inputs -----------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        return self._to_all(Ask(self.memory.number))

    def propose(self, value: bytes, now: float) -> list[Effect]:
        """Propose this as the next number, unless another value is decided. A repetition changes nothing."""
        assert len(value) <= VALUE_BYTES_MAX
        if self._wish == value or not self.may_vote:
            return []
        begun = self._ballot != NO_BALLOT or self._at < math.inf
        self._wish = value
        return [] if begun else self._begin(now)

    def withdraw(self) -> None:
        """Propose no more. A value that others have voted for may still be decided."""
        self._wish = b""
        self._rest()

    def handle_message(self, sender: int, message: Message, now: float) -> list[Effect]:
        match message:
            case Decided():
                return self._learn(message)
            case Ask():
                return self._tell_decided(sender) if message.number < self.memory.number else []
        if message.number <= self.memory.number:
            return [] if isinstance(message, Promise | Accepted | Refuse) else self._tell_decided(sender)
        if message.number > self.memory.number + 1:
            return [Send(sender, Ask(self.memory.number))]
        match message:
            case Prepare() | Accept():
                return self._vote(sender, message)
            case Promise():
                return self._hear_promise(sender, message, now)
            case Accepted():
                return self._hear_vote(sender, message.ballot, message.disk)
            case Refuse():
                return self._hear_refusal(message, now)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Repeat unanswered messages, or begin again after a refusal."""
        if now < self._at:
            return []
        if self._kept is None and self.memory.number:
            self._at = now + AGAIN_S
            return self._keep()
        if not self._wish:
            self._rest()
            return []
        if self._ballot == NO_BALLOT:
            return self._begin(now)
        self._at = now + AGAIN_S
        if self._value is None:
            prepare = Prepare(self.memory.number + 1, self._ballot)
            return [Send(each, prepare) for each in self._others() if each not in self._promises]
        accept = Accept(self.memory.number + 1, self._ballot, self._value)
        return [Send(each, accept) for each in self._others() if each not in self._votes]

    def handle_done(self, job: VoteRecord, outcome: StorageError | None, now: float) -> list[Effect]:
        """Note that a vote is on disk; or that the disk refused it, and no message that needs it was sent."""
        if outcome is not None:
            self._kept = None
            self._rest()
            self._at = now + AGAIN_S
        return []

    # -- voting -----------------------------------------------------------------------------------------------

    def _vote(self, sender: int, message: Prepare | Accept) -> list[Effect]:
        memory = self.memory
        self._seen = max(self._seen, message.ballot[0])
        if message.ballot < memory.promised:
            return [Send(sender, Refuse(message.number, message.ballot, memory.promised))]
        if isinstance(message, Prepare):
            self.memory = replace(memory, promised=message.ballot)
            answer: Message = Promise(message.number, message.ballot, memory.disk, memory.accepted, memory.proposal)
        else:
            self._disks_of(message.value)
            self.memory = replace(memory, promised=message.ballot, accepted=message.ballot, proposal=message.value)
            answer = Accepted(message.number, message.ballot, memory.disk)
        return [*self._keep(), Send(sender, answer)]

    def _keep(self) -> list[Effect]:
        if self._kept == self.memory:
            return []
        self._kept = self.memory
        return [Persist(self.memory, first=True)]

    # -- proposing --------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> list[Effect]:
        number = self.memory.number + 1
        self._seen += 1
        if not self.may_vote or self._seen > NUMBER_MAX:
            return []
        self._ballot = (self._seen, self.memory.disk)
        self._value = None
        self._promises = {}
        self._votes = frozenset()
        self._at = now + AGAIN_S
        accepted = (self.memory.accepted, self.memory.proposal)
        self.memory = replace(self.memory, promised=self._ballot)
        actions = [*self._keep(), *self._to_all(Prepare(number, self._ballot))]
        return actions + self._promised(self.place, self.memory.disk, accepted, now)

    def _hear_promise(self, sender: int, message: Promise, now: float) -> list[Effect]:
        if message.ballot != self._ballot or self._value is not None:
            return []
        return self._promised(sender, message.disk, (message.accepted, message.value), now)

    def _promised(self, place: int, disk: int, accepted: tuple[Ballot, bytes], now: float) -> list[Effect]:
        if self.memory.number and not self.counts(place, disk):
            return []
        self._promises = {**self._promises, place: accepted}
        if len(self._promises) < self.majority:
            return []
        ballot, value = max(self._promises.values())
        self._value = value if ballot != NO_BALLOT else self._wish
        self._at = now + AGAIN_S
        if self.memory.promised != self._ballot:  # it has promised a higher one to somebody else meanwhile
            return self._pause(now)
        self.memory = replace(self.memory, accepted=self._ballot, proposal=self._value)
        actions = [*self._keep(), *self._to_all(Accept(self.memory.number + 1, self._ballot, self._value))]
        return actions + self._hear_vote(self.place, self._ballot, self.memory.disk)

    def _hear_vote(self, place: int, ballot: Ballot, disk: int) -> list[Effect]:
        value = self._value
        if ballot != self._ballot or value is None:
            return []
        disks = self._disks or self._disks_of(value)
        if disks[place] != disk:
            return []
        self._votes = self._votes | {place}
        if len(self._votes) < self.majority:
            return []
        decided = Decided(self.memory.number + 1, value)
        return [*self._learn(decided), *self._to_all(decided)]

    def _hear_refusal(self, message: Refuse, now: float) -> list[Effect]:
        self._seen = max(self._seen, message.promised[0])
        return self._pause(now) if message.ballot == self._ballot else []

    def _pause(self, now: float) -> list[Effect]:
        """Let another server finish, each for a different while."""
        self._rest()
        self._refused = min(self._refused + 1, PAUSES_MAX)
        self._at = now + AGAIN_S * self._refused * (1 + self.place)
        return []

    def _rest(self) -> None:
        self._ballot, self._value, self._at = NO_BALLOT, None, math.inf

    # -- learning ---------------------------------------------------------------------------------------------

    def _learn(self, message: Decided) -> list[Effect]:
        if message.number <= self.memory.number:
            return []
        self._disks = self._disks_of(message.value)
        self.memory = VoteRecord(self.memory.disk, message.number, message.value)
        self._wish, self._refused = b"", 0
        self._rest()
        return self._keep()

    def _tell_decided(self, sender: int) -> list[Effect]:
        return [Send(sender, Decided(self.memory.number, self.memory.value))] if self.memory.number else []

    def _others(self) -> list[int]:
        return [each for each in range(self._servers) if each != self.place]

    def _to_all(self, message: Message) -> list[Effect]:
        return [Send(each, message) for each in self._others()]


PLACES: Final = SERVERS_MAX + 1  # numbers in one round


def decider(number: int) -> int:
    return number % PLACES


class WithoutAgreement(Agreement):
    """A server that decides without asking the others: the inputs and effects of ``Agreement``, without its votes.

    A number is a round and the place of the server that decided it, so two servers never decide the same number. Where
    two decide at once, the caller judges whose value stands: it makes a server begin again as another disk, or outbid
    the other.

    Args:
        place: Of this server among the named ones, from 0.
        servers: How many are named.
        memory: The state that was kept last.
        disks_of: The disk of each server as a value names it.
        disk_in: The disk of this server once it has learned the value of a number: another one if its data on disk
            is not what the value builds on.
    """

    def __init__(
        self,
        place: int,
        servers: int,
        memory: VoteRecord,
        disks_of: Callable[[bytes], tuple[int, ...]],
        disk_in: Callable[[int, bytes], int],
    ) -> None:
        super().__init__(place, servers, memory, disks_of)
        self._disk_in = disk_in

    @property
    def may_vote(self) -> bool:
        """True: a server needs nobody's consent."""
        return True

    @property
    def untouched(self) -> bool:
        """True: no vote is ever under way."""
        return True

    @property
    def majority(self) -> int:
        return 1

    def propose(self, value: bytes, now: float, *, above: int = 0) -> list[Effect]:
        """Decide this at once, with a number beyond all that are known, and beyond ``above``."""
        number = (max(self.memory.number, above) // PLACES + 1) * PLACES + self.place
        if number > NUMBER_MAX:
            raise UsageError(f"a chain can change {NUMBER_MAX // PLACES:,} times: begin another one")
        decided = Decided(number, value)
        return [*self._learn(decided), *self._to_all(decided)]

    def handle_message(self, sender: int, message: Message, now: float) -> list[Effect]:
        """Take another server's decision, or its question for one; votes do not count here."""
        match message:
            case Decided():
                return self._learn(message)
            case Ask():
                return self._tell_decided(sender) if message.number < self.memory.number else []
        return []

    def _learn(self, message: Decided) -> list[Effect]:
        if message.number > self.memory.number:
            self.memory = replace(self.memory, disk=self._disk_in(message.number, message.value))
        return super()._learn(message)
