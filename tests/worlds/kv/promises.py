"""What is promised of a data store whose master is replaced: no write is lost or done twice, and no clone is misled."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.worlds.kv.chained import COUNTERS, LISTS, CloneLife, Part, Written

from chappe.data.scalars import Count
from chappe.kv.backend import HistoryRow
from chappe.kv.entity import Entity
from chappe.kv.history import past_change
from chappe.sim.world import Checker


def contents_of(host: Any) -> dict[Any, Any]:
    """What a master or a clone has."""
    return {index: entry.value for index, entry in host.role.engine.entries.items()}


class States(Checker[Any]):
    """A clone has what its master had behind the same event: no change is missed, and none is done twice."""

    name = "states of masters"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.resumed = 0  # times that a clone took from another master what it lacked
        self._offered: set[tuple[bytes, Entity]] = set()
        self._states: dict[tuple[Entity, int], dict[Any, Any]] = {}

    def on_state(self, master: Entity, event: int, entries: dict[Any, Any]) -> None:
        """A master has told all of its events up to this one."""
        self._states.setdefault((master, event), entries)

    def on_shows(self, clone: CloneLife, master: Entity, event: int) -> None:
        """A clone is in step."""
        entries = self._states.get((master, event))
        shown = contents_of(clone)
        if entries is not None and shown != entries:
            wrong = [key for key in {**entries, **shown} if key not in shown or shown[key] != entries.get(key)]
            self.fail(f"{clone.name} at event {event} of {master} has something else under {wrong}")

    def on_changes(self, clone: bytes, master: Entity) -> None:
        """A clone is offered what it lacks, and no more."""
        self._offered.add((clone, master))

    def on_moved(self, clone: CloneLife, master: Entity) -> None:
        """A clone follows another master."""
        self.resumed += (clone.own_id, master) in self._offered


class Histories(Checker[Any]):
    """All servers keep the last changes of each key, in order and none missing, and in the end the same."""

    name = "histories"

    def on_tick(self) -> None:
        """Each value of a list or a counter follows from the one before it."""
        for host in self.world.running() if self.world.history_size else ():
            for key in (*LISTS, *COUNTERS):
                found = [past_change(row) for row in host.role.past(key)]
                revisions = [each.revision for each in found]
                values: list[Any] = [each.value for each in found]
                steps = [
                    later == before + 1 if key in COUNTERS else later[:-1] == before
                    for before, later in pairwise(values)
                ]
                if not all(steps) or revisions != sorted(set(revisions)) or len(found) > self.world.history_size:
                    self.fail(f"{host.name} keeps {list(zip(revisions, values, strict=True))} of {key}")

    def unsettled(self) -> str | None:
        """Whether all have the same, which ends with what is there."""
        world = self.world
        for host in world.running() if world.history_size else ():
            for entry in host.role.engine.items():
                found = host.role.past(entry.key)
                others = [each.role.past(entry.key) for each in world.running()]
                if past_change(found[-1]).value != entry.value or len(found) > world.history_size:
                    self.fail(f"{host.name} has {entry.value!r} under {entry.key!r}, and the history {found}")
                if [_told(each) for each in others] != [_told(found)] * len(others):
                    return f"servers have other changes of {entry.key!r}: {others}"
        return None


def _told(rows: list[HistoryRow]) -> list[HistoryRow]:
    """Without a value from before the history, of which each server tells its own revision."""
    return [row for row in rows if past_change(row).at_ns is not None]


class Survival(Checker[Any]):
    """What was confirmed is there in the end, once; what was refused is not."""

    name = "confirmed writes"

    def unsettled(self) -> str | None:
        """Whether a write is lost, done twice, or done though it was refused."""
        world = self.world
        masters = [each for each in world.running() if each.role.active is not None]
        if len(masters) != 1:
            return f"{len(masters)} masters are active: {[each.role.story('') for each in world.running()]}"
        waiting = [each for host in world.alive(Part) for each in host.written.values()]
        if waiting:
            return f"{len(waiting)} writes are under way: {waiting[0]}"
        found = {entry.key: entry.value for entry in masters[0].role.engine.items()}
        for key in LISTS:
            values = found.get(key, ())
            if len(set(values)) != len(values):
                self.fail(f"{key} has a write twice: {values}")
        for each in world.written:
            self._check(each, found)
        for key in COUNTERS:
            self._count(key, found.get(key, Count(0)))
        return None

    def _check(self, each: Written, found: dict[Any, Any]) -> None:
        refused = each.told and isinstance(each.outcome, Exception) and getattr(each.outcome, "definite", True)
        done = each.told and not isinstance(each.outcome, Exception)
        if each.key in LISTS:
            there = each.value in found.get(each.key, ())
        elif each.key.startswith("set "):
            there = found.get(each.key) == each.value
        elif each.what == "put_unique" and each.told and each.outcome is True:
            if found.get(each.key) != each.value:
                self.fail(f"{each} was told that it inserted, and {found.get(each.key)!r} is there")
            return
        else:
            return
        if (done and not there) or (refused and there):
            self.fail(f"{each} is {'there' if there else 'not there'}")

    def _count(self, key: str, value: int) -> None:
        told = [each for each in self.world.written if each.key == key]
        done = sum([each.told and not isinstance(each.outcome, Exception) for each in told])
        perhaps = sum([not each.told or not getattr(each.outcome, "definite", True) for each in told])
        if not done <= value <= done + perhaps:
            self.fail(f"{key} is {value}; {done} increments were confirmed, {perhaps} may be done")
