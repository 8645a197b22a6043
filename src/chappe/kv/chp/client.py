"""The client of a shared map: a copy of it, or of subtrees, kept up to date by one of its servers.

It knows the addresses of one or several servers and follows one (``source.py``): the one that says it is active, or
else one after the other until one answers. What it has stays readable whatever happens to servers; a snapshot replaces
it in one step, and who watches is told the differences. Its own steps have numbers and are sent again until the server
they went to, or the one that follows it, says that they are done; each is done once.

To servers of other programs a write goes as their protocol says, and is done when it comes back with the others. Where
the server is lost before, nobody knows (``WriteUnknown``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from chappe.core import Clock, Deliver, Effect, Publish, Report, Resolve
from chappe.errors import BackendFailure, BufferFull, ChappeError, InvalidOperation, NotPermitted, WriteUnknown
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.events import (
    KEYS_TOLD_MAX,
    MapDenied,
    MapRefused,
    MapServerFound,
    MapServerLost,
    MapWriteFailed,
    MapWritesLost,
)
from chappe.kv.chp.ledger import CONFLICT, DENIED, MS, key_of, pairs_of, raw_key
from chappe.kv.chp.sessions import SESSION
from chappe.kv.chp.source import FollowedServer
from chappe.kv.engine import Change, Engine, Entry, StagedEntries
from chappe.limits import MAP_LIMITS, MapLimits

ECHO_S: Final = 5.0  # a write to another program's server comes back within this time, or is not known of
NS: Final = 1_000_000_000
PLAIN_WINDOW: Final = 256  # writes to it at once: its queues hold 1000 messages, and drop what is more

MapState = Literal["connecting", "synchronising", "active"]


class KeyChanged(msgspec.Struct, frozen=True):
    """A key has changed, for watchers; its body now and before, empty where there is nothing."""

    key: bytes
    body: bytes
    before: bytes


class PlainWrite(msgspec.Struct, frozen=True):
    """An update for the collector of a server of other programs, or of all that take what is published to them."""

    server: int
    frames: list[bytes]


class _Written:
    __slots__ = ("left", "outcome", "ticket")

    def __init__(self, ticket: int | None) -> None:
        self.ticket = ticket
        self.left = 0  # that are not confirmed
        self.outcome: bool | ChappeError = True


class _Pending(msgspec.Struct, frozen=True, gc=False):
    step: say.Step
    size: int
    asked: _Written
    erases: bool  # some key, maybe


class MapClientCore:
    """The state of one client. Call ``flush`` after one or several inputs.

    Args:
        servers: The name of each in events; effects have their places.
        subtrees: Prefixes of the keys that are wanted.
        session: Ten random bytes, of this life (``messages.session_of``).
        clock: Asked once: servers of other programs tell moments by the time of day.
        name: Of the map that it is to be, if it has a name.
        shown: Returns the name of a key in events.
    """

    def __init__(
        self,
        servers: Sequence[str],
        subtrees: tuple[bytes, ...],
        session: bytes,
        clock: Clock,
        *,
        limits: MapLimits = MAP_LIMITS,
        name: str = "",
        shown: Callable[[bytes], str] = lambda key: key.decode("utf-8", "replace"),
    ) -> None:
        self.engine = Engine(changes_max=0)
        self._clock = clock
        self._day_ns = 0  # what ``now`` lacks of the time of day
        self.position = (b"", 0)
        self.ready = False  # it has had a snapshot
        self.watched = False  # changes are to be told
        self.servers = tuple(servers)
        self.subtrees = subtrees
        self.session = chp.session_of(session)
        self.sources = [
            FollowedServer(place, self.session, subtrees, self, limits, name=name) for place in range(len(servers))
        ]
        self.others: dict[str, str] = {}  # servers of other maps, and of which
        self.refusals: dict[str, str] = {}  # servers that may not serve us, and why
        self._limits = limits
        self._shown = shown
        self._current = self.sources[0]
        self._found: FollowedServer | None = None  # that was reported
        self._pending: dict[int, _Pending] = {}  # steps by number
        self._pending_bytes = 0
        self._echoes: OrderedDict[int, float] = OrderedDict()  # those sent to other programs, and when they are due
        self.done = 0  # the last of the steps up to which all outcomes are known
        self._applied_there: int | None = None  # the steps that a server has which lacks confirmed ones
        self._erased: OrderedDict[bytes, int] = OrderedDict()  # keys by the confirmed steps that erased them last
        self._erased_bytes = 0
        self._last = 0  # number of the last step
        self._next = 1  # of the next to be sent to a server of chappe

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        self._day_ns = self._clock.wall_ns() - round(now * NS)
        effects: list[Effect] = []
        for source in self.sources:
            source.listen(effects)
        self._current.engage(now, effects)
        return effects

    def close(self) -> list[Effect]:
        effects: list[Effect] = []
        self._current.leave(effects, ends=True)
        return effects

    @property
    def state(self) -> MapState:
        if self._current.state == "following":
            return "active"
        return "synchronising" if self._current.state == "taking" else "connecting"

    @property
    def server(self) -> str | None:
        return self.servers[self._current.server] if self._current.state == "following" else None

    def passive(self, now: float) -> list[str]:
        heard = [each for each in self.sources if each.beat is not None and each.alive(now)]
        return [self.servers[each.server] for each in heard if each.beat is not None and not each.beat.active]

    def heard(self, now: float) -> list[chp.Beat | None]:
        """The last heartbeat of each server, in order; None for silent servers and those of other programs."""
        return [each.beat if each.alive(now) else None for each in self.sources]

    def silent(self, now: float) -> list[str]:
        return [self.servers[each.server] for each in self.sources if not each.alive(now)]

    def left_s(self, entry: Entry, now: float) -> float | None:
        """Seconds until the server deletes an entry, as it said last: up to a round trip too long; None: it stays."""
        if entry.expires_ns is None:
            return None
        return max(0.0, (entry.expires_ns - self._ns(now)) / NS)

    @property
    def arriving(self) -> int:
        return self._current.staged

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def room(self) -> bool:
        return len(self._pending) < self._limits.writes_max and self._pending_bytes < self._limits.writes_bytes

    @property
    def confirmed(self) -> int:
        return self.position[1]

    # -- the application ---------------------------------------------------------------------------------------------

    def write(self, step: say.Step, ticket: int | None, now: float) -> list[Effect]:
        """Write; the ticket gets True, False (something else was there) or an error. Raises BufferFull: no ``room``."""
        if not self.write_all((step,), ticket):
            raise BufferFull("too many writes to the map wait for a server")
        return []

    def write_all(self, steps: Sequence[say.Step], ticket: int | None) -> int:
        """Write as many steps as there is room for; returns how many.

        The ticket is answered when they are done: with an error if there was one, or False if one was not done.
        """
        pending = self._pending
        number = self._last
        size = self._pending_bytes
        size_max = self._limits.writes_bytes
        count = min(len(steps), self._limits.writes_max - len(pending))
        asked = _Written(ticket)
        for step in steps if count == len(steps) else steps[: max(0, count)]:
            if size >= size_max:
                break
            number += 1
            sets = step.sets
            if len(sets) == 1 and not step.expected:
                body = sets[0][1]
                counts = len(sets[0][0]) + len(body) + len(sets[0][3]) + say.ENTRY_BYTES
                erases = not body
            else:
                counts = say.step_size(step)
                erases = True
            size += counts
            pending[number] = _Pending(step, counts, asked, erases)
        written = asked.left = number - self._last
        self._last = number
        self._pending_bytes = size
        return written

    # -- the world ---------------------------------------------------------------------------------------------------

    def handle_message(self, server: int, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take a server's publication. Raises ProtocolError."""
        effects: list[Effect] = []
        self.sources[server].take_publication(frames, now, effects)
        self._reconsider(now, effects)
        return effects

    def handle_answer(self, server: int, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take a server's answer to us alone. Raises ProtocolError."""
        effects: list[Effect] = []
        self.sources[server].take_answer(frames, now, effects)
        self._reconsider(now, effects)
        return effects

    def next_timeout(self) -> float:
        due = self._current.next_timeout()
        return min(due, next(iter(self._echoes.values()))) if self._echoes else due

    def handle_timeout(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        reason = self._current.expire(now, effects)
        if reason:
            self._lose(reason, now, effects)
            self._switch(self._other(now), now, effects)
        while self._echoes and (late := next(iter(self._echoes.items())))[1] <= now:
            self._resolve(late[0], WriteUnknown("the write did not come back from the server"), effects)
        return effects

    def flush(self, now: float) -> list[Effect]:
        """Send written steps, and tell how far we are."""
        effects: list[Effect] = []
        if self._pending and self._current.state in ("taking", "following"):
            if self._current.chappe:
                self._send(effects)
            elif self._current.state == "following":
                self._send_plain(now, effects)
        self._current.flush(now, effects)
        return effects

    # -- as a MapCopy -------------------------------------------------------------------------------------------------

    def expires_ns(self, left_ms: int, now: float) -> int | None:
        return self._ns(now) + left_ms * MS if left_ms else None

    def replaced(
        self, staged: StagedEntries, sessions: Sequence[say.WriterState], now: float, effects: list[Effect]
    ) -> None:
        """Replace the map by a snapshot, and tell those who watch the differences."""
        applied, self._applied_there = self._applied_there, None
        changes = self.engine.replace(staged, tell=self.watched or applied is not None)
        if applied is not None:
            self._tell_lost(changes, applied, effects)
        if self.watched:
            _deliver([_told(change) for change in changes if _differs(change)], effects)

    def updated(self, entries: list[say.Entry], now: float, effects: list[Effect]) -> None:
        """Follow updates, among them own writes that come back from servers of other programs."""
        engine = self.engine
        own = self.session if self._echoes else b""
        if not own and not self.watched and all(entry[1] and not entry[4] for entry in entries):
            engine.put_all(pairs_of(entries))
            return
        told: list[KeyChanged] = []
        back: list[int] = []  # own writes that come back
        for key, body, uuid, properties, left in entries:
            change: Change | None
            if body:
                change = engine.put(key_of(key), (body, uuid, properties), self.expires_ns(left, now))
            else:
                change = engine.erase(key_of(key))
            if self.watched and change is not None:
                told.append(_told(change))
            if own and uuid.startswith(own):
                written = chp.writer_of(uuid)
                assert written is not None
                back.append(written[1])
        _deliver(told, effects)
        for number in back:
            self._resolve(number, True, effects)

    def welcomed(self, server: int, applied: int, now: float, effects: list[Effect]) -> None:
        """Send again the steps that the server has not applied."""
        # It was taken for another program's, as its HUGZ did not come: what was written so must not be sent again.
        for number in list(self._echoes):
            self._resolve(number, WriteUnknown("the write did not come back from the server"), effects)
        self._next = max(applied, self.done) + 1
        if applied < self.done and self._applied_there is None:  # reported once
            self._applied_there = applied

    def answered(self, applied: int, failed: Sequence[tuple[int, int, str]], now: float, effects: list[Effect]) -> None:
        last = min(applied, self._last)
        if not failed and not self._echoes:
            self._resolve_all(last, effects)
            return
        outcomes: dict[int, bool | ChappeError] = {}
        for number, code, text in failed:
            outcomes[number] = False if code == CONFLICT else _error(code, text)
        for number in range(self.done + 1, last + 1):
            self._resolve(number, outcomes.get(number, True), effects)

    def refused(self, failed: Sequence[tuple[bytes, int, int, str]], now: float, effects: list[Effect]) -> None:
        """Do nothing: a client is not told of the steps of others."""

    def other(self, server: int, name: str, now: float, effects: list[Effect]) -> None:
        if self.others.get(self.servers[server]) != name:
            self.others[self.servers[server]] = name
            effects.append(Report(MapRefused(self.servers[server], name)))

    def denied(self, server: int, reason: str, now: float, effects: list[Effect]) -> None:
        self.refusals[self.servers[server]] = reason
        effects.append(Report(MapDenied(self.servers[server], reason)))

    def following(self, server: int, now: float, effects: list[Effect]) -> None:
        self.ready = True
        self.refusals.clear()
        self.others.pop(self.servers[server], None)
        if self._found is not self._current:
            self._found = self._current
            effects.append(Report(MapServerFound(self.servers[server], len(self.engine))))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _tell_lost(self, changes: Sequence[Change], applied: int, effects: list[Effect]) -> None:
        """Report which of this client's confirmed steps the new server has not applied, by their keys."""
        gone: list[bytes] = []
        back: list[bytes] = []
        for change in changes:
            key = raw_key(change.key)
            if change.before is None:
                if self._erased.get(key, 0) > applied:
                    back.append(key)
            elif _differs(change):
                written = chp.writer_of(change.before.value[1])  # type: ignore[index, arg-type]
                if written is not None and written[0] == self.session and applied < written[1] <= self.done:
                    gone.append(key)
        if gone or back:
            server = self.servers[self._current.server]
            keys, erased = ([self._shown(key) for key in each[:KEYS_TOLD_MAX]] for each in (gone, back))
            effects.append(Report(MapWritesLost(server, len(gone), tuple(keys), len(back), tuple(erased))))

    def _note_erased(self, number: int, step: say.Step) -> None:
        """Remember the keys that a confirmed step has erased: nothing else shows that here."""
        for key, body, _, _ in step.sets:
            if not body:
                if self._erased.pop(key, None) is None:
                    self._erased_bytes += len(key)
                self._erased[key] = number
        while len(self._erased) > self._limits.erased_max or self._erased_bytes > self._limits.erased_bytes:
            self._erased_bytes -= len(self._erased.popitem(last=False)[0])

    def _ns(self, now: float) -> int:
        return self._day_ns + round(now * NS)

    def _send(self, effects: list[Effect]) -> None:
        """Send steps to a server of chappe, several in a message."""
        last = min(self._last, self.done + self._limits.writes_window)
        while self._next <= last:
            first = self._next
            steps: list[say.Step] = []
            size = 0
            while self._next <= last and size < self._limits.piece_bytes:
                pending = self._pending.get(self._next)
                size += 0 if pending is None else pending.size
                if size > self._limits.piece_bytes and steps:  # a large one goes alone
                    break
                steps.append(say.Step(()) if pending is None else pending.step)
                self._next += 1
            self._current.send(first, steps, effects)

    def _send_plain(self, now: float, effects: list[Effect]) -> None:
        if self._current.doubtful:
            return  # a server of chappe would do it, and not say whose it was
        for number in range(self.done + 1, self._last + 1):
            if len(self._echoes) >= PLAIN_WINDOW:
                return
            pending = self._pending.get(number)
            if pending is None or number in self._echoes:
                continue
            step = pending.step
            if step.expected or len(step.sets) != 1:
                server = self.servers[self._current.server]
                problem = InvalidOperation(
                    f"the server at {server} is not one of chappe: it sets one key at a time, without looking at it"
                )
                self._resolve(number, problem, effects)
                continue
            key, body, left, properties = step.sets[0]
            if properties.startswith(SESSION):
                problem = InvalidOperation(
                    f"the server at {self.servers[self._current.server]} is not one of chappe: no value ends with its "
                    "client there; give it a ttl, and set it again before that is over"
                )
                self._resolve(number, problem, effects)
                continue
            # The Guide's model 5 server may delete what has no ttl at all when something else expires: 0 is for ever.
            ttl = chp.ttl_seconds(left) if left else b"0"
            uuid = chp.uuid_of(self.session, number)
            frames = chp.encode_update(chp.Update(key, 0, uuid, properties, body, ttl))
            effects.append(Publish(PlainWrite(self._current.server, frames)))
            self._echoes[number] = now + ECHO_S
            if not key.startswith(self.subtrees):
                self._resolve(number, True, effects)  # it does not come back

    def _resolve_all(self, last: int, effects: list[Effect]) -> None:
        pending = self._pending
        for number in range(self.done + 1, last + 1):
            found = pending.pop(number, None)
            if found is None:
                continue
            self._pending_bytes -= found.size
            if found.erases:
                self._note_erased(number, found.step)
            asked = found.asked
            asked.left -= 1
            if not asked.left and asked.ticket is not None:
                effects.append(Resolve(asked.ticket, asked.outcome))
        self.done = max(self.done, last)
        self._skip_known()

    def _resolve(self, number: int, outcome: bool | ChappeError, effects: list[Effect]) -> None:
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        asked = pending.asked
        self._pending_bytes -= pending.size
        if self._echoes:
            self._echoes.pop(number, None)
        if number == self.done + 1:
            self.done = number
            self._skip_known()
        asked.left -= 1
        if outcome is True:
            if pending.erases:
                self._note_erased(number, pending.step)
        else:
            if isinstance(asked.outcome, bool):
                asked.outcome = outcome
            if asked.ticket is None:
                keys = ", ".join([self._shown(each[0]) for each in pending.step.sets[:5]])
                effects.append(Report(MapWriteFailed(keys, str(outcome) if outcome else "another value was there")))
        if not asked.left and asked.ticket is not None:
            effects.append(Resolve(asked.ticket, asked.outcome))

    def _skip_known(self) -> None:
        while self.done < self._last and self.done + 1 not in self._pending:
            self.done += 1

    def _lose(self, reason: str, now: float, effects: list[Effect]) -> None:
        if self._found is not None:
            effects.append(Report(MapServerLost(self.servers[self._found.server], reason)))
            self._found = None
        problem = "the server was lost before the write came back"
        for number in list(self._echoes):
            self._resolve(number, WriteUnknown(problem), effects)

    def _reconsider(self, now: float, effects: list[Effect]) -> None:
        current = self._current
        if current.state == "following":
            return
        if self._found is not None and current.refused == "passive":
            self._lose("it is passive now", now, effects)
        if current.beat is not None and current.beat.active and current.alive(now):
            return
        for source in self.sources:
            if source is not current and source.beat is not None and source.beat.active and source.alive(now):
                self._switch(source, now, effects)
                return

    def _other(self, now: float) -> FollowedServer:
        place = self._current.server
        others = [*self.sources[place + 1 :], *self.sources[: place + 1]]
        return next((each for each in others if each.alive(now)), others[0])

    def _switch(self, source: FollowedServer, now: float, effects: list[Effect]) -> None:
        self._current.leave(effects)
        self._current = source
        source.engage(now, effects)


def _deliver(told: list[KeyChanged], effects: list[Effect]) -> None:
    if told:
        effects.append(Deliver(None, told))


def _differs(change: Change) -> bool:
    """Return True if watchers should see a change; each snapshot states an expiry slightly differently."""
    return change.entry is None or change.before is None or change.entry.value != change.before.value


def _told(change: Change) -> KeyChanged:
    entry, before = change.entry, change.before
    return KeyChanged(
        raw_key(change.key),
        b"" if entry is None else entry.value[0],  # type: ignore[index, arg-type]
        b"" if before is None else before.value[0],  # type: ignore[index, arg-type]
    )


def _error(code: int, text: str) -> ChappeError:
    if code == DENIED:
        return NotPermitted(text)
    if code == WriteUnknown.code:
        return WriteUnknown(text)
    return BackendFailure(text) if code == BackendFailure.code else InvalidOperation(text)
