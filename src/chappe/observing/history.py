"""Changes, newest last, in bounded memory: members that come, leave and change; problems that begin and end.

Short commands, such as ``chappe topics`` or ``produce``, come and leave again all the time. Such visits are one change
that counts them, so that they push out nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

import msgspec

from chappe.observing.snapshot import HISTORY_MAX, ObservedMember, StatusChange

SERVERS: Final = ("store", "tower", "map server", "chain server")  # it is worth a warning if one leaves
VISIT_US: Final = 30_000_000  # who leaves within that has only visited
VISITS_APART_US: Final = 600_000_000  # a visit that begins so long after the last one is not counted with it


class History:
    """Changes of members and problems. Times are microseconds since 1970."""

    def __init__(self) -> None:
        self._changes: dict[int, StatusChange] = {}  # by number; the one that changed last is last
        self._numbers = count()
        self._came: dict[str, tuple[int, int]] = {}  # when members came, by id, and the number of that change
        self._visits: dict[tuple[str, str], int] = {}  # numbers of visits that are counted, by who visits

    def newest(self) -> Iterator[StatusChange]:
        """All that is remembered, newest first."""
        return reversed(self._changes.values())

    def note(self, change: StatusChange) -> int:
        """A change, by whose number it can be replaced."""
        number = next(self._numbers)
        self._changes[number] = change
        if len(self._changes) > HISTORY_MAX:
            del self._changes[next(iter(self._changes))]
        return number

    def compare(self, before: Iterable[ObservedMember], after: Iterable[ObservedMember], at: int) -> None:
        """Note what has changed between two looks of one source."""
        former = {each.id: each for each in before}
        newer = {each.id: each for each in after}
        for name, each in newer.items():
            known = former.get(name)
            if known is None:
                self._came[name] = at, self.note(StatusChange(at, "good", _who(each), "came", each.kind))
            elif known.status != each.status:
                self.note(StatusChange(at, each.level, _who(each), each.status, each.kind))
        for name, each in former.items():
            if name not in newer:
                self._leave(each, at)
        self._came = {name: came for name, came in self._came.items() if at - came[0] <= VISIT_US}

    def _leave(self, member: ObservedMember, at: int) -> None:
        came = self._came.pop(member.id, None)
        if member.kind in SERVERS or came is None or at - came[0] > VISIT_US:
            level = "warning" if member.kind in SERVERS else "good"
            self.note(StatusChange(at, level, _who(member), "left", member.kind))  # type: ignore[arg-type]
            return
        since, number = came
        self._changes.pop(number, None)
        visitor = member.kind, member.name if member.named else ""
        place = self._visits.get(visitor, -1)
        before = self._changes.get(place)
        visit = StatusChange(at, "good", _who(member), "came and left", member.kind)
        if before is not None and since - before.at <= VISITS_APART_US:
            del self._changes[place]
            visit = msgspec.structs.replace(
                visit, who=visit.who if member.named else f"{member.kind} without a name", times=before.times + 1,
                since=before.since or before.at,
            )  # fmt: skip
        self._visits[visitor] = self.note(visit)
        self._visits = {each: kept for each, kept in self._visits.items() if kept in self._changes}


def _who(member: ObservedMember) -> str:
    return f"{member.kind} {member.name}"
