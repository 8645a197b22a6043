"""The state that a chain replicates: a user's machine, and what its clients were answered.

Everything here depends on the committed entries alone, so it is the same at all members, byte for byte. Time is what
the head wrote into the entries. Sessions get older by the same times, but a jump from one entry to the next counts as a
short pause: a clock that is wrong must not end them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec

from chappe.errors import ProtocolError
from chappe.limits import ChainLimits
from chappe.replication.chain.messages import EXPIRED, OK, RAISED, RESULT_BYTES_MAX, Entry, Outcome, Outcomes
from chappe.replication.chain.origins import Origins
from chappe.replication.chain.snapshots import Buffer, Making, Splitter

REASON_BYTES_MAX: Final = 1_000
RESULT_BYTES: Final = 100  # counted for each result that is kept, beside its own
INDEX_BITS: Final = 44  # of the number of a session in a fixed chain; those above are its term's
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
TERM_MASK: Final = (1 << 63 - INDEX_BITS) - 1


def session_opened(index: int, term: int, *, fixed: bool) -> int:
    """Return the number of the session that entry ``index`` opens: in two halves of a fixed chain never the same."""
    return (term & TERM_MASK) << INDEX_BITS | index if fixed else index


class ReplicatedMachine(Protocol):
    """A user's machine. It must be deterministic: the same commands make the same state and results anywhere."""

    def apply(self, command: bytes) -> bytes:
        """Carry out a command. An exception is its result, and changes made before it stay."""
        ...

    def read(self, query: bytes) -> bytes:
        """Answer a query without changing the state."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state; equal states have equal bytes."""
        ...

    def restore(self, state: bytes) -> None:
        """Return to the state of a snapshot; of no bytes: to the initial one.

        The bytes are whole, byte for byte as ``snapshot`` returned them, or ``transfer``: of this machine, or of that
        of another server, which may run an older or newer version of the program. The former state is dropped. An
        exception ends the server, which must not go on with half a state; another one is not tried.
        """
        ...


@runtime_checkable
class TimedMachine(Protocol):
    """A machine that wants to know the time: before each command it is told when the head numbered it."""

    now_us: int


@runtime_checkable
class FiledMachine(Protocol):
    """A machine that keeps its state on a disk of its own: its ``snapshot`` only refers to it.

    Such a snapshot is asked for now and then, and the state that it refers to has to be synced by then. ``restore`` is
    called at the beginning of each life, with the newest snapshot on the chain's own disk, or with no bytes if there is
    none: everything later goes, and is applied again. A server elsewhere gets the bytes of ``transfer``.
    """

    def transfer(self) -> bytes:
        """Return the whole state, for ``restore`` on another disk."""
        ...


class Restoring(Protocol):
    """Rebuilds a state from pieces; the machine is unchanged and in use until ``finish``."""

    def add(self, piece: bytes) -> None:
        """Take the next piece, as ``pieces`` made it."""
        ...

    def finish(self) -> None:
        """Replace the machine's state with the complete one."""
        ...


@runtime_checkable
class PiecedMachine(Protocol):
    """A machine with a large state, made and restored in pieces between commands, so no command waits for all of it.

    Its ``snapshot`` and ``restore`` then serve only tests.
    """

    def pieces(self) -> Iterator[bytes]:
        """Return the state at the call, in pieces of about a megabyte, whatever ``apply`` changes meanwhile."""
        ...

    def restoring(self) -> Restoring:
        """Return an object that rebuilds the state from pieces."""
        ...


@runtime_checkable
class HeadMachine(Protocol):
    """A machine with a part at the head that gives commands of its own: see ``ChainServer.propose``."""

    def apply_own(self, command: bytes) -> bytes:
        """Carry out a command that the head itself has given and no client."""
        ...


class _ClientSession(msgspec.Struct, array_like=True):
    last: int  # its newest step
    used_us: int  # by the clock of ages
    results: dict[int, Outcomes]  # those that the client may not have: of its newest steps, without a gap
    done: int  # it said that it has those up to here
    origin: bytes = b""  # identity or address of the client that opened it


class _StateHead(msgspec.Struct, array_like=True):
    now_us: int
    sessions: list[tuple[int, _ClientSession]]  # least recently used first
    age_us: int  # the clock of ages
    pieced: bool  # the machine makes its state in pieces


_HEAD: Final = msgspec.msgpack.Decoder(_StateHead)


