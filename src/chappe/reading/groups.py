"""Consumer groups as stores have them: members, positions, lag; and positions that an administrator sets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, TypeVar

from chappe.data.topic import encode_topic
from chappe.defaults import GROUP_PAGE, GROUP_SESSION_S
from chappe.errors import ChappeError, ProtocolError, TimedOut, UsageError
from chappe.log.batch import Batch
from chappe.log.queries import (
    Answer,
    GroupAnswer,
    GroupBeat,
    GroupCrew,
    GroupList,
    GroupNames,
    GroupRequest,
    GroupRow,
    GroupSet,
)
from chappe.reading.offsets import Key, KnownPartition
from chappe.reading.view import StoresView
from chappe.system import time
from chappe.transports.queries import StoreClient

A = TypeVar("A", bound=Answer)
NOBODY: Final = ""
PAUSE_S: Final = 0.5  # between two questions to a store that has just started


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """How far a group is in one partition.

    Attributes:
        member: Who reads it; empty for nobody.
        offset: The next record; -1 if none is committed.
        committed_us: When it was committed, microseconds since 1970.
        end: The offset after the last record that stores have.
        lag: Records that are not read yet, of those that stores still have.
        lag_bytes: About so many bytes.
        lag_s: How much younger the newest record is than the next one to read, in seconds; None if nobody could tell.
    """

    topic: str
    partition: str
    member: str
    offset: int
    committed_us: int
    end: int
    lag: int
    lag_bytes: int
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group as all stores together have it."""

    name: str
    members: tuple[GroupCrew, ...]
    positions: tuple[GroupPosition, ...]


