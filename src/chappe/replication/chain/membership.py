"""Which configuration a server would have next, going by what it hears. It proposes; a majority decides.

In a fixed chain it decides alone, by what it hears itself: others may have died since they heard somebody. Only members
change the chain there, and after a restart of all members nobody begins again without each of them: one that is
missing may be the last survivor, with commands that no other has.

A member is to leave when nobody hears it, when its life is over, when it and its neighbour do not hear each other, when
it is behind for long, and when somebody asked for it. Members keep their order. If no life of a member is left, those
who have come back with their disks begin again: each has all that was committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chappe.replication.agreement.core import decider
from chappe.replication.chain.configuration import Configuration, line_behind
from chappe.replication.chain.messages import Beat

APART: Final = "it and its neighbour do not hear each other"


@dataclass(frozen=True, slots=True)
class ChainView:
    """The facts by which a server proposes: the newest configuration, and beats, its own among them.

    Args:
        number: Of the configuration; 0: the chain is not founded.
        durable: Whether a chain that does not exist yet is founded as durable.
        beats: Of those that are heard, and its own, by place.
        slow: A member that is behind for long, or -1.
        asked: Servers to stay out (True), or that may come back (False), by place.
        patient: If no member is left: whether to wait for those that are not back.
        fixed: Whether servers decide alone.
        member: Whether this server is a member.
    """

    number: int
    configuration: Configuration
    durable: bool
    names: tuple[str, ...]
    beats: Mapping[int, Beat]
    slow: int
    asked: Mapping[int, bool]
    patient: bool
    fixed: bool = False
    member: bool = True

    @property
    def line(self) -> tuple[int, ...]:
        return line_behind(self.configuration, self.number) if self.fixed else ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """The configuration to propose, if any, and who leaves for which reason; ``why`` if nothing can be done."""

    configuration: Configuration | None = None
    leaving: tuple[tuple[int, str], ...] = ()
    why: str = ""

    @property
    def doubtful(self) -> bool:
        """True if beats may soon say something else: not all servers notice a silence at once."""
        return any(why is APART for _, why in self.leaving)


def wanted(known: ChainView) -> Proposal:
    if not known.number:
        return _founded(known)
    configuration, beats = known.configuration, known.beats
    voters = [place for place, beat in beats.items() if beat.disk == configuration.disks[place]]
    if not known.fixed and 2 * len(voters) <= len(configuration.disks):
        away = _names(known, [place for place in range(len(known.names)) if place not in voters])
        return Proposal(why=f"no majority of the servers is here, without {away} nothing can be decided")
    out = tuple(known.asked.get(place, before) for place, before in enumerate(configuration.out))
    leaving: dict[int, str] = {}
    for place, life in configuration.chain:
        beat = beats.get(place)
        if beat is None if known.fixed else not _hearers(beats, place) and (len(beats) > 1 or beat is None):
            leaving[place] = "nobody hears it"
        elif beat is not None and beat.life != life:
            leaving[place] = "it was restarted"
        elif beat is not None and (beat.leaves or out[place]):
            leaving[place] = "it was asked to"
    stay = [place for place in configuration.places if place not in leaving]
    while not known.fixed and (found := _apart(beats, stay)) is not None:
        leaving[found] = APART
        stay.remove(found)
    if known.slow in stay and len(stay) > 1:
        leaving[known.slow] = "it has been too slow"
        stay.remove(known.slow)
    if not stay:
        return _begun_again(known, out)
    if known.fixed and not known.member:
        return Proposal()
    lives = dict(configuration.chain)
    disks = tuple(
        beats[place].disk if place in beats and place not in stay else disk
        for place, disk in enumerate(configuration.disks)
    )
    chain = tuple((place, lives[place]) for place in stay)
    if (chain, disks, out) == (configuration.chain, configuration.disks, configuration.out):
        return Proposal(None, tuple(leaving.items()))
    return Proposal(Configuration(chain, disks, out, configuration.durable, known.line), tuple(leaving.items()))


def builds_on(number: int, configuration: Configuration, decision: int, following: Configuration) -> bool:
    """Return True if a decision of a fixed chain builds on the log of a server that is in a configuration.

    It does if the server's configuration is one of those before it. It does, too, if the server that decided it is a
    member of that configuration: it has never entered it, so nothing was committed there.
    """
    place = decider(decision)
    life = following.life(place)
    built = not number or number in following.line
    return built or (life > 0 and configuration.life(place) == life)


def outbids(place: int, number: int, configuration: Configuration, decision: int, following: Configuration) -> bool:
    """Return True if a newer decision of a fixed chain gives way to the configuration of the server at ``place``.

    The decision has this server as a member, which is in another one: so nothing was committed in it, and something
    may have been in that other one.
    """
    life = configuration.life(place)
    return life > 0 and following.life(place) == life and not builds_on(number, configuration, decision, following)


def another(drawn: int, number: int) -> int:
    """Return a number that no other server has, made of one that was drawn."""
    return int.from_bytes(hashlib.sha256(b"%d %d" % (drawn, number)).digest()[:8]) >> 1 or 1


def _founded(known: ChainView) -> Proposal:
    beats = known.beats
    everybody = range(len(known.names))
    begins = "a chain begins when all its servers are there and hear each other"
    missing = [place for place in everybody if place not in beats]
    if missing:
        return Proposal(why=f"{begins}; {_names(known, missing)} still missing")
    deaf = [place for place in everybody if beats[place].hears | 1 << place != (1 << len(known.names)) - 1]
    if deaf:
        return Proposal(why=f"{begins}; {_names(known, deaf)} cannot hear all others yet")
    chain = tuple((place, beats[place].life) for place in everybody)
    disks = tuple(beats[place].disk for place in everybody)
    return Proposal(Configuration(chain, disks, (False,) * len(disks), known.durable, known.line))


def _begun_again(known: ChainView, out: tuple[bool, ...]) -> Proposal:
    """Begin again, as all members are gone: those that are back with their disks have all that was committed."""
    configuration, beats = known.configuration, known.beats
    missing = [place for place in configuration.places if place not in beats]
    back = [
        place for place in configuration.places
        if place in beats and beats[place].disk == configuration.disks[place] and not beats[place].leaves
    ]  # fmt: skip
    restarted = [place for place in back if beats[place].life != configuration.life(place)]
    if not configuration.durable:
        if missing:
            return Proposal(why=f"only {_names(known, missing)} can have the state")
        return Proposal(why="the state was in memory only, and all members have restarted: it is lost")
    if known.fixed:
        lost = [
            place for place in configuration.places
            if place in beats and beats[place].disk != configuration.disks[place] and not out[place]
        ]  # fmt: skip
        if lost:
            return Proposal(why=f"{_names(known, lost)} came back without its disk, and may have had the last commands")
        patient = any(place not in restarted and not out[place] for place in configuration.places)
    else:
        patient = bool(missing) and known.patient
    if not restarted or patient:
        waits = [place for place in configuration.places if place not in restarted]
        return Proposal(why=f"waits for {_names(known, waits)}, who has all that was confirmed")
    chain = tuple((place, beats[place].life) for place in restarted)
    return Proposal(Configuration(chain, configuration.disks, out, True, known.line))


def _hearers(beats: Mapping[int, Beat], place: int) -> int:
    return sum(1 for each, beat in beats.items() if each != place and beat.hears >> place & 1)


def _apart(beats: Mapping[int, Beat], stay: list[int]) -> int | None:
    """Return of the first two neighbours that do not hear each other the one that fewer hear."""
    for before, after in pairwise(stay):
        one, other = beats.get(before), beats.get(after)
        deaf = (one is not None and not one.hears >> after & 1) or (other is not None and not other.hears >> before & 1)
        if deaf:
            return before if _hearers(beats, before) < _hearers(beats, after) else after
    return None


def _names(known: ChainView, places: list[int]) -> str:
    return ", ".join(known.names[place] for place in places)
