"""The ways from one endpoint to all others, in a network that does not change: one to each, or two.

Of one way each the *shortest* is taken. All of these are parts of one tree.

Two ways share no hop and no link but those that every way has, and both are parts of trees too, the same for all
receivers. So there are two copies of a message and no more, and two messages never take different ways to the same
endpoint: whichever copy comes first, they do not overtake each other. Neither tree is that of the shortest ways. With
the shortest way as one of two the other may have to share what it could have spared, and other ways of all receivers do
not fit into one tree: in a ring each half is the second way to the other.

Where two ways without a common hop lead is a *block*: hops that no single one of them divides. It is entered over one
hop, its *root*, and put into an order in which each other hop has a neighbour before it and one behind it, where the
root counts as both the first and the last. One way then only rises in this order, the other only falls. The order is
made of *ears*: a way over new hops between two that have a place is put between these.

Source: shortest ways as OSPF has them (RFC 2328); two ways after the redundant trees of Médard and others (1999) and
RFC 7811. Departure: ears are short ones, found breadth first, which costs some speed in a long chain of blocks, and
has ways of about the shortest length.

``Side`` is the part of the network behind one neighbour, found from link states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import inf
from typing import Final, TypeAlias

from chappe.mesh.filters import NOTHING, Filter
from chappe.mesh.link_states import KnownEndpoint


class Side:
    """The endpoints that ``own`` reaches through its neighbour ``peer``, by all ``known`` link states."""

    __slots__ = ("_known", "_own", "endpoints", "filter", "forwarding", "listed", "originals")

    def __init__(self, peer: bytes, own: bytes, known: Mapping[bytes, KnownEndpoint]) -> None:
        self._own = own
        self._known = known
        self.forwarding: set[bytes] = set()
        self.endpoints = {peer}  # those too that do not forward
        self.listed: set[bytes] = set()  # whom those that forward name as neighbours, whether it is confirmed or not
        self.originals: dict[bytes, dict[bytes, Filter]] = {}  # original: who is linked to it, and what it wants
        self.filter: Filter = NOTHING
        made = known.get(peer)
        if made is not None and made.forwards:
            self.forwarding.add(peer)
            self._go_on(peer, made)

    def add(self, origin: bytes, made: KnownEndpoint) -> set[bytes]:
        """Add a link state that only adds; returns the endpoints newly in reach."""
        found: set[bytes] = set()
        if origin not in self.endpoints:
            if not any(origin in self._known[each].chappe for each in made.chappe & self.forwarding):
                return found
            found.add(origin)
            self.endpoints.add(origin)
            if made.forwards:
                self.forwarding.add(origin)
        return found | self._go_on(origin, made) if origin in self.forwarding else found

    def _go_on(self, at: bytes, known: KnownEndpoint) -> set[bytes]:
        """Add what can be reached over an endpoint here that forwards; returns whom."""
        found: set[bytes] = set()
        edge = [(at, known)]
        while edge:
            at, known = edge.pop()
            self.listed |= known.chappe
            for original, wanted in known.originals:
                if original != self._own:
                    self.originals.setdefault(original, {})[at] = wanted
            for each in known.chappe - self.endpoints:
                beyond = self._known.get(each)
                if beyond is None or at not in beyond.chappe:
                    continue
                self.endpoints.add(each)
                found.add(each)
                if beyond.forwards:
                    self.forwarding.add(each)
                    edge.append((each, beyond))
        return found


_STEP_MIN: Final = 1e-9  # between two places, which are numbers up to that of all endpoints

Tree: TypeAlias = tuple[frozenset[bytes], dict[bytes, list[bytes]]]  # receivers, and of each hop those below it
Parents: TypeAlias = dict[bytes, bytes]  # of each endpoint the hop before it


class Ways:
    """Ways from ``own``.

    Args:
        links: The endpoints of chappe beside it.
        known: The link states of all others; a link between these counts if both tell of it.
        speakers: Who speaks with an original, of those that somebody does.

    ``distances`` has how many hops away everybody is, and over which neighbour. An original is one hop behind the
    endpoint that speaks with it.
    """

    def __init__(
        self, own: bytes, links: Iterable[bytes], known: Mapping[bytes, KnownEndpoint], speakers: Mapping[bytes, bytes]
    ) -> None:
        self._own = own
        self._links = sorted(links)
        self._known = known = dict(known)  # as it is now
        self._two: tuple[Parents, Parents] | None = None  # once somebody asks
        self._parents = dict.fromkeys(self._links, own)
        found = {each: (1, each) for each in self._links}
        originals: dict[bytes, tuple[int, bytes]] = {}  # apart: whoever calls an endpoint one takes it off no way
        edge = list(self._links)
        for at in edge:  # grows meanwhile
            here = known.get(at)
            if here is None or not here.forwards:
                continue
            beside = (found[at][0] + 1, found[at][1])
            for original, _ in here.originals:
                if speakers.get(original) in (at, None):
                    originals[original] = min(beside, originals.get(original, beside))
            for each in sorted([each for each in here.chappe if each not in found]):
                beyond = known.get(each)
                if each != own and beyond is not None and at in beyond.chappe:
                    found[each] = beside
                    self._parents[each] = at
                    edge.append(each)
        self.distances = originals | found

    def lead_to(self, endpoint: bytes) -> bool:
        return endpoint in self._parents

    def tree(self, receivers: frozenset[bytes]) -> Tree:
        return self._join(self._parents, receivers)

    def two_trees(self, receivers: frozenset[bytes]) -> list[Tree]:
        """Two trees that lead to ``receivers``; the second one only to those to which another way leads."""
        if self._two is None:
            self._two = _Blocks(self._own, self._links, self._known).two_ways()
        one, two = self._two
        twice = frozenset([each for each in receivers if self._differ(each, one, two)])
        return [self._join(one, receivers), *([self._join(two, twice)] if twice else [])]

    def _differ(self, at: bytes, one: Parents, two: Parents) -> bool:
        while at != self._own:
            if one[at] != two[at]:
                return True
            at = one[at]
        return False

    def _join(self, parents: Parents, receivers: frozenset[bytes]) -> Tree:
        below: dict[bytes, list[bytes]] = {}
        on_it = {self._own}
        for at in receivers:
            while at not in on_it:
                on_it.add(at)
                below.setdefault(parents[at], []).append(at)
                at = parents[at]
        for each in below.values():
            each.sort()
        return receivers, below


class _Block:
    """A root, and those behind it in their order."""

    def __init__(self, root: bytes, ear: list[bytes]) -> None:
        self.root = root
        self.last = ear[-1]
        self.place = {each: float(number) for number, each in enumerate((root, *ear))}
        self._next = dict(pairwise((root, *ear)))

    def order(self) -> list[bytes]:
        found = [self._next[self.root]]
        while found[-1] != self.last:
            found.append(self._next[found[-1]])
        return found

    def insert(self, one: bytes, two: bytes, ear: list[bytes]) -> None:
        """Put an ear between two hops, the first beside ``one``."""
        place = self.place
        if place[two] < place[one]:
            one, ear = two, ear[::-1]
        behind = self._next[one]
        step = (place[behind] - place[one]) / (len(ear) + 1)
        if step < _STEP_MIN:
            place.update((each, float(number)) for number, each in enumerate(self.order(), 1))
            step = 1.0 / (len(ear) + 1)
        place.update((each, place[one] + number * step) for number, each in enumerate(ear, 1))
        self._next.update(pairwise((one, *ear, behind)))


class _Blocks:
    """The blocks behind ``own`` of those that forward."""

    def __init__(self, own: bytes, links: list[bytes], known: Mapping[bytes, KnownEndpoint]) -> None:
        self._own = own
        self._links = links
        self._beside_own = frozenset(links)
        self._known = known
        self._beside: dict[bytes, tuple[list[bytes], list[bytes]]] = {}  # see ``_look``
        self._blocks: list[_Block] = []  # a root is in an earlier one
        self._of: dict[bytes, _Block | None] = {own: None}
        edge = [own]
        for at in edge:  # grows meanwhile
            for start in self._look(at)[0]:
                if start not in self._of:
                    edge += self._add_ear(at, start)

    def two_ways(self) -> tuple[Parents, Parents]:
        """The one that rises and the one that falls, of all who are reached."""
        own = self._own
        one: Parents = {}
        two: Parents = {}
        hops_one, hops_two = {own: 0}, {own: 0}
        behind: dict[bytes, list[list[bytes]]] = {}
        for block in self._blocks:
            root, place, order = block.root, block.place, block.order()
            behind.setdefault(root, []).append(order)
            for each in order:  # a link to the root is in one of the ways, unless there is nothing else
                before = [hop for hop in self._look(each)[0] if place.get(hop, inf) < place[each]]
                if each == block.last and root in before and len(before) > 1:
                    before.remove(root)
                one[each] = min(before, key=hops_one.__getitem__)
                hops_one[each] = hops_one[one[each]] + 1
            for each in reversed(order):
                after = [hop for hop in self._look(each)[0] if place.get(hop, 0.0) > place[each]] or [root]
                two[each] = min(after, key=hops_two.__getitem__)
                hops_two[each] = hops_two[two[each]] + 1
        waiting = [own]
        while waiting:  # in the order of all blocks, each right behind its root, the first and the last beside an end
            at = waiting.pop()
            for end in self._look(at)[1]:
                one.setdefault(end, at)
                two[end] = at
            for order in behind.get(at, ()):
                waiting += reversed(order)
        return one, two

    def _look(self, at: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the neighbours of a hop that pass messages on, and those that do not."""
        found = self._beside.get(at)
        if found is None:
            own, known = self._own, self._known
            if at == own:
                there = self._links
            else:
                there = [each for each in sorted(known[at].chappe) if each in known and at in known[each].chappe]
            on = [each for each in there if each in known and known[each].forwards]
            ends = [each for each in there if each not in known or not known[each].forwards]
            if at in self._beside_own:
                on.append(own)
            found = self._beside[at] = on, ends
        return found

    def _add_ear(self, at: bytes, start: bytes) -> list[bytes]:
        """Give a place to ``start``, which is beside ``at``, and to those on the shortest way back from it."""
        before: dict[bytes, bytes] = {start: at}
        last, end = start, at  # a link that nothing goes around
        edge = [start]
        for here in edge:  # grows meanwhile
            for each in self._look(here)[0]:
                if each not in self._of:
                    if each not in before:
                        before[each] = here
                        edge.append(each)
                elif each != at:
                    last, end = here, each
                    break
                elif here != start and last == start:
                    last = here
            if end != at:
                break
        ear = [last]
        while ear[-1] != start:
            ear.append(before[ear[-1]])
        ear.reverse()
        if end == at:  # nothing leads there but over this hop
            block = _Block(at, ear)
            self._blocks.append(block)
        else:  # they are in one block, of which one of them may be the root
            found = self._of[at]
            if found is None or end not in found.place:
                found = self._of[end]
            assert found is not None
            block = found
            block.insert(at, end, ear)
        self._of.update(dict.fromkeys(ear, block))
        return ear
