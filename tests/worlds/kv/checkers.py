"""The promises of data stores, one small class each; a broken one raises ``Violation`` when it is seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tests.worlds.kv.hosts import KvHost
from tests.worlds.kv.rogues import FORGED
from tests.worlds.kv.world import LISTS, LIVING, PENDING, TEMPORARY, UNIQUE, KvWorld, Operation

from chappe.core import Send
from chappe.data.binary import decode
from chappe.data.values import Value
from chappe.errors import TimedOut
from chappe.kv.backend import HistoryRow
from chappe.kv.commands import (
    EVENTS,
    AckClone,
    Keepalive,
    Several,
    SnapshotOffer,
    SnapshotPiece,
    WriterState,
    decode_message,
)
from chappe.kv.engine import index_of
from chappe.kv.entity import Entity
from chappe.kv.events import MasterFound, TwoMasters
from chappe.kv.history import PastChange, past_change
from chappe.kv.role import KeyChange
from chappe.sim.world import Checker

LATE_S = 0.3  # what is due is done by then
SNAPSHOT_S = 16.0  # something more of a snapshot has come after this long; of one whose master died it is given up
CONFLICT_S = 5.0  # two masters that reach each other have noticed it after this long
State = dict[Any, Value]
Past: TypeAlias = tuple[str, Value]  # what happened to a key, and the value that it got


def only_master(world: KvWorld) -> KvHost | None:
    """The master, if there is one."""
    found = world.masters()
    return found[0] if len(found) == 1 else None


def lives(world: KvWorld, life: str) -> bool:
    """Whether a life of a member goes on."""
    return any(str(each.entity) == life for each in world.alive(KvHost))


class MastersOrder(Checker[KvWorld]):
    """Every clone shows, behind each event, what its master had told behind that event."""

    name = "order"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self.shown: dict[Entity, State] = {}  # what each master has told so far
        self.states: dict[tuple[Entity, int], list[State]] = {}
        self.together: set[tuple[Entity, int]] = set()  # events that left with those behind them: not looked at alone
        self.offered: dict[tuple[Entity, int], State] = {}  # by master and snapshot: what it has to hold
        self.pieces: dict[tuple[Entity, int, int], State] = {}  # ... and what the pieces from each entry on hold

    def _record(self, master: Entity, seq: int, state: State) -> None:
        states = self.states.setdefault((master, seq), [])
        if not states or states[-1] != state:
            states.append(dict(state))

    def on_notify(self, host: KvHost, action: KeyChange) -> None:
        """A master's changes, as far as they are durable."""
        if host.kind == "master":
            state = self._state(host)
            if action.kind in ("insert", "update"):
                state[index_of(action.key)] = action.value
            else:
                state.pop(index_of(action.key), None)

    def _state(self, host: KvHost) -> State:
        if host.entity not in self.shown:
            backend = host.backend
            loaded = () if backend is None else backend.load().entries
            self.shown[host.entity] = {index_of(key): value for key, value, _ in loaded}
        return self.shown[host.entity]

    def on_send(self, host: KvHost, action: Send) -> None:
        """An event of a master, or a snapshot."""
        if host.kind != "master":
            return
        state = self._state(host)
        message = decode_message(action.message)
        if isinstance(message.command, EVENTS) and action.to is None:
            self._record(host.entity, message.seq, state)
        elif isinstance(message.command, Several):
            count = len(message.command.changes)
            self.together |= {(host.entity, seq) for seq in range(message.seq, message.seq + count - 1)}
            self._record(host.entity, message.seq + count - 1, state)
        elif isinstance(message.command, AckClone):
            found = {index_of(key): value for key, value in message.command.pairs()}
            if found != state:
                self.fail(f"{host.name} sends a snapshot with {found}, durable is {state}")
        elif isinstance(message.command, SnapshotOffer):
            self._offered(host, message.command, state)
        elif isinstance(message.command, SnapshotPiece):
            self._piece(host, message.command)

    def _offered(self, host: KvHost, offer: SnapshotOffer, state: State) -> None:
        """A snapshot that is shared shows how things were when the first one was offered it."""
        if (host.entity, offer.snapshot) not in self.offered:
            self.offered[host.entity, offer.snapshot] = dict(state)
        if len(self.offered[host.entity, offer.snapshot]) != offer.entries:
            wanted = len(self.offered[host.entity, offer.snapshot])
            self.fail(f"{host.name} offers {offer.entries} entries, durable were {wanted}")

    def _piece(self, host: KvHost, piece: SnapshotPiece) -> None:
        wanted = list(self.offered[host.entity, piece.snapshot].items())
        found = {index_of(key): value for key, value, _, _ in piece.rows()}
        before = self.pieces.setdefault((host.entity, piece.snapshot, piece.first), found)
        if before != found or any(each not in wanted for each in found.items()):
            self.fail(f"{host.name} sends a piece with {found} of a snapshot of {wanted}")

    def on_done(self, host: KvHost) -> None:
        """What a clone shows."""
        if host.kind == "master":
            self._record(host.entity, host.role.position, self._state(host))
            return
        core = host.role
        seq = core.position
        if seq is not None:
            found = {index: entry.value for index, entry in core.engine.entries.items()}
            if (core.master, seq) in self.together and (core.master, seq) not in self.states:
                return
            if found not in self.states.get((core.master, seq), []):
                known = self.states.get((core.master, seq), [{}])[-1]
                wrong = {key for key in found.keys() | known.keys() if found.get(key) != known.get(key)}
                shown = {key: (found.get(key), known.get(key)) for key in sorted(wrong, key=str)}
                self.fail(f"{host.name} shows behind event {seq} of {core.master} other than it had: {shown}")