class ConsumerGroups:
    """The groups of the stores of a view, which stays its owner's to refresh and close."""

    def __init__(self, view: StoresView) -> None:
        self._view = view

    def names(self) -> dict[str, tuple[int, int]]:
        """Living members and partitions of each group."""
        found: dict[str, tuple[int, int]] = {}
        for answer in self._ask_all(GroupList(), GroupNames):
            for name, members, partitions in answer.groups:
                known = found.get(name, (0, 0))
                found[name] = max(known[0], members), max(known[1], partitions)
        return dict(sorted(found.items()))

    def status(self, name: str, *, ages: bool = True) -> GroupStatus:
        """One group, with its lag; with ``ages`` also in seconds. Raises UsageError if no store knows it."""
        rows, _, crew = self._rows(name)
        if not rows and not crew:
            known = ", ".join(self.names()) or "no groups"
            raise UsageError(f"no store knows a group {name!r}; there are: {known}")
        lives = {each.life for each in crew}
        positions = tuple(self._position(row, lives, ages) for _, row in sorted(rows.items()))
        return GroupStatus(name, tuple(sorted(crew, key=lambda each: (each.member, each.life))), positions)

    def reset(self, name: str, at: Callable[[Key, KnownPartition], int | None]) -> dict[Key, tuple[int, int]]:
        """Set positions to what ``at`` says for each partition of the group; returns them, before and after. Where
        ``at`` says None the position stays. Raises UsageError if the group has living members, or no store knows it.
        """
        rows, _, crew = self._rows(name)
        _need_nobody(name, crew)
        if not rows:
            raise UsageError(f"no store knows a position of a group {name!r}")
        epoch = max(row.epoch for row in rows.values()) + 1
        moved: dict[Key, tuple[int, int]] = {}
        changed: list[GroupRow] = []
        for key, row in rows.items():
            known = self._view.known.get(key)
            offset = None if known is None else at(key, known)
            if offset is None:
                continue
            moved[key] = row.offset, offset
            names = encode_topic(key[0]), encode_topic(key[1])
            changed.append(GroupRow(*names, epoch, NOBODY, NOBODY, 0, True, offset, time.time_ns() // 1000))
        rest = iter(changed)
        while page := list(islice(rest, GROUP_PAGE)):
            self._set(GroupSet(name, page))
        return moved

    def delete(self, name: str) -> int:
        """Forget a group for good; returns how many positions it had. Raises as ``reset``."""
        rows, floor, crew = self._rows(name)
        _need_nobody(name, crew)
        if not rows:
            raise UsageError(f"no store knows a group {name!r}")
        self._set(GroupSet(name, floor=max(floor, *(row.epoch for row in rows.values()))))
        return len(rows)

    # -- inside -----------------------------------------------------------------------------------------------

    def _clients(self) -> list[StoreClient]:
        found = (self._view.client(each) for each in self._view.endpoints)
        return [each for each in found if each is not None]

    def _ask(self, client: StoreClient, request: GroupRequest, kind: type[A]) -> A:
        answer, _ = client.ask(request)
        if not isinstance(answer, kind):
            raise ProtocolError(f"the store at {client.endpoint} answered another question")
        return answer

    def _ask_all(self, request: GroupRequest, kind: type[A]) -> list[A]:
        """The answers of all stores that answer. Raises what one of them says if none does."""
        found: list[A] = []
        problem: ChappeError = TimedOut("no store answers")
        for client in self._clients():
            try:
                found.append(self._ask(client, request, kind))
            except ChappeError as error:
                problem = error
        if not found:
            raise problem
        return found

    def _set(self, request: GroupSet) -> None:
        """Have every store do it: one that does not would bring it back. Raises as ``StoreClient.ask``."""
        if self._view.away:
            raise TimedOut(f"the store at {self._view.away[0]} does not answer: positions are set at all or none")
        until = time.monotonic() + GROUP_SESSION_S + PAUSE_S
        for client in self._clients():
            while True:
                try:
                    self._ask(client, request, GroupAnswer)
                    break
                except TimedOut:  # it may have just started, and not know yet who lives
                    if time.monotonic() >= until:
                        raise
                    time.sleep(PAUSE_S)

    def _rows(self, name: str) -> tuple[dict[Key, GroupRow], int, list[GroupCrew]]:
        """The rows of the largest rank, the floor, and the living members."""
        rows: dict[Key, GroupRow] = {}
        crew: dict[str, GroupCrew] = {}
        floor, answered = 0, False
        problem: ChappeError = TimedOut("no store answers")
        for client in self._clients():
            table, since = "", 0
            try:
                while True:
                    answer = self._ask(client, GroupBeat(name, table=table, since=since), GroupAnswer)
                    answered, floor = True, max(floor, answer.floor)
                    crew |= {each.life: each for each in answer.members or ()}
                    for row in answer.rows:
                        if row.key not in rows or row.rank > rows[row.key].rank:
                            rows[row.key] = row
                    if not answer.more:
                        break
                    table, since = answer.table, answer.since
            except ChappeError as error:
                problem = error
        if not answered:
            raise problem
        return {key: row for key, row in rows.items() if row.epoch > floor}, floor, list(crew.values())

    def _position(self, row: GroupRow, lives: set[str], ages: bool) -> GroupPosition:
        key = row.key
        known = self._view.known.get(key)
        member = row.member if row.owner in lives and not row.free else NOBODY
        if known is None:
            return GroupPosition(*key, member, row.offset, row.at_us, 0, 0, 0, None)
        lag = max(0, known.next - max(row.offset, known.first))
        lag_s = 0.0 if not lag else self._lag_s(key, known, max(row.offset, known.first)) if ages else None
        return GroupPosition(*key, member, row.offset, row.at_us, known.next, lag, lag * known.record_bytes, lag_s)

    def _lag_s(self, key: Key, known: KnownPartition, offset: int) -> float | None:
        for endpoint in known.holders:
            client = self._view.client(endpoint)
            with suppress(ChappeError):
                if client is not None:
                    answer, raws = client.read(*key, offset, 1)
                    if answer.known and raws:
                        batch = Batch.parse(bytes(raws[0]))
                        stamp = batch.timestamps()[offset - batch.base] if batch.sealed is None else batch.timestamp_min
                        return max(0.0, (known.timestamp_max - stamp) / 1e6)
        return None


def _need_nobody(name: str, crew: list[GroupCrew]) -> None:
    if crew:
        who = ", ".join(sorted(each.name or each.member for each in crew))
        raise UsageError(f"group {name!r} has living members: {who}; stop them first")


def offset_at(view: StoresView, key: Key, known: KnownPartition, moment: datetime) -> int:
    """The first offset of a partition that is not older than a moment. Raises as ``StoreClient.ask``."""
    at_us = int(moment.timestamp() * 1_000_000)
    if known.next == known.first or at_us <= known.timestamp_min:
        return known.first
    if at_us > known.timestamp_max:
        return known.next
    problem: ChappeError = TimedOut(f"no store that has partition {key[1]} of topic {key[0]!r} answers")
    for endpoint in known.holders:
        client = view.client(endpoint)
        try:
            if client is not None:
                return max(known.first, client.seek(*key, at_us))
        except ChappeError as error:
            problem = error
    raise problem
