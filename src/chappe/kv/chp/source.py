"""Following a server of a map: for a client, and for the passive one of two servers.

A server of chappe is known by its HUGZ, and is followed over a stream (``stream.py``). Any other server is followed as
the protocol says: subscribe, ask for a snapshot, and discard the updates that it contains. It is asked only when
something has come over the subscription, as it goes over another connection and might else arrive later than the
request; or when nothing came for a while. A request to such a server goes over a connection of its own, so that a late
answer to an earlier one is not taken for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from crc32c import crc32c

from chappe.core import Dial, Effect, Send, Subscribe
from chappe.defaults import MAP_BEAT_S, MAP_BEATS_LOST, MAP_SILENT_S
from chappe.errors import ProtocolError
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.ledger import key_of, pairs_of
from chappe.kv.engine import Engine, StagedEntries
from chappe.limits import MapLimits

JOIN_S: Final = 1.5  # a server that says nothing for so long is asked all the same: model 5 has no HUGZ
KNOCK_S: Final = 0.1  # a passive server of chappe is asked so often whether it takes over
TAKEN_S: Final = 1.0  # so often a server is told at least that its client lives; ...
TAKEN_CROWDED_S: Final = 3.0  # ... one that many hear, and that beats less often, as rarely as this ...
PEER_TAKEN_S: Final = 0.2  # ... and the other of two servers, which waits for it
ANSWER_S: Final = 5.0  # a server of chappe that did not answer is asked so often; over a slow link it takes long
BUSY_S: Final = 3.0  # a server that others keep busy is asked so often: that keeps our place
STILL_S: Final = 15.0  # a server that lives, and sends nothing of its snapshot for so long, is given up
LAG_S: Final = 3.0  # a stream on which nothing comes for so long, though the server has news, begins anew; ...
LAG_MAX_S: Final = 96.0  # ... twice as long after each time in vain: a link may be so slow, or a value so large

State = Literal["idle", "joining", "asked", "taking", "following"]


class MapCopy(Protocol):
    """The copy of a followed server's map."""

    engine: Engine
    position: tuple[bytes, int]  # epoch and sequence of what it has

    @property
    def done(self) -> int:
        """The last of its own steps whose outcome it knows."""

    @property
    def confirmed(self) -> int:
        """The sequence up to which it does not lose anything."""

    def expires_ns(self, left_ms: int, now: float) -> int | None:
        """Return when an entry expires that has so much left; None for never."""

    def replaced(
        self, staged: StagedEntries, sessions: Sequence[say.WriterState], now: float, effects: list[Effect]
    ) -> None:
        """Take a whole snapshot; ``position`` is set."""

    def updated(self, entries: list[say.Entry], now: float, effects: list[Effect]) -> None:
        """Take updates in their order; ``position`` is set."""

    def welcomed(self, server: int, applied: int, now: float, effects: list[Effect]) -> None:
        """Note that the server has done own steps up to ``applied``."""

    def answered(self, applied: int, failed: Sequence[tuple[int, int, str]], now: float, effects: list[Effect]) -> None:
        """Note that own steps up to ``applied`` are done, and their changes were told."""

    def refused(self, failed: Sequence[tuple[bytes, int, int, str]], now: float, effects: list[Effect]) -> None: ...

    def other(self, server: int, name: str, now: float, effects: list[Effect]) -> None: ...

    def denied(self, server: int, reason: str, now: float, effects: list[Effect]) -> None:
        """Note that the server may not serve us, by its permissions."""

    def following(self, server: int, now: float, effects: list[Effect]) -> None:
        """Note that it has everything that the server had when it was asked."""