class Applied(Checker[KvWorld]):
    """Every write is done at most once, exactly once if its author was told so, and not if it was told otherwise."""

    name = "exactly once"

    def on_notify(self, host: KvHost, action: KeyChange) -> None:
        """A list with a serial number twice."""
        if action.key in LISTS and isinstance(action.value, tuple) and len(set(action.value)) != len(action.value):
            self.fail(f"{host.name} has a write twice in {action.value}")

    def on_ended(self, host: KvHost, serial: int, asked: Operation) -> None:
        """Who is told that a write is done sees it, unless the master was lost before that."""
        is_shown = asked.key not in LISTS or serial in self._list(host, asked.key)
        is_lost = host.kind == "clone" and not host.role.connected
        if not is_shown and not is_lost and asked.outcome is None and self.world.lasting:
            self.fail(f"{host.name} is told that write {serial} is done, and does not show it")

    def unsettled(self) -> str | None:
        """What the authors were told."""
        for serial, asked in self.world.truth.asked.items():
            if asked.outcome is PENDING and lives(self.world, asked.member):
                return f"nothing became of write {serial} of {asked.member}, {asked.what} {asked.key!r}"
        master = only_master(self.world)
        if master is None:
            return None
        done = {serial for key in LISTS for serial in self._list(master, key)}
        for serial, asked in self.world.truth.asked.items():
            if asked.key not in LISTS or asked.what != "add" or asked.outcome is PENDING:
                continue
            if asked.outcome is None:
                if serial not in done and self.world.lasting:
                    self.fail(f"write {serial} of {asked.member} is not there, and it was told so")
            elif getattr(asked.outcome, "definite", True) and serial in done:
                self.fail(f"write {serial} of {asked.member} is there, and it was told: {asked.outcome}")
        return None

    def _list(self, master: KvHost, key: str) -> tuple[Any, ...]:
        entry = master.role.engine.find(key)
        return () if entry is None else entry.value


class Names(Checker[KvWorld]):
    """Nothing is done that was said in the name of somebody else."""

    name = "names"

    def on_notify(self, host: KvHost, action: KeyChange) -> None:
        """It says what it is."""
        if action.value == FORGED:
            self.fail(f"{host.name} shows under {action.key!r} what was said in another's name")


