"""One of two servers of a shared map: Binary Star decides whether it serves, and what it may confirm.

Every request of a client for a snapshot or a stream is a vote. A client of chappe tells with it the epoch that it
knows; epochs of a pair hold its term, so a server that was replaced, and is asked by a client that knows so, steps
down.

What Binary Star wants kept is a row of the backend, in the commits' order. What it decides while such a row is on its
way to the disk waits for that; but what takes rights away is done at once.

While it is not known whether the other server has taken over (this one stood still), no client is answered, and what
clients ask for and publish is held. It is done when this server goes on. If not, they are refused, and what they
published is pending, as at any passive server.

One of a pair keeps in its backend, beside the data, the term in which it was active and the standing of its data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from chappe.core import Clock, Deliver, Effect, Persist
from chappe.defaults import MIB, STAR_HEARTBEAT_S, STAR_ORIGINAL_SILENT_S
from chappe.errors import ProtocolError, StorageError
from chappe.kv.backend import Commit, Loaded, WriterRow
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.ledger import Ledger
from chappe.kv.chp.server import PEER, UPDATES, MapServerCore
from chappe.kv.engine import Engine
from chappe.kv.entity import ENDPOINT_BYTES, Entity
from chappe.limits import MAP_LIMITS, MapLimits
from chappe.replication.binary_star.core import BinaryStar
from chappe.replication.binary_star.messages import (
    ACTIVE,
    BEAT,
    LEADER,
    NAMES,
    PARTNER,
    TERM_MAX,
    WITNESS,
    Confirming,
    Decision,
    FollowingPartner,
    Leading,
    PairMemory,
    Record,
)

_ROW: Final = Entity(b"\xff" * ENDPOINT_BYTES, 0)


def is_of_a_pair(loaded: Loaded) -> bool:
    return any(row.entity == _ROW for row in loaded.writers)


def without_star(loaded: Loaded) -> Loaded:
    return Loaded(loaded.entries, tuple([each for each in loaded.writers if each.entity != _ROW]))


def row_of(memory: PairMemory) -> WriterRow:
    return WriterRow(_ROW, memory.term, ((memory.record.term, memory.record.rank),), 0)


def memory_of(loaded: Loaded) -> PairMemory:
    for row in loaded.writers:
        if row.entity == _ROW:
            return PairMemory(row.applied, Record(*row.outcomes[0]))
    # What a single server has left is worth more than nothing.
    return PairMemory(0, Record(0, LEADER)) if loaded.entries else PairMemory()


_HELD_MAX: Final = 10_000  # messages of clients that wait until it is known who is active; further ones are dropped ...
_HELD_BYTES_MAX: Final = 32 * MIB  # ... or bytes, of which one message may be more than half
_HELLO: Final = b"\x01"  # the second byte of its payload: the number of the message


class PairedMapServer:
    """One of a pair of map servers. It has the interface of ``MapServerCore``, and also hears the other server and the
    witness.

    Args:
        role: ``PRIMARY`` or ``BACKUP``.
        epoch: 16 random bytes, of this life.
        pair: The name of the pair.
        loaded: What the backend has; None without one.
        witness: Where it is; empty without one.
        clock: Asked once; later only ``now`` counts.
        name: Of the map; clients of chappe that want another one are refused.
    """

    def __init__(
        self,
        role: int,
        epoch: bytes,
        *,
        pair: bytes,
        loaded: Loaded | None = None,
        limits: MapLimits = MAP_LIMITS,
        witness: str = "",
        now: float,
        clock: Clock,
        name: str = "",
    ) -> None:
        memory = None if loaded is None else memory_of(loaded)
        if loaded is not None:
            loaded = without_star(loaded)
        self.star = BinaryStar(
            role, _life(chp.session_of(epoch[-chp.SESSION_BYTES :])), now=now, pair=pair, heartbeat_s=STAR_HEARTBEAT_S,
            memory=memory, witness=bool(witness),
        )  # fmt: skip
        self.core = MapServerCore(epoch, loaded=loaded, limits=limits, now=now, clock=clock, paired=True, name=name)
        self.core.role, self.core.witness = NAMES[role], witness
        self._mark = crc32c(b"chappe pair " + pair).to_bytes(4)
        self._done: list[Effect] = []  # what is to be returned by the next call that returns
        self._decided: deque[Effect] = deque()  # that waits for the disk
        self._keeping: PairMemory | None = None  # on its way to the disk
        self._commits = 0
        self._held: deque[tuple[bytes | None, list[bytes]]] = deque()  # and who asks
        self._held_bytes = 0
        self._missed = False  # what was asked was dropped
        self._beat_at = now - STAR_ORIGINAL_SILENT_S  # when an end of chappe was heard last

    @property
    def active(self) -> bool:
        return self.star.serving and self.core.active

    @property
    def engine(self) -> Engine:
        return self.core.engine

    @property
    def ledger(self) -> Ledger:
        return self.core.ledger

    @property
    def crowded(self) -> bool:
        return self.core.crowded

    @property
    def clients(self) -> int:
        return self.core.clients

    @property
    def under_way(self) -> int:
        return self.core.under_way

    def start(self, now: float) -> list[Effect]:
        self._done += self.core.start(now)
        self._decide(self.star.start(now), now)
        return self._take()

    # -- clients -----------------------------------------------------------------------------------------------------

    def handle_request(self, client: bytes, frames: Sequence[bytes], now: float) -> list[Effect]:
        self._wake(now)
        if frames and frames[0] == chp.ICANHAZ:
            self._decide(self.star.handle_request(0, now), now)
        elif len(frames) == 2 and frames[0] == say.MARK and frames[1][1:2] == _HELLO:
            hello = say.from_client(frames)
            if isinstance(hello, say.Hello) and not hello.peer:
                self._decide(self.star.handle_request(self._term(hello.epoch), now), now)
        if self._doubts:
            self._hold(client, frames)
        else:
            self._done += self.core.handle_request(client, frames, now)
        return self._take()

    def handle_message(self, link: int | str, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take an update, a publication of the other server, or its state as the ``PARTNER``. Raises ProtocolError."""
        if link == PARTNER:
            return self._state(frames, now)
        self._wake(now)
        if link == UPDATES and self._doubts:
            self._hold(None, frames)
        else:
            self._done += self.core.handle_message(link, frames, now)
        return self._take()

    def handle_answer(self, server: int | str, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take an answer of the other server, or of the ``WITNESS``. Raises ProtocolError."""
        if server == WITNESS:
            if len(frames) != 1:
                raise ProtocolError(f"an answer of {len(frames)} frames")
            self._decide(self.star.handle_answer(frames[0], now), now)
        else:
            self._wake(now)
            self._done += self.core.handle_answer(PEER, frames, now)
        return self._take()

    def _state(self, frames: Sequence[bytes], now: float) -> list[Effect]:
        if len(frames) != 1:
            raise ProtocolError(f"a state of {len(frames)} frames")
        if frames[0][:1] == BEAT:
            self._beat_at = now
        elif now < self._beat_at + STAR_ORIGINAL_SILENT_S:
            return []  # an end of chappe says it for others who listen
        self._decide(self.star.handle_message(frames[0], now), now)
        return self._take()

    def begin_anew(self) -> list[Effect]:
        self._done += self.core.begin_anew()
        return self._take()

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        self._done += self.core.handle_subscription(prefix, on, now)
        return self._take()

    def handle_taken(self, client: bytes, now: float) -> list[Effect]:
        self._done += self.core.handle_taken(client, now)
        return self._take()

    def handle_gone(self, client: bytes, now: float) -> list[Effect]:
        self._done += self.core.handle_gone(client, now)
        return self._take()

    def flush(self, now: float) -> list[Effect]:
        """Tell clients of updates, and Binary Star whether the other server has everything."""
        self._wake(now)
        if not self._doubts:
            self._done += self.core.flush(now)
        if self.core.active and self.star.state == ACTIVE:
            session = self.core.in_step
            if self.star.confirms == "paired":
                if not session:
                    self._decide(self.star.fell_behind(now), now)
            elif session:
                self._decide(self.star.caught_up(_life(session), now), now)
        return self._take()

    # -- disk and clock ------------------------------------------------------------------------------------------------

    def handle_done(self, commit: Commit, error: StorageError | None, now: float) -> list[Effect]:
        """Take the outcome of a commit; those of Binary Star's memory have negative numbers."""
        if commit.number > 0:
            self._wake(now)
            self._done += self.core.handle_done(commit, error, now)
            return self._take()
        assert self._keeping is not None
        kept, self._keeping = self._keeping, None
        if error is not None:
            self._decided.clear()
        self._decide(self.star.handle_done(kept, error, now), now)
        return self._take()

    def next_timeout(self) -> float:
        """Return when Binary Star or the map has something to do; while in doubt only the former."""
        due = self.star.next_timeout()
        return due if self._doubts else min(due, self.core.next_timeout())

    def handle_timeout(self, now: float) -> list[Effect]:
        self._wake(now)
        if not self.core.active and self.core.copied:
            self._decide(self.star.copied_whole(now), now)
        if not self._doubts and now >= self.core.next_timeout():
            self._done += self.core.handle_timeout(now)
        return self._take()

    def invariants(self) -> list[str]:
        found = [*self.star.invariants(), *self.core.invariants()]
        if self.core.active and self.star.state != ACTIVE:
            found.append("the map is active, and the server is not")
        if self.core.ledger.alone and self.star.confirms != "alone":
            found.append(f"confirms alone, and may confirm {self.star.confirms}")
        return found

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _doubts(self) -> bool:
        return self.star.state == ACTIVE and not self.star.serving

    def _take(self) -> list[Effect]:
        done, self._done = self._done, []
        return done

    def _wake(self, now: float) -> None:
        if now >= self.star.next_timeout():
            self._decide(self.star.handle_timeout(now), now)

    def _decide(self, decided: Sequence[Effect], now: float) -> None:
        """Carry out Binary Star's decisions, in order, as far as the disk lets it."""
        self._decided += decided
        core = self.core
        if core.active and self.star.state != ACTIVE:
            self._done += core.go_passive(now)
        if core.ledger.alone and self.star.confirms != "alone":
            self._done += core.confirm(False)
        while self._decided and self._keeping is None:
            self._do(self._decided.popleft(), now)
        if self._held and not self._doubts:
            self._let_go(now)

    def _hold(self, client: bytes | None, frames: Sequence[bytes]) -> None:
        size = sum([len(frame) for frame in frames])
        if len(self._held) < _HELD_MAX and self._held_bytes + size <= _HELD_BYTES_MAX:
            self._held.append((client, list(frames)))
            self._held_bytes += size
        else:
            self._missed = True

    def _let_go(self, now: float) -> None:
        core = self.core
        held, self._held = self._held, deque()
        self._held_bytes = 0
        for client, frames in held:
            try:
                if client is None:
                    self._done += core.handle_message(UPDATES, frames, now)
                else:
                    self._done += core.handle_request(client, frames, now)
            except ProtocolError:
                core.malformed += 1
        if self._missed:
            self._missed = False
            self._done += core.begin_anew()

    def _do(self, effect: Effect, now: float) -> None:
        if isinstance(effect, Persist):
            self._keeping = effect.job
            self._commits -= 1
            self._done.append(Persist(Commit(self._commits, (row_of(effect.job),))))
        elif isinstance(effect, Deliver):
            self._obey(effect.messages, now)
        else:
            self._done.append(effect)

    def _obey(self, decision: Decision, now: float) -> None:
        core = self.core
        if isinstance(decision, Leading):
            if decision.term == self.star.term:
                self._done += core.go_active(self._epoch(decision.term), now)
        elif isinstance(decision, FollowingPartner):
            self._done += core.follow(now)
        elif isinstance(decision, Confirming):
            if core.active:
                self._done += core.confirm(decision.what == self.star.confirms == "alone")
        elif not core.active:
            self._done += core.rest()

    def _epoch(self, term: int) -> bytes:
        return self._mark + (self.star.life & 0xFFFFFFFF).to_bytes(4) + term.to_bytes(8)

    def _term(self, epoch: bytes) -> int:
        """Return the term of an epoch of this pair, 0 of any other."""
        term = int.from_bytes(epoch[8:]) if epoch.startswith(self._mark) else 0
        return term if term <= TERM_MAX else 0


def _life(session: bytes) -> int:
    return int.from_bytes(session[-8:])
