"""When a server proposes another configuration: it considers that with each beat, and waits for its turn."""

from __future__ import annotations

import math
from typing import Final, Protocol

from chappe.core import Effect, Report
from chappe.errors import UsageError
from chappe.limits import ChainLimits
from chappe.replication.agreement.core import Agreement
from chappe.replication.chain import configuration as value
from chappe.replication.chain.configuration import Configuration, line_behind
from chappe.replication.chain.events import ServerJoins, ServerRemoved, Waits
from chappe.replication.chain.joining import Joining
from chappe.replication.chain.membership import ChainView, Proposal, wanted
from chappe.replication.chain.messages import Beat
from chappe.replication.chain.peers import Peers

PATIENT_BEATS: Final = 20  # after a restart of all members those who are back wait so long for the others
DOUBTFUL_BEATS: Final = 2  # others are given so long to notice what this server notices
STAGGER_BEATS: Final = 3  # servers propose one after the other


class ProposingServer(Protocol):
    place: int
    names: tuple[str, ...]
    number: int
    configuration: Configuration
    agreement: Agreement
    peers: Peers
    joining: Joining
    fixed: bool
    member: bool
    tail: bool
    aligned: bool
    holds: bool  # it commits nothing until the next configuration
    why: str

    def beat(self, now: float) -> Beat:
        """Return what the others are told of this server."""
        ...

    def agree(self, effects: list[Effect], now: float) -> list[Effect]:
        """Return effects of the agreement, and those of its decision."""
        ...


class Proposing:
    """The part of a server that proposes configurations. ``durable``: a chain that does not exist is founded so."""

    def __init__(self, server: ProposingServer, limits: ChainLimits, *, durable: bool, now: float) -> None:
        self._server = server
        self._limits = limits
        self._durable = durable
        self._asked: dict[int, bool] = {}  # to stay out, or to come back
        self._slow: tuple[int, float] | None = None  # an entry that all are to have synced, and since when there is it
        self._trouble_at = math.inf
        self._gone_at = math.inf  # since when no member is left
        self._proposed: Configuration | None = None
        self._listens_until = now + limits.silent_s  # before, silence of others means nothing

    def ask_out(self, place: int, out: bool) -> None:
        """Keep a server out of the chain, or let it come back; raises UsageError."""
        server = self._server
        others = [each for each in server.configuration.places if each != place and not self._asked.get(each)]
        if out and server.number and not others:
            raise UsageError(f"{server.names[place]} is the last member of the chain: it cannot be taken out")
        self._asked[place] = out

    def entered(self) -> None:
        out = self._server.configuration.out
        self._asked = {place: asked for place, asked in self._asked.items() if out[place] != asked}
        self._proposed = None
        self.reset()

    def reset(self) -> None:
        """Restart timers of lasting conditions: they have changed, or this server stood still."""
        self._trouble_at = self._gone_at = math.inf
        self._slow = None

    def consider(self, now: float) -> list[Effect]:
        """Propose a better configuration, if it is this server's turn."""
        server = self._server
        beats = {server.place: server.beat(now), **server.peers.heard(now)}
        if server.fixed and any(beat.number > server.number for beat in beats.values()):
            return []  # that one is asked for: who decides alone has to know all that is decided
        patient = now - self._gone_at < PATIENT_BEATS * self._limits.beat_s
        found = wanted(
            ChainView(
                server.number, server.configuration, self._durable, server.names, beats, self._slowest(beats, now),
                self._asked, patient, server.fixed, server.member,
            )
        )  # fmt: skip
        if server.number and now < self._listens_until:
            return []
        alive = [place for place, life in server.configuration.chain if place in beats and beats[place].life == life]
        self._gone_at = math.inf if alive else min(self._gone_at, now)
        actions = self._tell_why(found.why or server.joining.why)
        if found.configuration is None and not found.why and server.number and not server.agreement.untouched:
            found = Proposal(server.configuration)  # a vote that nobody ended keeps reads from being confirmed
        if found.configuration is None:
            self._trouble_at = math.inf
            if self._proposed is not None and not server.holds:
                server.agreement.withdraw()
                self._proposed = None
            return actions if found.why else actions + self._take_in(now)
        self._trouble_at = min(self._trouble_at, now)
        if server.fixed:
            alive.reverse()  # the tail first: it takes in who joins, too, and two are not to decide at once
        rank = ([*alive, *(place for place in sorted(beats) if place not in alive)]).index(server.place)
        if found.configuration == self._proposed and server.agreement.proposing:
            return actions
        wait = rank * STAGGER_BEATS + (DOUBTFUL_BEATS if found.doubtful else 0)
        if now - self._trouble_at < wait * self._limits.beat_s:
            return actions
        return actions + self._propose(found, now)

    def _propose(self, found: Proposal, now: float) -> list[Effect]:
        server = self._server
        assert found.configuration is not None
        self._proposed = found.configuration
        actions: list[Effect] = [Report(ServerRemoved(server.names[place], why)) for place, why in found.leaving]
        return actions + server.agree(server.agreement.propose(value.encode(found.configuration), now), now)

    def _take_in(self, now: float) -> list[Effect]:
        """Propose, as the tail, a joiner that has everything, and commit nothing until that is decided."""
        server = self._server
        configuration = server.configuration
        joiner = None if server.holds or not server.tail or not server.aligned else server.joining.complete(now)
        if joiner is None:
            return []
        chain = (*configuration.chain, (joiner.place, joiner.life))
        line = line_behind(configuration, server.number) if server.fixed else ()
        self._proposed = Configuration(chain, configuration.disks, configuration.out, configuration.durable, line)
        server.holds = server.agreement.may_vote
        proposed = server.agree(server.agreement.propose(value.encode(self._proposed), now), now)
        return [Report(ServerJoins(server.names[joiner.place])), *proposed]

    def _slowest(self, beats: dict[int, Beat], now: float) -> int:
        """Return the first member that has not synced what another had long ago; -1: none."""
        server = self._server
        members = [
            (place, beats[place]) for place, life in server.configuration.chain
            if place in beats and beats[place].life == life and beats[place].number == server.number
        ]  # fmt: skip
        if self._slow is None or all(beat.synced >= self._slow[0] for _, beat in members):
            self._slow = (max([beat.end for _, beat in members], default=0), now)
        index, since = self._slow
        if now - since < self._limits.slow_s:
            return -1
        return next((place for place, beat in members if beat.synced < index), -1)

    def _tell_why(self, why: str) -> list[Effect]:
        server = self._server
        if why == server.why:
            return []
        server.why = why
        return [Report(Waits(why))]