class Durability(Checker[KvWorld]):
    """While nothing is on its way to a backend it holds what its master shows, until when that lives, and no more."""

    name = "durability"

    def on_tick(self) -> None:
        """Compare."""
        for host in self.world.masters():
            if host.backend is not None and host.role.settled:
                shown = {i: (each.value, each.expires_ns) for i, each in host.role.engine.entries.items()}
                kept = {index_of(key): (value, until) for key, value, until in host.backend.load().entries}
                wrong = {
                    i: (shown.get(i), kept.get(i)) for i in shown.keys() | kept.keys() if shown.get(i) != kept.get(i)
                }
                if wrong:
                    self.fail(f"{host.name} shows, and has in its backend: {wrong}")


class OneWinner(Checker[KvWorld]):
    """Of all that put_unique the same key, one is told that it did, and its value is there."""

    name = "one winner"

    def unsettled(self) -> str | None:
        """Who was told so."""
        master = only_master(self.world)
        if master is None or not self.world.lasting:
            return None
        for key in UNIQUE:
            winners = [serial for serial in self.world.truth.unique(key) if self.world.truth.told(serial) is True]
            if len(winners) > 1:
                self.fail(f"{winners} were all told that they put {key!r}")
            entry = master.role.engine.find(key)
            if winners and (entry is None or entry.value != winners[0]):
                self.fail(f"{winners[0]} was told that it put {key!r}, there is {entry and entry.value!r}")
            if entry is not None and self.world.truth.told(entry.value) is False:
                self.fail(f"{entry.value!r} was told that it did not put {key!r}, and it is there")
        return None


class Expiry(Checker[KvWorld]):
    """What has expired does not come back, and nothing lives for ever that should not."""

    name = "expiry"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self.expired: set[Value] = set()

    def on_notify(self, host: KvHost, action: KeyChange) -> None:
        """Every value of these keys is put once."""
        if action.kind == "expire" and action.key in (*TEMPORARY, *LIVING) and isinstance(action.before, int):
            self._in_time(host, action, self.world.truth.asked[action.before])
        if action.key not in TEMPORARY or not self.world.lasting:
            return
        if action.kind == "expire" and host.kind == "master":
            self.expired.add(action.before)
        elif action.kind in ("insert", "update") and host.kind == "master" and action.value in self.expired:
            self.fail(f"{host.name} shows {action.value!r} again, which had expired")

    def _in_time(self, host: KvHost, action: KeyChange, asked: Operation) -> None:
        """Nothing expires sooner than its author wanted, unless the time of day was set."""
        early_ns = asked.wall_ns + (asked.expiry_ns or 2**63) - self.world.clock.wall_us * 1000
        if early_ns > 0 and not self.world.clock.wall_jump_us:
            self.fail(f"{host.name}: {action.before!r} of {action.key!r} expires {early_ns:,} ns too early")

    def unsettled(self) -> str | None:
        """What is still there, unless the time of day was set."""
        if self.world.clock.wall_jump_us:
            return None
        for host in (*self.world.masters(), *self.world.clones()):
            for key in TEMPORARY:
                if host.role.engine.find(key) is not None:
                    return f"{host.name} still has {key!r}"
        return None


