"""Messages that leave along trees of our own: publications and detours (``version2``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final
from zlib import crc32

from chappe.defaults import (
    DETOURS_MAX,
    DOUBT_S,
    LANES_MAX,
    LINK_STATE_STEP_MAX,
    TREES_MAX,
)
from chappe.mesh.flows import (
    DETOUR,
    KIND_AT,
    PREFIX,
    Hop,
    check_size,
    inner,
    pack_batch,
    pack_detour,
    pack_hops,
    pack_onward,
    pack_publication,
    parse_detour,
    parse_head,
    run_of,
    with_time,
    without_time,
)
from chappe.mesh.forwarding.branches import Branch, Child, Key
from chappe.mesh.forwarding.kept import KeptMessages, Put
from chappe.mesh.forwarding.losses import LossReason
from chappe.mesh.forwarding.order import Keys
from chappe.mesh.links.link import micros
from chappe.mesh.messages import DATA, ID_BYTES, LOSS, NOBODY
from chappe.mesh.places import Places

# What has never been sent gets its number only when it is: behind whatever has one, and may have to go another way.
_UNSENT: Final = 2**52


class Published(KeptMessages):
    """Trees of ours, and the order of messages along them."""

    def to(self, receivers: frozenset[bytes], paths: int = 1, topic: bytes = b"") -> Branch | None:
        """Return the tree to all of these that have a way, with a second one if there are two; None if nobody has.

        It is for ``topic`` alone, or a few, if the one for all topics is held.
        """
        return self._to(Key(receivers, paths, lane=self._lane(receivers, topic) if self.lanes else b""))

    def is_held(self, branch: Branch) -> bool:
        """Return whether nothing is to be published along a tree of ours for now."""
        waits = self._holds.waits
        return branch in waits or (branch.second is not None and branch.second in waits)

    def part(self, branch: Branch) -> bool:
        """Give the topics that share a tree of ours one each; False if they have."""
        key = branch.key
        if key is None or key.lane or key.receivers in self.lanes or not self._holds.has(branch):
            return False
        self.lanes[key.receivers] = {}
        return True

    def _lane(self, receivers: frozenset[bytes], topic: bytes) -> bytes:
        lanes = self.lanes.get(receivers)
        if lanes is None:
            return b""
        if topic in lanes or sum(map(len, self.lanes.values())) < LANES_MAX:
            return lanes.setdefault(topic, topic)
        return list(lanes)[crc32(topic) % len(lanes)] if lanes else b""

    def _to(self, key: Key) -> Branch | None:
        self._survey()
        branch = self._mine.get(key)
        if branch is None or branch.checked != self._look:
            branch = self._renew(key, branch)
        return branch if branch.children else None

    def _renew(self, key: Key, former: Branch | None) -> Branch:
        before = [] if former is None else former.both()
        found: list[Branch] = []
        for hops in self._hops(key):
            same = [each for each in before if each.leads_by(hops)]
            found.append(same[0] if same else self._make(self._own, NOBODY, 0, False, hops))
        while former is None and len(self._mine) >= TREES_MAX:
            self._retire(next(iter(self._mine)))
        branch = self._mine[key] = found[0]
        branch.second = found[1] if len(found) > 1 else None
        if branch.second is not None:
            branch.second.second = branch
        timed = self._topology.are_timed(key.receivers, [hop for each in found for hop in each.hops()])
        for each in found:
            each.key, each.checked, each.timed = key, self._look, timed
        for each in before:
            if each not in found:
                self._let_be(each)
        return branch

    def _hops(self, key: Key) -> list[list[Hop]]:
        """Return the hops beside us of the tree for ``key``, and of the second one if there is one."""
        ways, twice = self._topology.ways(), key.twice
        there = frozenset(filter(ways.lead_to, key.receivers))
        trees = [ways.tree(there)] if key.paths == 1 else ways.two_trees(there)
        if len(trees) > 1:
            twice = trees[1][0]
        waits = self._blocks and key.carried == NOBODY
        return [pack_hops(self._own, reached, below, twice, waits) for reached, below in trees]

    def _survey(self) -> None:
        """Look once after each change for messages under way along former ways of ours."""
        if self._surveyed == self._look:
            return
        self._surveyed = self._look
        for branch in self._labels.values():
            if branch.key is None or branch.checked == self._look:
                continue
            under_way = [child for child in branch.children.values() if child.kept]
            if under_way:
                right = [hop for hops in self._hops(branch.key) for hop in hops]
                former = [child for child in under_way if child.hop not in right]
                self.order.begin(branch, former, partial(_keys, branch.key.carried))

    def _retire(self, key: Key) -> None:
        former = self._mine.pop(key)
        if former.checked == self._look:
            self._outdate()
        for each in former.both():
            self._let_be(each)

    def _let_be(self, branch: Branch) -> None:
        branch.used = False
        self._drain(branch)

    def publish(
        self, branch: Branch, kind: int, receiver: bytes, topic: bytes, payload: bytes, published: float, place: int
    ) -> None:
        """Send a message along a tree of ours, or let it wait until those that went another way have arrived."""
        if self.order.held and (key := branch.key) is not None and self.order.holds(key.receivers):
            check_size(topic, payload)
            later = partial(self._publish_late, key, kind, receiver, topic, payload, published, place)
            self.number += 1
            size = len(topic) + len(payload)
            self.order.put(key.receivers, self.number + _UNSENT, size, later, partial(self._has_room, key))
            return
        number = self.number = self.number + 1
        frame = pack_publication(self._own, number, branch.label, kind, receiver, topic, payload, place)
        if branch.timed and kind == DATA:
            frame = with_time(frame, micros(published))
        branch.came = number
        put, links, entry, size = self._put, self._links, (number, frame), len(frame)
        judged = self._judge.rules is not None
        for peer, child in branch.children.items():
            link = links[peer]
            if judged and not self._judge.gives(link, topic):
                self._lose(child, frame[PREFIX:], child.receivers, LossReason.NOT_ALLOWED)
                continue
            if child.conn != link.conn and not self._announce(branch, child, link):
                self._lose(child, frame[PREFIX:], child.receivers, LossReason.FULL)
                continue
            if link.outbox.add(frame) or put(link, frame):
                child.kept.append(entry)
                link.kept_bytes += size
                if link.kept_bytes > self._ahead_bytes:
                    self._look_ahead(branch, child, link)
        second = branch.second
        if second is not None:
            second.came = number
            frame = pack_onward(frame[PREFIX:], second.label)
            for child in second.children.values():
                self._send(second, child, number, frame, put)

    def publish_many(
        self, branch: Branch, topic: bytes, payloads: Sequence[bytes], published: float, places: Places
    ) -> None:
        """Send messages of data along a tree of ours, in order and in few frames. Raises as ``publish``."""
        if self.order.held:
            for payload in payloads:
                check_size(topic, payload)
                self.publish(branch, DATA, NOBODY, topic, payload, published, places.take(topic))
            return
        at = 0
        while at < len(payloads):
            run = run_of(payloads, at, self._batch_messages_max, self._batch_bytes_max)
            at += len(run)
            if len(run) == 1:
                check_size(topic, run[0])
                self.publish(branch, DATA, NOBODY, topic, run[0], published, places.take(topic))
                continue
            number = self.number = self.number + len(run)
            place = places.take(topic, len(run)) + len(run) - 1
            for way in branch.both():
                way.came = number
                frame = pack_batch(self._own, number, way.label, topic, run, place)
                if way.timed:
                    frame = with_time(frame, micros(published))
                for child in way.children.values():
                    self._send(way, child, number, frame, self._put_batch)

    def _publish_late(
        self, key: Key, kind: int, receiver: bytes, topic: bytes, payload: bytes, published: float, place: int
    ) -> None:
        branch = self._to(key)
        number = self.number = self.number + 1
        missing = frozenset([each for each in key.receivers if not self._topology.has_way(each)])
        if missing:
            self._losses.add(NOBODY, self._own, topic, LossReason.NO_WAY, missing)
        if branch is not None:
            for each in branch.both():
                frame = pack_publication(self._own, number, each.label, kind, receiver, topic, payload, place)
                if each.timed and kind == DATA:
                    frame = with_time(frame, micros(published))
                each.came = number
                for child in each.children.values():
                    self._send(each, child, number, frame, self._put)

    def tell(self, branch: Branch, receiver: bytes, topic: bytes, payload: bytes) -> None:
        """Send a report of a loss along a tree of ours, past the bounds of messages."""
        number = self.number = self.number + 1
        frame = pack_publication(self._own, number, branch.label, LOSS, receiver, topic, payload)
        branch.came = number
        for child in branch.children.values():
            self._send(branch, child, number, frame, self._put_anyway)

    def go_on(self, now: float) -> None:
        self._survey()
        self.order.go_on(now)

    def _has_room(self, key: Key) -> bool:
        branch = self._to(key)
        return branch is None or not any(link.outbox.full for link in self.peers(branch))

    def number_from(self, number: int) -> None:
        """Begin numbers above this one, as an earlier life of ours may have used those up to it."""
        if number > self.number:
            self.number = number
            for key in list(self._mine):
                self._retire(key)

    def outdo(self, number: int, now: float) -> None:
        """Begin numbers above this one, up to which our messages are taken for old, if all would take that."""
        highest = self._topology.telling.number_limit(now) - LINK_STATE_STEP_MAX
        if self.number < number < highest and now >= self._outdone_at + DOUBT_S:
            self._outdone_at = now
            self.number_from(number)

    def changed(self) -> None:
        """Note that the network, or a filter, has changed: our trees may be wrong."""
        self._look += 1
        self.lanes.clear()

    def _send(self, branch: Branch, child: Child, number: int, frame: bytes, put: Put) -> None:
        link = self._links.get(child.hop.id)
        ours = branch.upstream == NOBODY
        if link is None or not link.chappe or (not ours and (branch.origin, child.hop.id) in self._around):
            if ours:  # it is right as of the last look at the network, so this is a defect: rather lose than go round
                self._lose(child, inner(frame[PREFIX:]), child.receivers, LossReason.NO_WAY)
            else:
                self._send_around(branch, child, number, frame[PREFIX:])
            return
        if self._judge.rules is not None and not self._judge.gives_on(link, frame[PREFIX:]):
            self._lose(child, inner(frame[PREFIX:]), child.receivers, LossReason.NOT_ALLOWED)
            return
        if child.conn != link.conn and not self._announce(branch, child, link):
            self._lose(child, inner(frame[PREFIX:]), child.receivers, LossReason.FULL)
            return
        self.flushes[link.conn] = link.flush
        if put(link, frame):
            child.kept.append((number, frame))
            link.kept_bytes += len(frame)
            if link.kept_bytes > self._ahead_bytes:
                self._look_ahead(branch, child, link)

    def _send_around(self, branch: Branch, child: Child, number: int, body: bytes, spared: bytes = NOBODY) -> bool:
        """Send a message around a hop to its receivers; ``spared`` has it. Return False if some do not get it."""
        before = 0
        if body[KIND_AT] == DETOUR:
            before, body = parse_detour(body)
            before += 1
        wanted = child.receivers - {spared, self._own}
        there = frozenset(filter(self._topology.has_way, wanted)) if before < DETOURS_MAX else frozenset[bytes]()
        if there != wanted:
            self._lose(child, body, wanted - there, LossReason.NO_WAY)
        if there:
            self._survey()
            origin = body[:ID_BYTES]
            # A message is confirmed with all before it on its tree. So detours have trees of their own, by how many
            # there were: each waits for further detours only, and never two for each other.
            key = Key(there, 1, child.twice & there, NOBODY if origin == self._own else origin, before + 1)
            child.begin()
            child.detoured.append(number)
            self._around[branch.origin, child.hop.id] += 1
            go, room = partial(self._go_around, branch, child, number, before, body, key), partial(self._has_room, key)
            keys = _keys(key.carried, there)
            given = parse_head(body)[1]
            self.order.came_back(keys, given)
            if self.order.holds(keys, given) or not room():  # all that is kept may be more than a box takes
                self.order.put(keys, given, len(body), go, room)
            else:
                go()
        return there == wanted

    def _go_around(self, branch: Branch, child: Child, number: int, before: int, body: bytes, key: Key) -> None:
        around = self._to(key)
        missing = frozenset([each for each in key.receivers if not self._topology.has_way(each)])
        if missing:  # since it began to wait
            self._lose(child, body, missing, LossReason.NO_WAY)
        if around is None:
            self._back(branch, child, number)
            return
        self.number += 1
        around.came = self.number
        if not around.timed:
            body = without_time(body)
        frame = pack_detour(self._own, self.number, around.label, before, body)
        for each in around.children.values():
            self._send(around, each, around.came, frame, self._put_batch)
        around.waiting.append((around.came, branch, child, number))
        self._rose(around)


def _keys(carried: bytes, receivers: frozenset[bytes]) -> Keys:
    """Return the keys by which ``Order`` keeps messages to these receivers in order."""
    return receivers if carried == NOBODY else frozenset([carried + each for each in receivers])
