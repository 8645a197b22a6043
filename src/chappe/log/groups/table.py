"""A store keeps, for consumer groups, the owner of each partition and the position of the group in it.

Members say what they have read, and ask for partitions, in beats (``queries.GroupBeat``). A store grants a partition
that is free, or whose owner it has not heard for a session; what it has granted or was told is on disk before it
answers. Of two rows for one partition the one with the larger rank counts, so stores that have heard different words
come to the same rows once they have heard all of them, and what an owner says who has been replaced changes nothing.

With one store that is reached a partition has one owner at a time. Stores that cannot reach each other's members may
grant the same partition to two; the larger rank ends that once both are reached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Protocol

from chappe.core import Effect, Persist, Reply
from chappe.data.markup import many
from chappe.defaults import (
    GROUP_MEMBERS_MAX,
    GROUP_PAGE,
    GROUP_ROWS_MAX,
    GROUP_SESSION_S,
    GROUP_WAITING_MAX,
    GROUPS_MAX,
)
from chappe.errors import ChappeError, ProtocolError
from chappe.log.queries import (
    EARLY,
    FENCED,
    FULL,
    Answer,
    ErrorAnswer,
    GroupAnswer,
    GroupBeat,
    GroupCrew,
    GroupList,
    GroupNames,
    GroupRequest,
    GroupRow,
    GroupSet,
    QueryReply,
    filters_of,
)
from chappe.log.sources import Key


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """Rows of one group; those up to the epoch ``floor`` are gone."""

    group: str
    floor: int
    rows: tuple[GroupRow, ...]


@dataclass(frozen=True, slots=True)
class GroupJob:
    """A job of a store's disk: make these rows durable in one step; it comes to None or an error."""

    changes: tuple[KeptGroup, ...]


class GroupStorage(Protocol):
    """The port for groups. Every method raises StorageError, StorageFull where there is no room."""

    def kept(self) -> list[KeptGroup]: ...

    def keep(self, changes: Sequence[KeptGroup]) -> None:
        """Keep rows in the place of those of the same partitions; all of them are durable when this returns."""

    def close(self) -> None: ...


class MemoryGroups:
    """The port in memory, for worlds and tests: the object is the disk."""

    def __init__(self) -> None:
        self.refuses: ChappeError | None = None
        self._groups: dict[str, tuple[int, dict[Key, GroupRow]]] = {}

    def kept(self) -> list[KeptGroup]:
        return [KeptGroup(name, floor, tuple(rows.values())) for name, (floor, rows) in self._groups.items()]

    def keep(self, changes: Sequence[KeptGroup]) -> None:
        if self.refuses is not None:
            raise self.refuses
        for each in changes:
            _, known = self._groups.get(each.group, (0, {}))
            rows = {key: row for key, row in known.items() if row.epoch > each.floor}
            self._groups[each.group] = each.floor, rows | {row.key: row for row in each.rows}

    def close(self) -> None:
        """Do nothing: the object is the disk."""