class Convergence(Checker[KvWorld]):
    """When all is done every clone equals its master, and can be read."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """The first difference."""
        found = {each.entity: each for each in self.world.masters()}
        for clone in self.world.clones():
            core = clone.role
            master = found.get(core.master)
            if master is None or not core.connected or not core.readable:
                return f"{clone.name} follows {core.master}, connected {core.connected}, readable {core.readable}"
            has = {index: entry.value for index, entry in core.engine.entries.items()}
            wanted = {index: entry.value for index, entry in master.role.engine.entries.items()}
            if has != wanted:
                return f"{clone.name} has {has}, its master {wanted}"
            if all(each.is_chappe for each in master.role.clones):
                entries = core.engine.entries.items(), master.role.engine.entries.items()
                knows, told = ({i: (role.revision_of(each), each.expires_ns) for i, each in found_here}
                               for role, found_here in zip((core, master.role), entries, strict=True))  # fmt: skip
                if knows != told:
                    return f"{clone.name} knows revisions and expiry as {knows}, its master {told}"
            if not core.idle():
                return f"{clone.name} is not idle: {core.unconfirmed} writes, at event {core.position}"
        for host in found.values():
            if not host.role.idle():
                return f"{host.name} is not idle"
        return None


class Snapshots(Checker[KvWorld]):
    """A snapshot comes as long as its master can be reached, whatever is lost of it on its way."""

    name = "snapshots"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self._came: dict[Entity, tuple[object, float]] = {}  # how much of one each clone has, and since when

    def on_tick(self) -> None:
        """Look at every clone that takes one."""
        world, found = self.world, self._came
        reached = {clone.entity for clone in world.clones() if all(world.in_reach(clone, m) for m in world.masters())}
        taking = {clone.entity: clone.role.coming for clone in world.clones() if clone.role.coming is not None}
        self._came = {}
        for entity, coming in taking.items():
            before = found.get(entity, (None, 0.0))
            since = before[1] if before[0] == coming and entity in reached and not world.lossy else world.now
            self._came[entity] = (coming, since)
            if world.now - since > SNAPSHOT_S:
                self.fail(f"{entity} has {coming[0]} of {coming[1]} entries for {world.now - since:.0f} s")


class Freshness(Checker[KvWorld]):
    """What a clone shows has no known gap when it says that it is current, and is no older than ``stale_s`` later."""

    name = "stale reads"

    def on_kv_report(self, host: KvHost, event: object) -> None:
        """A clone has found its master again, and with which word: that tells how far the master is."""
        if isinstance(event, MasterFound) and host.heard is not None:
            command = decode_message(host.heard.message).command
            if isinstance(command, Keepalive | WriterState):
                told = command.seq if isinstance(command, Keepalive) else command.output
                if host.role.position < told:
                    self.fail(f"{host.name} is current at event {host.role.position}, and heard of {told}")

    def on_tick(self) -> None:
        """Look at every clone."""
        for clone in self.world.clones():
            core = clone.role
            lost_s = self.world.now - core.lost_at
            if core.readable and not core.connected and lost_s > clone.stale_s + 0.1:
                self.fail(f"{clone.name} is read {lost_s:.1f} s after it lost its master")


class Bounds(Checker[KvWorld]):
    """Nothing grows beyond its bound, and the cores' state fits together."""

    name = "bounds"

    def on_tick(self) -> None:
        """Ask the cores."""
        for host in self.world.alive(KvHost):
            found = host.role.invariants()
            if found:
                self.fail(f"{host.name}: {found[0]}")
            limits, expire = self.world.limits, len((*TEMPORARY, *LIVING))
            kept, bound = host.role.unconfirmed, 2 * limits.writes_max  # some are done, and not shown yet
            if host.kind == "master":  # two commits' worth and what one message brings, under way and behind that
                kept, bound = host.role.waiting, 2 * (2 * limits.commit_operations + limits.held_max + 1 + expire)
            if kept > bound:
                self.fail(f"{host.name} keeps {kept} writes, the bound is {bound}")


class Waits(Checker[KvWorld]):
    """Who waits until a clone may be read, or a member is idle, is woken then, and told in time if it never is."""

    name = "waits"

    def on_tick(self) -> None:
        """Look at those that wait."""
        for host in self.world.alive(KvHost):
            for serial, asked in self.world.truth.waiting(str(host.entity)):
                if self.world.now > asked.until + LATE_S:
                    self.fail(f"{host.name} has told nothing of {serial}, {asked.what} until {asked.until:.1f}")
                if asked.what == "await_ready" and host.role.readable:
                    self.fail(f"{host.name} may be read, and has not woken {serial}")