class ChainReplica:
    def __init__(self, machine: ReplicatedMachine, limits: ChainLimits, *, fixed: bool = False) -> None:
        self.machine = machine
        self._fixed = fixed
        self.applied = 0
        self.asked = False  # the machine was asked to do the last entry
        self._limits = limits
        self._session_us = int(limits.session_s * 1_000_000)
        self._pause_us = int(limits.pause_s * 1_000_000)
        self.now_us = 0
        self._age_us = 0
        self._sessions: dict[int, _ClientSession] = {}  # least recently used first
        self._origins = Origins()
        self._holding: dict[int, None] = {}  # those with results, in the same order
        self._result_bytes = 0  # of all results
        self._timed = machine if isinstance(machine, TimedMachine) else None
        self._filed = machine if isinstance(machine, FiledMachine) else None
        self._pieced = machine if isinstance(machine, PiecedMachine) else None
        self._own = machine if isinstance(machine, HeadMachine) else None

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def begin(self) -> None:
        if self._filed is not None:
            self.machine.restore(b"")

    def apply(self, index: int, entry: Entry) -> Outcomes | None:
        """Carry out the next entry, once; None: it was done before, and the client said that it has the result."""
        assert index == self.applied + 1
        self.applied = index
        self.asked = False
        before, self.now_us = self.now_us, max(self.now_us, entry.at_us)
        self._age_us += min(self.now_us - before, self._pause_us)
        self._forget()
        if entry.own:
            self.asked = True
            return (self._do(entry.command, own=True),)
        if not entry.session:
            number = session_opened(index, entry.term, fixed=self._fixed)
            opened = self._sessions[number] = _ClientSession(0, self._age_us, {}, 0, entry.origin)
            self._origins.put(number, opened.origin, used=False)
            while len(self._sessions) > self._limits.sessions_max:
                self._end(self._origins.next_to_go(self._sessions))
            return ((OK, b""),)
        session = self._sessions.pop(entry.session, None)
        if session is None:
            return ((EXPIRED, b""),)
        self._sessions[entry.session] = session  # the most recently used one
        self._origins.put(entry.session, session.origin, used=True)
        session.used_us = self._age_us
        session.done = max(session.done, min(entry.done, session.last))
        while session.results and (first := next(iter(session.results))) <= session.done:
            self._drop(session, first)
        if entry.seq <= session.last:
            self._hold(entry.session, session)
            return session.results.get(entry.seq)
        assert entry.seq == session.last + 1, f"command {entry.seq} of session {entry.session} after {session.last}"
        session.last = entry.seq
        self.asked = True
        outcomes = self._do_all(entry)
        if entry.seq > entry.done:
            session.results[entry.seq] = outcomes
            self._result_bytes += _size(outcomes)
        else:
            session.done = entry.seq
        self._hold(entry.session, session)
        return outcomes

    def read(self, query: bytes) -> Outcome:
        try:
            return _bounded(self.machine.read(query))
        except Exception as error:
            return RAISED, _reason(error)

    def last(self, session: int) -> int | None:
        found = self._sessions.get(session)
        return None if found is None else found.last

    def result(self, session: int, seq: int) -> Outcomes | None:
        """Return the results of a step: None if it is not done, or the client has them; EXPIRED if forgotten."""
        found = self._sessions.get(session)
        if found is None or not found.done < seq <= found.last:
            return None
        return found.results.get(seq, ((EXPIRED, b""),))

    def make(self, *, transfer: bool = False) -> Making:
        """Begin a snapshot of the present state, for the own disk or for another server."""
        machine = self.machine
        if self._pieced is not None:
            pieces = self._pieced.pieces()
        elif transfer and self._filed is not None:
            pieces = iter((self._filed.transfer(),))
        else:
            pieces = iter((machine.snapshot(),))
        head = _StateHead(self.now_us, list(self._sessions.items()), self._age_us, self._pieced is not None)
        return Making(chain((msgspec.msgpack.encode(head),), pieces), self._limits.piece_bytes)

    @property
    def one_state(self) -> bool:
        """True if other servers get the same state as the own disk."""
        return self._filed is None

    def snapshot(self) -> bytes:
        """Return the whole state as one value, for the own disk."""
        made = self.make()
        while not made.step(1 << 62):
            pass
        return b"".join(made.chunks)

    def restoring(self) -> Restored:
        return Restored(self)

    def restore(self, index: int, chunks: Iterable[Buffer]) -> None:
        """Restore the state behind an entry. Raises ProtocolError."""
        restored = self.restoring()
        for chunk in chunks:
            for at in range(0, len(chunk), self._limits.made_bytes):
                restored.add(memoryview(chunk)[at : at + self._limits.made_bytes])
        restored.finish(index)

    def become(self, index: int, head: _StateHead) -> None:
        """Take over a state of the chain itself, after entry ``index``; the machine is already restored."""
        self.applied, self.now_us, self._sessions = index, head.now_us, dict(head.sessions)
        self._age_us = head.age_us
        self._origins = Origins()
        for number, each in self._sessions.items():
            self._origins.put(number, each.origin, used=each.last > 0)
        self._holding = {number: None for number, each in self._sessions.items() if each.results}
        self._result_bytes = sum(_size(each) for found in self._sessions.values() for each in found.results.values())

    def _do_all(self, entry: Entry) -> Outcomes:
        outcomes = [self._do(entry.command)]
        size = len(outcomes[0][1])
        for command in entry.also:
            outcome = self._do(command)
            size += len(outcome[1])
            if size > self._limits.results_bytes:
                size -= len(outcome[1])
                outcome = RAISED, b"it was done; its result is too much together with those of commands before it"
            outcomes.append(outcome)
        return tuple(outcomes)

    def _do(self, command: bytes, *, own: bool = False) -> Outcome:
        if self._timed is not None:
            self._timed.now_us = self.now_us
        try:
            if not own:
                return _bounded(self.machine.apply(command))
            if self._own is None:
                return RAISED, b"the machine takes no commands of the head's own"
            return _bounded(self._own.apply_own(command))
        except Exception as error:  # of the user's, and the same at every member
            return RAISED, _reason(error)

    def _forget(self) -> None:
        until = self._age_us - self._session_us
        sessions = self._sessions
        while sessions:
            first = next(iter(sessions))
            if sessions[first].used_us >= until:
                return
            self._end(first)

    def _end(self, session: int) -> None:
        found = self._sessions.pop(session)
        self._result_bytes -= sum(map(_size, found.results.values()))
        self._holding.pop(session, None)
        self._origins.remove(session)

    def _hold(self, number: int, session: _ClientSession) -> None:
        """Note a session as used last. If all results are too large, the oldest of the least recently used ones go."""
        self._holding.pop(number, None)
        if session.results:
            self._holding[number] = None
        while self._result_bytes > self._limits.results_bytes and self._holding:
            least = next(iter(self._holding))
            found = self._sessions[least]
            if least == number and len(found.results) == 1:
                return  # the one that was just made
            self._drop(found, next(iter(found.results)))
            if not found.results:
                del self._holding[least]

    def _drop(self, session: _ClientSession, seq: int) -> None:
        self._result_bytes -= _size(session.results.pop(seq))


