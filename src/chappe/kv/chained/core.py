"""One server of a data store whose state is a chain's, to those who run it a master like any other.

The server at the head of the chain has a master, in each term a new one with a name of its own. What that commits it
gives the chain as commands of the head, and it counts when the chain has committed it; so it is at all members then.
The others follow what was committed, and can be read; what is written there goes to the master by a channel, as a
clone's writes do, and by the same channel to the own master if this one is at the head by then: so it is done once.

A new head announces itself with a ``Lead`` command, and is master once that is committed: then it has all that former
masters told anybody, and no write of theirs follows. A server that is no longer head ceases to be master at once, and
undoes what it has not told yet; if that was committed all the same, it comes from the chain.

A paused server, or one that hears no majority, may have been replaced. It asks the chain with a ``Still`` command, and
answers no clone before that is committed; if that takes long, it ceases to be master, and applies again.

Clones take from the next master what they lack, and no more (``kv.recent``): all members know which keys the latest
commits have changed, and which event of which master each was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, assert_never

from crc32c import crc32c

from chappe.channel import FIRST
from chappe.core import Clock, Effect, Persist, Report, Send
from chappe.defaults import CLONE_STALE_S, MASTER_SILENT_S, STAR_HEARTBEAT_S
from chappe.kv.backend import ClearRows, Commit, EraseRow, ForgetWriter, HistoryRow, Loaded, PutRow, WriterRow
from chappe.kv.chained.fed import FED, Did, Fed, Led, Stood, WholeBegins, WholeEnds, WholeRows
from chappe.kv.chained.messages import PART_BYTES, Lead, Row, Still, encode, encode_operation, parts_of
from chappe.kv.engine import Change, StagedEntries
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.history import KeyHistory
from chappe.kv.master import KvMaster
from chappe.kv.recent import Recent
from chappe.kv.replica import StoreReplica
from chappe.kv.role import CHAIN
from chappe.limits import KV_LIMITS, KvLimits

PAUSE_S: Final = 0.4  # who stood still for so long may have been replaced: the chain takes it for dead then
DOUBT_S: Final = 0.5  # who is not told for so long that it is master still is it no more
FED_S: Final = 1.0  # who hears no majority and of commits all the same is in the chain
_AHEAD: Final = 1 << 32  # more events than a former head can have on their way
FORMER_MAX: Final = 16  # masters whose last words are not taken for a second master's


class Place(NamedTuple):
    """The place of a server in its chain; ``why``: the reason for which it does not take part in deciding."""

    head: bool = False
    member: bool = False
    why: str = ""


class ChainedMaster(StoreReplica):
    """A data store's server in a chain. Messages of its chain come by ``handle_message`` from ``CHAIN``: a ``Place``,
    ``Fed``, or an event to be reported.

    Args:
        entity: Who this is to the master while that is elsewhere; new in each life.
        life: A number that no other life has.
        notify: Whether changes are told to watchers.
        history: How many changes of each key are kept; 0 for none. The master's number counts for the chain.
    """

    def __init__(
        self, name: str, entity: Entity, life: int, *, now: float, clock: Clock, notify: bool = True,
        limits: KvLimits = KV_LIMITS, part_bytes: int = PART_BYTES, history: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            name, entity, now=now, clock=clock, notify=notify, limits=limits,
            history=KeyHistory(history, limits, kept=True),
        )  # fmt: skip
        self.active: KvMaster | None = None
        self._life = life
        self._part_bytes = part_bytes
        self._place = Place()
        self._terms = 0  # in which this one was, or would be, master
        self._asked: Entity | None = None  # whom it would be, if the chain commits that
        self._staged: StagedEntries | None = None  # of a whole state that comes
        self._staged_history: list[HistoryRow] = []  # likewise
        self._whole = False  # what the chain had when this life began, or later, is here
        self._met = False  # ... and it was a member since
        self._writers: dict[Entity, WriterRow] = {}  # while there is no master here
        self._recent = Recent(limits)
        self._leader: Entity | None = None
        self._event = FIRST  # the last event of any master that is known
        self._former: deque[Entity] = deque(maxlen=FORMER_MAX)
        self._doubts = 0  # the question whether it is still the master; 0: there is none
        self._doubts_until = now
        self._questions = 0
        self._fed_at = now
        self._left = False
        self._stands_in_until = now  # clones are told that the former master is gone
        self._stand_in_at = now
        self._seen_at = now

    # -- looks --------------------------------------------------------------------------------------------------

    @property
    def master(self) -> KvMaster | None:
        return self.active

    @property
    def _unreadable(self) -> str | None:
        if not self._met or self._leader is None:
            why = f": {self._place.why}" if self._place.why else ""
            return f"this server has not been in its chain since it was started{why}"
        return f"it lost its chain more than {CLONE_STALE_S:g} s ago" if self._own.stale else None

    def idle(self) -> bool:
        if not self._own.writes.idle() or self._asked is not None:
            return False
        if self.active is not None:
            return self._serving and self.active.idle()
        return self._whole and self._there

    def invariants(self) -> list[str]:
        found = [*self._own.writes.invariants(), *self._recent.invariants(), *self.history.invariants()]
        found += self.engine.invariants() if self.active is None else self.active.invariants()  # of the same engine
        if self.active is not None:
            if not self._place.head or self._left:
                found.append("there is a master, and this is not the head")
            if self.active.entity != self._leader:
                found.append("there is a master, and the chain knows another one")
            if self._asked is not None:
                found.append("there is a master, and it asks to be one")
        return found

    def story(self, key: object) -> str:
        return f"{self.engine.story(key)}; {self._place}, the master is {self._leader}"  # type: ignore[arg-type]

    @property
    def _serving(self) -> bool:
        return self.active is not None and not self._doubts

    @property
    def _there(self) -> bool:
        return self._place.member and self._leader is not None

    # -- the chain ----------------------------------------------------------------------------------------------

    def handle_message(self, topic: bytes, messages: Iterable[Any], now: float) -> list[Effect]:
        """Take the chain's news; a whole state comes first, in steps."""
        if topic != CHAIN:
            return super().handle_message(topic, messages, now)
        self._wake(now)
        for each in messages:
            if isinstance(each, Place):
                self._stand(each, now)
            elif isinstance(each, FED):
                self._fed_at = now
                self._feed(each, now)
            else:
                self._done.append(Report(each))
        self._seek()
        return self._take(now)

    def _stand(self, place: Place, now: float) -> None:
        self._place = place
        self._met |= place.member
        if not place.head:
            self._asked = None
            self._step_down(now)
        elif place.why:
            self._doubt(now)
        self._seek()

    def _feed(self, fed: Fed, now: float) -> None:
        match fed:
            case WholeBegins():
                self._begin_whole(now)
            case WholeRows():
                self._gather(fed)
            case WholeEnds():
                self._become(fed)
            case Led():
                self._led(fed, now)
            case Did():
                self._did(fed, now)
            case Stood():
                if self.active is not None and fed == Stood(self.active.entity, self._doubts):
                    self._doubts = 0
                    self._answer_voters()
            case _:
                assert_never(fed)

    def _begin_whole(self, now: float) -> None:
        """Gather another state beside the present one, which stays until that is complete."""
        self._asked = None
        self._step_down(now)
        self._whole = False  # who is not as the chain is does not ask to be master
        self._staged = StagedEntries(self.engine)
        self._staged_history = []

    def _gather(self, some: WholeRows) -> None:
        staged = self._staged
        assert staged is not None
        for row, key, value in some.rows:
            if isinstance(row, HistoryRow):
                self._staged_history.append(row)
                continue
            assert isinstance(row, PutRow)
            staged.add(key, value, row.expires_ns)

    def _become(self, whole: WholeEnds) -> None:
        staged, self._staged = self._staged, None
        assert staged is not None
        for change in self.engine.replace(staged, tell=self._notices.wanted):
            self._tell(change)
        self.history.load(self._staged_history)
        self._staged_history = []
        self._writers = {row.entity: row for row in whole.writers}
        self._whole = True
        self._leader = None if whole.master == NOBODY else whole.master
        self._recent.begin(whole.master, whole.event)
        self._event = self._base = max(self._event, whole.event)

    def _led(self, led: Led, now: float) -> None:
        before, self._leader = self._leader, led.master
        self._event = self._base = max(self._event, led.event)
        if before is not None:
            self._former.append(before)
        if self._asked == led.master:
            self._asked = None
            self._lead(led, before, now)
            return
        self._recent.name(led.master, led.event)
        self._step_down(now)

    def _did(self, did: Did, now: float) -> None:
        active = self.active
        self._event = max(self._event, did.event)
        operations = [row for row, _, _ in did.rows]
        if active is None or did.master != active.entity:
            self._recent.add(did.master, did.event, operations)
            for row in did.rows:
                self._do(row, did.event)
            self.history.left(operations)
            self.history.add([each for each in operations if isinstance(each, HistoryRow)])
            return
        actions = active.handle_done(Commit(did.number, ()), None, now)
        self._recent.add(did.master, did.event, operations)
        self._by_master(actions, now)

    def _do(self, done: Row, event: int) -> None:
        row, key, value = done
        if isinstance(row, PutRow):
            change = self.engine.put(key, value, row.expires_ns)
            assert change.entry is not None
            change.entry.revision = event
            self._tell(change)
        elif isinstance(row, EraseRow):
            self._tell(self.engine.erase(key))
        elif isinstance(row, ClearRows):
            for change in self.engine.clear():
                self._tell(change)
        elif isinstance(row, WriterRow):
            self._writers[row.entity] = row
        elif isinstance(row, ForgetWriter):
            self._writers.pop(row.entity, None)

    def _tell(self, change: Change | None) -> None:
        if change is not None:
            self._notices.tell(change, None, None, self._done)

    # -- who is master ------------------------------------------------------------------------------------------

    def _seek(self) -> None:
        """Ask the chain, as its head, to be master, once for each time that it may be."""
        if not self._place.head or not self._whole or self._left or self.active is not None or self._asked is not None:
            return
        self._terms += 1
        self._asked = chappe_entity(self.entity.endpoint, crc32c(b"%d %d" % (self._life, self._terms)))
        base = max(self._event + _AHEAD, self._clock.wall_ns() // 1000)  # above all revisions that there were
        self._done.append(Send(CHAIN, (encode(Lead(self._asked, base)),)))

    def _lead(self, led: Led, before: Entity | None, now: float) -> None:
        entity = led.master
        self.active = active = KvMaster(
            self.name, entity, now=now, clock=self._clock, durable=True,
            loaded=Loaded((), tuple(self._writers.values())), engine=self.engine, recent=self._recent,
            history=self.history,
            heartbeat_s=STAR_HEARTBEAT_S, notify=self.notify, limits=self._limits, base=led.event,
        )  # fmt: skip
        active.known_as(self._notices.to)
        assert active.position == led.event
        self._recent.name(entity, active.position)
        self._doubts = 0
        self._by_master(active.start(now), now)
        if before is not None:
            self._stands_in_until, self._stand_in_at = now + MASTER_SILENT_S, now
        self._answer_voters()

    def _doubt(self, now: float) -> None:
        if self.active is None:
            return
        if not self._doubts:
            self._doubts_until = now + DOUBT_S
        self._questions += 1
        self._doubts = self._questions
        self._done.append(Send(CHAIN, (encode(Still(self.active.entity, self._doubts)),)))

    def _step_down(self, now: float) -> None:
        """Stop being master: undo everything that nobody was told of; it comes from the chain if that has it."""
        active, self.active = self.active, None
        if active is None:
            return
        self._doubts = 0
        self._stands_in_until = now
        self._by_author(active.drop_waiting())
        self._by_author(active.end(False, now))
        self._writers = {row.entity: row for row in active.writer_rows()}
        self._tell_clones(active.entity, active.entity)

    def _stand_in(self, now: float) -> None:
        """Let clones that do not hear the former master look for this one: those that hear it well stay."""
        if now >= self._stands_in_until or now < self._stand_in_at or not self._serving or not self._former:
            return
        self._stand_in_at = now + STAR_HEARTBEAT_S
        assert self.active is not None
        self._tell_clones(self.active.entity, self._former[-1])

    # -- world --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        return self._take(now)

    def leave(self) -> list[Effect]:
        """Let clones look for the next master at once."""
        self._left = True
        self._asked = None
        self._step_down(self._seen_at)
        done, self._done = self._done, []
        return done

    def handle_gone(self, endpoint: bytes, now: float) -> list[Effect]:
        if self.active is not None:
            self._by_master(self.active.handle_gone(endpoint, now), now)
        return self._take(now)

    def handle_timeout(self, now: float) -> list[Effect]:
        self._wake(now)
        if self._doubts and now >= self._doubts_until:
            self._step_down(now)
            self._seek()
        if self._serving and self.active is not None and now >= self.active.next_timeout():
            self._by_master(self.active.handle_timeout(now), now)
        self._stand_in(now)
        if now >= self._own.next_timeout():
            self._by_author(self._own.handle_timeout(now))
        return self._take(now)

    def next_timeout(self) -> float:
        due = self._own.next_timeout()
        if self._doubts:
            due = min(due, self._doubts_until)
        if self._serving and self.active is not None:
            due = min(due, self.active.next_timeout())
            if self._stand_in_at < self._stands_in_until:
                due = min(due, self._stand_in_at)
        return min([due, *self._waits.values()])

    def _knows(self, endpoint: bytes) -> bool:
        """Return True if an endpoint is this one, or is or was the master's; a replaced master may not know it yet."""
        return any(endpoint == each.endpoint for each in (self.entity, *self._former))

    # -- what follows from what was done ------------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        stood_still = now >= self._seen_at + PAUSE_S
        self._seen_at = now
        self._voters.forget(now)
        if stood_still:
            self._doubt(now)

    def _look(self, now: float) -> None:
        master: Entity | None = None
        if self.active is not None:
            if self._own.waits and self._serving:
                master = self.active.entity
        elif self._there and self._leader is not None and self._leader.endpoint != self.entity.endpoint:
            master = self._leader
        found = self._there and (not self._place.why or now < self._fed_at + FED_S)
        self._by_author(self._own.look(master, found, now))

    def _by_master(self, actions: Sequence[Effect], now: float) -> None:
        for each in actions:
            if isinstance(each, Persist):
                self._propose(each.job)
            else:
                self._by_author((each,))

    def _propose(self, commit: Commit) -> None:
        active = self.active
        assert active is not None
        operations = [encode_operation(each) for each in commit.operations]
        commands = parts_of(active.entity, commit.number, active.next_position, operations, self._part_bytes)
        self._done.append(Send(CHAIN, tuple(commands)))
