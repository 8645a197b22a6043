"""Version 2, between endpoints of chappe: publications go along trees, and nothing is lost while a way leads on.

The origin of a publication makes the tree of shortest ways to all who want it. Each hop is told its part of it once,
under a label that the hop above chooses, before the first message that has the label. Then it looks at no more than the
head of what comes, delivers if it is a receiver, and passes the body on as it came, but for the label, to those below.

What was passed on is *kept* until the hop below confirms it, which it does once all below have confirmed it in turn:
so every message has somebody alive who can send it again. When a link ends, whoever is above it sends what is kept for
it on a *detour*: a tree of its own to the receivers that were behind the link. So it does with all that comes later, as
long as the origin does not know. What no way leads to is counted, and told to the origin.

Who publishes in two ways makes two trees, see ``mesh.ways``, and sends a copy along each: they confirm and send around
each for itself. To whom both have the same way it is sent once.

A message may so come to a receiver twice, which ``duplicates`` notices. Confirmations are gathered: a receiver sends
them so often in a second, or after so many messages, and a hop whenever one of them lets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Final

from chappe.defaults import (
    CONFIRM_MESSAGES,
    CONFIRM_S,
    DETOURS_MAX,
    DOUBT_S,
    KEPT_BYTES_MAX,
    KIB,
    LINK_STATE_STEP_MAX,
    MESH_BATCH_BYTES_MAX,
    MESH_BATCH_MESSAGES_MAX,
    MESH_BATCH_SHARE,
    MESH_MESSAGE_BYTES_MAX,
    TREES_BYTES_MAX,
    TREES_MAX,
)
from chappe.errors import ProtocolError
from chappe.mesh.actions import Flush
from chappe.mesh.flows import (
    DETOUR,
    ENTRIES_MAX,
    FLOW_COMMAND,
    FLOW_LOSS,
    HEAD_BYTES,
    KIND_AT,
    PREFIX,
    SEVERAL,
    Hop,
    check_publications,
    check_size,
    messages_in,
    pack_batch,
    pack_confirm,
    pack_detour,
    pack_forget,
    pack_hops,
    pack_onward,
    pack_publication,
    pack_tree,
    parse_confirm,
    parse_detour,
    parse_forget,
    parse_head,
    parse_publication,
    parse_publications,
    parse_tree,
    run_of,
    unpack_head,
)
from chappe.mesh.forwarding.branches import BRANCH_BYTES, CHILD_BYTES, Branch, Child, Key
from chappe.mesh.forwarding.losses import Losses, Why
from chappe.mesh.forwarding.order import Keys, Order
from chappe.mesh.forwarding.told import Told
from chappe.mesh.links.link import EndpointOptions, Link
from chappe.mesh.messages import DATA, ID_BYTES, LOSS, NOBODY, Message
from chappe.mesh.policy import Policy
from chappe.mesh.topology import Topology

_BODY_MAX: Final = MESH_MESSAGE_BYTES_MAX - HEAD_BYTES  # of what may have to go another way
Put = Callable[[Link, bytes], bool]

_NONE: Final[dict[int, Branch]] = {}


class Trees:
    """All trees that are known here, and what is on its way along them.

    Args:
        links: By peer; those of version 2 among them are used.
        put, put_batch, put_control: Put a frame into the outbox of a link. The first two tell whether it was taken;
            ``put`` is for those with one message.
        losses: What is told of messages that do not arrive.
        outdate: Called when a tree must not be used any more that ``to`` has returned since the last change.
    """

    def __init__(
        self,
        own: bytes,
        options: EndpointOptions,
        topology: Topology,
        links: dict[bytes, Link],
        losses: Losses,
        put: Put,
        put_batch: Put,
        put_control: Callable[[Link, bytes], None],
        outdate: Callable[[], None],
    ) -> None:
        self.number = options.first_number  # of the last publication, and of the last label
        self.confirm_at = inf  # when what has come is to be confirmed
        self.flushes: dict[int, Flush] = {}  # links to which something was put that nobody was told of
        self._own = own
        self._forwards = options.forwarding
        self._batch_messages_max = MESH_BATCH_MESSAGES_MAX
        self._batch_bytes_max = MESH_BATCH_BYTES_MAX
        if options.peer_policy is not Policy.BLOCK:  # a batch is dropped as a whole
            self._batch_messages_max = min(self._batch_messages_max, options.peer_messages_max // MESH_BATCH_SHARE)
            self._batch_bytes_max = min(self._batch_bytes_max, options.peer_bytes_max // MESH_BATCH_SHARE)
        self._topology = topology
        self._links = links
        self._losses = losses
        self._put = put
        self._put_batch = put_batch
        self._put_control = put_control
        self._outdate = outdate
        self._labels: dict[int, Branch] = {}  # all, by our label
        self._around: Counter[tuple[bytes, bytes]] = Counter()  # of an origin, past a hop: messages on detours
        self._above: dict[bytes, dict[int, Branch]] = {}  # of others, by upstream and its label
        self._sizes: dict[bytes, int] = {}  # of these, by upstream
        self._told = Told()
        self._number_max = 0  # numbers from this on are looked at more closely
        self._outdone_at = -inf
        self._mine: dict[Key, Branch] = {}  # those that we publish along now; of two the first
        self._look = 1  # rises when the network changes
        self._surveyed = 1  # as of this look it is known what is under way along former ways
        self.order = Order()
        self._unconfirmed: dict[Branch, None] = {}  # of which something came, or was confirmed
        self._forgotten: dict[Link, list[int]] = {}  # labels that are not used any more, of which these are to be told
        self._came = 0  # messages since the last confirmation, and KiB of them

    # -- publishing -------------------------------------------------------------------------------

    def to(self, receivers: frozenset[bytes], paths: int = 1) -> Branch | None:
        """The tree to all of these that have a way, with a second one if there are two; None if nobody has."""
        return self._to(Key(receivers, paths))

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
        for each in found:
            each.key, each.checked = key, self._look
        for each in before:
            if each not in found:
                self._let_be(each)
        return branch

    def _hops(self, key: Key) -> list[list[Hop]]:
        """The hops beside us of the tree that is for ``key`` now, and of the second one if there is one."""
        ways, twice = self._topology.ways(), key.twice
        there = frozenset(filter(ways.lead_to, key.receivers))
        trees = [ways.tree(there)] if key.paths == 1 else ways.two_trees(there)
        if len(trees) > 1:
            twice = trees[1][0]
        return [pack_hops(self._own, reached, below, twice) for reached, below in trees]

    def _survey(self) -> None:
        """Look once after each change for what is under way along ways of ours that are not right any more."""
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

    def publish(self, branch: Branch, kind: int, receiver: bytes, topic: bytes, payload: bytes) -> None:
        """Send a message along a tree of ours, or have it wait until what went another way has arrived."""
        if self.order.held and (key := branch.key) is not None and self.order.holds(key.receivers):
            check_size(topic, payload)
            later = partial(self._publish_late, key, kind, receiver, topic, payload)
            self.number += 1
            size = len(topic) + len(payload)
            self.order.put(key.receivers, self.number, size, later, partial(self._has_room, key))
            return
        number = self.number = self.number + 1
        frame = pack_publication(self._own, number, branch.label, kind, receiver, topic, payload)
        branch.came = number
        put, links, entry, size = self._put, self._links, (number, frame), len(frame)
        for peer, child in branch.children.items():
            link = links[peer]
            if child.conn != link.conn and not self._announce(branch, child, link):
                self._lose(child, frame[PREFIX:], child.receivers, Why.FULL)
                continue
            if link.outbox.add(frame) or put(link, frame):
                child.kept.append(entry)
                link.kept_bytes += size
                if link.kept_bytes > KEPT_BYTES_MAX:
                    self._let_go(child, link)
        second = branch.second
        if second is not None:
            second.came = number
            frame = pack_onward(frame[PREFIX:], second.label)
            for child in second.children.values():
                self._send(second, child, number, frame, put)

    def publish_many(self, branch: Branch, topic: bytes, payloads: Sequence[bytes]) -> None:
        """Send messages of data along a tree of ours, in order and in few frames. Raises as ``publish``."""
        if self.order.held:
            for payload in payloads:
                self.publish(branch, DATA, NOBODY, topic, payload)
            return
        at = 0
        while at < len(payloads):
            run = run_of(payloads, at, self._batch_messages_max, self._batch_bytes_max)
            at += len(run)
            if len(run) == 1:
                self.publish(branch, DATA, NOBODY, topic, run[0])
                continue
            number = self.number = self.number + len(run)
            for way in branch.both():
                way.came = number
                frame = pack_batch(self._own, number, way.label, topic, run)
                for child in way.children.values():
                    self._send(way, child, number, frame, self._put_batch)

    def _publish_late(self, key: Key, kind: int, receiver: bytes, topic: bytes, payload: bytes) -> None:
        branch = self._to(key)
        number = self.number = self.number + 1
        missing = frozenset([each for each in key.receivers if not self._topology.has_way(each)])
        if missing:
            self._losses.add(NOBODY, self._own, topic, Why.NO_WAY, missing)
        if branch is not None:
            for each in branch.both():
                frame = pack_publication(self._own, number, each.label, kind, receiver, topic, payload)
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

    def peers(self, branch: Branch) -> list[Link]:
        """The links that a tree of ours begins with, and its second one."""
        return [self._links[peer] for peer in dict.fromkeys([peer for each in branch.both() for peer in each.children])]

    # -- what comes -------------------------------------------------------------------------------

    def handle_tree(self, link: Link, payload: bytes) -> None:
        """A neighbour tells us our part of a tree; its label may have had another meaning before."""
        origin, above, deliver, hops = parse_tree(payload, self._own)
        former = self._above.get(link.peer_id, _NONE).get(above)
        if former is not None:
            if (former.origin, former.deliver, former.hops()) == (origin, deliver, hops):
                former.used = True
                return
            self._drop(former)
        size = BRANCH_BYTES + len(hops) * CHILD_BYTES + len(payload)
        if self._sizes.get(link.peer_id, 0) + size > TREES_BYTES_MAX:
            raise ProtocolError("a tree beyond what is kept of one neighbour")
        branch = self._make(origin, link.peer_id, above, deliver, hops)
        self._above.setdefault(link.peer_id, {})[above] = branch
        self._sizes[link.peer_id] = self._sizes.get(link.peer_id, 0) + branch.size

    def handle_forget(self, link: Link, payload: bytes) -> None:
        """A neighbour does not use some trees any more."""
        known = self._above.get(link.peer_id, {})
        for above in parse_forget(payload):
            branch = known.get(above)
            if branch is not None:
                branch.used = False
                self._drain(branch)

    def take(self, link: Link, body: bytes, now: float) -> Message | list[Message] | None:
        """One message came, or several: pass them on. Returns them if they are for us.

        Raises:
            ProtocolError: It is on no tree that this neighbour told us of, or its origin is not behind the neighbour.
        """
        origin, number, above, kind, flags, length = unpack_head(body)
        branch = self._above.get(link.peer_id, _NONE).get(above)
        if branch is None or branch.origin != origin or branch.checked != self._look:
            branch = self._check(link, branch, origin, now)
            if not branch.came:  # what was before is not ours to confirm
                branch.told = number - 1
        if number <= branch.came:
            return None
        if number >= self._number_max:
            self._number_max = self._topology.number_limit(now)
            if number >= self._number_max:
                raise ProtocolError(f"{number} is not a number of a publication")
        if len(body) > _BODY_MAX and kind != DETOUR:
            raise ProtocolError(f"a message of {len(body)} bytes leaves no room for another way")
        message: Message | None = None
        end = HEAD_BYTES + length
        several = kind in SEVERAL
        if several:  # what is wrong with it is found before it is kept for others
            check_publications(_inner(body))
        elif flags or end > len(body):
            message = parse_publication(body, link.peer_id)
        branch.came = number
        self._unconfirmed[branch] = None
        self._came += 1 + len(body) // KIB
        if self._came >= CONFIRM_MESSAGES:
            self.confirm_at = -inf
        elif self.confirm_at == inf:
            self.confirm_at = now + CONFIRM_S
        if branch.children:
            self._pass_on(branch, body, number, kind)
        if not branch.deliver:
            return None
        if several:
            messages = parse_publications(_inner(body), link.peer_id)
            if kind == DETOUR:
                self._check_origin(link, messages[0].origin, now)
            return messages
        if message is not None:
            return message
        return Message(body[HEAD_BYTES:end], body[end:], kind & 0xF, link.peer_id, NOBODY, 0, origin, number)

    def _check(self, link: Link, branch: Branch | None, origin: bytes, now: float) -> Branch:
        """The network is another one than when something came along a tree last, or nothing ever did."""
        if branch is None or branch.origin != origin:
            raise ProtocolError("a message on a tree that is not known")
        self._check_origin(link, origin, now)
        branch.checked = self._look
        return branch

    def _check_origin(self, link: Link, origin: bytes, now: float) -> None:
        if origin == self._own or (origin != link.peer_id and not self._topology.may_bring(link.peer_id, origin, now)):
            raise ProtocolError("the origin of a message is not behind who brings it")

    def _pass_on(self, branch: Branch, body: bytes, number: int, kind: int) -> None:
        if not self._forwards:  # its origin does not know yet
            for child in branch.children.values():
                self._lose(child, _inner(body), child.receivers, Why.NO_WAY)
            return
        frame = pack_onward(body, branch.label)
        put = self._put
        if kind > FLOW_COMMAND:
            put = self._put_anyway if kind == FLOW_LOSS else self._put_batch
        for child in branch.children.values():
            self._send(branch, child, number, frame, put)

    def handle_confirm(self, link: Link, payload: bytes, now: float) -> None:
        """A neighbour confirms what was sent to it."""
        for label, number in parse_confirm(payload):
            branch = self._labels.get(label)
            child = None if branch is None else branch.children.get(link.peer_id)
            if branch is None or child is None:
                continue
            kept, size = child.kept, 0
            while kept and kept[0][0] <= number:
                size += len(kept.popleft()[1])
            link.kept_bytes -= size
            self._rose(branch)
        if self.order.held:
            self.go_on(now)

    def go_on(self, now: float) -> None:
        """Send what need not wait any longer."""
        self._survey()
        self.order.go_on(now)

    def _has_room(self, key: Key) -> bool:
        branch = self._to(key)
        return branch is None or not any(link.outbox.full for link in self.peers(branch))

    def confirm(self) -> None:
        """Tell those above us what has arrived at all below, and those below which trees are not used any more."""
        self.confirm_at = inf
        self._came = 0
        entries: dict[bytes, list[tuple[int, int]]] = {}
        branches, self._unconfirmed = self._unconfirmed, {}
        for branch in branches:
            number = branch.confirmed()
            if number > branch.told:
                branch.told = number
                entries.setdefault(branch.upstream, []).append((branch.above, number))
            self._drain(branch)
        forgotten, self._forgotten = self._forgotten, {}
        for below, labels in forgotten.items():
            if not below.ended:
                self.flushes[below.conn] = below.flush
                for at in range(0, len(labels), ENTRIES_MAX):
                    self._put_control(below, pack_forget(self._own, labels[at : at + ENTRIES_MAX]))
        for peer, found in entries.items():
            link = self._links.get(peer)
            if link is not None:
                self.flushes[link.conn] = link.flush
                for at in range(0, len(found), ENTRIES_MAX):
                    self._put_control(link, pack_confirm(self._own, found[at : at + ENTRIES_MAX]))

    # -- the network ------------------------------------------------------------------------------

    def number_from(self, number: int) -> None:
        """An earlier life of ours may have used numbers up to this."""
        if number > self.number:
            self.number = number
            for key in list(self._mine):
                self._retire(key)

    def outdo(self, number: int, now: float) -> None:
        """Somebody takes what we publish for old up to this number: go on above, if all would take that."""
        highest = self._topology.number_limit(now) - LINK_STATE_STEP_MAX
        if self.number < number < highest and now >= self._outdone_at + DOUBT_S:
            self._outdone_at = now
            self.number_from(number)

    def changed(self) -> None:
        """The network, or what somebody wants, is another one: our trees may be wrong."""
        self._look += 1

    def link_down(self, link: Link, waiting: Iterable[bytes], had: bool) -> int:
        """A link ended, and the topology knows: send what is kept for it another way.

        Args:
            waiting: The frames that were never sent.
            had: The peer has got all that was sent to it, and only did not pass it on.

        Returns how many of ``waiting`` do not arrive everywhere.
        """
        for branch in list(self._above.get(link.peer_id, {}).values()):
            branch.used = False  # it is told anew if the peer comes back
            self._drain(branch)
        found: list[tuple[int, bytes, Branch, Child]] = []
        for branch in self._labels.values():
            child = branch.children.get(link.peer_id)
            if child is not None and child.conn == link.conn:
                child.conn = None
                found += [(number, frame, branch, child) for number, frame in child.kept]
                child.kept.clear()
        link.kept_bytes = 0
        self._told.forget(link.conn)
        found.sort(key=lambda each: each[0])
        unsent = set(map(id, waiting))
        lost = 0
        for number, frame, branch, child in found:
            spared = child.hop.id if had and id(frame) not in unsent else NOBODY
            all_on = self._send_around(branch, child, number, frame[PREFIX:], spared)
            if not all_on and id(frame) in unsent:
                lost += messages_in(frame, PREFIX)
            self._rose(branch)
        if self.order.held:
            self.order.due = -inf
        return lost

    # -- inside -----------------------------------------------------------------------------------

    def _make(self, origin: bytes, upstream: bytes, above: int, deliver: bool, hops: Iterable[Hop]) -> Branch:
        self.number += 1
        branch = self._labels[self.number] = Branch(origin, upstream, above, self.number, deliver, hops)
        return branch

    def _retire(self, key: Key) -> None:
        former = self._mine.pop(key)
        if former.checked == self._look:
            self._outdate()
        for each in former.both():
            self._let_be(each)

    def _let_be(self, branch: Branch) -> None:
        """Nothing more goes along a tree of ours."""
        branch.used = False
        self._drain(branch)

    def _drain(self, branch: Branch) -> None:
        """Forget a tree that is not used any more, once nothing is on its way along it."""
        if not branch.used and branch.label in self._labels and not branch.busy and branch not in self._unconfirmed:
            self._drop(branch)

    def _drop(self, branch: Branch) -> None:
        del self._labels[branch.label]
        self._unconfirmed.pop(branch, None)
        if branch.upstream != NOBODY:
            del self._above[branch.upstream][branch.above]
            self._sizes[branch.upstream] -= branch.size
            if not self._above[branch.upstream]:
                del self._above[branch.upstream], self._sizes[branch.upstream]
        for child in branch.children.values():
            link = self._links.get(child.hop.id)
            if link is not None and child.conn == link.conn:
                link.kept_bytes -= sum([len(frame) for _, frame in child.kept])
                self._told.remove(link.conn, branch.label)
                self._take_back(link, branch.label)
            child.kept.clear()

    def _take_back(self, link: Link, label: int) -> None:
        self._forgotten.setdefault(link, []).append(label)
        self.confirm_at = -inf

    def _put_anyway(self, link: Link, frame: bytes) -> bool:
        if link.outbox.crowded:
            return False
        self._put_control(link, frame)
        return True

    def _send(self, branch: Branch, child: Child, number: int, frame: bytes, put: Put) -> None:
        link = self._links.get(child.hop.id)
        ours = branch.upstream == NOBODY
        if link is None or not link.chappe or (not ours and (branch.origin, child.hop.id) in self._around):
            if ours:  # it is right as of the last look at the network, so this is a defect: rather lose than go round
                self._lose(child, _inner(frame[PREFIX:]), child.receivers, Why.NO_WAY)
            else:
                self._send_around(branch, child, number, frame[PREFIX:])
            return
        if child.conn != link.conn and not self._announce(branch, child, link):
            self._lose(child, _inner(frame[PREFIX:]), child.receivers, Why.FULL)
            return
        self.flushes[link.conn] = link.flush
        if put(link, frame):
            child.kept.append((number, frame))
            link.kept_bytes += len(frame)
            if link.kept_bytes > KEPT_BYTES_MAX:
                self._let_go(child, link)

    def _announce(self, branch: Branch, child: Child, link: Link) -> bool:
        """Tell a neighbour of a tree; False if it keeps no more, or others had us tell it more than it takes."""
        if link.outbox.crowded and branch.upstream != NOBODY:
            return False
        room, back = self._told.add(link.conn, branch.label, child)
        for label in back:
            self._take_back(link, label)
        if room:
            child.begin()
            child.conn = link.conn
            self._put_control(link, pack_tree(self._own, branch.origin, branch.label, child.hop.subtree))
        return room

    def _let_go(self, child: Child, link: Link) -> None:
        """So much is kept that the oldest cannot be sent again."""
        while link.kept_bytes > KEPT_BYTES_MAX and child.kept:
            link.kept_bytes -= len(child.kept.popleft()[1])

    def _send_around(self, branch: Branch, child: Child, number: int, body: bytes, spared: bytes = NOBODY) -> bool:
        """Send a message to the receivers behind a hop, another way; ``spared`` has it. False if some do not get it."""
        before = 0
        if body[KIND_AT] == DETOUR:
            before, body = parse_detour(body)
            before += 1
        wanted = child.receivers - {spared, self._own}
        there = frozenset(filter(self._topology.has_way, wanted)) if before < DETOURS_MAX else frozenset[bytes]()
        if there != wanted:
            self._lose(child, body, wanted - there, Why.NO_WAY)
        if there:
            self._survey()
            origin = body[:ID_BYTES]
            key = Key(there, 1, child.twice & there, NOBODY if origin == self._own else origin)
            child.begin()
            child.detoured.append(number)
            self._around[branch.origin, child.hop.id] += 1
            go, room = partial(self._go_around, branch, child, number, before, body, key), partial(self._has_room, key)
            keys = _keys(key.carried, there)
            given = parse_head(body)[1]
            if self.order.holds(keys, given) or not room():  # all that is kept may be more than a box takes
                self.order.put(keys, given, len(body), go, room)
            else:
                go()
        return there == wanted

    def _go_around(self, branch: Branch, child: Child, number: int, before: int, body: bytes, key: Key) -> None:
        around = self._to(key)
        missing = frozenset([each for each in key.receivers if not self._topology.has_way(each)])
        if missing:  # since it began to wait
            self._lose(child, body, missing, Why.NO_WAY)
        if around is None:
            self._back(branch, child, number)
            return
        self.number += 1
        around.came = self.number
        frame = pack_detour(self._own, self.number, around.label, before, body)
        for each in around.children.values():
            self._send(around, each, around.came, frame, self._put_batch)
        around.waiting.append((around.came, branch, child, number))
        self._rose(around)

    def _back(self, branch: Branch, child: Child, number: int) -> None:
        """A detour has come to its end."""
        key = branch.origin, child.hop.id
        child.detoured.remove(number)
        self._around[key] -= 1
        if not self._around[key]:
            del self._around[key]
        self._rose(branch)

    def _rose(self, branch: Branch) -> None:
        """More of a tree may be confirmed."""
        if branch.upstream != NOBODY:
            self._unconfirmed[branch] = None
            self.confirm_at = -inf
            return
        if branch.waiting:
            done = branch.confirmed()
            while branch.waiting and branch.waiting[0][0] <= done:
                _, other, child, number = branch.waiting.popleft()
                self._back(other, child, number)
        self._drain(branch)

    def dropped(self, link: Link, frame: bytes, why: Why) -> None:
        """An outbox dropped a frame: nobody below is to wait for it."""
        body = frame[PREFIX:]
        _, number, label, _ = parse_head(body)
        branch = self._labels.get(label)
        if branch is None:
            return
        child = branch.children[link.peer_id]
        if child.kept and child.kept[0][0] <= number <= child.kept[-1][0]:
            child.kept.remove((number, frame))
            link.kept_bytes -= len(frame)
        self._lose(child, _inner(body), child.receivers, why)
        self._rose(branch)

    def _lose(self, child: Child, body: bytes, missing: frozenset[bytes], why: Why) -> None:
        messages = parse_publications(body, NOBODY)
        kind, origin, topic = messages[0].kind, messages[0].origin, messages[0].topic
        if kind == LOSS:
            return
        twice = missing & child.twice
        if twice:
            self._losses.add(child.hop.id, origin, topic, why.on_one, twice, len(messages))
        if missing != twice:
            missing = missing - twice if twice else missing
            self._losses.add(child.hop.id, origin, topic, why, missing, len(messages))

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        kept: dict[int, int] = {}
        for branch in self._labels.values():
            for child in branch.children.values():
                if child.kept:
                    size = sum([len(frame) for _, frame in child.kept])
                    kept[child.conn or 0] = kept.get(child.conn or 0, 0) + size
        counted = {link.conn: link.kept_bytes for link in self._links.values() if link.kept_bytes}
        found = [] if kept == counted else [f"{counted} bytes are counted as kept, {kept} are"]
        sizes = {peer: sum([each.size for each in known.values()]) for peer, known in self._above.items() if known}
        if sizes != {peer: size for peer, size in self._sizes.items() if size}:
            found.append(f"trees of {self._sizes} bytes are counted, {sizes} are known")
        return found + self._told.invariants()


def _keys(carried: bytes, receivers: frozenset[bytes]) -> Keys:
    """What orders messages to these: see ``Order``."""
    return receivers if carried == NOBODY else frozenset([carried + each for each in receivers])


def _inner(body: bytes) -> bytes:
    """What is published by a body, on a detour or not."""
    return parse_detour(body)[1] if body[KIND_AT] == DETOUR else body