class Restored:
    """Rebuilds a state from chunks; the replica is unchanged until ``finish``."""

    def __init__(self, replica: ChainReplica) -> None:
        self._replica = replica
        self._head: _StateHead | None = None
        self._pieces: Restoring | None = None
        self._whole: list[bytes] = []  # the machine's state, where it comes without pieces
        self._splitter = Splitter(self)

    def add(self, chunk: Buffer) -> None:
        """Take the next chunk. Raises ProtocolError."""
        self._splitter.add(chunk)

    def finish(self, index: int) -> None:
        """Replace the replica's state with that after entry ``index``. Raises ProtocolError."""
        self._splitter.finish()
        if self._head is None:
            raise ProtocolError("the state of a chain is empty")
        if self._pieces is not None:
            self._pieces.finish()
        else:
            self._replica.machine.restore(b"".join(self._whole))
        self._replica.become(index, self._head)

    def frame(self, frame: bytes) -> None:
        """Take a complete frame. Raises ProtocolError."""
        if self._head is not None:
            if self._pieces is not None:
                self._pieces.add(frame)
            else:
                self._whole.append(frame)
            return
        self._head = head = _decoded(_HEAD, frame)
        if head.pieced:
            machine = self._replica.machine
            if not isinstance(machine, PiecedMachine):
                raise ProtocolError("the state of a chain is of another machine: it comes in pieces")
            self._pieces = machine.restoring()


Kept = TypeVar("Kept")


def _decoded(decoder: msgspec.msgpack.Decoder[Kept], raw: bytes) -> Kept:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the state of a chain does not decode: {error}") from None


def _size(outcomes: Outcomes) -> int:
    return RESULT_BYTES * len(outcomes) + sum([len(each[1]) for each in outcomes])


def _bounded(result: bytes) -> Outcome:
    if len(result) > RESULT_BYTES_MAX:
        return RAISED, f"a result of {len(result):,} bytes, of {RESULT_BYTES_MAX:,} that one may have".encode()
    return OK, result


def _reason(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}".encode()[:REASON_BYTES_MAX]


@runtime_checkable
class ExternalState(Protocol):
    """A machine that writes a part of its state to its member's disk later, outside the chain.

    The chain's log keeps such a part safe until then. So a log is not shortened before the external part of the state
    behind it is written; and that state, which goes to joiners, need not hold it: a joiner gets it on a way of its own.
    Everything here is looked up often, and must be quick.
    """

    @property
    def settled(self) -> int:
        """Everything with a mark up to this one is on disk."""
        ...

    @property
    def full(self) -> bool:
        """True if too much is not written yet: a member then confirms nothing more, and a joiner takes nothing more."""
        ...

    @property
    def complete(self) -> bool:
        """True if every record that the restored state refers to is there. A joiner is let in only then."""
        ...

    def mark(self) -> int:
        """Return the mark of the command that was applied last."""
        ...