class Everything(Checker[KvWorld]):
    """After ``await_idle`` a clone has all events that its master had when the wait began."""

    name = "everything"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self._had: dict[int, dict[Entity, int]] = {}  # by the wait: the last event of each master

    def on_began(self, host: KvHost, serial: int, asked: Operation) -> None:
        """Note the masters' positions when a wait begins."""
        if asked.what == "await_idle" and host.kind == "clone":
            self._had[serial] = {each.role.entity: each.role.position for each in self.world.masters()}

    def on_ended(self, host: KvHost, serial: int, asked: Operation) -> None:
        """Check the clone's position when the wait ends."""
        had = self._had.pop(serial, None)
        if had is not None and asked.outcome is None and host.role.position < had.get(host.role.master, 0):
            self.fail(f"{host.name} is idle at event {host.role.position}, its master had {had[host.role.master]}")


class Changes(Checker[KvWorld]):
    """An application that asks what is new every so often has what the store has."""

    name = "changes"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self._copies: dict[Entity, tuple[int, dict[Any, object]]] = {}

    def on_tick(self) -> None:
        """Ask every member, and compare."""
        for host in self.world.alive(KvHost):
            engine = host.role.engine
            version, copy = self._copies.get(host.entity, (0, {}))
            changes = engine.changes_since(version)
            if changes is None:
                copy = dict(engine.entries)
            else:
                copy |= {index_of(each.key): each.entry for each in changes}
            copy = {index: entry for index, entry in copy.items() if entry is not None}
            if copy != engine.entries:
                wrong = sorted(str(key) for key in copy.keys() ^ engine.entries.keys())
                self.fail(f"{host.name}: who takes the changes since {version} is wrong about {wrong}")
            self._copies[host.entity] = (engine.version, copy)


class Histories(Checker[KvWorld]):
    """A master keeps the last changes of each key, in order, none missing; on its disk, too; and tells clones these."""

    name = "history"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self._told: dict[Entity, dict[Any, list[Past]]] = {}  # by master: all changes of its life, behind those loaded
        self._rows: dict[Any, dict[int, Past]] = {}  # what was seen in histories on the disk, by revision
        self._had: dict[int, dict[Entity, int]] = {}  # by question: how many changes each master had told

    @property
    def _exact(self) -> bool:
        """Whether nothing is forgotten but what is beyond the number of changes of a key."""
        return self.world.limits.history_bytes > 100_000 and self.world.limits.history_erased > 100

    def on_loaded(self, host: KvHost, rows: Sequence[HistoryRow]) -> None:
        """A master begins with these: nothing that a former one showed is missing."""
        told = self._told[host.entity] = {}
        found: dict[Any, dict[int, Past]] = {}
        for row in rows:
            found.setdefault(index_of(decode(row.key)), {})[row.revision] = _past(past_change(row))
        for index, seen in self._rows.items() if host.backend is not None else ():
            has = found.get(index, {})
            last = sorted({*seen, *has})[-self.world.history_size :]
            if self._exact and any(each not in has or seen.get(each, has[each]) != has[each] for each in last):
                self.fail(f"{host.name} begins with {has} of {index!r}, and was seen with {seen}")
        for index, each in found.items():
            told[index] = [each[revision] for revision in sorted(each)][-self.world.history_size :]

    def on_notify(self, host: KvHost, action: KeyChange) -> None:
        """A master's changes, as far as they are durable."""
        if host.kind == "master":
            kind = action.kind if action.kind in ("erase", "expire") else "put"
            self._told[host.entity].setdefault(index_of(action.key), []).append((kind, action.value))

    def on_tick(self) -> None:
        """Look at what masters keep."""
        size = self.world.history_size
        for host in self.world.masters() if size else ():
            for index, told in self._told[host.entity].items():
                found = self._kept(host, index)
                revisions = [each.revision for each in found]
                if revisions != sorted(set(revisions)):
                    self.fail(f"{host.name} keeps changes of {index!r} with the revisions {revisions}")
                changes = [_past(each) for each in found]
                if changes != told[len(told) - len(changes) :] or (
                    self._exact and len(changes) != min(size, len(told))
                ):
                    self.fail(f"{host.name} keeps {changes} of {index!r}, and has told {told[-size:]}")
                if host.backend is not None:
                    self._rows[index] = {each.revision: _past(each) for each in found}

    def on_began(self, host: KvHost, serial: int, asked: Operation) -> None:
        """Note how far masters are when somebody asks."""
        if asked.what == "history":
            index = index_of(asked.key)
            self._had[serial] = {entity: len(told.get(index, ())) for entity, told in self._told.items()}

    def on_ended(self, host: KvHost, serial: int, asked: Operation) -> None:
        """What somebody was told is what a master had, and nothing that it had before the question is missing."""
        if asked.what != "history" or isinstance(asked.outcome, TimedOut):
            return
        had, index = self._had.pop(serial), index_of(asked.key)
        if not isinstance(asked.outcome, tuple):
            self.fail(f"{host.name} is told instead of a history: {asked.outcome!r}")
            return
        changes = [_past(each) for each in asked.outcome if each.at_ns is not None]
        for entity, told in self._told.items():
            all_told = told.get(index, [])
            for end in range(had.get(entity, 0), len(all_told) + 1):
                first = max(0, len(all_told) - self.world.history_size) if self._exact else end
                begin = end - len(changes)
                if 0 <= begin <= first and all_told[begin:end] == changes:
                    return
        self.fail(f"{host.name} is told {changes} of {asked.key!r}, which no master had")

    def _kept(self, host: KvHost, index: object) -> list[PastChange]:
        """What a master keeps of a key; a value from before the history has no time, and does not count."""
        engine = host.role.engine
        key = engine.entries[index].key if index in engine.entries else index
        rows = [past_change(row) for row in host.role.past(key)]
        return [each for each in rows if each.at_ns is not None]


