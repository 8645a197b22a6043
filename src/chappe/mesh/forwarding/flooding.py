"""How link states get to everybody, with about a frame for each link and direction and each change.

- A link state goes to every neighbour but the one that brought it, and but those that its endpoint tells itself: those
  that it names as neighbours and that name it. If such a link turns out to have ended, what may not have come over it
  is sent after all.
- While several links of ours come or go, those of others wait a little, as does our own (``Topology.tell``): the newer
  replaces the older, and neighbours that have brought the same meanwhile need not get it. What somebody wants never
  waits; nor does anything wait once messages pass, for these are only taken from where their origin is known to be.
- A neighbour that takes less than it is told gets no more for now, rather than be given up; once it has caught up it is
  asked what it has, as below.
- A new neighbour that could not be reached before is told everything. To one that could, and to each neighbour in turn
  now and then, we say which versions we have; both then send what the other lacks. So tables that differ, for whatever
  reason, are the same again.

Source: flooding and the exchange of summaries of OSPF (RFC 2328, 10.6 and 13). Departures: no acknowledgement, since
links lose nothing while they stand; no ages, since link states without a path are no longer told after a while, and
forgotten later, and others are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final
from zlib import crc32

from chappe.core import Effect
from chappe.defaults import COMPARE_PAUSE_S, COMPARE_S, ENDPOINTS_MAX, TELL_PAUSE_MAX_S, TTL
from chappe.errors import ProtocolError
from chappe.mesh.forwarding.judging import MessageJudge
from chappe.mesh.link_states import KnownEndpoint, Verdict
from chappe.mesh.links.link import Link
from chappe.mesh.messages import (
    LINK_STATE,
    LINK_STATES_HAD,
    NOBODY,
    RESERVED_TOPIC,
    Message,
    pack_link_state,
    pack_message,
    parse_link_state,
    peek_link_state,
)
from chappe.mesh.topology import Topology

_HAD: Final = struct.Struct(">16sQI")  # origin, version, checksum of the payload
_ALL: Final = b"\x01"  # what is not listed is not there
_SOME: Final = b"\x00"  # only what is listed is asked for

_NONE: Final = 0, 0

Versions = dict[bytes, tuple[int, int]]  # by endpoint: version and checksum


NOTHING_TO_DO: Final[tuple[Effect, ...]] = ()


class Flooding:
    """Tells neighbours link states, our own and those of others; ``put`` puts a control frame for a link."""

    def __init__(
        self,
        own: bytes,
        forwards: bool,
        topology: Topology,
        links: dict[bytes, Link],
        judge: MessageJudge,
        put: Callable[[Link, bytes], None],
    ) -> None:
        self._own = own
        self._forwards = forwards
        self._topology = topology
        self._links = links
        self._judge = judge
        self._put = put
        self._told = b""  # the frame that tells our link state, as it was told last
        self._told_version = 0, 0  # its version and checksum
        self.held: dict[bytes, set[bytes]] = {}  # endpoints whose link states wait, and who has them already
        self._held_since = -inf
        self._held_until = inf
        self._compare_at = inf
        self._compared = NOBODY  # the neighbour that was asked last
        self._behind: dict[bytes, None] = {}  # neighbours that were not told something, as they take little ...
        self._catch_up_at = inf  # ... and when it is looked whether they can be
        self._believed: set[bytes] = set()  # neighbours that may tell the link states of others
        self._answered: dict[bytes, float] = {}  # neighbours: when what they have was looked through last

    @property
    def due(self) -> float:
        if self._behind and self._catch_up_at == inf:
            return -inf
        told_at = min(self._topology.telling.tell_at, self._topology.telling.outdo_at)
        return min(told_at, self._held_until, self._compare_at, self._catch_up_at)

    def link_up(self, link: Link, reached: bool, now: float) -> None:
        """Note a link to another endpoint of chappe; ``reached`` if there was a path to it before."""
        topology = self._topology
        if self._is_believed(link.peer_id):
            self._believed.add(link.peer_id)
        if not link.told:
            self._put(link, self._told)
        if reached and self._forwards:
            self._say_what_we_have(link, now)
        else:
            for frame in topology.others(link.peer_id, now):
                self._put(link, frame)
        if self._compare_at == inf:
            self._compare_at = now + COMPARE_S

    def link_down(self, peer: bytes) -> None:
        """Note a link that ended; if we pass nothing on, nobody has heard of us what the peer told of others."""
        self._answered.pop(peer, None)
        self._believed.discard(peer)
        self._behind.pop(peer, None)
        if not self._forwards:
            self._compare_at = -inf

    def set_rules(self, forwards: bool, now: float) -> None:
        """Take other permissions; ``forwards``: we may pass on link states of others. Those that nobody believed before
        are compared: at once, and once more when the neighbour has these permissions too.
        """
        begins, self._forwards = forwards and not self._forwards, forwards
        believed, self._believed = self._believed, set(filter(self._is_believed, self._links))
        for peer, link in self._links.items():
            if link.chappe and (begins or peer in self._believed - believed):
                self._say_what_we_have(link, now)
                self._behind[peer] = None

    def _is_believed(self, peer: bytes) -> bool:
        return self._judge.passes_on(self._links[peer])

    def tell(self, now: float) -> list[Effect]:
        """Announce our link state if it changed, pass on those that wait, compare with a neighbour."""
        actions: list[Effect] = []
        state = self._topology.tell(now)
        if state is not None:
            self._told = pack_link_state(self._own, state)
            self._told_version = state.version, crc32(KnownEndpoint(state, self._told).payload)
            for link in self._links.values():
                link.told = True
            actions += self._send(self._told, [link for link in self._links.values() if link.chappe])
        if now >= self._held_until:  # while more links came, it became longer
            self._held_until = min(self._topology.telling.holds_until(now), self._held_since + TELL_PAUSE_MAX_S)
            if now >= self._held_until:
                actions += self._pass_on_held()
        if now >= self._compare_at:
            actions += self._compare(now)
        if self._behind and self._catch_up_at == inf:
            self._catch_up_at = now + COMPARE_PAUSE_S
        elif now >= self._catch_up_at:
            actions += self._catch_up(now)
        return actions

    def hurry(self, now: float) -> list[Effect]:
        """Send waiting link states before a message, which others take only from where they know it to be."""
        self._topology.telling.hurry()
        return [*self._pass_on_held(), *self.tell(now)]

    def reconsider(self, now: float) -> list[Effect]:
        """Reconsider doubtful link states in a changed network; pass on those that others may have forgotten."""
        actions: list[Effect] = []
        for origin, peer in self._topology.reconsider(now):
            actions += self._pass_on(origin, {peer})
        states = self._topology.states
        returned, states.returned = states.returned, []
        for origin in returned:
            if origin in states.known and origin not in self._links:  # a neighbour tells its own anyway
                actions += self._pass_on(origin, set())
        return actions + self._bring_doubts(now)

    # -- what comes -------------------------------------------------------------------------------

    def take(self, link: Link, message: Message, now: float) -> Sequence[Effect]:
        """Take a link state, or a neighbour's list of its link states."""
        if message.kind == LINK_STATES_HAD:
            return self._take_versions(link, message.payload, now)
        topology, payload = self._topology, message.payload
        origin, version = peek_link_state(payload)
        if message.receiver not in (NOBODY, self._own):
            return self._bring_doubt(link.peer_id, payload, message.ttl - 1)
        if topology.states.is_old(link.peer_id, origin, version, payload):  # most come several times
            return self._take_old(link, origin, version, payload)
        if origin not in (link.peer_id, self._own) and not self._judge.may_tell(link):
            return NOTHING_TO_DO
        frame = pack_message(self._own, NOBODY, LINK_STATE, TTL, RESERVED_TOPIC, payload)
        absent = not topology.reaches(origin)
        former = topology.states.known.get(origin)
        state = parse_link_state(payload)
        if origin == link.peer_id and (former is None or former.state.filter != state.filter):
            self._judge.subscribed(link, state.filter)
        verdict = topology.learn(state, frame, link.peer_id, now)
        if verdict is Verdict.DOUBTED:
            return self._bring_doubts(now)
        if verdict is not Verdict.NEWS:
            return NOTHING_TO_DO
        if not self._forwards:
            # We pass nothing on; but others may know better of an endpoint that was absent.
            return self._send(self._to_its_endpoint(origin), self._but({link.peer_id})) if absent else NOTHING_TO_DO
        actions: list[Effect] = []
        known = topology.states.known[origin]
        if origin == link.peer_id and former is not None:
            actions += self._send_missed(link, former.chappe - known.chappe)
        holds_until = topology.telling.holds_until(now)
        if holds_until > now and (former is None or known.wants_as(former)):
            if not self.held:
                self._held_since, self._held_until = now, holds_until
            self.held[origin] = {link.peer_id}
            return actions
        return actions + self._pass_on(origin, {link.peer_id})

    def _take_old(self, link: Link, origin: bytes, version: int, payload: bytes) -> Sequence[Effect]:
        known = self._topology.states.believed(origin, version, payload)
        if known is None:
            return NOTHING_TO_DO
        if known.payload == payload:
            if origin in self.held:
                self.held[origin].add(link.peer_id)
            return NOTHING_TO_DO
        # Its endpoint may live anew with a clock that was set back, or somebody may have spoken in its name.
        frame = known.frame if self._forwards or origin == link.peer_id else self._to_its_endpoint(origin)
        return self._send(frame, (link,))

    def _send_missed(self, link: Link, ended: Iterable[bytes]) -> list[Effect]:
        """Send link states again that a neighbour heard over lost links alone: they may not have come."""
        known = self._topology.states.known
        missed = [known[each].frame for each in sorted(ended) if each in known and link.peer_id in known[each].chappe]
        return [action for frame in missed for action in self._send(frame, (link,))]

    # -- passing on -------------------------------------------------------------------------------

    def _pass_on(self, origin: bytes, had: set[bytes]) -> list[Effect]:
        """Send a link state to neighbours to which it may be new; ``had`` are those that brought it."""
        self.held.pop(origin, None)
        if not self._forwards:
            return []
        known = self._topology.states.known
        made = known[origin]
        told = {each for each in self._links.keys() & made.chappe if each in known and origin in known[each].chappe}
        return self._send(made.frame, self._but(told | had))

    def _pass_on_held(self) -> list[Effect]:
        self._held_until = inf
        actions: dict[Effect, None] = {}
        for origin, had in sorted(self.held.items()):
            if origin in self._topology.states.known:
                actions.update(dict.fromkeys(self._pass_on(origin, had)))
        self.held.clear()
        return list(actions)

    def _bring_doubts(self, now: float) -> list[Effect]:
        actions: list[Effect] = []
        for made, peer in self._topology.states.to_bring(now):
            actions += self._bring_doubt(peer, made.payload, TTL)
        return actions

    def _bring_doubt(self, source: bytes, payload: bytes, ttl: int) -> Sequence[Effect]:
        """Pass a link state on that came from where its endpoint is not: to that endpoint alone, over one way."""
        origin, version = peek_link_state(payload)
        peer = self._topology.towards(origin)
        if not self._forwards or ttl <= 0 or self._topology.states.believed(origin, version, payload) is not None:
            return NOTHING_TO_DO
        if peer is None and origin in self._topology.states.known:
            self._topology.states.asked.add(origin)  # what we know is passed on once it is back, and finds the doubt
        if peer is None or peer == source or peer not in self._links:
            return NOTHING_TO_DO
        frame = pack_message(self._own, origin, LINK_STATE, ttl, RESERVED_TOPIC, payload)
        return self._send(frame, (self._links[peer],))

    def _but(self, peers: set[bytes]) -> list[Link]:
        return [link for link in self._links.values() if link.chappe and link.peer_id not in peers]

    def _send(self, frame: bytes, links: Sequence[Link]) -> list[Effect]:
        for link in links:
            if link.outbox.crowded:
                self._behind[link.peer_id] = None
            else:
                self._put(link, frame)
        return [link.flush for link in links]

    # -- comparing --------------------------------------------------------------------------------

    def _compare(self, now: float) -> list[Effect]:
        self._compare_at = inf
        peers = sorted(peer for peer, link in self._links.items() if link.chappe)
        if not peers:
            return []
        self._compare_at = now + COMPARE_S
        self._compared = next((each for each in peers if each > self._compared), peers[0])
        link = self._links[self._compared]
        self._say_what_we_have(link, now)
        return [link.flush]

    def _catch_up(self, now: float) -> list[Effect]:
        found = [self._links[each] for each in self._behind]
        found = [link for link in found if not link.outbox.crowded]
        for link in found:
            del self._behind[link.peer_id]
            self._say_what_we_have(link, now)
        self._catch_up_at = now + COMPARE_PAUSE_S if self._behind else inf
        return [link.flush for link in found]

    def _say_what_we_have(self, link: Link, now: float) -> None:
        offered = {each: entry for each, entry in self._versions().items() if self._is_offered(each, now)}
        self._put(link, self._pack_versions(_ALL, offered))

    def _pack_versions(self, scope: bytes, versions: Versions) -> bytes:
        payload = scope + b"".join([_HAD.pack(origin, *entry) for origin, entry in versions.items()])
        return pack_message(self._own, NOBODY, LINK_STATES_HAD, TTL, RESERVED_TOPIC, payload)

    def _take_versions(self, link: Link, payload: bytes, now: float) -> Sequence[Effect]:
        """Send what a neighbour lacks, and ask for what we lack."""
        count, rest = divmod(len(payload) - 1, _HAD.size)
        if rest or not 0 <= count <= ENDPOINTS_MAX + 1:
            raise ProtocolError("a list of link states is cut off or too long")
        theirs: Versions = {origin: (version, check) for origin, version, check in _HAD.iter_unpack(payload[1:])}
        mine = self._versions()
        offered = list(mine)
        lacking: Versions = {}
        if payload[:1] == _ALL:
            if now < self._answered.get(link.peer_id, -inf) + COMPARE_PAUSE_S:
                return NOTHING_TO_DO  # it asks often what takes long
            self._answered[link.peer_id] = now
            lacking = {each: mine.get(each, _NONE) for each in theirs if _is_older(mine.get(each, _NONE), theirs[each])}
        else:
            offered = [each for each in offered if each in theirs]
        offered = [each for each in offered if _is_older(theirs.get(each, _NONE), mine[each])]
        # Who has none may have forgotten it; who has an older one is to know what its endpoint has to outdo.
        offered = [each for each in offered if theirs.get(each, _NONE) != _NONE or self._is_offered(each, now)]
        frames = [self._frame(each) for each in offered if self._forwards or each in (self._own, link.peer_id)]
        if not self._forwards:  # nothing comes through us; but whoever it is of is to know, and to say better
            others = [each for each in offered if each not in (self._own, link.peer_id) and each in theirs]
            frames += [self._to_its_endpoint(each) for each in others]
        if lacking:
            frames.append(self._pack_versions(_SOME, lacking))
        return [action for frame in frames for action in self._send(frame, (link,))][:1]

    def _is_offered(self, origin: bytes, now: float) -> bool:
        return origin == self._own or self._topology.states.known[origin].is_offered(now)

    def _versions(self) -> Versions:
        known = self._topology.states.known
        found = {origin: (known[origin].state.version, crc32(known[origin].payload)) for origin in sorted(known)}
        if self._told:
            found[self._own] = self._told_version
        return found

    def _to_its_endpoint(self, origin: bytes) -> bytes:
        payload = self._topology.states.known[origin].payload
        return pack_message(self._own, origin, LINK_STATE, TTL, RESERVED_TOPIC, payload)

    def _frame(self, origin: bytes) -> bytes:
        return self._told if origin == self._own else self._topology.states.known[origin].frame


def _is_older(one: tuple[int, int], two: tuple[int, int]) -> bool:
    """Return whether the second version may be newer than the first; of one version all take the same state."""
    return one != two and one[0] <= two[0]
