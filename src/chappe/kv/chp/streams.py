"""The streams of a server: to each client of chappe what it lacks, when it has room for it.

A stream costs the server a position, not a queue: what follows is read from the latest updates, or from a view. So a
client that is slow, or never reads, holds up nobody, and no more memory than what is under way to it. That is bounded
for each and for all together. Few take snapshots at once; who has to wait is told so, asks again, and keeps its place.

A stream is looked at when something of its own has changed, and all of them when the map has: with thousands of clients
each message of one must not cost a look at everybody. Few are looked at in one go, so that heartbeats come in time.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from typing import Final

from crc32c import crc32c

from chappe.core import Close, Effect, Reply
from chappe.deadlines import Deadlines
from chappe.defaults import KIB, MAP_SUBTREE_BYTES_MAX
from chappe.kv.chp import stream as say
from chappe.kv.chp.ledger import REFUSED, Ledger, Refusal
from chappe.kv.chp.recent import Batches
from chappe.kv.chp.sessions import Session
from chappe.kv.chp.views import MapView, Views
from chappe.limits import MapLimits

BEAT_S: Final = 1.0  # a stream that lags behind without an update of its own is told where it is
SUBTREES_MAX: Final = 1_000
SUBTREES_BYTES_MAX: Final = 64 * KIB  # of one client, together
_PIECES: Final = 32  # made in one go; what is due otherwise comes first
_LOOKS: Final = 250  # streams looked at in one go, some 5 ms where each gets a message


class _MapStream:
    __slots__ = ("applied", "before", "checksum", "client", "count", "due", "failures", "moved_at", "number", "peer",
                 "place", "position", "reached", "refusals", "sent", "session", "sessions", "sizes", "subtrees",
                 "synced", "told", "told_applied", "told_at", "view")  # fmt: skip

    def __init__(self, client: bytes, hello: say.Hello) -> None:
        self.client = client
        self.number = hello.stream
        self.session = hello.session
        self.subtrees = hello.subtrees
        self.peer = hello.peer
        self.position = hello.sequence  # what is for it up to there was sent
        self.told = hello.sequence  # and that it was
        self.sent = 0  # messages
        self.sizes: deque[int] = deque()  # of those that are under way
        self.before = 0  # bytes of its former streams: they are taken when anything of this one is
        self.moved_at = math.inf  # it has begun to send, or the client has taken something
        self.view: MapView | None = None
        self.place = self.count = self.checksum = 0  # in the view
        self.told_applied = hello.done
        self.applied: int | None = None  # of its steps, at first: other servers had confirmed more
        self.told_at = -math.inf
        self.reached = 0  # a peer: it has everything up to there
        self.due = 0  # ... and had to have so much when it was waited for first: others were told before
        self.sessions: tuple[say.WriterState, ...] = ()  # ... and these writers, with a snapshot
        self.failures: deque[Refusal] = deque()  # ... and before them which of their steps failed
        self.refusals = 0  # ... and of so many steps that failed
        self.synced = False


class MapStreams:
    def __init__(self, ledger: Ledger, views: Views, limits: MapLimits, name: str) -> None:
        self.map = name
        self._ledger = ledger
        self._views = views
        self._limits = limits
        self._streams: dict[bytes, _MapStream] = {}
        self._peers: dict[bytes, _MapStream] = {}  # those of the other one of two servers
        self._silences: Deadlines[bytes] = Deadlines()
        self._batches = Batches(ledger.recent, limits.piece_bytes)
        self._waiting: OrderedDict[bytes, None] = OrderedDict()  # for a snapshot
        self._asked: list[bytes] = []  # for one, lately
        self._taking = 0  # a snapshot
        self.under_way = 0  # bytes, to all
        self._held = False  # some wait until others have taken theirs
        self._touched: dict[bytes, None] = {}  # are to be looked at
        self._round: deque[bytes] = (
            deque()
        )  # likewise, as there were news; those that come meanwhile begin the next one
        self._pieces = 0  # that may still be made in this go
        self._look_at = -math.inf  # at all of them

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def peers(self) -> int:
        """The number of streams to the other server that has everything: its confirmations are waited for."""
        return sum([each.synced for each in self._peers.values()])

    @property
    def in_step(self) -> bytes:
        """The session of a peer that has all that was ever confirmed, and is waited for."""
        for each in self._peers.values():
            if each.synced and each.reached and each.reached >= each.due:
                return each.session
        return b""

    def release(self, alone: bool, effects: list[Effect]) -> None:
        """Return True if steps are confirmed that no peer has; then nobody waits for one that is behind."""
        self._ledger.alone = alone
        for client, stream in list(self._peers.items()) if alone else ():
            self._end(client)
            self.refuse(client, stream.number, "unknown", effects)
        self._set_floor()

    def next_timeout(self) -> float:
        """Return when there is more to tell, or a client will have been silent for too long."""
        more = self._touched or self._round or (self._ledger.news and self._streams)
        return -math.inf if more else self._silences.next

    def hello(self, client: bytes, hello: say.Hello, now: float, effects: list[Effect]) -> None:
        former = self._streams.get(client)
        self._end(client, stays=True)
        effects.append(Close(client))
        subtrees = hello.subtrees
        if hello.map and self.map and hello.map != self.map:
            self._end(client)
            self.refuse(client, hello.stream, "other", effects)
            return
        if (
            not 0 < len(subtrees) <= SUBTREES_MAX
            or max(map(len, subtrees)) > MAP_SUBTREE_BYTES_MAX
            or sum(map(len, subtrees)) > SUBTREES_BYTES_MAX
            or len(self._streams) >= self._limits.streams_max
        ):
            self._end(client)
            self.refuse(client, hello.stream, "full", effects)
            return
        stream = self._streams[client] = _MapStream(client, hello)
        if hello.peer:
            self._peers[client] = stream
        if former is not None and (former.sizes or former.before):
            stream.before = former.before + sum(former.sizes)
            stream.moved_at = former.moved_at
            self.under_way += stream.before
        self._touched[client] = None
        self._heard(stream, now)
        ledger = self._ledger
        session = ledger.session(hello.session, now)
        if session.taken < hello.done:  # what it was told by another server
            stream.applied = session.taken
            session.taken = session.applied = hello.done
        session.forget(hello.done)
        if hello.epoch and ledger.contains(hello.epoch, hello.sequence):
            self._waiting.pop(client, None)
            self._welcome(stream, False, now, effects)
            stream.synced = True
            stream.refusals = ledger.refusals - len(ledger.refused)  # it may know some of them
        else:
            self._wait(stream, now)

    def taken(self, client: bytes, taken: say.Taken, now: float, effects: list[Effect]) -> None:
        stream = self._known(client, taken.stream, effects)
        if stream is None:
            return
        self._heard(stream, now)
        if taken.messages > stream.sent:
            self._end(client)
            self.refuse(client, taken.stream, "unknown", effects)
            return
        while stream.sent - len(stream.sizes) < taken.messages:
            self.under_way -= stream.sizes.popleft()
            stream.moved_at = now
        if taken.messages:
            self.under_way -= stream.before
            stream.before = 0
        if self._held and self.under_way < self._limits.streams_bytes:
            self._look_at = -math.inf
        self._touched[client] = None
        session = self._ledger.session(stream.session, now)
        session.forget(taken.done)
        if stream.peer and taken.sequence:
            stream.due = stream.due or self._ledger.sequence
            stream.reached = max(stream.reached, taken.sequence)
            self._set_floor()

    def steps(self, client: bytes, steps: say.Steps, now: float, effects: list[Effect]) -> None:
        stream = self._known(client, steps.stream, effects)
        if stream is None:
            return
        ledger = self._ledger
        session = ledger.session(stream.session, now)
        self._touched[client] = None
        open_steps = session.taken - session.applied + len(session.failed) + len(steps.steps)
        if open_steps > self._limits.steps_max or ledger.crowded:
            self._end(client)
            self.refuse(client, steps.stream, "full", effects)
            return
        if steps.first > session.taken + 1:  # some are missing: it begins anew, and sends them again
            self._end(client)
            self.refuse(client, steps.stream, "unknown", effects)
            return
        done = session.taken + 1 - steps.first
        ledger.do_steps(stream.session, session.taken + 1, steps.steps[done:] if done else steps.steps, now, effects)

    def goodbye(self, client: bytes, number: int) -> bytes:
        """End a client's stream; return its session, if no other stream has it.

        Sessions are told to all readers in UUIDs, so one that only names another's must not end it.
        """
        stream = self._streams.get(client)
        self._end(client)
        if stream is None or stream.number != number:
            return b""
        name = stream.session
        if not self._ledger.session_values.has(name) or any(each.session == name for each in self._streams.values()):
            return b""
        return name

    def lost(self, client: bytes) -> None:
        self._end(client)

    def refuse(self, client: bytes, number: int, reason: str, effects: list[Effect]) -> None:
        effects.append(Close(client))
        name = self.map if reason == "other" else ""
        effects.append(Reply(client, (say.encode(say.Refused(number, reason, name)),)))

    def close(self, reason: str, effects: list[Effect]) -> None:
        for client, stream in list(self._streams.items()):
            self._end(client)
            self.refuse(client, stream.number, reason, effects)
        self._touched.clear()
        self._round.clear()
        self._batches.clear()  # what follows may be another history, whose sequences begin again

    def silent(self, now: float, effects: list[Effect]) -> None:
        for client in self._silences.due(now):
            self._end(client)
            effects.append(Close(client))

    def pump(self, now: float, effects: list[Effect]) -> None:
        """Send everybody who has room the updates that it lacks."""
        if now >= self._look_at:
            self._look_at = now + BEAT_S
            self._held = False
            self._give_up(now, effects)
            self._ledger.news = True
        if self._ledger.news and not self._round:
            self._ledger.news = False
            self._round.extend(self._streams)
        touched = list(itertools.islice(self._touched, _LOOKS))
        for client in touched:
            del self._touched[client]
        touched += [self._round.popleft() for _ in range(min(_LOOKS, len(self._round)))]
        self._pieces = _PIECES
        for client in touched:
            stream = self._streams.get(client)
            while stream is not None and self._next(stream, now, effects):
                pass
        while self._waiting and self._taking < self._limits.takers_max and self._begin_view(now, effects):
            pass
        asked, self._asked = self._asked, []
        for client in asked:
            if client in self._waiting:
                self.refuse(client, self._streams[client].number, "busy", effects)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _give_up(self, now: float, effects: list[Effect]) -> None:
        oldest = now - self._limits.taker_s
        for client, stream in list(self._streams.items()):
            if (stream.sizes or stream.before) and stream.moved_at < oldest:
                self._end(client)
                self.refuse(client, stream.number, "full", effects)

    def _wait(self, stream: _MapStream, now: float) -> None:
        """Have it wait for a snapshot, in the place that it may have already."""
        stream.synced = False
        self._waiting[stream.client] = None
        self._heard(stream, now)
        self._asked.append(stream.client)
        if stream.peer:
            self._waiting.move_to_end(stream.client, last=False)

    def _begin_view(self, now: float, effects: list[Effect]) -> bool:
        stream = self._streams[next(iter(self._waiting))]
        since = math.inf if stream.peer else now - self._limits.view_shared_s  # of writers it needs the same moment
        view = self._views.open(since, now)
        if view is None:
            return False
        if stream.peer:
            self._note_sessions(stream)
        del self._waiting[stream.client]
        self._heard(stream, now)
        self._taking += 1
        stream.view = view
        stream.position = stream.told = view.sequence
        stream.place = stream.count = stream.checksum = 0
        self._welcome(stream, True, now, effects)
        while self._next(stream, now, effects):
            pass
        return True

    def _next(self, stream: _MapStream, now: float, effects: list[Effect]) -> bool:
        """Send the next message to a stream, if there is one; return whether there may be another one."""
        under_way = len(stream.sizes)
        if under_way >= self._limits.window or stream.client in self._waiting:
            return False
        if stream.before >= self._limits.window * self._limits.piece_bytes and under_way:
            return False  # it asks again and again, and is to take something first
        if (under_way or stream.before) and self.under_way >= self._limits.streams_bytes:
            self._held = True
            return False
        if stream.view is None:
            return self._changes(stream, now, effects)
        if not self._pieces:
            self._touched[stream.client] = None
            return False
        self._pieces -= 1
        self._piece(stream, stream.view, now, effects)
        return True

    def _welcome(self, stream: _MapStream, whole: bool, now: float, effects: list[Effect]) -> None:
        ledger = self._ledger
        session = ledger.sessions.get(stream.session)
        taken = 0 if session is None else session.taken
        if stream.applied is not None:
            taken = stream.applied
        message = say.Welcome(stream.number, stream.sent, ledger.epoch, stream.position, taken, whole)
        self._send(stream, message, now, effects)

    def _piece(self, stream: _MapStream, view: MapView, now: float, effects: list[Effect]) -> None:
        if stream.place < len(view.entries):
            entries, count, stream.place = view.piece(stream.subtrees, stream.place, now)
            stream.count += count
            stream.checksum = crc32c(bytes(entries), stream.checksum)
            self._send(stream, say.Piece(stream.number, stream.sent, entries), now, effects)
            return
        if stream.failures:  # each writer may have had many
            count = min(len(stream.failures), max(1, self._limits.piece_bytes // say.ENTRY_BYTES))
            failed = tuple([stream.failures.popleft() for _ in range(count)])
            self._send(stream, say.Outcomes(stream.number, stream.sent, failed), now, effects)
            return
        self._close_view(stream)
        stream.synced = True
        sessions, stream.sessions = stream.sessions, ()
        whole = say.Whole(stream.number, stream.sent, stream.count, stream.checksum, view.sequence, sessions)
        self._send(stream, whole, now, effects)

    def _changes(self, stream: _MapStream, now: float, effects: list[Effect]) -> bool:
        ledger = self._ledger
        if stream.peer and stream.refusals < ledger.refusals:
            return self._refusals(stream, now, effects)
        session = ledger.sessions.get(stream.session)
        position, last = stream.position, ledger.sequence
        updates, count = say.NO_UPDATES, 0
        if position < last:
            if not ledger.recent.has(position):
                self._wait(stream, now)
                return False
            updates, position, count = self._batches.after(position, stream.subtrees, last)
        applied = stream.told_applied if session is None else ledger.confirm(session, position)
        stream.position = position
        known = not count and applied <= stream.told_applied
        if known and (stream.told >= position or now < stream.told_at + BEAT_S):
            return position < last
        failed: tuple[tuple[int, int, str], ...] = ()
        all_applied = applied
        if session is not None and session.failed:
            failed, applied = self._failures(session, stream.told_applied, applied)
        stream.told = position
        stream.told_applied = max(applied, stream.told_applied)
        stream.told_at = now
        message = say.Changes(stream.number, stream.sent, position, updates, applied, failed)
        self._send(stream, message, now, effects)
        return position < last or applied < all_applied

    def _failures(self, session: Session, told: int, applied: int) -> tuple[tuple[tuple[int, int, str], ...], int]:
        """Return failed steps between these, as many as go into a message, and up to which step they are all."""
        found: list[tuple[int, int, str]] = []
        size = 0
        for number, code, text in session.failures(told, applied):
            if size >= self._limits.piece_bytes:
                return tuple(found), number - 1
            found.append((number, code, text))
            size += len(text) + say.ENTRY_BYTES
        return tuple(found), applied

    def _note_sessions(self, stream: _MapStream) -> None:
        sessions = self._ledger.sessions
        stream.sessions = tuple([(name, each.released, ()) for name, each in sessions.items()])
        stream.failures = deque([
            (name, number, code, REFUSED)
            for name, each in sessions.items() for number, code in each.copied()
        ])  # fmt: skip
        stream.refusals = self._ledger.refusals

    def _refusals(self, stream: _MapStream, now: float, effects: list[Effect]) -> bool:
        """Tell the other server which steps failed, before later updates."""
        refused = self._ledger.refused
        missing = self._ledger.refusals - stream.refusals
        stream.refusals = self._ledger.refusals
        if missing > len(refused):
            self._wait(stream, now)
            self._set_floor()
            return False
        failed = tuple(itertools.islice(refused, len(refused) - missing, None))
        self._send(stream, say.Outcomes(stream.number, stream.sent, failed), now, effects)
        return True

    def _send(self, stream: _MapStream, message: say.FromServer, now: float, effects: list[Effect]) -> None:
        frames = say.encode(message)
        stream.sent += 1
        if not stream.sizes and not stream.before:
            stream.moved_at = now
        stream.sizes.append(len(frames[1]))
        self.under_way += len(frames[1])
        effects.append(Reply(stream.client, (frames,)))

    def _heard(self, stream: _MapStream, now: float) -> None:
        """It lives, and says something again soon; a peer that waits for a snapshot asks as rarely as clients do."""
        often = stream.peer and stream.client not in self._waiting
        limits = self._limits
        self._silences.set(stream.client, now + (limits.peer_silent_s if often else limits.stream_silent_s))

    def _known(self, client: bytes, number: int, effects: list[Effect]) -> _MapStream | None:
        stream = self._streams.get(client)
        if stream is None or stream.number != number:
            self.refuse(client, number, "unknown", effects)
            return None
        return stream

    def _end(self, client: bytes, stays: bool = False) -> None:
        """End a stream; ``stays``: in its place, if it waits for a snapshot."""
        if not stays:
            self._waiting.pop(client, None)
        stream = self._streams.pop(client, None)
        if stream is None:
            return
        self._silences.clear(client)
        self.under_way -= sum(stream.sizes) + stream.before
        self._close_view(stream)
        if self._peers.pop(client, None) is not None:
            self._set_floor()

    def _close_view(self, stream: _MapStream) -> None:
        if stream.view is not None:
            self._views.close(stream.view)
            self._taking -= 1
            stream.view = None

    def _set_floor(self) -> None:
        reached = [each.reached for each in self._peers.values() if each.synced and each.reached]
        self._ledger.floor = min(reached) if reached else None if self._ledger.alone else 0
        self._ledger.news = True
