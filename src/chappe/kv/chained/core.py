"""One server of a data store whose state is a chain's, to those who run it a master like any other.

The server at the head of the chain has a master, in each term a new one with a name of its own. What that commits it
gives the chain as commands of the head, and it counts when the chain has committed it; so it is at all members then.
The others follow what was committed, and can be read; what is written there goes to the master by a channel, as a
clone's writes do, and by the same channel to the own master if this one is at the head by then: so it is done once.

Who becomes head says so by a command (``Lead``), and is master when that is committed: then it has all that any former
master had told anybody, and nothing of one comes behind it. Who is head no more is master no more at once. What it had
not told yet is undone here; if it was committed all the same, it comes from the chain like anybody else's.

Who stood still, or hears no majority of the servers, may have been replaced meanwhile. It asks the chain by a command
(``Still``), and answers no clone before that is committed. If it is not soon, it is master no more, and would be again.

Clones take from the next master what they lack, and no more (``kv.recent``): all members know which keys the latest
commits have changed, and which event of which master each was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, assert_never

from crc32c import crc32c

from chappe.channel import FIRST as _FIRST_EVENT
from chappe.core import Report
from chappe.defaults import CLONE_STALE_S, MASTER_SILENT_S, STAR_HEARTBEAT_S
from chappe.errors import ProtocolError, StaleData
from chappe.kv import commands as cmd
from chappe.kv.actions import Action, Commit, Propose, Send
from chappe.kv.backend import ClearRows, EraseRow, Loaded, PutRow, WriterRow
from chappe.kv.chained.fed import Did, Fed, Led, Stood, Whole
from chappe.kv.chained.messages import PART_BYTES, Lead, Still, decode_rows, encode, parts_of
from chappe.kv.engine import Change, Staged
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.events import CommandRefused
from chappe.kv.master import KvMaster
from chappe.kv.pair.author import Author
from chappe.kv.pair.messages import Row, encode_operation
from chappe.kv.pair.voters import Voters, asks_aloud
from chappe.kv.recent import Recent
from chappe.kv.role import KvRole, Notices, Reaches
from chappe.kv.topics import check_name, clone_topic, master_topic
from chappe.limits import KV_LIMITS, KvLimits

PAUSE_S: Final = 0.4  # who stood still for so long may have been replaced: the chain takes it for dead then
DOUBT_S: Final = 0.5  # who is not told for so long that it is master still is it no more
FED_S: Final = 1.0  # who hears no majority and of commits all the same is in the chain
FORMER_MAX: Final = 16  # masters whose last words are not taken for a second master's


class Place(NamedTuple):
    """Where a server is in its chain: ``why`` it does not take part in deciding, if it does not."""

    head: bool = False
    member: bool = False
    why: str = ""


class ChainedMaster(KvRole):
    """See the module. Its methods are called as a master's are, and ``handle_place`` and ``handle_fed`` besides.

    Args:
        entity: Who this is to the master while that is elsewhere; new in each life.
        life: A number that no other life has.
        notify: Whether changes are told to watchers.
    """

    kind = "master"

    def __init__(
        self, name: str, entity: Entity, life: int, *, now: float, wall_ns: int, notify: bool = True,
        limits: KvLimits = KV_LIMITS, part_bytes: int = PART_BYTES,
    ) -> None:  # fmt: skip
        raw = check_name(name)
        self.hears = {master_topic(raw): self._hear_clones, clone_topic(raw): self._hear_masters}
        super().__init__(name, entity, Notices(notify), NOBODY, immediate=False)
        self.active: KvMaster | None = None
        self._life = life
        self._limits = limits
        self._part_bytes = part_bytes
        self._place = Place()
        self._terms = 0  # in which this one was, or would be, master
        self._asked: Entity | None = None  # whom it would be, if the chain commits that
        self._whole = False  # what the chain had when this life began, or later, is here
        self._met = False  # ... and it was a member since
        self._writers: dict[Entity, WriterRow] = {}  # while there is no master here
        self._recent = Recent(limits)
        self._leader: Entity | None = None
        self._former: deque[Entity] = deque(maxlen=FORMER_MAX)
        self._doubts = 0  # the question whether it is still the master; 0: there is none
        self._doubts_until = now
        self._questions = 0
        self._fed_at = now
        self._left = False
        self._clone_topic = clone_topic(raw)
        self._master_topic = master_topic(raw)
        self._own = Author(name, entity, limits, now)
        self._voters = Voters()
        self._stands_in_until = now  # clones are told that the former master is gone
        self._stand_in_at = now
        self._wall_ns = wall_ns - int(now * 1e9)  # the time of day when ``now`` is 0
        self._seen_at = now
        self._looped: deque[tuple[bytes, bytes]] = deque()  # messages to ourselves: topic and payload
        self._done: list[Action] = []

    # -- looks --------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether own writes are done here, in the moment of the call: behind a takeover those before come first."""
        return self._serving and not self._own.waits

    @property
    def clones(self) -> tuple[Entity, ...]:
        """Those that are attached, while the master is here."""
        return () if self.active is None else self.active.clones

    @property
    def notify(self) -> bool:
        """Whether changes are told to watchers."""
        return self._notices.wanted

    @notify.setter
    def notify(self, notify: bool) -> None:
        self._notices.wanted = notify
        if self.active is not None:
            self.active.notify = notify

    @property
    def readable(self) -> bool:
        """Whether it may be read."""
        return self._unreadable is None

    def unreadable(self) -> StaleData | None:
        """Why it may not be read."""
        reason = self._unreadable
        return None if reason is None else StaleData(f"store {self.name!r} cannot be read: {reason}")

    @property
    def _unreadable(self) -> str | None:
        if not self._met or self._leader is None:
            why = f": {self._place.why}" if self._place.why else ""
            return f"this server has not been in its chain since it was started{why}"
        return f"it lost its chain more than {CLONE_STALE_S:g} s ago" if self._own.stale else None

    @property
    def room(self) -> bool:
        """Whether a write is taken now, or refused for another reason than too little room."""
        if self.leads and self.active is not None:
            return self.active.room
        return self._own.writes.room

    @property
    def settled(self) -> bool:
        """Whether nothing that was written here waits."""
        if self.active is not None and not self.active.settled:
            return False
        return self._own.master is None or not self._own.waits

    @property
    def unconfirmed(self) -> int:
        """Writes that the master elsewhere has not confirmed."""
        return len(self._own.writes.pending)

    def idle(self) -> bool:
        """Whether nothing is on its way between it and those in reach, and all that was written is done."""
        if not self._own.writes.idle() or self._asked is not None:
            return False
        if self.active is not None:
            return self._serving and self.active.idle()
        return self._whole and self._there

    def invariants(self) -> list[str]:
        """What is wrong with its own state, one sentence each; nothing, unless there is a defect."""
        found = [*self.engine.invariants(), *self._own.writes.invariants(), *self._recent.invariants()]
        if self.active is not None:
            found += self.active.invariants()
            if not self._place.head or self._left:
                found.append("there is a master, and this is not the head")
            if self.active.entity != self._leader:
                found.append("there is a master, and the chain knows another one")
            if self._asked is not None:
                found.append("there is a master, and it asks to be one")
        return found

    def story(self, key: object) -> str:
        """What is known of a key, for people."""
        return f"{self.engine.story(key)}; {self._place}, the master is {self._leader}"  # type: ignore[arg-type]

    @property
    def _serving(self) -> bool:
        return self.active is not None and not self._doubts

    @property
    def _there(self) -> bool:
        """Whether this server is in the chain, and that has a master."""
        return self._place.member and self._leader is not None

    # -- application --------------------------------------------------------------------------------------------

    def _write(self, command: cmd.Action, ticket: int | None, now: float, wall_ns: int) -> list[Action]:
        self._wake(now, wall_ns)
        active = self.active
        if self.leads and active is not None:
            self._emit(active.do(command, ticket, now, wall_ns))
        else:
            self._emit(self._own.write(command, ticket, now))
        return self._take(now)

    def hurry_idle(self, now: float) -> None:
        """Have the others say soon how far they are."""
        if self.active is not None:
            self.active.hurry_idle(now)
        self._own.writes.channel.hurry(now)

    # -- the chain ----------------------------------------------------------------------------------------------

    def handle_place(self, place: Place, now: float, wall_ns: int) -> list[Action]:
        """This server has another place in its chain, or takes part or does not; told of each, in order."""
        self._wake(now, wall_ns)
        self._place = place
        self._met |= place.member
        if not place.head:
            self._asked = None
            self._step_down(now)
        elif place.why:
            self._doubt(now)
        self._seek()
        return self._take(now)

    def handle_fed(self, fed: Iterable[Fed], now: float, wall_ns: int) -> list[Action]:
        """The chain has committed this, in this order. The first is a ``Whole``."""
        self._wake(now, wall_ns)
        self._fed_at = now
        for each in fed:
            match each:
                case Whole():
                    self._become(each, now)
                case Led():
                    self._led(each, now)
                case Did():
                    self._did(each, now)
                case Stood():
                    if self.active is not None and each == Stood(self.active.entity, self._doubts):
                        self._doubts = 0
                        self._answer_voters()
                case _:
                    assert_never(each)
        self._seek()
        return self._take(now)

    def _become(self, whole: Whole, now: float) -> None:
        """Be as the chain is, whatever there was."""
        self._asked = None
        self._step_down(now)
        staged = Staged(self.engine)
        for (row, key, value), _ in decode_rows(whole.rows):
            if isinstance(row, PutRow):
                staged.add(key, value, row.expires_ns)
        for change in self.engine.replace(staged, tell=self._notices.wanted):
            self._tell(change)
        self._writers = {row.entity: row for row in whole.writers}
        self._whole = True
        self._leader = None if whole.master == NOBODY else whole.master
        self._recent.begin(whole.master, whole.event)

    def _led(self, led: Led, now: float) -> None:
        """Somebody is master from here on."""
        before, self._leader = self._leader, led.master
        if before is not None:
            self._former.append(before)
        if self._asked == led.master:
            self._asked = None
            self._lead(led.master, before, now)
            return
        self._recent.name(led.master, led.event)
        self._step_down(now)

    def _did(self, did: Did, now: float) -> None:
        """A commit counts."""
        active = self.active
        operations = [row for row, _, _ in did.rows]
        if active is None or did.master != active.entity:
            self._recent.add(did.master, did.event, operations)
            for row in did.rows:
                self._do(row)
            return
        actions = active.handle_committed(did.number, now, self._wall(now))
        self._recent.add(did.master, did.event, operations)
        self._emit(actions)

    def _do(self, done: Row) -> None:
        """Do here what another master did."""
        row, key, value = done
        if isinstance(row, PutRow):
            self._tell(self.engine.put(key, value, row.expires_ns))
        elif isinstance(row, EraseRow):
            self._tell(self.engine.erase(key))
        elif isinstance(row, ClearRows):
            for change in self.engine.clear():
                self._tell(change)
        elif isinstance(row, WriterRow):
            self._writers[row.entity] = row
        else:
            self._writers.pop(row.entity, None)

    def _tell(self, change: Change | None) -> None:
        if change is not None:
            self._notices.tell(change, None, None, self._done)

    # -- who is master ------------------------------------------------------------------------------------------

    def _seek(self) -> None:
        """The head asks the chain to be master, once for each time that it may be."""
        if not self._place.head or not self._whole or self._left or self.active is not None or self._asked is not None:
            return
        self._terms += 1
        self._asked = chappe_entity(self.entity.endpoint, crc32c(b"%d %d" % (self._life, self._terms)))
        self._done.append(Propose((encode(Lead(self._asked, _FIRST_EVENT)),)))

    def _lead(self, entity: Entity, before: Entity | None, now: float) -> None:
        """Be master, with all that the chain has."""
        self.active = active = KvMaster(
            self.name, entity, now=now, wall_ns=self._wall(now), durable=True,
            loaded=Loaded((), tuple(self._writers.values())), engine=self.engine, recent=self._recent,
            heartbeat_s=STAR_HEARTBEAT_S, notify=self.notify, limits=self._limits,
        )  # fmt: skip
        assert active.position == _FIRST_EVENT
        self._recent.name(entity, active.position)
        self._doubts = 0
        self._emit(active.start(now, self._wall(now)))
        if before is not None:
            self._stands_in_until, self._stand_in_at = now + MASTER_SILENT_S, now
        self._answer_voters()

    def _answer_voters(self) -> None:
        """Those who asked while there was no master here."""
        self._looped += [(self._master_topic, payload) for payload in self._voters.take()]

    def _doubt(self, now: float) -> None:
        """It may have been replaced: ask the chain."""
        if self.active is None:
            return
        if not self._doubts:
            self._doubts_until = now + DOUBT_S
        self._questions += 1
        self._doubts = self._questions
        self._done.append(Propose((encode(Still(self.active.entity, self._doubts)),)))

    def _step_down(self, now: float) -> None:
        """Be master no more: what was not told to anybody is undone, and comes from the chain if that has it."""
        active, self.active = self.active, None
        if active is None:
            return
        self._doubts = 0
        self._stands_in_until = now
        self._emit(active.drop_waiting())
        self._emit(active.end(False, now))
        self._writers = {row.entity: row for row in active.writer_rows()}
        self._tell_clones(active.entity, active.entity)

    def _stand_in(self, now: float) -> None:
        """Clones that do not hear the former master any more look for this one: those that hear it well stay."""
        if now >= self._stands_in_until or now < self._stand_in_at or not self._serving or not self._former:
            return
        self._stand_in_at = now + STAR_HEARTBEAT_S
        assert self.active is not None
        self._tell_clones(self.active.entity, self._former[-1])

    # -- world --------------------------------------------------------------------------------------------------

    def start(self, now: float, wall_ns: int) -> list[Action]:
        """Begin; what the chain has, and where this server is in it, is told next."""
        return self._take(now)

    def leave(self) -> list[Action]:
        """The end: clones look for the next master at once."""
        self._left = True
        self._asked = None
        self._step_down(self._seen_at)
        done, self._done = self._done, []
        return done

    def handle_gone(self, endpoint: bytes, now: float) -> list[Action]:
        """An endpoint is out of reach."""
        if self.active is not None:
            self._emit(self.active.handle_gone(endpoint, now))
        return self._take(now)

    def handle_network(self, holders: frozenset[bytes], reaches: Reaches, now: float) -> list[Action]:
        """The network has changed; what that means for the chain it tells by ``handle_place``."""
        return []

    def handle_timeout(self, now: float, wall_ns: int) -> list[Action]:
        """Do what is due."""
        self._wake(now, wall_ns)
        if self._doubts and now >= self._doubts_until:
            self._step_down(now)
            self._seek()
        if self._serving and self.active is not None and now >= self.active.next_timeout(now, wall_ns):
            self._emit(self.active.handle_timeout(now, wall_ns))
        self._stand_in(now)
        if now >= self._own.next_timeout():
            self._emit(self._own.handle_timeout(now))
        return self._take(now)

    def next_timeout(self, now: float, wall_ns: int) -> float:
        """When ``handle_timeout`` is due."""
        due = self._own.next_timeout()
        if self._doubts:
            due = min(due, self._doubts_until)
        if self._serving and self.active is not None:
            due = min(due, self.active.next_timeout(now, wall_ns))
            if self._stand_in_at < self._stands_in_until:
                due = min(due, self._stand_in_at)
        return min([due, *self._waits.values()])

    # -- messages -----------------------------------------------------------------------------------------------

    def _hear_clones(self, payloads: Iterable[bytes], now: float, wall_ns: int) -> list[Action]:
        """Command messages have come on the master's topic."""
        self._wake(now, wall_ns)
        if self._serving and self.active is not None:
            self._emit(self.active.handle_messages(list(payloads), now, wall_ns))
        else:
            for payload in payloads:
                self._hear_voter(payload, now)
        return self._take(now)

    def _hear_voter(self, payload: bytes, now: float) -> None:
        """There is no master here; does this clone look for one? All else it says again."""
        try:
            message = cmd.decode_message(payload)
        except ProtocolError as problem:
            self._refused(problem)
            return
        if asks_aloud(message):
            self._voters.note(message, payload, now)

    def _hear_masters(self, payloads: Iterable[bytes], now: float, wall_ns: int) -> list[Action]:
        """Command messages have come on the clones' topic: answers to own writes, or what another master says."""
        self._wake(now, wall_ns)
        for payload in payloads:
            try:
                message = cmd.decode_message(payload)
            except ProtocolError as problem:
                self._refused(problem)
                continue
            if message.receiver == self.entity:
                self._emit(self._own.hear(message, now))
            elif self._serving and self.active is not None and not self._knows(message.sender.endpoint):
                self._done += self.active.handle_masters([payload], now, wall_ns)
        return self._take(now)

    def _knows(self, endpoint: bytes) -> bool:
        """Whether it is here, or is or was the master's: who was replaced may not know it yet."""
        return any(endpoint == each.endpoint for each in (self.entity, *self._former))

    # -- what follows from what was done ------------------------------------------------------------------------

    def _wake(self, now: float, wall_ns: int) -> None:
        """Before anything else is done: see whether this one stood still."""
        self._wall_ns = wall_ns - int(now * 1e9)
        stood_still = now >= self._seen_at + PAUSE_S
        self._seen_at = now
        self._voters.forget(now)
        if stood_still:
            self._doubt(now)

    def _take(self, now: float) -> list[Action]:
        """All that is to be done, with what follows from it."""
        while True:
            self._look_at_writes(now)
            if not self._looped:
                break
            self._hear_ourselves(now)
        self._check_idle(now, self._done)
        done, self._done = self._done, []
        return done

    def _look_at_writes(self, now: float) -> None:
        """Own writes go to whoever is master."""
        master: Entity | None = None
        if self.active is not None:
            if self._own.waits and self._serving:
                master = self.active.entity
        elif self._there and self._leader is not None and self._leader.endpoint != self.entity.endpoint:
            master = self._leader
        found = self._there and (not self._place.why or now < self._fed_at + FED_S)
        self._emit(self._own.look(master, found, now))

    def _hear_ourselves(self, now: float) -> None:
        """What was sent to our own endpoint: own writes to the own master, and its answers."""
        while self._looped:
            topic, payload = self._looped.popleft()
            if topic == self._clone_topic:
                self._emit(self._own.hear(cmd.decode_message(payload), now))
            elif self._serving and self.active is not None:
                self._emit(self.active.handle_messages([payload], now, self._wall(now)))

    def _emit(self, actions: Sequence[Action]) -> None:
        """Have done what a part of this one asks for."""
        for each in actions:
            if isinstance(each, Send) and each.receiver == self.entity.endpoint:
                self._looped.append((each.topic, each.payload))
            elif isinstance(each, Commit):
                self._propose(each)
            else:
                self._done.append(each)

    def _propose(self, commit: Commit) -> None:
        active = self.active
        assert active is not None
        operations = [encode_operation(each) for each in commit.operations]
        commands = parts_of(active.entity, commit.number, active.next_position, operations, self._part_bytes)
        self._done.append(Propose(tuple(commands)))

    def _tell_clones(self, sender: Entity, master: Entity) -> None:
        body = cmd.encode_command(cmd.MasterSilent(master))
        self._done.append(Send(self._clone_topic, None, cmd.encode_message(0, sender, NOBODY, body)))

    def _refused(self, problem: ProtocolError) -> None:
        self._done.append(Report(CommandRefused(self.name, str(problem))))

    def _wall(self, now: float) -> int:
        """The time of day."""
        return self._wall_ns + int(now * 1e9)