def _past(change: PastChange) -> Past:
    return change.kind, change.value


class TwoMastersSeen(Checker[KvWorld]):
    """Two masters that reach each other both say so."""

    name = "two masters"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self.since: dict[tuple[Entity, Entity], float] = {}
        self.said: set[tuple[Entity, Entity]] = set()

    def on_kv_report(self, host: KvHost, event: object) -> None:
        """Somebody has noticed."""
        if isinstance(event, TwoMasters):
            self.said.add((host.entity, event.other))

    def on_tick(self) -> None:
        """How long has each pair been in reach of each other?"""
        living = self.world.masters()
        now = self.world.now
        pairs = {(a.entity, b.entity) for a in living for b in living if a is not b and self.world.in_reach(a, b)}
        self.since = {pair: self.since.get(pair, now) for pair in pairs}
        if not self.world.lossy:
            for pair, since in self.since.items():
                if now - since > CONFLICT_S and pair not in self.said:
                    self.fail(f"{pair[0]} has not noticed {pair[1]} in {now - since:.1f} s")


class Numbers(Checker[KvWorld]):
    """A durable master begins behind every number of its former lives, also where the clock was set back."""

    name = "numbers"

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self._life: Entity | None = None
        self._last = 0  # that anybody was shown

    def on_done(self, host: KvHost) -> None:
        """A master has said something."""
        if host.kind == "master" and host.backend is not None:
            position: int = host.role.position
            if host.entity != self._life and position <= self._last:
                self.fail(f"{host.name} begins at {position}, a life before came to {self._last}")
            self._life, self._last = host.entity, position


def all_checkers(world: KvWorld) -> list[Checker[Any]]:
    """Every checker."""
    kinds = (
        MastersOrder,
        Applied,
        Names,
        Durability,
        OneWinner,
        Expiry,
        Convergence,
        Snapshots,
        Freshness,
        Bounds,
        Waits,
        Everything,
        Changes,
        Histories,
        TwoMastersSeen,
        Numbers,
    )
    return [kind(world) for kind in kinds]
