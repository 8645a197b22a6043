"""How somebody joins a chain: it asks the tail for what it lacks, and becomes the tail when it has everything.

Both sides are here: what a tail does for one who joins, one after the other, and what a server does that is not a
member. What of the log or of a state is under way is in ``neighbour`` and ``transfer``.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

from chappe.core import Effect, Report, Send
from chappe.limits import ChainLimits
from chappe.replication.agreement.core import Agreement
from chappe.replication.chain.compaction import Compaction
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.downstream import Downstream, Taker
from chappe.replication.chain.events import JoinAbandoned, Replaced, StateTooLarge
from chappe.replication.chain.log import ChainState, EntryLog
from chappe.replication.chain.messages import Join, Piece, Want
from chappe.replication.chain.peers import Peers
from chappe.replication.chain.replica import ChainReplica, ExternalState, Restored

AGAIN_BEATS: Final = 2  # a joiner that gets no piece of a state repeats its request, ...
STUCK_BEATS: Final = 30  # ... and then asks for another state
NOTHING: Final = 2**63 - 1  # committed so far no log goes: who says so gets a state, whatever it has
TOO_LARGE_S: Final = 60.0  # who cannot take a state asks so much later whether it is smaller by now


class JoiningServer(Protocol):
    life: int
    number: int
    names: tuple[str, ...]
    configuration: Configuration
    place: int
    committed: int
    aligned: bool
    apart: bool  # of a fixed chain: it has gone on by itself, and what it has goes
    fixed: bool
    member: bool
    tail: bool
    log: EntryLog
    replica: ChainReplica
    agreement: Agreement
    peers: Peers
    compaction: Compaction

    @property
    def external(self) -> ExternalState | None:
        """The part of its machine's state that lies elsewhere, if there is one."""
        ...

    def take_state(self, state: ChainState, restored: Restored) -> None: ...

    def apply(self, upto: int) -> None:
        """Apply everything up to the committed entry ``upto``."""
        ...


