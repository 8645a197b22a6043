"""Credit, end to end: publishers wait for subscribers that have no room, over any number of hops.

A subscriber that blocks, or a peer, may be *full*. What comes for it then is taken nevertheless, and the tree along
which it came is *held*: every hop tells the hop above it, up to the origin, which publishes nothing along that tree
until it is let go. So nothing waits on the way, and what goes along other trees passes. Topics with the same receivers
share a tree; once it is held, each gets one of its own (``Published.part``): only what the full one wants waits.

With a hold everybody says how long ago the slowest below has taken something, and says it again while that gets on. So
nobody waits for a subscriber that has stopped, nor for a peer that holds a tree and gives nothing.

A hop that is slower than the one above it has megabytes before it, in boxes and in kernels, which all come yet once it
has somebody full. So an origin is never far *ahead* of what is confirmed, either.

An original knows nothing of this. Nothing is read from one for now that brings what would go along a held tree, or to a
full subscriber here.
"""

from __future__ import annotations

from math import inf
from typing import Final, TypeAlias

from chappe.defaults import HOLD_S, OVERRUN_MAX
from chappe.mesh.forwarding.branches import Branch, Child
from chappe.mesh.links.link import Link
from chappe.mesh.messages import NOBODY

LET_GO: Final = (1 << 64) - 1  # in place of the milliseconds of a hold
_IDLE_MAX_MS: Final = 86_400_000
Holder: TypeAlias = int | Link  # a subscriber here, or a peer


class _Full:
    __slots__ = ("beyond", "branches", "taken", "taken_at")

    def __init__(self, taken: int, now: float) -> None:
        self.taken = taken  # frames, by a peer
        self.taken_at = now  # something
        self.beyond = False  # far more waits than a box is for
        self.branches: dict[Branch, None] = {}  # along which something came since


class _Hold:
    __slots__ = ("below", "came", "here", "told_at", "told_moved")

    def __init__(self) -> None:
        self.came = 0  # messages, since then
        self.here: dict[Holder, _Full] = {}
        self.below: dict[Child, float] = {}  # when the slowest behind a hop took something last
        self.told_at = -inf  # upstream
        self.told_moved = -inf

    @property
    def moved(self) -> float:
        """When the slowest of all last took something."""
        return min([*[each.taken_at for each in self.here.values()], *self.below.values()])


