"""A consumer's part in a group, as its program meets it: partitions come and go when it asks for more records."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chappe.api.faces import Seconds
from chappe.api.log.inbox import ConsumerInbox
from chappe.data.given import as_text
from chappe.data.markup import many
from chappe.data.topic import Filter
from chappe.defaults import SINK_NAME_MAX
from chappe.errors import Fenced, UsageError
from chappe.log.consumer import LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.groups.member import GroupMember
from chappe.log.sources import Key
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.log_seats import Seat
from chappe.system import time

COMMIT_S: Final = 1.0  # between two commits that are made by themselves
LEAVE_S: Final = 2.0  # at most so long stores are waited for when a member leaves
SESSION_MIN_S: Final = 0.5
SESSION_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Partitions of a group that change hands, each as (topic, partition).

    Attributes:
        assigned: Read here from now on. ``Consumer.seek`` in the callback sets where.
        revoked: Read by others once the callback returns; until then their positions can be committed.
        lost: Read by others already, as this member was not heard for too long; nothing can be committed.
    """

    assigned: tuple[Key, ...]
    revoked: tuple[Key, ...]
    lost: tuple[Key, ...]


def group_member(
    group: str | None,
    member: str | None,
    session_s: float,
    identity: str | None,
    on_rebalance: object,
    *,
    address: str,
    name: str,
    filters: Sequence[Filter],
    last: bool,
) -> GroupMember | None:
    """Return a consumer's membership; None without a group. Raises UsageError for arguments that do not fit."""
    if group is None:
        if member is not None or on_rebalance is not None:
            raise UsageError("member and on_rebalance need a group: name it, as in group='billing' or --group billing")
        return None
    for what, given in (("group", group), ("member", member)):
        if given is not None and not 0 < len(as_text(given, f"a {what}")) <= SINK_NAME_MAX:
            raise UsageError(f"the name of a {what} has 1 to {SINK_NAME_MAX} characters, not {len(given)}")
    if identity is not None:
        raise UsageError(
            "a group keeps its positions at stores, an identity in files of this machine: give the consumer one of "
            "them. A member that is to have its partitions again after a restart has a name: member='worker-1'"
        )
    if last:
        raise UsageError("a group goes on from its positions: reset='last-value' is for consumers without a group")
    if not isinstance(session_s, (int, float)) or not SESSION_MIN_S <= session_s <= SESSION_MAX_S:
        raise UsageError(f"session_s is {SESSION_MIN_S:g} to {SESSION_MAX_S:g} seconds, not {session_s!r}")
    return GroupMember(group, member or address, address, name, filters, clock=SYSTEM_CLOCK, session_s=session_s)


class Grouping:
    """Commits, and lets partitions come and go, whenever the program asks for more records (``turn``).

    Args:
        auto_commit: Whether positions are committed, once a second and when partitions go: those of all records that
            the program had taken before it asked for more.
        on_rebalance: Called in the program's thread.
    """

    def __init__(
        self,
        core: LogConsumer,
        node: Seat[ConsumingMember],
        inbox: ConsumerInbox,
        *,
        auto_commit: bool,
        on_rebalance: Callable[[Rebalance], None] | None,
    ) -> None:
        assert core.group is not None
        self.member: GroupMember = core.group
        self._core, self._node, self._inbox = core, node, inbox
        self._auto_commit = auto_commit
        self._on_rebalance = on_rebalance
        self._commit_at = time.monotonic() + COMMIT_S if auto_commit else math.inf
        self._turning = threading.Lock()

    @property
    def due(self) -> bool:
        """True if something is to be done before further records are handed on; looked at without the lock, too."""
        now = time.monotonic()
        return now >= self._commit_at or now >= self.member.lease or self.member.pending

    @property
    def holds(self) -> bool:
        """True if records may be handed on; else stores have to confirm first that our partitions are still ours."""
        return self.member.holds(time.monotonic())

    def check(self) -> None:
        """Raise Fenced if another program goes on as this member."""
        if self.member.fenced:
            raise Fenced(self.member.fenced)

    @property
    def known(self) -> bool:
        """True once stores have told which partitions are ours; ``turn`` may still have to take them."""
        return self.member.settled or self.member.pending

    @property
    def wakes(self) -> bool:
        """True if a program that waits for records has to ``turn`` first, or is to be told that it is fenced."""
        return self.member.pending or bool(self.member.fenced)

    def position(self, found: Mapping[Key, int]) -> dict[Key, int]:
        """Return the positions that are of our partitions."""
        return {key: offset for key, offset in found.items() if key in self.member.mine}

    def turn(self) -> bool:
        """Commit, and let partitions come and go; return True if they did. Not with the lock held.

        The program has processed all that it was handed, since it asks for more.
        """
        if not self.due or not self._turning.acquire(blocking=False):  # in a callback, or in another thread
            return False
        try:
            with self._node.lock:
                self._commit()
                if not self.member.pending:
                    return False
                change = self.member.change(time.monotonic())
                gone = {*change.revoked, *change.lost}
                self._inbox.leave(gone)
                self._core.give_up(gone)
                self._node.do(self._core.take_over(change.assigned, time.monotonic()))
            try:
                if self._on_rebalance is not None and (change.assigned or gone):
                    self._on_rebalance(Rebalance(tuple(sorted(change.assigned)), change.revoked, change.lost))
            finally:
                with self._node.lock:
                    self.member.let_go(change.revoked, time.monotonic())
                    self._look()
            return True
        finally:
            self._turning.release()

    def _commit(self) -> None:
        if self._auto_commit:
            self._commit_at = time.monotonic() + COMMIT_S
            self.note(self.position(self._inbox.position(False)))

    def note(self, positions: Mapping[Key, int]) -> None:
        """Have positions committed; the lock is held. Raises Fenced for partitions of others."""
        self.check()
        others = [key for key in positions if key not in self.member.mine]
        if others:
            topic, partition = others[0]
            raise Fenced(
                f"{many(len(others), 'partition')} of group {self.member.group} are read by others by now, such as "
                f"{partition} of topic {topic!r}: leave out what on_rebalance has said to be lost or revoked"
            )
        self.member.commit(positions, time.monotonic())
        self._look()

    def commit(
        self,
        positions: Mapping[Key, int],
        check: Callable[[], None],
        missing: Callable[[str], str],
        timeout: Seconds,
    ) -> None:
        """Wait until every store that answers, and one at least, has the positions.

        Raises Fenced, TimedOut (with ``missing`` where no store is known), and what ``check`` raises.
        """
        with self._node.lock:
            self.note(positions)

        def still_ours() -> None:
            check()
            if any(key not in self.member.mine for key in positions):
                self.note(positions)  # raises Fenced

        def uncommitted(when: str) -> str:
            if not self._core.stores:
                return missing(when)
            return f"not every store that is there has said {when} that it has the positions"

        self._node.wait_until(still_ours, lambda: self.member.committed(positions), uncommitted, timeout)

    def leave(self, *, done: bool) -> None:
        """Leave the group; ``done``: the program has processed all that it was handed."""
        with self._node.lock:
            if self._auto_commit and done and not self.member.fenced:
                self.member.commit(self.position(self._inbox.position(False)), time.monotonic())
            self._node.do(self.member.leave(time.monotonic()))
        deadline = time.monotonic() + LEAVE_S
        while not self.member.left and (left := deadline - time.monotonic()) > 0:
            self._node.pump(left, lambda: self.member.left)

    def _look(self) -> None:
        """Have it seen that something is due earlier."""
        self._node.do(())
        self._node.tell()
