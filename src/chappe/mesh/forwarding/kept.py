"""Messages on their way along trees, kept until all hops below have confirmed them.

This is the common base of publishing and passing on (``version2``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf

from chappe.core import Flush
from chappe.defaults import (
    KEPT_BYTES_MAX,
    MESH_BATCH_BYTES_MAX,
    MESH_BATCH_MESSAGES_MAX,
    MESH_BATCH_SHARE,
)
from chappe.mesh.flows import (
    PREFIX,
    Hop,
    inner,
    pack_tree,
    parse_head,
    parse_publications,
)
from chappe.mesh.forwarding.boxes import Policy
from chappe.mesh.forwarding.branches import Branch, Child, Key, Told
from chappe.mesh.forwarding.holds import Holds
from chappe.mesh.forwarding.judging import ForwardFilter, MessageJudge
from chappe.mesh.forwarding.last_values import KeptLastValues
from chappe.mesh.forwarding.losses import Losses, LossReason
from chappe.mesh.forwarding.order import Order
from chappe.mesh.links.link import EndpointOptions, Link
from chappe.mesh.messages import LOSS, NOBODY
from chappe.mesh.topology import Topology

Put = Callable[[Link, bytes], bool]


class KeptMessages:
    """Trees that are known here, and messages on their way along them.

    Args:
        links: By peer; those of version 2 among them are used.
        put, put_batch, put_control: Put a frame into the outbox of a link. The first two tell whether it was taken;
            ``put`` is for those with one message.
        losses: Reports of messages that do not arrive.
        holds: Which trees are held, as a receiver is full.
        judge: Asks the permissions.
        passing: Sees passing messages.
        outdate: Called when a tree must not be used any more that ``to`` has returned since the last change.
    """

    def __init__(
        self,
        own: bytes,
        options: EndpointOptions,
        topology: Topology,
        links: dict[bytes, Link],
        losses: Losses,
        holds: Holds,
        judge: MessageJudge,
        passing: ForwardFilter,
        put: Put,
        put_batch: Put,
        put_control: Callable[[Link, bytes], None],
        outdate: Callable[[], None],
    ) -> None:
        self.number = options.first_number  # of the last publication, and of the last label
        self.last_values: KeptLastValues | None = None  # gets what comes, where last values are kept
        self.confirm_at = inf  # when what has come is to be confirmed
        self.flushes: dict[int, Flush] = {}  # links to which something was put that nobody was told of
        self._own = own
        self.forwards = options.forwarding  # messages of others
        self._blocks = options.peer_policy is Policy.BLOCK
        self._batch_messages_max = MESH_BATCH_MESSAGES_MAX
        self._batch_bytes_max = MESH_BATCH_BYTES_MAX
        if options.peer_policy is not Policy.BLOCK:  # a batch is dropped as a whole
            self._batch_messages_max = min(self._batch_messages_max, options.peer_messages_max // MESH_BATCH_SHARE)
            self._batch_bytes_max = min(self._batch_bytes_max, options.peer_bytes_max // MESH_BATCH_SHARE)
        self._ahead_max = options.limits.ahead_max  # messages of a tree of ours that are not confirmed ...
        self._ahead_bytes = options.limits.ahead_bytes  # ... and bytes that a peer has not confirmed
        self._topology = topology
        self._links = links
        self._losses = losses
        self._holds = holds
        self._judge = judge
        self._passing = passing
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
        # Topics that have a tree for themselves, by receivers.
        self.lanes: dict[frozenset[bytes], dict[bytes, bytes]] = {}
        self._mine: dict[Key, Branch] = {}  # those that we publish along now; of two the first
        self._look = 1  # rises when the network changes
        self._surveyed = 1  # as of this look it is known what is under way along former ways
        self.order = Order()
        self._unconfirmed: dict[Branch, None] = {}  # of which something came, or was confirmed
        self._forgotten: dict[Link, list[int]] = {}  # labels that are not used any more, of which these are to be told
        self._came = 0  # messages since the last confirmation, and KiB of them

    def peers(self, branch: Branch) -> list[Link]:
        return [self._links[peer] for peer in dict.fromkeys([peer for each in branch.both() for peer in each.children])]

    def told_by(self, peer: bytes) -> frozenset[int]:
        """Return the labels of a neighbour's trees on which nothing is on its way; for checkers, like ``told_over``."""
        return frozenset([above for above, branch in self._above.get(peer, {}).items() if not branch.busy])

    def told_over(self, conn: int) -> frozenset[int]:
        """Return the labels of trees that the neighbour at a connection was told of, and that it is to keep."""
        return self._told.labels(conn)

    def _make(self, origin: bytes, upstream: bytes, above: int, deliver: bool, hops: Iterable[Hop]) -> Branch:
        self.number += 1
        branch = self._labels[self.number] = Branch(origin, upstream, above, self.number, deliver, hops)
        return branch

    def _drain(self, branch: Branch) -> None:
        """Forget a tree that is not used any more, once nothing is on its way along it."""
        if not branch.used and branch.label in self._labels and not branch.busy and branch not in self._unconfirmed:
            self._drop(branch)

    def _drop(self, branch: Branch) -> None:
        del self._labels[branch.label]
        self._unconfirmed.pop(branch, None)
        self._holds.forget(branch)
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

    def _announce(self, branch: Branch, child: Child, link: Link) -> bool:
        """Tell a neighbour of a tree; return False if it keeps no more, or others had us tell it more than it takes."""
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

    def _look_ahead(self, branch: Branch, child: Child, link: Link) -> None:
        if link.kept_bytes > KEPT_BYTES_MAX:
            self._let_go(child, link)
        if self._blocks and branch.upstream == NOBODY and self._under_way(branch, child) >= self._ahead_max:
            self._holds.run_ahead(branch)

    def _under_way(self, branch: Branch, child: Child) -> int:
        """Return how many messages of a tree of ours are under way, at most."""
        if not child.kept:
            return 0
        return min(branch.came - child.kept[0][0], len(child.kept) * MESH_BATCH_MESSAGES_MAX)

    def _let_go(self, child: Child, link: Link) -> None:
        """Drop the oldest messages, which cannot be sent again then, as so much is kept."""
        while link.kept_bytes > KEPT_BYTES_MAX and child.kept:
            link.kept_bytes -= len(child.kept.popleft()[1])

    def _back(self, branch: Branch, child: Child, number: int) -> None:
        key = branch.origin, child.hop.id
        child.detoured.remove(number)
        self._around[key] -= 1
        if not self._around[key]:
            del self._around[key]
        self._rose(branch)

    def _rose(self, branch: Branch) -> None:
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

    def dropped(self, link: Link, frame: bytes, why: LossReason) -> None:
        """Note a frame that an outbox dropped: nobody below is to wait for it."""
        body = frame[PREFIX:]
        _, number, label, _ = parse_head(body)
        branch = self._labels.get(label)
        if branch is None:
            return
        child = branch.children[link.peer_id]
        if child.kept and child.kept[0][0] <= number <= child.kept[-1][0]:
            child.kept.remove((number, frame))
            link.kept_bytes -= len(frame)
        self._lose(child, inner(body), child.receivers, why)
        self._rose(branch)

    def _lose(self, child: Child, body: bytes, missing: frozenset[bytes], why: LossReason) -> None:
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
        return found + self._far_ahead() + self._told.invariants()

    def _far_ahead(self) -> list[str]:
        """Return trees of ours with too much under way, though nobody knows that they run ahead."""
        found = []
        for branch in self._labels.values() if self._blocks else ():
            if branch.upstream != NOBODY or self._holds.runs_ahead(branch):
                continue
            for child in branch.children.values():
                size = sum([len(frame) for _, frame in child.kept])
                if len(child.kept) > 2 * self._ahead_max and size > 2 * self._ahead_bytes:
                    found.append(f"{len(child.kept)} frames are under way to {child.hop.id.hex()}, and nobody waits")
        return found
