"""The server of a shared map: it orders all updates, and serves snapshots, updates and heartbeats.

Alone it is active. As one of two it is told when to be active or passive, and whether to follow: who decides that is
another core (``pair.py``). Passive it serves nobody, follows the other server (``source.py``), keeps what clients
publish to both and the active has not passed on (``pending.py``), and confirms what it has, so that the active tells a
writer of chappe that its step is done only when both have it.

Departures from the Guide's programs, each for one of their faults: nothing that comes from outside ends or blocks it;
snapshots are always whole; only what has a ttl expires, at the active alone, on a clock that nobody sets, and as an
ordinary delete; sequences of a later life are higher; what is passed over is bounded and counted.

Source: ZeroMQ RFC 12; the Guide, chapter 5, models 5 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chappe.core import Clock, Effect, Publish, Report
from chappe.defaults import MAP_BEAT_CROWDED_S, MAP_BEAT_S, MAP_BEATS_MAX
from chappe.errors import ProtocolError, StorageError
from chappe.kv.backend import Commit, Loaded
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.events import MapActive, MapCommitFailed, MapCopied, MapDenied, MapDropped, MapPassive, MapRefused
from chappe.kv.chp.ledger import Ledger
from chappe.kv.chp.pending import PendingUpdates
from chappe.kv.chp.plain import Plain
from chappe.kv.chp.source import FollowedServer
from chappe.kv.chp.streams import MapStreams
from chappe.kv.chp.views import Views
from chappe.kv.engine import Engine, StagedEntries
from chappe.limits import MAP_LIMITS, MapLimits

PEER: Final = 0  # the other server, as followed servers are numbered
UPDATES: Final = "updates"  # the collector, where other clients than chappe's write
_WELCOME_S: Final = 0.02  # who subscribes to HUGZ hears it at once, all who do so within this time together
_DROPPED_S: Final = 10.0  # what was dropped is reported so often


class MapServerCore:
    """The state of one server. Call ``flush`` after one or several inputs.

    Args:
        epoch: 16 random bytes, of this life.
        loaded: The content of the backend; None without one.
        clock: Asked once; later only ``now`` counts.
        paired: One of two servers: passive until it is told otherwise.
        name: Of the map; clients of chappe that want another one are refused.
    """

    def __init__(
        self,
        epoch: bytes,
        *,
        loaded: Loaded | None = None,
        limits: MapLimits = MAP_LIMITS,
        now: float,
        clock: Clock,
        paired: bool = False,
        name: str = "",
    ) -> None:
        self.active = not paired
        self.role = self.witness = ""  # of one of two, for those who look
        self.ledger = Ledger(epoch, loaded, limits, now, clock)
        self.ledger.serving = self.active
        self.engine: Engine = self.ledger.engine
        self.malformed = 0
        self._limits = limits
        self._views = Views(self.ledger, limits)
        self._streams = MapStreams(self.ledger, self._views, limits, name)
        self._plain = Plain(self.ledger, self._views, limits)
        self._listened: dict[bytes, int] = {}  # prefixes, and how many subscribed to each
        self._publishes_all = False
        self._hearers = 0  # subscriptions to HUGZ
        self._beat_at = self._beaten_at = now
        self._dropped = 0
        self._dropped_at = now
        # -- as one of two
        self.pending = PendingUpdates(limits)
        self.position = (b"", 0)  # what it has of the other server
        self.done = 0
        self.copied = False  # it has, or had, what the other server has, or was active
        session = chp.session_of(epoch[-chp.SESSION_BYTES :])
        self.peer = FollowedServer(PEER, session, (b"",), self, limits, peer=True, name=name) if paired else None

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.peer is not None:
            self.peer.listen(effects)
        return effects

    def follow(self, now: float) -> list[Effect]:
        """Follow the other server, while passive, until ``rest`` or ``go_active``."""
        effects: list[Effect] = []
        if self.peer is not None and self.peer.state == "idle" and not self.active:
            self.copied = False
            self.peer.engage(now, effects)
        return effects

    def rest(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.peer is not None:
            self.peer.leave(effects)
        return effects

    def go_active(self, epoch: bytes, now: float) -> list[Effect]:
        """Serve clients from now on, beginning with pending updates, in a new ``epoch`` of 16 random bytes."""
        effects: list[Effect] = []
        if self.active:
            return effects
        self.active = True
        self.copied = True
        if self.peer is not None:
            self.peer.leave(effects)
        ledger = self.ledger
        if self.position[0]:
            ledger.adopt(*self.position)
        ledger.renew(epoch)
        ledger.serving = True
        ledger.copied_to = max(ledger.sequence, self.position[1])
        waiting = self.pending.take()
        for entry in waiting:
            self.ledger.do_update(entry, now, effects)
        effects.append(Report(MapActive(len(waiting))))
        self._beat(now, effects)
        return effects

    def go_passive(self, now: float) -> list[Effect]:
        """Serve nobody; keep the data until it has that of the other server (``follow``)."""
        effects: list[Effect] = []
        if not self.active:
            return effects
        self.active = False
        self.copied = False
        self._streams.close("passive", effects)
        self._plain.close(effects)
        ledger = self.ledger
        ledger.serving = False
        ledger.adopt(ledger.epoch, ledger.sequence)
        # What is on its way to the disk is in memory, so nothing may come on top of it.
        self.position = (b"", 0) if ledger.commits.count else (ledger.epoch, ledger.sequence)
        effects.append(Report(MapPassive()))
        self._beat(now, effects)
        return effects

    def begin_anew(self) -> list[Effect]:
        """Let clients of chappe open their streams anew, as one of their messages was lost here."""
        effects: list[Effect] = []
        self._streams.close("unknown", effects)
        return effects

    def confirm(self, alone: bool) -> list[Effect]:
        """Confirm, while active, updates that the other server lacks, or not. Without another one it does."""
        effects: list[Effect] = []
        self._streams.release(alone, effects)
        return effects

    @property
    def in_step(self) -> bytes:
        return self._streams.in_step

    @property
    def crowded(self) -> bool:
        """True if so much waits for the backend that the collector is not to be read."""
        return self.ledger.crowded

    @property
    def clients(self) -> int:
        """Clients of chappe that follow, and others that take a snapshot."""
        return len(self._streams) + len(self._plain)

    @property
    def under_way(self) -> int:
        return self._streams.under_way

    # -- clients -----------------------------------------------------------------------------------------------------

    def handle_request(self, client: bytes, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take a request to the snapshot socket. Raises ProtocolError."""
        effects: list[Effect] = []
        if not frames or frames[0] != say.MARK:
            subtree = chp.decode_icanhaz(frames)
            if self.active:
                self._plain.ask(client, subtree, now, effects)
            return effects
        message = say.from_client(frames)
        if isinstance(message, say.Goodbye):
            session = self._streams.goodbye(client, message.stream)
            if message.ends and self.active and session:
                self.ledger.end_session(session, effects)
        elif not self.active:
            self._streams.refuse(client, message.stream, "passive", effects)
        elif isinstance(message, say.Hello):
            self._plain.forget(client)  # it took this server for one of the Guide's, as no HUGZ had come yet
            self._streams.hello(client, message, now, effects)
        elif isinstance(message, say.Taken):
            self._streams.taken(client, message, now, effects)
        else:
            self.ledger.expire(now, effects)
            self._streams.steps(client, message, now, effects)
        return effects

    def handle_taken(self, client: bytes, now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._plain.taken(client, now, effects)
        return effects

    def handle_gone(self, client: bytes, now: float) -> list[Effect]:
        """Forget a client that has an answer to come and is not there any more."""
        self._plain.forget(client)
        self._streams.lost(client)
        return []

    def handle_message(self, link: int | str, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take an update at the collector, or a publication of the other server (``PEER``). Raises ProtocolError."""
        effects: list[Effect] = []
        if link == UPDATES:
            self._update(frames, now, effects)
            return effects
        peer = self.peer
        assert peer is not None
        peer.take_publication(frames, now, effects)
        if not self.active and peer.state == "following" and (peer.beat is None or peer.beat.active):
            self.pending.heard(now)
        return effects

    def _update(self, frames: Sequence[bytes], now: float, effects: list[Effect]) -> None:
        update = chp.decode_update(frames)
        if not chp.is_key(update.key):
            raise ProtocolError(f"{update.key!r} is a word of the protocol, and no key")
        left = chp.ttl_ms(update.ttl, self.ledger.ns(now) // 1_000_000) if update.ttl and update.body else None
        entry = (update.key, update.body, update.uuid, update.properties, 0 if left is None else max(left, 1))
        if self.active:
            self.ledger.expire(now, effects)
            self.ledger.do_update(entry, now, effects)
        else:
            self.pending.from_client(entry, now)

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Note a prefix of keys that a subscriber wants, or no longer; called for each subscriber."""
        if prefix == chp.HUGZ:
            self._hearers = max(0, self._hearers + (1 if on else -1))
            if on:  # all hear what is sent to welcome one, so where many come it must not be sent for each
                self._beat_at = min(self._beat_at, max(now + _WELCOME_S, self._beaten_at + self._beat_pause_s))
            return []
        known = self._listened.get(prefix, 0)
        if not on:
            if known > 1:
                self._listened[prefix] = known - 1
            else:
                self._listened.pop(prefix, None)
        elif known or len(self._listened) < self._limits.listened_max:
            self._listened[prefix] = known + 1
        else:
            self._publishes_all = True  # from now on, as it does not know any more who wants what
        self.ledger.listened = (b"",) if self._publishes_all or b"" in self._listened else tuple(self._listened)
        return []

    def flush(self, now: float) -> list[Effect]:
        """Tell clients of updates; after every input, or several."""
        effects: list[Effect] = []
        if self.active:
            self._streams.pump(now, effects)
        elif self.peer is not None:
            self.peer.flush(now, effects)
        return effects

    # -- the other server ----------------------------------------------------------------------------------------------

    def handle_answer(self, server: int | str, frames: Sequence[bytes], now: float) -> list[Effect]:
        """Take an answer of the other server. Raises ProtocolError."""
        effects: list[Effect] = []
        assert self.peer is not None
        self.peer.take_answer(frames, now, effects)
        return effects

    # -- as a MapCopy of it

    @property
    def confirmed(self) -> int:
        """The sequence of the other server's order up to which nothing is lost; not of an own one before."""
        return self.ledger.sequence if self.ledger.followed else 0

    def expires_ns(self, left_ms: int, now: float) -> int | None:
        return self.ledger.ns(now) + left_ms * 1_000_000 if left_ms else None

    def replaced(
        self, staged: StagedEntries, sessions: Sequence[say.WriterState], now: float, effects: list[Effect]
    ) -> None:
        self.ledger.replace(staged, self.position[1], sessions, now, effects)
        epoch, sequence = self.position
        if epoch:
            self.ledger.adopt(epoch, sequence)

    def updated(self, entries: list[say.Entry], now: float, effects: list[Effect]) -> None:
        self.pending.from_active(entries, now)
        self.ledger.follow(entries, self.position[1], now, effects)

    def welcomed(self, server: int, applied: int, now: float, effects: list[Effect]) -> None:
        """Go on where the other server continues, or take its snapshot."""
        self.ledger.followed = self.peer is not None and self.peer.state == "following"  # else it is not of its order

    def answered(self, applied: int, failed: Sequence[tuple[int, int, str]], now: float, effects: list[Effect]) -> None:
        """Do nothing: a passive server has no steps of its own."""

    def refused(self, failed: Sequence[tuple[bytes, int, int, str]], now: float, effects: list[Effect]) -> None:
        self.ledger.refuse(failed, now)

    def other(self, server: int, name: str, now: float, effects: list[Effect]) -> None:
        effects.append(Report(MapRefused("the other server", name)))

    def denied(self, server: int, reason: str, now: float, effects: list[Effect]) -> None:
        effects.append(Report(MapDenied("the other server", reason)))

    def following(self, server: int, now: float, effects: list[Effect]) -> None:
        self.copied = True
        effects.append(Report(MapCopied(len(self.engine))))

    # -- disk and clock ------------------------------------------------------------------------------------------------

    def handle_done(self, commit: Commit, error: StorageError | None, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if error is None:
            self.ledger.committed(commit.number, effects)
            return effects
        lost = self.ledger.failed(commit.number, str(error), now, effects)
        effects.append(Report(MapCommitFailed(str(error), lost if self.active else 0)))
        if not self.active and self.peer is not None:  # what was undone is to come again
            self.position = (b"", 0)
            if self.peer.state != "idle":
                self.peer.engage(now, effects)
        return effects

    def next_timeout(self) -> float:
        due = min(self._beat_at, self._plain.next_timeout(), self._streams.next_timeout())
        if self.active:
            due = min(due, self.ledger.session_values.next)
            expiry_ns = self.engine.next_expiry_ns()
            return due if expiry_ns is None else min(due, self.ledger.at(expiry_ns))
        return due if self.peer is None else min(due, self.peer.next_timeout())

    def handle_timeout(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.active:
            self.ledger.expire(now, effects)
            for name in self.ledger.session_values.ended(now):
                self.ledger.end_session(name, effects)
        elif self.peer is not None and self.peer.expire(now, effects):
            self.peer.engage(now, effects)  # there is no other one
        self._streams.silent(now, effects)
        self._plain.expire(now, effects)
        if now >= self._beat_at:
            self._beat(now, effects)
        return effects

    @property
    def _beat_pause_s(self) -> float:
        """The least time between two heartbeats: each costs a message for everybody who hears it."""
        return min(MAP_BEAT_CROWDED_S, self._hearers / MAP_BEATS_MAX)

    def _beat(self, now: float, effects: list[Effect]) -> None:
        every_s = max(MAP_BEAT_S, self._beat_pause_s)
        self._beaten_at = now
        self._beat_at = now + every_s
        beat = chp.Beat(
            self.ledger.epoch, self.ledger.sequence, int(every_s * 1000), self.active, self.role, self.witness
        )
        effects.append(Publish(chp.hugz(beat)))
        dropped = self._plain.dropped + self.pending.dropped
        if dropped > self._dropped and now >= self._dropped_at + _DROPPED_S:
            effects.append(
                Report(MapDropped("requests for snapshots, or updates of clients,", dropped - self._dropped))
            )
            self._dropped, self._dropped_at = dropped, now

    # -- for tests and people ------------------------------------------------------------------------------------------

    def invariants(self) -> list[str]:
        found = [*self.engine.invariants(), *self.ledger.session_values.invariants()]
        if self.active and self.peer is not None and self.peer.state != "idle":
            found.append("active, and follows the other server")
        return found
