"""A clone's copy of the data, which its master alone changes, and what watchers are told of it."""

from __future__ import annotations

from typing import Literal

from chappe.data.order import same
from chappe.errors import ProtocolError
from chappe.stores import commands as cmd
from chappe.stores.actions import Action, Notify
from chappe.stores.engine import Change, Engine, index_of
from chappe.stores.entity import Entity


class Replica:
    """The engine of a clone; with ``notify`` every change of it is told."""

    def __init__(self, *, notify: bool) -> None:
        self.engine = Engine()
        self.notify = notify

    def become(self, pairs: list[cmd.Pair], master: Entity, actions: list[Action]) -> None:
        """Become what a master's snapshot says, telling every difference."""
        wanted = {index_of(key) for key, _ in pairs}
        for entry in [entry for index, entry in self.engine.entries.items() if index not in wanted]:
            self._tell(self.engine.erase(entry.key), None, master, actions)
        for key, value in pairs:
            found = self.engine.find(key)
            if found is None or not same(found.value, value):
                self._tell(self.engine.put(key, value), None, master, actions)

    def do(self, command: cmd.Action, actions: list[Action]) -> None:
        """An event of the master; raises ProtocolError for what is none."""
        if type(command) is cmd.Put:
            change = self.engine.put(command.key, command.value)
            self._tell(change, command.expiry_ns, command.publisher, actions)
        elif isinstance(command, cmd.Erase | cmd.Expire):
            kind: Literal["erase", "expire"] = "erase" if isinstance(command, cmd.Erase) else "expire"
            self._tell(self.engine.erase(command.key, kind), None, command.publisher, actions)
        elif isinstance(command, cmd.Clear):
            for change in self.engine.clear():
                self._tell(change, None, command.publisher, actions)
        else:
            raise ProtocolError(f"a master sent {type(command).__name__}, which only clones do")

    def _tell(self, change: Change | None, expiry_ns: int | None, publisher: Entity, actions: list[Action]) -> None:
        if change is not None and self.notify:
            value = None if change.entry is None else change.entry.value
            before = None if change.before is None else change.before.value
            actions.append(Notify(change.kind, change.key, value, before, expiry_ns, publisher, change.version))