class Holds:
    """The full subscribers and peers here, and the trees that they or hops below hold. ``patience_s``: how long a
    subscriber that takes nothing is waited for.
    """

    def __init__(self, patience_s: float) -> None:
        self.full: dict[Holder, _Full] = {}
        self.waits: dict[Branch, None] = {}  # trees of ours along which nothing is to be published now
        self.due = inf  # when ``take`` has something to do
        self._patience_s = patience_s
        self._holds: dict[Branch, _Hold] = {}
        self._ahead: dict[Branch, float] = {}  # ours, of which much is under way, and when some of it was confirmed
        self._news: dict[Branch, None] = {}  # held, or let go, or far ahead since ``take``
        self._look_at = -inf  # at all of them
        self.turned = 0  # how often a tree of ours was to wait, or to go on
        self._sources: dict[int, dict[Holder | Branch, None]] = {}  # originals by connection, and what they fill

    # -- who is full here -------------------------------------------------------------------------

    def fill(self, holder: Holder, now: float, beyond: bool = False) -> None:
        """Note that a subscriber or a peer has no room; ``beyond`` if far more waits than a box is for."""
        if holder not in self.full:
            self.full[holder] = _Full(0 if isinstance(holder, int) else holder.outbox.taken, now)
        self.full[holder].beyond = beyond

    def taken(self, subscriber: int, now: float) -> None:
        if subscriber in self.full:
            self.full[subscriber].taken_at = now

    def free(self, holder: Holder) -> None:
        full = self.full.pop(holder, None)
        if full is not None:
            for branch in full.branches:
                hold = self._holds[branch]
                del hold.here[holder]
                self._note(branch, hold)

    def is_for(self, holder: Holder, branch: Branch | None, count: int, now: float) -> bool:
        """Return whether to take messages for a holder, which came along a tree, or from an original.

        They are not taken if far too much waits, and their publisher does not wait, or nobody takes anything.
        """
        full = self.full[holder]
        if branch is None:
            return not full.beyond or now < full.taken_at + self._patience_s
        hold = self._holds.get(branch)
        if hold is None:
            hold = self._holds[branch] = _Hold()
        if holder not in hold.here:
            hold.here[holder] = full
            full.branches[branch] = None
            self._note(branch, hold)
        hold.came += count
        waits = branch.waits and hold.came < OVERRUN_MAX
        return not full.beyond or (waits and now < full.taken_at + self._patience_s)

    # -- trees ------------------------------------------------------------------------------------

    def hear(self, branch: Branch, child: Child, idle_ms: int, now: float) -> None:
        """Note that a hop below holds a tree, or lets it go."""
        hold = self._holds.get(branch)
        if idle_ms == LET_GO:
            if hold is not None and hold.below.pop(child, None) is not None:
                self._note(branch, hold)
            return
        if hold is None:
            hold = self._holds[branch] = _Hold()
        is_news = child not in hold.below
        hold.below[child] = now - min(idle_ms, _IDLE_MAX_MS) / 1000
        if is_news:
            self._note(branch, hold)

    def lost(self, branch: Branch, child: Child) -> None:
        hold = self._holds.get(branch)
        if hold is not None and hold.below.pop(child, None) is not None:
            self._note(branch, hold)

    def has(self, branch: Branch) -> bool:
        """Return whether a subscriber or peer holds a tree or its second one; many messages under way do not count."""
        second = branch.second
        return branch in self._holds or (second is not None and second in self._holds)

    def run_ahead(self, branch: Branch) -> None:
        """Note that much of what was published along a tree of ours is not confirmed."""
        if branch not in self._ahead:
            self._ahead[branch] = inf
            self._wait(branch, inf, 0.0)
            self._tell(branch)

    def runs_ahead(self, branch: Branch) -> bool:
        return branch in self._ahead

    def got_on(self, branch: Branch, now: float) -> None:
        """Note that some of it is confirmed, and much is not."""
        self._ahead[branch] = now
        self._tell(branch)

    def caught_up(self, branch: Branch) -> None:
        """Note that not much of it is under way any more."""
        if self._ahead.pop(branch, None) is not None:
            self._tell(branch)
            if branch not in self._holds:
                self._wait(branch, -inf, 0.0)

    def told_anew(self, branch: Branch) -> None:
        """Note that the hop above tells of a tree again: it may have forgotten that it is held."""
        hold = self._holds.get(branch)
        if hold is not None:
            hold.told_at = hold.told_moved = -inf
            self._tell(branch)

    def forget(self, branch: Branch) -> None:
        hold = self._holds.pop(branch, None)
        self._ahead.pop(branch, None)
        self._news.pop(branch, None)
        self._wait(branch, -inf, 0.0)
        if hold is not None:
            for full in hold.here.values():
                del full.branches[branch]

    def take(self, now: float) -> list[tuple[Branch, int]]:
        """Return changes for the hops above: trees, and how many ms ago the slowest receiver took something."""
        if now >= self._look_at:
            self._look_at = now + HOLD_S
            self._look_at_peers(now)
            self._news.update(dict.fromkeys([*self._holds, *self._ahead]))
        news, self._news = self._news, {}
        found = []
        for branch in news:
            hold = self._holds.get(branch)
            if branch.upstream == NOBODY:
                since = self._ahead.get(branch, -inf)
                if since == inf:
                    since = self._ahead[branch] = now
                self._wait(branch, self._patience_s + (since if hold is None else max(since, hold.moved)), now)
            elif hold is None:
                found.append((branch, LET_GO))
            elif hold.moved > hold.told_moved and (now >= hold.told_at + HOLD_S or hold.told_at == -inf):
                hold.told_at, hold.told_moved = now, hold.moved
                found.append((branch, int(1000 * max(0.0, now - hold.moved))))
        self.due = self._look_at if self._holds or self._ahead else inf
        return found

    def _look_at_peers(self, now: float) -> None:
        for holder, full in self.full.items():
            if not isinstance(holder, int):
                if full.taken != holder.outbox.taken:
                    full.taken, full.taken_at = holder.outbox.taken, now
                full.taken_at = max(full.taken_at, holder.progress_at)

    def _wait(self, branch: Branch, until: float, now: float) -> None:
        if (now < until) is not (branch in self.waits):
            self.turned += 1
            if now < until:
                self.waits[branch] = None
            else:
                del self.waits[branch]

    def _note(self, branch: Branch, hold: _Hold) -> None:
        """Note that one holder more holds a tree, or one fewer."""
        if not hold.here and not hold.below:
            del self._holds[branch]
        if self._holds.get(branch) is None or hold.told_at == -inf or branch.upstream == NOBODY:
            self._tell(branch)

    def _tell(self, branch: Branch) -> None:
        self._news[branch] = None
        self.due = -inf

    # -- originals --------------------------------------------------------------------------------

    def hold_back(self, link: Link, cause: Holder | Branch) -> None:
        """Stop reading from an original whose messages fill a receiver here, or go along a held tree of ours."""
        self._sources.setdefault(link.conn, {})[cause] = None

    def forget_link(self, link: Link) -> None:
        self.free(link)
        self._sources.pop(link.conn, None)

    @property
    def holds_any_back(self) -> bool:
        """True if ``holds_back`` may be true of any connection."""
        return bool(self._sources)

    def holds_back(self, conn: int, now: float) -> bool:
        """Return whether nothing is to be read from an original for now."""
        causes = self._sources.get(conn)
        if causes is None:
            return False
        for cause in list(causes):
            if isinstance(cause, Branch):
                if cause in self.waits:
                    return True
            elif cause in self.full and now < self.full[cause].taken_at + self._patience_s:
                return True
            del causes[cause]
        del self._sources[conn]
        return False

    def invariants(self) -> list[str]:
        here = {(holder, branch) for branch, hold in self._holds.items() for holder in hold.here}
        marked = {(holder, branch) for holder, full in self.full.items() for branch in full.branches}
        found = [] if here == marked else ["trees are held by subscribers that are not full, or the other way round"]
        if any(branch not in self._holds and branch not in self._ahead for branch in self.waits):
            found.append("a tree is waited for that nobody holds, and that is not ahead")
        return found