class FollowedServer:
    """One server, the ``server``-th, followed while it is engaged."""

    def __init__(self, server: int, session: bytes, subtrees: tuple[bytes, ...], target: MapCopy, limits: MapLimits,
                 *, peer: bool = False, name: str = "") -> None:  # fmt: skip
        self.server = server
        self.state: State = "idle"
        self.chappe: bool | None = None  # None until it is known
        self.beat: chp.Beat | None = None
        self.heard_at = -math.inf
        self.refused = ""  # why it does not serve us, when it said so last
        self._session = session
        self._subtrees = subtrees
        self._target = target
        self._limits = limits
        self._peer = peer
        self._map = name
        self._listening = False
        self._stream = 0
        self._number = 0  # of the next message on the stream
        self._told = 0  # messages that the server knows we took
        self._told_sequence = 0
        self._taken_at = -math.inf
        self._stream_heard_at = -math.inf
        self._lag_s = LAG_S
        self._progress_at = -math.inf
        self._knock_at = math.inf
        self._join_at = math.inf
        self._known_at = math.inf  # a server that answers as others do was silent until then: it is not chappe's
        self._staged: StagedEntries | None = None
        self._failed: dict[bytes, list[tuple[int, int, str]]] = {}  # by writer: steps that a snapshot knows of
        self._count = self._checksum = 0
        self._queued: deque[chp.Update] = deque()
        self._epoch = b""  # of the stream
        self._has_beat = False
        self._numbers = (0, 0)  # the last of another program's updates, and of its HUGZ
        self._asked_at = -math.inf
        self._ask_at = math.inf

    # -- life --------------------------------------------------------------------------------------------------------

    def listen(self, effects: list[Effect]) -> None:
        """Subscribe, before anything else: to the subtrees first, so that HUGZ says that they are subscribed to."""
        self._listen(True, effects)
        effects.append(Subscribe(chp.HUGZ, to=self.server))

    def engage(self, now: float, effects: list[Effect]) -> None:
        self.state = "joining"
        self.refused = ""
        self._progress_at = now
        self._join_at = now + JOIN_S
        self._known_at = math.inf
        self._staged = None
        self._queued.clear()
        if self.chappe and self.alive(now):
            self._hello(now, effects)
        elif self.chappe is not None and not self.alive(now):  # another program may be there when it is back
            self.chappe = self.beat = None
            self._has_beat = False
            self._listen(True, effects)

    def leave(self, effects: list[Effect], *, ends: bool = False) -> None:
        """Follow it no more; ``ends``: the client is closed, and follows no other one."""
        if self.chappe and self.state not in ("idle", "joining"):
            effects.append(Send(self.server, say.encode(say.Goodbye(self._stream, ends))))
        self.state = "idle"
        self._staged = None
        self._queued.clear()
        self._knock_at = self._join_at = self._ask_at = self._known_at = math.inf

    @property
    def doubtful(self) -> bool:
        """True if it is followed as an original, but may be a server of chappe whose HUGZ comes a moment later.

        It comes over another connection, which may be made later than the one for requests, as both are tried again in
        their own time until a server is there; and a server that stood still answers before its next one.
        """
        return self.chappe is None and self._known_at < math.inf

    def alive(self, now: float) -> bool:
        return now < self.heard_at + self.silent_s

    @property
    def silent_s(self) -> float:
        """The silence after which it counts as lost."""
        if self.chappe and self.beat is not None:
            return MAP_BEATS_LOST * self.beat.every_ms / 1000
        return MAP_SILENT_S

    @property
    def _taken_every_s(self) -> float:
        """The time between two signs of life to the server: the longer the slower it beats."""
        if self._peer:
            return PEER_TAKEN_S
        every_s = MAP_BEAT_S if self.beat is None else self.beat.every_ms / 1000
        return max(TAKEN_S, min(TAKEN_CROWDED_S, TAKEN_S * every_s / MAP_BEAT_S))

    @property
    def staged(self) -> int:
        return 0 if self._staged is None else len(self._staged.entries)

    def next_timeout(self) -> float:
        if self.state == "idle":
            return math.inf
        due = self.heard_at + self.silent_s if self.state == "following" else self._lost_at()
        due = min(due, self._knock_at, self._ask_at, self._known_at)
        if self.state == "joining":
            return min(due, self._join_at)
        if self.chappe and self.state == "asked" and not self.refused:
            due = min(due, self._taken_at + BUSY_S)
        if self.chappe and self.state in ("taking", "following"):
            due = min(due, self._taken_at + self._taken_every_s)
        return due

    def expire(self, now: float, effects: list[Effect]) -> str:
        """Do what is due; return why it is lost, if it is."""
        if self.state == "idle":
            return ""
        if now >= self._known_at:
            self._known_at = math.inf
            self.chappe = False
        if self.state == "following":
            if not self.alive(now) and not self._has_beat:  # a model 5 server is asked anew: it answers if it lives
                self._ask(now, effects)
            elif not self.alive(now):
                return f"it was not heard for {self.silent_s:g} s"
            if self._lags(now):
                self._lag_s = min(2 * self._lag_s, LAG_MAX_S)
                self._hello(now, effects)
        elif now >= self._lost_at():
            return "it does not answer"
        if now >= self._knock_at:
            if not self.refused:
                self._lag_s = min(2 * self._lag_s, LAG_MAX_S)
            self._hello(now, effects)
        if now >= self._ask_at or (self.state == "joining" and now >= self._join_at):
            self._ask(now, effects)
        self.flush(now, effects)
        return ""

    def flush(self, now: float, effects: list[Effect]) -> None:
        if not self.chappe or self.state not in ("taking", "following"):
            if self.chappe and self.state == "asked" and not self.refused and now >= self._taken_at + BUSY_S:
                self._taken_at = now  # over a slow link an answer takes longer than a session waits for its client
                effects.append(Send(self.server, say.encode(say.Taken(self._stream, 0, self._target.done, 0))))
            return
        # Before the snapshot is whole it would be that of an order of our own, which may be far ahead of theirs.
        sequence = self._target.confirmed if self.state == "following" else 0
        confirms = self._peer and sequence != self._told_sequence
        late = now >= self._taken_at + self._taken_every_s
        if confirms or late or self._number - self._told >= self._limits.window // 2:
            self._told = self._number
            self._told_sequence = sequence
            self._taken_at = now
            taken = say.Taken(self._stream, self._number, self._target.done, self._told_sequence)
            effects.append(Send(self.server, say.encode(taken)))

    def send(self, first: int, steps: Sequence[say.Step], effects: list[Effect]) -> None:
        effects.append(Send(self.server, say.encode(say.Steps(self._stream, first, tuple(steps)))))

    # -- what is published -------------------------------------------------------------------------------------------

    def take_publication(self, frames: Sequence[bytes], now: float, effects: list[Effect]) -> None:
        update = chp.decode_update(frames)
        self.heard_at = now
        if update.key == chp.HUGZ:
            self._heard_beat(chp.beat_of(update), now, effects)
            if not self.chappe:
                if update.sequence < self._numbers[1] and self.state != "idle":
                    self._begins_again(now, effects)
                self._numbers = (self._numbers[0], update.sequence)
            return
        if self.chappe or self.state == "idle":
            return
        if self.state == "joining":
            self._ask(now, effects)
        elif update.sequence <= self._numbers[0]:
            self._begins_again(now, effects)
        self._numbers = (update.sequence, self._numbers[1])
        if update.key in chp.RESERVED or not update.key.startswith(self._subtrees):
            return  # of a key that only begins with HUGZ
        if self.state == "following":
            self._update((update,), now, effects)
        else:
            self._queued.append(update)
            if len(self._queued) > self._limits.queued_max:
                self._ask(now, effects)  # anew: what is dropped may not be in the snapshot

    def _begins_again(self, now: float, effects: list[Effect]) -> None:
        """Begin again: numbers went back, so this is another life of the server, whose updates would look old."""
        if now >= self._asked_at + TAKEN_S:
            self._ask(now, effects)
        else:
            self._ask_at = min(self._ask_at, self._asked_at + TAKEN_S)

    def _heard_beat(self, beat: chp.Beat | None, now: float, effects: list[Effect]) -> None:
        was = self.chappe
        self._has_beat = True
        self.chappe = beat is not None
        self.beat = beat
        if was is not self.chappe:
            self._listen(not self.chappe, effects)
            if (was is not None or self.chappe) and self.state not in ("idle", "joining"):  # it was taken for another
                self.engage(now, effects)
        if self.state == "joining":
            if self.chappe:
                self._hello(now, effects)
            else:
                self._ask(now, effects)
        elif self.state == "following" and beat is not None and beat.epoch != self._target.position[0]:
            self._hello(now, effects)

    # -- what is answered --------------------------------------------------------------------------------------------

    def take_answer(self, frames: Sequence[bytes], now: float, effects: list[Effect]) -> None:
        if frames and frames[0] == say.MARK:
            if self.chappe:
                self._streamed(say.from_server(frames), now, effects)
            return
        if self.chappe or self.state not in ("asked", "taking"):
            return
        update = chp.decode_update(frames)
        self.heard_at = self._progress_at = now
        if self._staged is None:
            self._staged = StagedEntries(self._target.engine)
        if update.key == chp.KTHXBAI:
            self._whole_plain(update.sequence, now, effects)
            return
        self.state = "taking"
        if update.body and update.key.startswith(self._subtrees):
            self._stage(self._entry(update, now), now)

    def _whole_plain(self, sequence: int, now: float, effects: list[Effect]) -> None:
        staged, self._staged = self._staged, None
        assert staged is not None
        self._target.position = (b"", sequence)
        self._target.replaced(staged, (), now, effects)
        self.state = "following"
        self._known_at = now + JOIN_S if self.chappe is None else math.inf
        queued = tuple(self._queued)
        self._queued.clear()
        self._update(queued, now, effects)
        self._target.following(self.server, now, effects)

    def _update(self, updates: Sequence[chp.Update], now: float, effects: list[Effect]) -> None:
        for update in updates:
            if update.sequence > self._target.position[1]:
                self._target.position = (b"", update.sequence)
                self._target.updated([self._entry(update, now)], now, effects)

    def _entry(self, update: chp.Update, now: float) -> say.Entry:
        left = None
        if update.ttl and update.body:
            left = chp.ttl_ms(update.ttl, self._wall_ms(now))
        return update.key, update.body, update.uuid, update.properties, 0 if left is None else max(left, 1)

    def _wall_ms(self, now: float) -> int:
        found = self._target.expires_ns(1, now)
        return 0 if found is None else found // 1_000_000

    def _streamed(self, message: say.FromServer, now: float, effects: list[Effect]) -> None:
        if self.state in ("idle", "joining"):
            return
        if message.stream != self._stream:
            if self.state == "asked" and not self.refused:  # the answer is behind what else is on its way
                self.heard_at = self._progress_at = now
                self._knock_at = now + max(ANSWER_S, self._lag_s)
            return
        silent_s = now - self._stream_heard_at
        self.heard_at = self._stream_heard_at = now
        if isinstance(message, say.Refused):
            self._refuse(message, now, effects)
            return
        self._progress_at = now
        if message.number != self._number:
            self._hello(now, effects)  # something is missing
            return
        self._number += 1
        try:
            if isinstance(message, say.Changes):
                self._lag_s = max(LAG_S, min(self._lag_s, 2 * silent_s))
                self._changes(message, now, effects)
            elif isinstance(message, say.Piece):
                self._piece(message, now)
            elif isinstance(message, say.Whole):
                self._whole(message, now, effects)
            elif isinstance(message, say.Outcomes):
                self._outcomes(message, now, effects)
            else:
                self._welcome(message, now, effects)
        except ProtocolError:
            self.state = "asked"  # anew, from where we were, but not as fast as it answers
            self._staged = None
            self._stream += 1
            self._progress_at = now
            self._knock_at = now + TAKEN_S
            raise

    def _welcome(self, message: say.Welcome, now: float, effects: list[Effect]) -> None:
        target = self._target
        self.refused = ""
        self._knock_at = math.inf
        self._epoch = message.epoch
        self._count = self._checksum = 0
        self._taken_at = now
        if message.whole:
            self.state = "taking"
            self._staged = StagedEntries(target.engine)
            self._failed = {}
        else:
            self.state = "following"
            target.position = (message.epoch, message.sequence)
        target.welcomed(self.server, message.applied, now, effects)
        if not message.whole:
            target.following(self.server, now, effects)

    def _piece(self, message: say.Piece, now: float) -> None:
        if self._staged is None:
            raise ProtocolError("a piece of no snapshot")
        self._checksum = crc32c(bytes(message.entries), self._checksum)
        entries = say.decode_entries(message.entries)
        self._count += len(entries)
        if not any(entry[4] for entry in entries):
            self._staged.add_all(pairs_of(entries))
            return
        for entry in entries:
            self._stage(entry, now)

    def _stage(self, entry: say.Entry, now: float) -> None:
        key, body, uuid, properties, left = entry
        assert self._staged is not None
        self._staged.add(key_of(key), (body, uuid, properties), self._target.expires_ns(left, now))

    def _outcomes(self, message: say.Outcomes, now: float, effects: list[Effect]) -> None:
        if self._staged is None:
            self._target.refused(message.failed, now, effects)
            return
        for name, number, code, text in message.failed:  # of the snapshot: perhaps too many for one message
            self._failed.setdefault(name, []).append((number, code, text))

    def _whole(self, message: say.Whole, now: float, effects: list[Effect]) -> None:
        staged, self._staged = self._staged, None
        if staged is None or message.count != self._count or message.checksum != self._checksum:
            raise ProtocolError(
                f"a snapshot of {message.count:,} entries came as {self._count:,}, or changed on its way"
            )
        self.state = "following"
        self._target.position = (self._epoch, message.sequence)
        failures, self._failed = self._failed, {}
        sessions = [
            (name, applied, (*failed, *failures.get(name, ()))) for name, applied, failed in message.sessions
        ]  # fmt: skip
        self._target.replaced(staged, sessions, now, effects)
        self._target.following(self.server, now, effects)

    def _changes(self, message: say.Changes, now: float, effects: list[Effect]) -> None:
        entries = say.decode_entries(message.updates)
        self._target.position = (self._epoch, message.sequence)
        if entries:
            self._target.updated(entries, now, effects)
        self._target.answered(message.applied, message.failed, now, effects)

    def _refuse(self, message: say.Refused, now: float, effects: list[Effect]) -> None:
        reason = message.reason
        if reason == "other" != self.refused:
            self._target.other(self.server, message.name, now, effects)
        if reason.startswith(say.DENIED) and reason != self.refused:
            self._target.denied(self.server, reason.removeprefix(say.DENIED), now, effects)
        self.refused = reason
        if reason == "unknown":
            self._hello(now, effects)
            return
        self.state = "asked"
        self._staged = None
        self._progress_at = now if reason == "busy" else self._progress_at
        self._knock_at = now + {"passive": KNOCK_S, "busy": BUSY_S}.get(reason, TAKEN_S)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _hello(self, now: float, effects: list[Effect]) -> None:
        target = self._target
        if self.state not in ("asked",):
            self._progress_at = now
        self.state = "asked"
        self._staged = None
        self._stream += 1
        self._number = self._told = 0
        self._epoch = b""
        self._stream_heard_at = self._taken_at = now
        self._knock_at = now + max(ANSWER_S, self._lag_s)
        epoch, sequence = target.position
        hello = say.Hello(
            self._stream, self._session, self._subtrees, epoch, sequence, target.done, self._peer, self._map
        )
        effects.append(Send(self.server, say.encode(hello)))

    def _ask(self, now: float, effects: list[Effect]) -> None:
        self.state = "asked"
        self._staged = None
        self._queued.clear()
        self._progress_at = self._asked_at = now
        self._join_at = self._ask_at = math.inf
        effects.append(Dial(self.server, self.server))
        effects.append(Send(self.server, chp.icanhaz(_common(self._subtrees))))

    def _listen(self, on: bool, effects: list[Effect]) -> None:
        if self._listening is not on:
            self._listening = on
            effects += [Subscribe(subtree, on, self.server) for subtree in self._subtrees]

    def _lost_at(self) -> float:
        """Return when a server is given up that does not serve us yet."""
        if not self.chappe or self.state == "joining" or self.refused not in ("", "busy"):
            return self._progress_at + self._patience()
        # Over a slow link an answer takes long: a server that lives is waited for.
        heard_at = max(self._progress_at, self.heard_at)
        silent_s = MAP_SILENT_S if self.state == "taking" else max(self._limits.attempt_s, self.silent_s)
        return min(self._progress_at + STILL_S, heard_at + silent_s)

    def _patience(self) -> float:
        if self.chappe:
            return self._limits.attempt_s
        return JOIN_S + MAP_SILENT_S if self.state == "joining" else MAP_SILENT_S

    def _lags(self, now: float) -> bool:
        if not self.chappe or self.beat is None or now < self._stream_heard_at + self._lag_s:
            return False
        return self.beat.sequence > self._target.position[1]


def _common(subtrees: tuple[bytes, ...]) -> bytes:
    """Return the common beginning, which is asked for where only one subtree can be."""
    first, last = min(subtrees), max(subtrees)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[:same]