class _GroupRefusal(ChappeError):
    """A request that is refused; ``kind`` as in ErrorAnswer."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class _GroupAsker:
    client: bytes
    request_id: bytes
    request: GroupBeat | GroupSet
    refused: tuple[int, ...] = ()

    def reply(self, answer: Answer) -> Effect:
        return Reply(self.client, QueryReply(self.request_id, answer))


@dataclass(slots=True)
class _Member:
    crew: GroupCrew
    born_us: int
    dead_at: float  # if it is not heard until then


@dataclass(slots=True)
class _Group:
    name: str
    floor: int = 0
    rows: dict[Key, GroupRow] = field(default_factory=dict)
    changed: dict[Key, int] = field(default_factory=dict)  # version of each row, the last change at the end
    version: int = 0
    crew: int = 0  # version of the members
    members: dict[str, _Member] = field(default_factory=dict)

    def expire(self, now: float) -> None:
        """Forget members that were not heard for their session."""
        for life in [life for life, each in self.members.items() if each.dead_at <= now]:
            self.leave(life)

    def leave(self, life: str) -> None:
        if self.members.pop(life, None) is not None:
            self.crew += 1

    def hear(self, beat: GroupBeat, now: float) -> None:
        """A member lives. Raises _GroupRefusal for an earlier life of one that lives again, and for one too many."""
        dead_at = now + beat.session_ms / 1000
        told = GroupCrew(beat.life, beat.member, beat.name, beat.topics)
        known = self.members.get(beat.life)
        if known is not None:
            known.dead_at = dead_at
            if known.crew != told:
                known.crew = told
                self.crew += 1
            return
        for life, each in list(self.members.items()):
            if each.crew.member == beat.member:
                if each.born_us >= beat.born_us:
                    raise _GroupRefusal(
                        f"another program goes on as member {beat.member} of group {self.name}: give each a name of "
                        "its own",
                        FENCED,
                    )
                self.leave(life)
        if len(self.members) >= GROUP_MEMBERS_MAX:
            raise _GroupRefusal(f"group {self.name} has {GROUP_MEMBERS_MAX} members, which is the most")
        self.members[beat.life] = _Member(told, beat.born_us, dead_at)
        self.crew += 1

    def take(self, row: GroupRow) -> bool:
        """Put in a row, unless what is there holds; True if it is there now."""
        known = self.rows.get(row.key)
        if row.epoch <= self.floor or (known is None and len(self.rows) >= GROUP_ROWS_MAX):
            return False
        if known is not None and row.rank <= known.rank:
            return row == known
        self.version += 1
        self.rows[row.key] = row
        self.changed.pop(row.key, None)
        self.changed[row.key] = self.version
        return True

    def forget(self, floor: int) -> None:
        """Forget all rows up to an epoch, for good."""
        self.floor = floor
        for key in [key for key, row in self.rows.items() if row.epoch <= floor]:
            del self.rows[key], self.changed[key]
        self.version += 1

    def since(self, version: int) -> list[GroupRow]:
        """The rows that changed after a version, the first change in front, one page of them."""
        newer = [key for key, _ in takewhile(lambda each: each[1] > version, reversed(self.changed.items()))]
        return [self.rows[key] for key in islice(reversed(newer), GROUP_PAGE)]


class GroupTables:
    """All groups of one store. ``life`` is new each time: versions that members know of another life do not count."""

    def __init__(self, life: str, kept: Iterable[KeptGroup], now: float) -> None:
        self._life = life
        self._born = now
        self._groups: dict[str, _Group] = {}
        for each in kept:
            group = self._groups[each.group] = _Group(each.group, each.floor)
            for row in each.rows:
                group.take(row)
        # What is to be written next, and what is being written: rows by group, none where only the floor changed.
        self._dirty: dict[str, dict[Key, None]] = {}
        self._flying: dict[str, dict[Key, None]] = {}
        self._begun = 0  # jobs
        self._waiting: list[tuple[int, _GroupAsker]] = []  # who is answered once that job is done

    def handle_request(self, client: bytes, request_id: bytes, request: GroupRequest, now: float) -> list[Effect]:
        """A request on the query socket. Raises ProtocolError for one that makes no sense."""
        if isinstance(request, GroupList):
            return [Reply(client, QueryReply(request_id, self._names(now)))]
        asked = _GroupAsker(client, request_id, request)
        try:
            if isinstance(request, GroupSet):
                return self._answered(asked, self._set(request, now))
            if not request.life:
                return [asked.reply(self._answer(request, (), now))]
            changes, refused = self._beat(request, now)
            return self._answered(_GroupAsker(client, request_id, request, refused), changes)
        except _GroupRefusal as error:
            return [asked.reply(ErrorAnswer(str(error), error.kind))]

    def handle_done(self, outcome: ChappeError | None, now: float) -> list[Effect]:
        """The job under way is done, or the disk refused it: then its rows go with the next one."""
        answered = [asked for number, asked in self._waiting if number <= self._begun]
        self._waiting = [each for each in self._waiting if each[0] > self._begun]
        flying, self._flying = self._flying, {}
        if outcome is None:
            replies = [asked.reply(self._answer(asked.request, asked.refused, now)) for asked in answered]
            return [*replies, *self._write()]
        for name, keys in flying.items():
            self._dirty[name] = keys | self._dirty.get(name, {})
        why = ErrorAnswer(f"its disk refuses: {outcome}", FULL)
        return [*(asked.reply(why) for asked in answered), *(self._write() if self._waiting else ())]

    def told(self, now: float) -> list[tuple[str, int, Collection[GroupRow]]]:
        """Return the name, the number of living members and the rows of each group that has any."""
        for group in self._groups.values():
            group.expire(now)
        there = (each for each in self._groups.values() if each.rows or each.members)
        return [(each.name, len(each.members), each.rows.values()) for each in there]

    def invariants(self) -> list[str]:
        """Return each violated invariant as a sentence."""
        found = [
            f"group {each.name} lists other rows than it has"
            for each in self._groups.values()
            if each.changed.keys() != each.rows.keys()
        ]
        if self._waiting and not self._flying:
            found.append(f"{len(self._waiting)} wait for the disk, which does nothing for groups")
        return found

    # -- inside -----------------------------------------------------------------------------------------------

    def _beat(self, beat: GroupBeat, now: float) -> tuple[bool, tuple[int, ...]]:
        """Take what a member says; whether anything of it has to be on disk, and which claims are not granted."""
        if not beat.group or not beat.member:
            raise ProtocolError("a group or its member without a name")
        for row in (*beat.claims, *beat.rows):
            if row.owner != beat.life or not row.topic or not row.partition or b"\0" in row.topic + row.partition:
                raise ProtocolError("a member of a group speaks for another one, or of a partition without a name")
        filters_of(beat.topics)
        group = self._group(beat.group, now)
        group.hear(beat, now)
        for row in beat.rows:
            self._put(group, row)
        grace_s = max(beat.session_ms / 1000, GROUP_SESSION_S)
        refused: list[int] = []
        for place, row in enumerate(beat.claims):
            known = group.rows.get(row.key)
            if (
                known is not None
                and known.owner != row.owner
                and not self._free(group, known, beat.member, grace_s, now)
            ) or not self._put(group, row):
                refused.append(place)
        if beat.leaves:
            group.leave(beat.life)
        return bool(beat.claims or beat.rows), tuple(refused)

    def _free(self, group: _Group, row: GroupRow, member: str, grace_s: float, now: float) -> bool:
        """True if the owner of a row let go, is dead, or is an earlier life of the member that asks."""
        if row.free or row.member == member:
            return True
        return row.owner not in group.members and now >= self._born + grace_s  # before that it may not have been heard

    def _put(self, group: _Group, row: GroupRow) -> bool:
        version = group.version
        there = group.take(row)
        if group.version > version:
            self._dirty.setdefault(group.name, {})[row.key] = None
        return there

    def _set(self, request: GroupSet, now: float) -> bool:
        group = self._group(request.group, now)
        if group.members:
            raise _GroupRefusal(f"group {group.name} has {many(len(group.members), 'living member')}: stop them first")
        if now < self._born + GROUP_SESSION_S:
            text = f"this store has just started and learns who lives: ask again in {GROUP_SESSION_S:g} s"
            raise _GroupRefusal(text, EARLY)
        if request.floor > group.floor:
            group.forget(request.floor)
            self._dirty.setdefault(group.name, {})
        for row in request.rows:
            if not self._put(group, row):
                raise _GroupRefusal(f"position of group {group.name} has changed meanwhile: look again")
        return True

    def _group(self, name: str, now: float) -> _Group:
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                self._drop_empty(now)
            if len(self._groups) >= GROUPS_MAX:
                raise _GroupRefusal(f"this store knows {GROUPS_MAX} groups, which is the most: delete some")
            group = self._groups[name] = _Group(name)
        group.expire(now)
        return group

    def _drop_empty(self, now: float) -> None:
        """Forget groups in which nobody lives, and of which nothing is on disk."""
        for name, group in list(self._groups.items()):
            group.expire(now)
            if not (group.rows or group.members or group.floor or name in self._dirty or name in self._flying):
                del self._groups[name]

    def _answered(self, asked: _GroupAsker, changes: bool) -> list[Effect]:
        """Answer once what a request changed is on disk, at once if it changed nothing."""
        if not changes or not (self._dirty or self._flying):
            return [asked.reply(self._answer(asked.request, asked.refused, None))]
        if len(self._waiting) >= GROUP_WAITING_MAX:
            return [asked.reply(ErrorAnswer("too many wait for its disk: ask again"))]
        self._waiting.append((self._begun + (1 if self._dirty else 0), asked))
        return self._write()

    def _write(self) -> list[Effect]:
        """Have the disk take what is to be written, if it has nothing to do for groups."""
        if self._flying or not self._dirty:
            return []
        self._flying, self._dirty = self._dirty, {}
        self._begun += 1
        changes: list[KeptGroup] = []
        for name, keys in self._flying.items():
            group = self._groups[name]
            rows = tuple(group.rows[key] for key in keys if key in group.rows)
            changes.append(KeptGroup(name, group.floor, rows))
        return [Persist(GroupJob(tuple(changes)))]

    def _answer(self, request: GroupBeat | GroupSet, refused: tuple[int, ...], now: float | None) -> GroupAnswer:
        group = self._groups.get(request.group) or _Group(request.group)
        if now is not None:
            group.expire(now)
        since = crew = 0
        if isinstance(request, GroupBeat) and request.table == self._life:
            since, crew = request.since, request.crew
        rows = group.since(since)
        more = len(rows) >= GROUP_PAGE and group.changed[rows[-1].key] < group.version
        reached = group.changed[rows[-1].key] if more else group.version
        members = None if crew and crew == group.crew else [each.crew for each in group.members.values()]
        return GroupAnswer(self._life, reached, group.crew, group.floor, more, members, rows, list(refused))

    def _names(self, now: float) -> GroupNames:
        return GroupNames([(name, members, len(rows)) for name, members, rows in self.told(now)])
