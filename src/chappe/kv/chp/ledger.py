"""A map server's entries, their order, their writers, and how much is durable.

Entries, expiry, versions and commits are those of data stores (``kv/engine.py``, ``kv/group_commit.py``). An entry's
value is body, UUID and properties. What is done is told (``release``) when it is durable, and gets its sequence then.

Sequences are numbers as those of a data store's events (``kv/recent.py``), and so no life uses one again: the Guide's
clients discard what is not above the last number they saw, and would not hear a server that began at 1 again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from chappe.core import Clock, Effect, Persist, Publish
from chappe.data.values import Value
from chappe.defaults import MAP_BODY_BYTES_MAX, MAP_KEY_BYTES_MAX, MAP_STEP_BYTES_MAX
from chappe.errors import ProtocolError
from chappe.kv.backend import Commit, Loaded, WriterRow
from chappe.kv.chp import messages as chp
from chappe.kv.chp.recent import RecentUpdates
from chappe.kv.chp.sessions import Session, SessionValues, shorten_some
from chappe.kv.chp.stream import Entry as Told
from chappe.kv.chp.stream import Step, WriterState, step_size
from chappe.kv.engine import Change, Engine, Entry, StagedEntries
from chappe.kv.entity import ENDPOINT_BYTES, NOBODY, Entity
from chappe.kv.group_commit import Committing
from chappe.kv.recent import EventNumbers
from chappe.limits import MapLimits

NS: Final = 1_000_000_000
MS: Final = 1_000_000
CONFLICT: Final = 1  # codes of failures: what was expected was not there, ...
INVALID: Final = 12  # ... or the step can be nobody's, ...
DENIED: Final = 15  # ... or the permissions do not allow it
REFUSED: Final = "it was refused"  # what remains of the text of a failure that is stored, or copied with all others
_PAST_MAX: Final = 16
_REFUSED_MAX: Final = 4_096
_DENIED_BYTES: Final = 1_000  # of why a step is not allowed: clients could say more


Refusal: TypeAlias = tuple[bytes, int, int, str]  # writer, number of the step, code and text


def key_of(raw: bytes) -> Value:
    """Return a key as the engine has it: text, or bytes if it is not text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def pairs_of(told: Sequence[Told]) -> Iterator[tuple[Value, Value]]:
    """Return keys and values as the engine has them, of updates that neither delete nor expire."""
    keys: list[Value]
    try:
        keys = [each[0].decode() for each in told]
    except UnicodeDecodeError:
        keys = [key_of(each[0]) for each in told]
    return zip(keys, [each[1:4] for each in told], strict=True)


def raw_key(key: Value) -> bytes:
    return key.encode() if type(key) is str else key  # type: ignore[return-value]


class Doing(msgspec.Struct, frozen=True):
    changes: tuple[Change, ...]
    told: tuple[Told, ...]
    session: bytes = b""
    seq: int = 0
    failure: tuple[int, str] | None = None
    sequence: int = 0  # of its last update, where the other server has ordered it
    copied: bool = False  # the other server has done it
    whole: bool = False  # it is a snapshot
    order: int = 0  # what was done before the last snapshot is void

    @property
    def writer(self) -> Entity | None:
        return _entity(self.session) if self.session else None

    @property
    def clears(self) -> bool:
        return False


class Former(msgspec.Struct, frozen=True):
    """The state beside the entries that a snapshot replaces: it counts again if the disk refuses the snapshot."""

    sessions: OrderedDict[bytes, Session]
    sequence: int
    past: OrderedDict[bytes, int]


