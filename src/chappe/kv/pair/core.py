"""One of the two masters of a pair, to those who run it a master like any other.

Binary Star decides which of the two is active. The active one has a master (``active``), in each term a new one, with a
name of its own; the other one stands by (``standby``). Both have the data, so both can be read; what is written at the
one that stands by goes to the active one by a channel, as a clone's writes do, and by the same channel to the own
master if that takes over in between: so it is done once.

A clone that asks aloud for a master votes (``voters``), and so does a write here that waits.

What Binary Star wants kept is a row of the backend, in the commits' order; what it decides meanwhile waits for that,
and for commits under way, as master and standby must know what is kept when they take over from each other. What takes
rights away is done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from crc32c import crc32c

from chappe.core import Report
from chappe.defaults import CLONE_STALE_S
from chappe.errors import ProtocolError, StaleData, StorageError
from chappe.kv import commands as cmd
from chappe.kv.actions import Action, AskWitness, Commit, Notify, Propose, Resolve, Send
from chappe.kv.backend import Loaded
from chappe.kv.entity import NOBODY, Entity, chappe_entity
from chappe.kv.master import KvMaster
from chappe.kv.pair import messages as say
from chappe.kv.pair.active import Active
from chappe.kv.pair.standby import Standby
from chappe.kv.recent import Recent
from chappe.kv.replica import Replica
from chappe.kv.star_rows import memory_of, row_of, without_star
from chappe.kv.topics import check_name, pair_topic
from chappe.limits import KV_LIMITS, KvLimits
from chappe.replication.binary_star import actions as star
from chappe.replication.binary_star.actions import Confirms, Memory
from chappe.replication.binary_star.core import BinaryStar
from chappe.replication.binary_star.messages import ACTIVE, COPY, NAME_BYTES_MAX, Record, decode_beat

_Owner: TypeAlias = Literal["star", "active", "standby"]


class PairedMaster(Replica):
    """See the module. Its methods are called as a master's are, and ``handle_witness`` besides.

    Args:
        entity: Who this one is as an author of writes; made by ``entity.chappe_entity``, new in each life.
        role: ``PRIMARY`` or ``BACKUP``.
        life: A number from 1 to 2**64 - 1 that no other life has.
        durable: Whether there is a backend, to be asked by ``Commit``.
        loaded: What the backend had.
        witness: Whether there is one, to be asked by ``AskWitness``.
        notify: Whether changes are told to watchers.
    """

    def __init__(
        self,
        name: str,
        entity: Entity,
        role: int,
        life: int,
        *,
        now: float,
        wall_ns: int,
        durable: bool = False,
        loaded: Loaded | None = None,
        witness: bool = False,
        notify: bool = True,
        limits: KvLimits = KV_LIMITS,
    ) -> None:
        super().__init__(name, entity, now=now, wall_ns=wall_ns, notify=notify, limits=limits)
        raw = check_name(name)
        self._pair_topic = pair_topic(raw)
        self.hears[self._pair_topic] = self._hear_pair
        loaded = loaded or Loaded()
        memory = memory_of(loaded) if durable else None
        loaded = without_star(loaded)
        pair = raw if len(raw) <= NAME_BYTES_MAX else raw[: NAME_BYTES_MAX - 4] + crc32c(raw).to_bytes(4)
        self.star = BinaryStar(role, life, now=now, pair=pair, memory=memory, witness=witness)
        self.active: Active | None = None
        self._ending = False  # ``active`` is master no more, and waits for its backend
        self._durable = durable
        self._kept = memory or Memory()
        self._keeping: Memory | None = None  # on its way to the disk
        self._decided: deque[star.Action] = deque()
        self._confirms: tuple[Confirms, int] = ("nothing", 0)
        self._recent = Recent(limits)
        self._standby = Standby(self.engine, loaded.writers, self._recent, self._notices, life, limits, durable=durable)
        for key, value, expires_ns in loaded.entries:
            self.engine.put(key, value, expires_ns)
        self._term = 0  # in which there is a master here
        self._following = 0  # in which term somebody else is active
        self._partner: bytes | None = None  # its endpoint
        self._wanted = False  # somebody would read
        self._commits = 0
        self._owners: dict[int, _Owner] = {}  # of commits that are on their way

    # -- looks --------------------------------------------------------------------------------------------------

    @property
    def master(self) -> KvMaster | None:
        """The master, while it is here."""
        return None if self.active is None else self.active.master

    def unreadable(self) -> StaleData | None:
        """Why it may not be read. That somebody would like to is a vote."""
        reason = super().unreadable()
        self._wanted |= reason is not None
        return reason

    @property
    def _unreadable(self) -> str | None:
        if self.active is not None:
            return None
        if not self._standby.whole:
            return "it is one of a pair, and has not met the other one"
        return None if not self._own.stale else f"it lost its partner more than {CLONE_STALE_S:g} s ago"

    def idle(self) -> bool:
        """Whether nothing is on its way between it and those in reach, and all that was written is done."""
        if not self._own.writes.idle() or self._decided:
            return False
        if self.active is not None:
            return self._serving and self.active.master.idle()
        return self._standby.copied and not self._standby.busy and self._in_step

    def invariants(self) -> list[str]:
        """What is wrong with its own state, one sentence each; nothing, unless there is a defect."""
        found = [*self.star.invariants(), *self._own.writes.invariants()]
        if self.active is None:
            found += [*self.engine.invariants(), *self._standby.invariants()]
        else:
            found += self.active.invariants()  # of the same engine
        if self.active is not None and not self._ending and self.star.state != ACTIVE:
            found.append("there is a master, and it is not active")
        if self.active is not None and self._standby.leader:
            found.append("it is master and follows one")
        return found

    def story(self, key: object) -> str:
        """What is known of a key, for people."""
        return f"{self.engine.story(key)}; {self.star.story()}"  # type: ignore[arg-type]

    @property
    def _serving(self) -> bool:
        return self.active is not None and not self._ending and self.star.serving

    @property
    def _in_step(self) -> bool:
        """Whether who is active said that it waits for this one."""
        return self._following != 0 and self.star.record == Record(self._following, COPY)

    # -- world --------------------------------------------------------------------------------------------------

    def start(self, now: float, wall_ns: int) -> list[Action]:
        """Begin."""
        self._decide(self.star.start(now), now)
        return self._take(now)

    def leave(self) -> list[Action]:
        """The end: clones look for the other one at once."""
        if self.active is not None and not self._ending:
            self._tell_clones(self.active.master.entity, self.active.master.entity)
        done, self._done = self._done, []
        return done

    def handle_gone(self, endpoint: bytes, now: float) -> list[Action]:
        """An endpoint is out of reach."""
        if self.active is not None and self._serving:
            self._by_master(self.active.master.handle_gone(endpoint, now), now)
        return self._take(now)

    def handle_witness(self, frame: bytes, now: float, wall_ns: int) -> list[Action]:
        """The witness has answered."""
        self._wake(now, wall_ns)
        try:
            self._decide(self.star.handle_witness(frame, now), now)
        except ProtocolError as problem:
            self._refused(problem)
        return self._take(now)

    def handle_committed(self, number: int, now: float, wall_ns: int) -> list[Action]:
        """A commit is durable."""
        self._wake(now, wall_ns)
        self._kept_or_not(number, None, now)
        return self._take(now)

    def handle_commit_failed(self, number: int, error: StorageError, now: float) -> list[Action]:
        """A commit was refused."""
        self._wake(now, self._wall(now))
        self._kept_or_not(number, error, now)
        return self._take(now)

    def handle_timeout(self, now: float, wall_ns: int) -> list[Action]:
        """Do what is due."""
        self._wake(now, wall_ns)
        active = self.active
        if active is None:
            if now >= self._standby.next_timeout():
                self._emit(self._standby.handle_timeout(now), "standby")
        elif self._serving:
            self._emit(active.handle_timeout(now, wall_ns), "active")
        self._stand_in(now)
        if active is None or self._serving:
            self._by_author(self._own.handle_timeout(now))
        return self._take(now)

    def next_timeout(self, now: float, wall_ns: int) -> float:
        """When ``handle_timeout`` is due."""
        due = self.star.next_timeout()
        if self.active is None:
            due = min(due, self._standby.next_timeout(), self._own.next_timeout())
        elif self._serving:
            due = min(due, self.active.next_timeout(now, wall_ns), self._own.next_timeout())
        return min([due, *self._waits.values()])

    # -- messages -----------------------------------------------------------------------------------------------

    def _voted(self, now: float) -> None:
        """A clone looks for a master while none serves here."""
        self._decide(self.star.handle_request(0, now), now)

    def _knows(self, endpoint: bytes) -> bool:
        """Whether it is one of the two."""
        return endpoint in (self._partner, self.entity.endpoint)

    def _hear_pair(self, payloads: Iterable[bytes], now: float, wall_ns: int) -> list[Action]:
        """The partner says something."""
        self._wake(now, wall_ns)
        for payload in payloads:
            try:
                sender, receiver, said = say.decode_said(payload)
                if receiver == self.entity.endpoint or receiver == NOBODY.endpoint:
                    self._hear(sender, said, now)
            except ProtocolError as problem:
                self._refused(problem)
        return self._take(now)

    def _hear(self, sender: bytes, said: say.Said, now: float) -> None:
        """The partner says one thing. Raises ProtocolError."""
        if isinstance(said, say.Beat):
            beat = decode_beat(said.frame)
            self._decide(self.star.handle_state(said.frame, now), now)
            if beat.life == self.star.partner_life:
                self._partner = sender
                if beat.state == ACTIVE:
                    self._voters.take()  # it has answered them
            return
        if sender != self._partner:
            return
        if isinstance(said, say.Part | say.Last):
            if self.active is None:
                self._emit(self._standby.handle(said, now), "standby")
            return
        active = self.active
        if active is None:
            if isinstance(said, say.Gone):
                self._emit(self._standby.handle(said, now), "standby")
        elif not self._ending:
            if isinstance(said, say.Join):
                if said.leader == self.star.life and self.star.partner == "here":
                    self._emit(active.join(said, now), "active")
            else:
                self._emit(active.handle(said, now), "active")

    # -- who is active ------------------------------------------------------------------------------------------

    def _wake(self, now: float, wall_ns: int) -> None:
        """Before anything else is done: see whether this one stood still, or has not heard of the partner."""
        self._wall_ns = wall_ns - int(now * 1e9)
        if now >= self.star.next_timeout():
            self._decide(self.star.handle_timeout(now), now)
            self._voters.forget(now)
            waits = self._wanted or self._own.waits or self._voters.wait
            if waits and self.star.state != ACTIVE and self.star.partner != "here":
                self._decide(self.star.handle_request(0, now), now)
            self._wanted = False

    def _decide(self, decided: Sequence[star.Action], now: float) -> None:
        """Do what Binary Star has decided, in order, as far as the disk lets it."""
        self._decided += decided
        active = self.active
        if active is not None and not self._ending and self.star.term != self._term:
            self._step_down(active, now)
        while self._decided and self._keeping is None and not self._ending and not self._standby.busy:
            self._do(self._decided.popleft(), now)

    def _do(self, action: star.Action, now: float) -> None:
        if isinstance(action, star.Persist):
            self._keeping = action.memory
            self._commit(Commit(0, (row_of(action.memory),)), "star")
        elif isinstance(action, star.Lead):
            if action.term == self.star.term and self.active is None:
                self._lead(action.term, now)
        elif isinstance(action, star.Follow):
            if self.active is None and self.star.state != ACTIVE:
                self._following = action.term
                self._emit(self._standby.follow(action.life, now), "standby")
        elif isinstance(action, star.Rest):
            if self.active is None:
                self._following = 0
                self._standby.rest()
        elif isinstance(action, star.Confirm):
            self._confirms = action.what, action.life
        elif isinstance(action, star.Tell):
            self._say(say.Beat(action.beat))
        elif isinstance(action, star.Ask):
            self._done.append(AskWitness(action.payload))
        else:
            self._done.append(action)

    def _lead(self, term: int, now: float) -> None:
        """Be master, in a new life."""
        standby = self._standby
        standby.rest()
        self._following = 0
        self._term = term
        entity = chappe_entity(self.entity.endpoint, crc32c(b"%d %d" % (self.star.life, term)))
        self.active = active = Active(
            self.name, entity, self.engine, tuple(standby.rows.values()), self._recent, self._limits, now=now,
            wall_ns=self._wall(now), notify=self.notify, durable=self._durable,
        )  # fmt: skip
        self._by_master(active.master.start(now, self._wall(now)), now)
        self._answer_voters()

    def _step_down(self, active: Active, now: float) -> None:
        """Be master no more; what its backend has under way is waited for."""
        self._ending = True
        self._confirms = ("nothing", 0)
        active.feed = None
        self._done += active.master.drop_waiting()
        self._tell_clones(active.master.entity, active.master.entity)
        if not active.busy:
            self._end(active, now)

    def _end(self, active: Active, now: float) -> None:
        self._done += active.end(now)
        self._standby = Standby(
            self.engine, active.master.writer_rows(), self._recent, self._notices, self.star.life, self._limits,
            durable=self._durable,
        )  # fmt: skip
        self._standby.whole = True
        self._standby.master = active.master.entity
        self.active = None
        self._ending = False

    def _stand_in(self, now: float) -> None:
        """Clones of chappe that do not hear a silent partner either ask for a master, which is their vote."""
        if self._voters.are_to_hear(self.star.partner == "silent", now) and self._standby.master is not None:
            self._voters.heard(now)
            self._tell_clones(self.entity, self._standby.master)

    # -- disk ---------------------------------------------------------------------------------------------------

    def _commit(self, commit: Commit, owner: _Owner) -> None:
        self._commits += 1
        self._owners[self._commits] = owner
        self._done.append(Commit(self._commits, commit.operations))

    def _kept_or_not(self, number: int, error: StorageError | None, now: float) -> None:
        owner = self._owners.pop(number)
        if owner == "star":
            assert self._keeping is not None
            kept, self._keeping = self._keeping, None
            if error is None:
                self._kept = kept
                self._decide((), now)
            else:
                self._decided.clear()
                self._decide(self.star.handle_not_kept(self._kept, now), now)
        elif owner == "active":
            assert self.active is not None
            if not self._ending:
                self._emit(self.active.handle_kept(error, now), "active")
                return
            self.active.settle(error)
            self._end(self.active, now)
            self._decide((), now)
        else:
            self._emit(self._standby.handle_kept(error, now), "standby")
            self._decide((), now)

    # -- what follows from what was done ------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        self._look_at_partner(now)
        self._look_at_writes(now)

    def _look_at_partner(self, now: float) -> None:
        """Have count what may, and tell Binary Star whether the partner has everything."""
        active = self.active
        if active is None or self._ending:
            return
        if self.star.partner != "here":
            active.feed = None
        for _ in range(2):  # what is decided may let something count
            confirms, life = self._confirms
            feed = active.feed
            if self.star.paired_life:
                if feed is None or feed.life != self.star.paired_life:
                    self._decide(self.star.handle_behind(now), now)
            elif active.caught_up:
                self._decide(self.star.handle_caught_up(active.caught_up, now), now)
                active.be_lonely(not self.star.paired_life)
            if self.active is not active or self._ending:
                return
            if self._serving and confirms == self.star.confirms:
                self._emit(active.release(confirms, life, now, self._wall(now)), "active")

    def _look_at_writes(self, now: float) -> None:
        """Own writes go to whoever is master."""
        master: Entity | None = None
        if self.active is not None:
            if not self._ending and self._own.waits:
                master = self.active.master.entity
        elif self._standby.copied and self._in_step:
            master = self._standby.master
        self._by_author(self._own.look(master, self.active is not None or master is not None, now))

    def _by_master(self, actions: Sequence[Action], now: float) -> None:
        """What it tells clones is held back until the other one has it, if that is here."""
        assert self.active is not None
        self._emit(self.active.filtered(actions, now), "active")

    def _emit(self, answer: Sequence[say.Said | Action], owner: _Owner) -> None:
        """Have done what a part of this one asks for."""
        for each in answer:
            if isinstance(each, Send):
                if each.receiver == self.entity.endpoint:
                    self._looped.append((each.topic, each.payload))
                else:
                    self._done.append(each)
            elif isinstance(each, Commit):
                self._commit(each, owner)
            elif isinstance(each, Notify | Resolve | AskWitness | Propose | Report):
                self._done.append(each)
            else:
                self._say(each)

    def _say(self, said: say.Said) -> None:
        """Tell the partner; while it is not known where that is, heartbeats are for whoever hears them."""
        partner = self._partner
        if partner is not None or isinstance(said, say.Beat):
            receiver = NOBODY if partner is None else Entity(partner, 0)
            payload = cmd.encode_message(0, self.entity, receiver, say.encode(said))
            self._done.append(Send(self._pair_topic, partner, payload))
