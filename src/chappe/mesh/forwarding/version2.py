"""Version 2, between endpoints of chappe: publications go along trees, and nothing is lost while a way leads on.

The origin of a publication makes the tree of shortest ways to all who want it. Each hop is told its part of it once,
under a label that the hop above chooses, before the first message that has the label. Then it looks at no more than the
head of what comes, delivers if it is a receiver, and passes the body on as it came, but for the label, to those below.

What was passed on is *kept* until the hop below confirms it, which it does once all below have confirmed it in turn:
so every message has somebody alive who can send it again. When a link ends, whoever is above it sends what is kept for
it on a *detour*: a tree of its own to the receivers that were behind the link. So it does with all that comes later, as
long as the origin does not know. What no way leads to is counted, and told to the origin.

A publisher in two ways makes two trees, see ``mesh.ways``, and sends a copy along each: they confirm and send around
each for itself. To whom both have the same way it is sent once.

A message may so come to a receiver twice, which ``duplicates`` notices. Confirmations are gathered: a receiver sends
them so often in a second, or after so many messages, and a hop whenever one of them lets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from chappe.defaults import (
    CONFIRM_MESSAGES,
    CONFIRM_S,
    KIB,
    MESH_MESSAGE_BYTES_MAX,
    TREES_BYTES_MAX,
)
from chappe.errors import ProtocolError
from chappe.mesh.flows import (
    DETOUR,
    ENTRIES_MAX,
    FLOW_COMMAND,
    FLOW_LOSS,
    HEAD_BYTES,
    KIND_AT,
    PREFIX,
    SEVERAL,
    TIME_BYTES,
    TIMED,
    check_publications,
    inner,
    messages_in,
    pack_confirm,
    pack_forget,
    pack_holds,
    pack_onward,
    parse_entries,
    parse_forget,
    parse_head,
    parse_publication,
    parse_publications,
    parse_tree,
    retimed,
    time_of,
    unpack_head,
)
from chappe.mesh.forwarding.branches import BRANCH_BYTES, CHILD_BYTES, Branch, Child
from chappe.mesh.forwarding.duplicates import LossesElsewhere
from chappe.mesh.forwarding.losses import LossReason
from chappe.mesh.forwarding.published import Published
from chappe.mesh.links.link import Link
from chappe.mesh.messages import CONFIRM, FORGET, HOLD, ID_BYTES, NOBODY, TREE, Message

_BODY_MAX: Final = MESH_MESSAGE_BYTES_MAX - HEAD_BYTES  # of what may have to go another way

_NONE: Final[dict[int, Branch]] = {}


class Trees(Published):
    """All trees that are known here, including those of others, along which messages come."""

    def take_control(self, link: Link, message: Message, now: float) -> None:
        if message.kind == CONFIRM:
            self.take_confirm(link, message.payload, now)
        elif message.kind == HOLD:
            self.take_hold(link, message.payload, now)
        elif message.kind == TREE:
            self.take_tree(link, message.payload)
        elif message.kind == FORGET:
            self.take_forget(link, message.payload)
        else:
            raise ProtocolError("a message of a kind that endpoints of chappe do not send")

    def take_tree(self, link: Link, payload: bytes) -> None:
        """Take our part of a neighbour's tree; its label may have had another meaning before."""
        origin, above, deliver, waits, hops = parse_tree(payload, self._own)
        former = self._above.get(link.peer_id, _NONE).get(above)
        if former is not None:
            if (former.origin, former.deliver, former.waits, former.hops()) == (origin, deliver, waits, hops):
                former.used = True
                self._holds.told_anew(former)
                return
            self._drop(former)
        size = BRANCH_BYTES + len(hops) * CHILD_BYTES + len(payload)
        if self._sizes.get(link.peer_id, 0) + size > TREES_BYTES_MAX:
            raise ProtocolError("a tree beyond what is kept of one neighbour")
        branch = self._make(origin, link.peer_id, above, deliver, hops)
        branch.waits = waits
        self._above.setdefault(link.peer_id, {})[above] = branch
        self._sizes[link.peer_id] = self._sizes.get(link.peer_id, 0) + branch.size

    def take_forget(self, link: Link, payload: bytes) -> None:
        """Forget trees that a neighbour does not use any more."""
        known = self._above.get(link.peer_id, {})
        for above in parse_forget(payload):
            branch = known.get(above)
            if branch is not None:
                branch.used = False
                self._drain(branch)

    def take(self, link: Link, body: bytes, now: float) -> Message | list[Message] | None:
        """Pass on one message that came, or several. Return them if they are for us.

        Raises:
            ProtocolError: It is on no tree that this neighbour told us of.
            LossesElsewhere: Its origin is not behind the neighbour; nothing is changed.
        """
        origin, number, above, kind, flags, length, place = unpack_head(body)
        branch = self._above.get(link.peer_id, _NONE).get(above)
        if branch is None or branch.origin != origin or branch.checked != self._look:
            branch = self._check(link, branch, origin, now)
            if not branch.came:  # what was before is not ours to confirm
                branch.told = number - 1
        if number <= branch.came:
            return None
        if number >= self._number_max:
            self._number_max = self._topology.telling.number_limit(now)
            if number >= self._number_max:
                raise ProtocolError(f"{number} is not a number of a publication")
        if len(body) > _BODY_MAX and kind != DETOUR:
            raise ProtocolError(f"a message of {len(body)} bytes leaves no room for another way")
        timed, published = kind & TIMED, None
        stop = len(body) - TIME_BYTES if timed else len(body)
        if (timed or kind == DETOUR) and (shown_us := time_of(body)) is not None:
            ours_us = link.clock.ours_us(shown_us, now)
            body = retimed(body, ours_us)
            published = ours_us / 1e6
        message: Message | None = None
        end = HEAD_BYTES + length
        several = kind in SEVERAL
        if several:  # what is wrong with it is found before it is kept for others
            check_publications(inner(body))
            if kind == DETOUR and branch.deliver:
                self._check_origin(link, inner(body)[:ID_BYTES], now)
        elif flags or end > stop:
            message = parse_publication(body, link.peer_id)
        branch.came = number
        self._unconfirmed[branch] = None
        self._came += 1 + len(body) // KIB
        if self._came >= CONFIRM_MESSAGES:
            self.confirm_at = -inf
        elif self.confirm_at == inf:
            self.confirm_at = now + CONFIRM_S
        if self._judge.rules is not None and not self._judge.takes(link, body):
            return None
        onward: list[bytes] | None = None
        if self._passing.shows is not None and self.forwards and (branch.children or self.last_values is not None):
            onward = self._passing.bodies(inner(body), link.peer_id)
        if self.last_values is not None:
            for each in [body] if onward is None else onward:
                self.last_values.pass_on(each)
        if branch.children:
            self._pass_on(branch, body, onward, number, kind, now)
        if not branch.deliver:
            return None
        if several:
            return parse_publications(inner(body), link.peer_id)
        if message is not None:
            return message
        topic, payload = body[HEAD_BYTES:end], body[end:stop]
        return Message(topic, payload, kind & 0xF, link.peer_id, NOBODY, 0, origin, number, published, place)

    def refuse(self, link: Link, body: bytes) -> None:
        """Confirm a body that is not taken: its neighbour would keep it for as long as the link stands."""
        origin, number, above, _ = parse_head(body)
        known = self._above.get(link.peer_id, _NONE)
        if above in known and (branch := known[above]).origin == origin and number > branch.came:
            branch.came = number
            self._unconfirmed[branch] = None
            self.confirm_at = -inf

    def branch(self, link: Link, body: bytes) -> Branch | None:
        """Return the tree along which a body came; None if that was on a detour, whose beginning waits for nobody."""
        _, _, above, kind, _, _, _ = unpack_head(body)
        return None if kind == DETOUR else self._above.get(link.peer_id, _NONE).get(above)

    def _check(self, link: Link, branch: Branch | None, origin: bytes, now: float) -> Branch:
        """Check a tree along which nothing has come since the network changed, or ever."""
        if branch is None or branch.origin != origin:
            raise ProtocolError("a message on a tree that is not known")
        self._check_origin(link, origin, now)
        branch.checked = self._look
        return branch

    def _check_origin(self, link: Link, origin: bytes, now: float) -> None:
        if origin == self._own:
            raise ProtocolError("a message of ours came back")
        if origin == link.peer_id or self._topology.may_bring(link.peer_id, origin, now):
            return
        if self._judge.passes_on(link):  # else it is refused, and confirmed
            raise LossesElsewhere("the origin of a message is not behind who brings it")

    def _pass_on(
        self, branch: Branch, body: bytes, found: list[bytes] | None, number: int, kind: int, now: float
    ) -> None:
        """Pass a body down a tree, or in its place those that were ``found`` to go on."""
        if not self.forwards:  # its origin does not know yet
            for child in branch.children.values():
                self._lose(child, inner(body), child.receivers, LossReason.NO_WAY)
            return
        if found is None:  # nearly always
            self._pass_down(branch, body, number, kind, now)
        elif kind != DETOUR:
            for each in found:
                self._pass_down(branch, each, parse_head(each)[1], each[KIND_AT], now)
        elif len(found) == 1:
            self._pass_down(branch, body[:HEAD_BYTES] + found[0], number, kind, now)
        else:  # a detour has one number on its tree: each part of it takes a detour of ours
            for child in branch.children.values():
                for each in found:
                    self._send_around(branch, child, number, body[:HEAD_BYTES] + each)

    def _pass_down(self, branch: Branch, body: bytes, number: int, kind: int, now: float) -> None:
        frame = pack_onward(body, branch.label)
        put = self._put
        if kind > FLOW_COMMAND:
            put = self._put_anyway if kind == FLOW_LOSS else self._put_batch
        if self._blocks and not branch.waits and kind not in (DETOUR, FLOW_LOSS):
            put = self._put_unless_full
        for child in branch.children.values():
            self._send(branch, child, number, frame, put)
        if self._holds.full:
            for peer in branch.children:
                link = self._links.get(peer)
                if link is not None and link in self._holds.full:
                    self._holds.is_for(link, branch, 1, now)

    def _put_unless_full(self, link: Link, frame: bytes) -> bool:
        """Drop the frame if the box is full: its publisher does not wait, so it must not hold up others."""
        if link.outbox.full:
            link.outbox.refuse(frame)
            return False
        return self._put_batch(link, frame)

    def take_hold(self, link: Link, payload: bytes, now: float) -> None:
        for label, idle_ms in parse_entries(payload):
            branch = self._labels.get(label)
            child = None if branch is None else branch.children.get(link.peer_id)
            if branch is not None and child is not None and child.conn == link.conn:
                self._holds.hear(branch, child, idle_ms, now)

    def hold(self, now: float) -> None:
        """Tell those above us which trees are held, or let go."""
        entries: dict[bytes, list[tuple[int, int]]] = {}
        for branch, idle_ms in self._holds.take(now):
            entries.setdefault(branch.upstream, []).append((branch.above, idle_ms))
        self._tell_above(entries, pack_holds)

    def take_confirm(self, link: Link, payload: bytes, now: float) -> None:
        for label, number in parse_entries(payload):
            branch = self._labels.get(label)
            child = None if branch is None else branch.children.get(link.peer_id)
            if branch is None or child is None:
                continue
            kept, size = child.kept, 0
            while kept and kept[0][0] <= number:
                size += len(kept.popleft()[1])
            link.kept_bytes -= size
            if self._holds.runs_ahead(branch) and not self._has_caught_up(branch):
                self._holds.got_on(branch, now)
            self._rose(branch)
        if self.order.held:
            self.go_on(now)

    def _has_caught_up(self, branch: Branch) -> bool:
        done = all(2 * self._under_way(branch, child) <= self._ahead_max for child in branch.children.values())
        if done:
            self._holds.caught_up(branch)
        return done

    def confirm(self) -> None:
        """Tell neighbours above us what has arrived below, and those below which trees are not used any more."""
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
        self._tell_above(entries, pack_confirm)

    def _tell_above(
        self, entries: dict[bytes, list[tuple[int, int]]], pack: Callable[[bytes, list[tuple[int, int]]], bytes]
    ) -> None:
        for peer, found in entries.items():
            link = self._links.get(peer)
            if link is not None:
                self.flushes[link.conn] = link.flush
                for at in range(0, len(found), ENTRIES_MAX):
                    self._put_control(link, pack(self._own, found[at : at + ENTRIES_MAX]))

    def link_down(self, link: Link, waiting: Iterable[bytes], had: bool) -> int:
        """Send messages kept for a link that ended another way; the topology knows of it.

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
                self._holds.lost(branch, child)
                found += [(number, frame, branch, child) for number, frame in child.kept]
                child.kept.clear()
                if self._holds.runs_ahead(branch):
                    self._has_caught_up(branch)
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