class Ledger:
    """Orders updates, commits them and tells them once durable. ``clock`` is asked once; then only ``now`` counts."""

    def __init__(self, epoch: bytes, loaded: Loaded | None, limits: MapLimits, now: float, clock: Clock) -> None:
        self.epoch = epoch
        self.past: OrderedDict[bytes, int] = OrderedDict()  # epochs before, and up to which sequence they are contained
        self.engine = Engine(changes_max=0)
        self.durable = loaded is not None
        self.commits: Committing[Doing] = Committing(limits.kv)
        self.recent = RecentUpdates(limits)
        self.sessions: OrderedDict[bytes, Session] = OrderedDict()
        self.session_values = SessionValues(limits, now)
        self._origin = (now, clock.wall_ns())
        self._numbers = EventNumbers(loaded or Loaded(), clock)
        self.sequence = self._numbers.base
        self.alone = True  # steps are confirmed that no other server has
        self.serving = True
        self.followed = False  # ``sequence`` is one of the other server's, whose order this is
        self.copied_to = 0  # what was done before this server was active reaches up to there
        self.refused: deque[Refusal] = deque(maxlen=_REFUSED_MAX)  # the last steps that failed, for the other server
        self.refusals = 0  # all of them
        self.floor: int | None = None  # up to where the other server has everything; None if there is none
        self.news = False  # for those who follow
        self.listened: tuple[bytes, ...] = ()  # what somebody has subscribed to
        self._limits = limits
        self._remembered = 0  # of writers, since it was looked how much that is
        self._own = chp.session_of(epoch[: chp.SESSION_BYTES])
        self._expired = 0
        self._order = 0
        self._former: deque[Former] = deque()  # of each snapshot that is not durable yet
        self._load(loaded or Loaded())
        self._note_all(now)
        self.recent.begin(self.sequence)

    def _load(self, loaded: Loaded) -> None:
        for key, value, expires_ns in loaded.entries:
            if not isinstance(value, tuple) or len(value) != 3 or not all(type(each) in (str, bytes) for each in value):
                raise ProtocolError(f"the value of {key!r} is not an entry of a shared map: choose another path")
            self.engine.put(key, tuple(raw_key(each) for each in value), expires_ns)
        for row in loaded.writers:
            if row.entity == NOBODY:
                continue  # it keeps the numbers of updates
            session = Session(row.applied, row.heard_ns)
            session.failed = {number: (code, REFUSED) for number, code in row.outcomes}
            self.sessions[row.entity.endpoint[: chp.SESSION_BYTES]] = session
        self._remember(self._limits.outcomes_max)

    def _remember(self, count: int) -> None:
        self._remembered += count
        if 4 * self._remembered >= self._limits.outcomes_max:
            self._remembered = 0
            shorten_some(self.sessions.values(), self._limits.outcomes_max)

    def ns(self, now: float) -> int:
        """Return the time of day, as it was when this began, and gone on evenly: setting the clock has no effect."""
        began, wall_ns = self._origin
        return wall_ns + int((now - began) * NS)

    @property
    def crowded(self) -> bool:
        return self.durable and self.commits.beyond(self._limits.undurable_max, self._limits.undurable_bytes)

    # -- reading -----------------------------------------------------------------------------------------------------

    def frozen(self) -> list[Entry]:
        return self.engine.frozen(self.commits.changes())

    def told(self, entry: Entry, ns: int) -> Told:
        value: Any = entry.value
        left = 0 if entry.expires_ns is None else max(1, (entry.expires_ns - ns) // MS)
        return raw_key(entry.key), value[0], value[1], value[2], left

    def session(self, name: bytes, now: float) -> Session:
        """Return the session of a writer that was heard now."""
        found = self.sessions.get(name)
        if found is None:
            found = self.sessions[name] = Session(0, 0)
            if len(self.sessions) > self._limits.sessions_max:
                forgotten, _ = self.sessions.popitem(last=False)
                if self.durable:
                    self.commits.forget(_entity(forgotten))
        self.sessions.move_to_end(name)
        found.heard_ns = self.ns(now)
        self.session_values.heard(name, now)
        return found

    def confirm(self, session: Session, position: int) -> int:
        """Return the last step that a writer may be told of, who was told everything up to ``position``."""
        floor = self.floor
        if floor is None:
            return session.confirm(position)
        return session.confirm(min(position, floor)) if floor >= self.copied_to else 0

    # -- writing -----------------------------------------------------------------------------------------------------

    def do_step(self, name: bytes, number: int, step: Step, now: float, effects: list[Effect]) -> None:
        """Do a step of a writer of chappe; it was not done yet."""
        session = self.session(name, now)
        session.taken = number
        failure = self._refuse(step)
        if failure is not None:
            session.fail(number, *failure)  # now, as it goes to the disk with the writer's number
            self._remember(1)
            self._finish(Doing((), (), name, number, failure, order=self._order), effects)
            return
        session.do(number)
        uuid = chp.uuid_of(name, number)
        told = tuple([(key, body, uuid, properties, left) for key, body, left, properties in step.sets])
        self._finish(Doing(self._apply(told, now), told, name, number, order=self._order), effects)

    def do_steps(self, name: bytes, first: int, steps: Sequence[Step], now: float, effects: list[Effect]) -> None:
        """Do steps of a writer of chappe, from this number on; they were not done yet."""
        plain: list[Told] = []  # one key each, which cannot fail: most steps of most programs
        reserved, key_max, body_max = chp.RESERVED, MAP_KEY_BYTES_MAX, MAP_BODY_BYTES_MAX
        for number, step in enumerate(steps, first):
            sets = step.sets
            if len(sets) == 1 and not step.expected and not self.durable:
                key, body, left, properties = sets[0]
                fits = len(key) <= key_max and len(body) <= body_max and key not in reserved
                if fits and body and not left and not properties:
                    plain.append((key, body, name + number.to_bytes(chp.NUMBER_BYTES, "big"), b"", 0))
                    continue
            if plain:
                self._do_plain(plain, now, effects)
                self._done(name, number - 1, plain, now)
                plain = []
            self.do_step(name, number, step, now, effects)
        if plain:
            self._do_plain(plain, now, effects)
            self._done(name, first + len(steps) - 1, plain, now)

    def _done(self, name: bytes, number: int, told: Sequence[Told], now: float) -> None:
        session = self.session(name, now)
        if session.failed:
            self._forgive(session, told)
        session.taken = number
        session.waiting.append((number, self.sequence))
        self._remember(1)

    def _do_plain(self, told: Sequence[Told], now: float, effects: list[Effect]) -> None:
        """Do updates, each a step of its own that stays, where nothing is to become durable."""
        self.engine.put_all(pairs_of(told))
        self._note(told, now)
        sequence = self.sequence
        self.sequence = sequence + len(told)
        if self.listened:
            listened = self.listened
            for number, each in enumerate(told, sequence + 1):
                if each[0].startswith(listened):
                    effects.append(Publish(_published(each, number)))
        self.recent.add_singles(told, self.sequence)
        self.news = True

    def do_update(self, told: Told, now: float, effects: list[Effect]) -> None:
        if told[1] and not told[4] and not self.durable:
            self._do_plain((told,), now, effects)
            return
        self._finish(Doing(self._apply((told,), now), (told,), order=self._order), effects)

    def follow(self, told: Sequence[Told], sequence: int, now: float, effects: list[Effect]) -> None:
        """Apply updates that the other server has ordered; ``sequence`` is that of the last."""
        left = len(told)
        for name, number, run in _runs(told):
            if name:
                session = self.session(name, now)
                session.taken = max(session.taken, number)
                if session.failed:
                    self._forgive(session, run)
                if not self.durable:
                    session.applied = session.taken
            if self.durable:  # each writer's number is kept with what it wrote
                left -= len(run)
                self._copy(run, name, number, sequence - left, now, effects)
        if not self.durable:
            self._copy(told, b"", 0, sequence, now, effects)

    def _forgive(self, session: Session, run: Sequence[Told]) -> None:
        """Forgive steps that a former server refused, and told nobody, and that this one did."""
        for told in run:
            written = chp.writer_of(told[2])
            if written is not None:
                session.do(written[1])

    def _copy(self, told: Sequence[Told], name: bytes, number: int, sequence: int, now: float,
              effects: list[Effect]) -> None:  # fmt: skip
        if self.durable or not all(each[1] and not each[4] for each in told):
            changes = self._apply(told, now)
        else:  # nobody asks what was there before
            changes = ()
            self.engine.put_all(pairs_of(told))
            self._note(told, now)
        doing = Doing(changes, tuple(told), name, number, sequence=sequence, copied=True, order=self._order)
        self._finish(doing, effects)

    def refuse(self, refusals: Sequence[Refusal], now: float) -> None:
        """Note steps that the other server refused; they are not done with, as earlier ones may not be here yet."""
        for name, number, code, text in refusals:
            self.session(name, now).fail(number, code, text)
        self._remember(len(refusals))

    def replace(self, staged: StagedEntries, sequence: int, sessions: Sequence[WriterState], now: float,
                effects: list[Effect]) -> None:  # fmt: skip
        """Take over the other server's state, and drop everything else. Its entries and the numbers of its writers are
        durable at once: a writer's number without its entries would stand for a step that this server never had.
        """
        if self.durable:
            self._former.append(Former(self.sessions, self.sequence, self.past.copy()))
        self.past.clear()
        self._order += 1
        self.followed = False
        changes = self.engine.replace(staged, tell=self.durable)
        self._note_all(now)
        if self.durable:
            for name in self.sessions:
                self.commits.forget(_entity(name))
        self.sessions = OrderedDict()
        self.sequence = sequence
        for name, applied, failed in sessions:
            session = self.session(name, now)
            session.taken = session.applied = applied
            session.failed = {number: (code, text) for number, code, text in failed}
            self._remember(len(failed))
            if self.durable:
                self.commits.add(Doing((), (), name, applied, copied=True, order=self._order))
        doing = Doing(tuple(changes), (), sequence=sequence, copied=True, whole=True, order=self._order)
        self._finish(doing, effects)
        self.recent.begin(sequence)

    def expire(self, now: float, effects: list[Effect]) -> None:
        """Delete expired entries, each by an update with a UUID of its own."""
        for change in self.engine.expire(self.ns(now)):
            self.session_values.drop(raw_key(change.key))
            self._delete(change, effects)

    def end_session(self, name: bytes, effects: list[Effect]) -> None:
        """Delete the values that end with a client, each as ``expire`` does."""
        for key in self.session_values.keys(name):
            self.session_values.drop(key)
            change = self.engine.erase(key_of(key))
            if change is not None:
                self._delete(change, effects)

    def _delete(self, change: Change, effects: list[Effect]) -> None:
        self._expired += 1
        told = (raw_key(change.key), b"", chp.uuid_of(self._own, self._expired), b"", 0)
        self._finish(Doing((change,), (told,), order=self._order), effects)

    def at(self, ns: int) -> float:
        began, wall_ns = self._origin
        return began + (ns - wall_ns) / NS

    def renew(self, epoch: bytes) -> None:
        self.epoch = epoch
        self._own = chp.session_of(epoch[: chp.SESSION_BYTES])
        self.refused.clear()
        for name, session in self.sessions.items():
            self.refused.extend([(name, number, *outcome) for number, outcome in session.failed.items()])

    def adopt(self, epoch: bytes, sequence: int) -> None:
        """Note that this ledger contains all updates of an epoch up to a sequence."""
        self.past[epoch] = sequence
        self.past.move_to_end(epoch)
        while len(self.past) > _PAST_MAX:
            self.past.popitem(last=False)

    def contains(self, epoch: bytes, sequence: int) -> bool:
        """Return True if a peer at this sequence lacks nothing that is here, and can continue from there."""
        if epoch == self.epoch:
            known = sequence <= self.sequence
        else:
            known = sequence <= self.past.get(epoch, -1)
        return known and self.recent.has(sequence)

    def _refuse(self, step: Step) -> tuple[int, str] | None:
        for key, body in step.expected:
            if key == chp.KTHXBAI:
                return DENIED, body[:_DENIED_BYTES].decode("utf-8", "replace")
            if not chp.is_key(key):
                return INVALID, _no_key(key)
            if len(body) > MAP_BODY_BYTES_MAX:
                return INVALID, _too_large(body)
            entry = self.engine.find(key_of(key))
            if (b"" if entry is None else entry.value[0]) != body:  # type: ignore[index]
                return CONFLICT, f"{key.decode('utf-8', 'replace')[:100]!r} has another value"
        for key, body, _, properties in step.sets:
            if not chp.is_key(key):
                return INVALID, _no_key(key)
            if len(body) > MAP_BODY_BYTES_MAX:
                return INVALID, _too_large(body)
            if properties and not chp.are_properties(properties):
                return INVALID, "properties that are not name=value, each ended by a newline"
        if not self.session_values.fits(step.sets):
            return INVALID, f"{self._limits.session_values_max:,} values of the map end with their clients already"
        if len(step.sets) > 1 and step_size(step) > MAP_STEP_BYTES_MAX:
            return INVALID, f"a step of {step_size(step):,} bytes: at most {MAP_STEP_BYTES_MAX:,} are taken"
        return None

    def _apply(self, told: Sequence[Told], now: float) -> tuple[Change, ...]:
        changes = []
        engine = self.engine
        for key, body, uuid, properties, left in told:
            if body:
                expires_ns = self.ns(now) + left * MS if left else None
                changes.append(engine.put(key_of(key), (body, uuid, properties), expires_ns))
                self.session_values.note(key, uuid, properties, now)
            else:
                self.session_values.drop(key)
                change = engine.erase(key_of(key))
                if change is not None:
                    changes.append(change)
        return tuple(changes)

    def _note(self, told: Sequence[Told], now: float) -> None:
        values = self.session_values
        if len(values) or any(each[3] for each in told):
            for key, _, uuid, properties, _ in told:
                values.note(key, uuid, properties, now)

    def _note_all(self, now: float) -> None:
        entries: Any = self.engine.entries.values()
        self.session_values.replace(((raw_key(each.key), *each.value[1:]) for each in entries if each.value[2]), now)

    def _note_again(self, key: Value, now: float) -> None:
        entry = self.engine.find(key)
        if entry is None:
            self.session_values.drop(raw_key(key))
        else:
            value: Any = entry.value
            self.session_values.note(raw_key(key), value[1], value[2], now)

    # -- telling -----------------------------------------------------------------------------------------------------

    def _finish(self, doing: Doing, effects: list[Effect]) -> None:
        if self.durable:
            self.commits.add(doing)
            self.start_commit(effects)
        else:
            self._release(doing, effects)

    def start_commit(self, effects: list[Effect]) -> None:
        commit = self.commits.start(self._row_of)
        if commit is not None:
            row = self._numbers.reserve(self.sequence + sum([len(each.told) for each in self.commits.under_way]))
            if row is not None:
                commit = Commit(commit.number, (*commit.operations, row))
            effects.append(Persist(commit))

    def _row_of(self, entity: Entity) -> WriterRow | None:
        session = self.sessions.get(entity.endpoint[: chp.SESSION_BYTES])
        if session is None:
            return None
        outcomes = tuple((number, code) for number, (code, _) in session.failed.items())
        return WriterRow(entity, session.taken, outcomes, session.heard_ns)

    def committed(self, number: int, effects: list[Effect]) -> None:
        for doing in self.commits.committed(number):
            self._release(doing, effects)
        self.start_commit(effects)

    def failed(self, number: int, text: str, now: float, effects: list[Effect]) -> int:
        """Undo a refused commit; return how many updates of others than writers of chappe are lost."""
        lost = 0
        self._numbers.refused()
        undone = self.commits.failed(number, self.engine)
        if self._former:
            self._restore(self._former[0])
        for doing in undone:
            for change in doing.changes:
                self._note_again(change.key, now)
        for doing in undone:
            session = self.sessions.get(doing.session)
            if doing.copied:
                if session is not None:
                    session.taken = session.applied
            elif doing.session:
                self._release(Doing((), (), doing.session, doing.seq, (13, text), order=doing.order), effects)
            else:
                lost += len(doing.told)
        return lost

    def _restore(self, former: Former) -> None:
        """Restore the state before a snapshot that the disk has refused; its entries are undone already."""
        self._former.clear()
        sessions = former.sessions
        if self.serving:
            for name, session in self.sessions.items():
                if name not in sessions:
                    session.taken = session.applied = 0  # its writer says anew what it was told
                    session.waiting.clear()
                    sessions[name] = session
            self.sequence += 1  # nobody goes on from what the snapshot had
        else:
            self.sequence = former.sequence
        self.sessions, self.past = sessions, former.past
        self.commits.remember({_entity(name) for name in sessions})
        self.recent.begin(self.sequence)

    def _release(self, doing: Doing, effects: list[Effect]) -> None:
        if doing.whole and self._former:
            self._former.popleft()
        if doing.order != self._order:
            return
        self.news = True
        if doing.copied:
            self._follow(doing)
            return
        for told in doing.told:
            self.sequence += 1
            if told[0].startswith(self.listened):
                effects.append(Publish(_published(told, self.sequence)))
        if doing.told:
            self.recent.add(doing.told, self.sequence)
        if doing.session:
            session = self.sessions.get(doing.session)
            if session is not None:
                if doing.failure is not None:
                    session.fail(doing.seq, *doing.failure)
                    self.refused.append((doing.session, doing.seq, *doing.failure))
                    self.refusals += 1
                session.waiting.append((doing.seq, self.sequence))
                self._remember(2)

    def _follow(self, doing: Doing) -> None:
        session = self.sessions.get(doing.session)
        if session is not None:
            session.applied = max(session.applied, doing.seq)
        if not doing.sequence:
            return
        self.sequence = doing.sequence
        self.followed = True
        if doing.told:
            self.recent.follow(doing.told, doing.sequence)
        elif doing.whole and self.serving:  # clients may have come while the snapshot was on its way to the disk
            self.sequence += 1
            self.recent.begin(self.sequence)


def _runs(told: Sequence[Told]) -> Iterator[tuple[bytes, int, Sequence[Told]]]:
    """Iterate over updates that come together and are of one writer of chappe: name, last step, updates; or of none."""
    first, end = 0, len(told)
    while first < end:
        uuid = told[first][2]
        written = chp.writer_of(uuid)
        name = b"" if written is None else written[0]
        place = first + 1
        while place < end and (told[place][2].startswith(name) if name else chp.writer_of(told[place][2]) is None):
            place += 1
        written = chp.writer_of(told[place - 1][2])
        yield name, 0 if written is None else written[1], told[first:place]
        first = place


def _published(told: Told, sequence: int) -> list[bytes]:
    key, body, uuid, properties, left = told
    return chp.encode_update(chp.Update(key, sequence, uuid, properties, body, chp.ttl_seconds(left) if left else b""))


def _no_key(key: bytes) -> str:
    return f"{key[:100]!r} cannot be a key: it is too long, or a word of the protocol"


def _too_large(body: bytes) -> str:
    return f"a value of {len(body):,} bytes: at most {MAP_BODY_BYTES_MAX:,} are taken"


def _entity(session: bytes) -> Entity:
    return Entity(session.ljust(ENDPOINT_BYTES, b"\0"), 0)