class Joining:
    def __init__(self, server: JoiningServer, limits: ChainLimits) -> None:
        self._server = server
        self._limits = limits
        self.joiner: Downstream | None = None  # at the tail
        # -- of who joins
        self._taker = Taker(server.replica, limits)
        self._taken = self._stuck = 0
        self._asks_at = -math.inf
        self._hindered = ""
        self.begun = False  # of a fixed chain: what this server has is from the tail of this configuration

    def entered(self) -> None:
        self.joiner, self._taker = None, Taker(self._server.replica, self._limits)
        self.begun = False

    @property
    def anew(self) -> bool:
        """True if this server has to get the whole state before anything else.

        Where servers agree, committed entries are the same everywhere, and a joiner gets those behind its own. In a
        fixed chain that was cut in two they are not.
        """
        return self._server.fixed and not self._server.member and not self.begun

    # -- at the tail ------------------------------------------------------------------------------------------

    @property
    def gives(self) -> bool:
        joiner = self.joiner
        return joiner is not None and (joiner.known or joiner.giver is not None or joiner.waits)

    def admit(self, sender: int, message: Join, now: float) -> list[Effect]:
        """Begin to send a joiner the entries or the state that it lacks."""
        server, configuration = self._server, self._server.configuration
        if not server.tail or not server.aligned or sender in configuration.places or configuration.out[sender]:
            return []
        joiner = self.joiner
        if joiner is not None and joiner.place != sender and server.peers.mutual(joiner.place, now) is not None:
            return []  # one after the other
        if joiner is None or (joiner.place, joiner.life) != (sender, message.life):
            joiner = self.joiner = Downstream(sender, message.life, self._limits)
        if joiner.known and (not message.lost or now - joiner.moved_at < self._limits.again_s):
            return []
        if server.log.base <= message.committed <= server.log.end:
            joiner.begin(message.committed, now)
            return []
        joiner.lost()
        joiner.moved_at = now
        giver = joiner.giver
        if giver is None or giver.index < server.log.base:
            joiner.waits = True
            giver = joiner.giver = server.compaction.give(now)
            joiner.waits = giver is None
            if giver is None:
                return []  # the joiner repeats its request until the state is made
            if giver.size > self._limits.state_bytes_max:
                self.joiner = None  # it is told how large that is, and asks much later again
                too_large = StateTooLarge(server.names[sender], giver.size, self._limits.state_bytes_max)
                return [Send(sender, giver.first()), Report(too_large)]
        return [Send(sender, giver.first())]

    def give_more(self, sender: int, message: Want, now: float) -> list[Effect]:
        """Send a joiner more of the state, as it has room."""
        joiner = self.joiner
        if joiner is None or joiner.place != sender or joiner.giver is None:
            return []
        joiner.moved_at = now
        return [Send(sender, each) for each in joiner.giver.more(message)]

    def look(self, now: float) -> list[Effect]:
        """Drop joiners that are silent, or take nothing for long: they ask again when they are back."""
        joiner, server = self.joiner, self._server
        if joiner is None:
            return []
        if server.peers.beat(joiner.place, now) is None:
            begun = joiner.giver is not None or joiner.waits  # a short silence does not discard it
            if not begun or now - joiner.moved_at >= self._limits.slow_s:
                self.joiner = None
        elif now - (joiner.full_at if joiner.giver is None else joiner.moved_at) >= self._limits.slow_s:
            self.joiner = None
            return [Report(JoinAbandoned(server.names[joiner.place]))]
        return []

    def complete(self, now: float) -> Downstream | None:
        """Return the joiner that has everything committed, and is to become the tail."""
        joiner, server = self.joiner, self._server
        if joiner is None or not joiner.known or joiner.synced < server.committed:
            return None
        beat = server.peers.mutual(joiner.place, now)
        if beat is None or beat.life != joiner.life or beat.disk != server.configuration.disks[joiner.place]:
            return None
        return None if beat.leaves else joiner

    # -- of who joins -----------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True if this server joins and takes nothing for now, as its disk is behind."""
        external = self._server.external
        return external is not None and external.full and not self._server.member

    @property
    def why(self) -> str:
        if self._server.place in self._server.configuration.places:
            return ""
        return "its disk is behind: it takes nothing more until that has caught up" if self.full else self._hindered

    def ask(self, now: float) -> list[Effect]:
        """Ask the tail for the rest, as a server that is not a member."""
        server, configuration = self._server, self._server.configuration
        if not server.number or server.place in configuration.places or configuration.out[server.place]:
            return []
        if self.full or now < self._asks_at:
            return []
        tail = configuration.places[-1]
        want = self._taker.want()
        if want is not None:
            self._stuck = 0 if self._taker.size != self._taken else self._stuck + 1
            self._taken = self._taker.size
            if self._stuck < STUCK_BEATS:
                return [Send(tail, want)] if self._stuck >= AGAIN_BEATS else []
            self._taker, self._stuck = Taker(server.replica, self._limits), 0
        committed = NOTHING if self.anew else server.committed
        return [Send(tail, Join(server.number, server.life, committed, not server.aligned))]

    def take_piece(self, sender: int, message: Piece, now: float) -> list[Effect]:
        server, configuration, limits = self._server, self._server.configuration, self._limits
        if server.place in configuration.places or sender != configuration.places[-1]:
            return []
        if (message.index <= server.committed and not self.anew) or self.full:
            return []
        if server.aligned and message.index <= server.log.end:  # it has that: what was acknowledged has to stay
            server.apply(message.index)
            return [Send(sender, Join(server.number, server.life, server.committed, False))]
        if message.size > limits.state_bytes_max:
            self._asks_at = now + TOO_LARGE_S
            too_large = StateTooLarge(server.names[server.place], message.size, limits.state_bytes_max)
            told, self._hindered = self._hindered == str(too_large), str(too_large)
            return [] if told else [Report(too_large)]
        before = self._taker.size
        state = self._taker.take(message)
        if state is None:
            want = self._taker.want() if self._taker.size != before else None  # a repeated piece asks for no more
            return [] if want is None else [Send(sender, want)]
        self._hindered = ""
        replaced = Replaced(
            server.names[server.place], server.committed, server.names[sender], state.index, server.apart
        )
        reports: list[Effect] = [Report(replaced)] if self.anew and server.committed else []
        server.take_state(state, self._taker.restored)
        self.begun, server.apart = True, False
        return [*reports, Send(sender, Join(server.number, server.life, server.committed, True))]
