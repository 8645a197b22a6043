"""A clone's copy of the data, which its master alone changes, and what watchers are told of it."""

from __future__ import annotations

from typing import Literal

from chappe.errors import ProtocolError
from chappe.kv import commands as cmd
from chappe.kv.actions import Action, Notify
from chappe.kv.engine import Change, Engine, Staged
from chappe.kv.entity import Entity


class Replica:
    """The engine of a clone; with ``notify`` every change of it is told."""

    def __init__(self, *, notify: bool) -> None:
        self.engine = Engine()
        self.notify = notify

    def become(self, staged: Staged, master: Entity, actions: list[Action]) -> None:
        """Become what a master's snapshot says, in one step for those who read, telling every difference."""
        for change in self.engine.replace(staged, tell=self.notify):
            self._tell(change, None, master, actions)

    def do(self, command: cmd.Action, actions: list[Action]) -> None:
        """An event of the master.

        Raises:
            ProtocolError: It is none.
            StoreError: It does not fit what is here: this is no copy of what the master has.
        """
        if type(command) is cmd.Put:
            change = self.engine.put(command.key, command.value)
            self._tell(change, command.expiry_ns, command.publisher, actions)
        elif isinstance(command, cmd.Erase | cmd.Expire):
            kind: Literal["erase", "expire"] = "erase" if isinstance(command, cmd.Erase) else "expire"
            self._tell(self.engine.erase(command.key, kind), None, command.publisher, actions)
        elif isinstance(command, cmd.Clear):
            for change in self.engine.clear():
                self._tell(change, None, command.publisher, actions)
        elif type(command) is cmd.Add:
            change = self.engine.add(command.key, command.value, command.init)
            self._tell(change, None, command.publisher, actions)
        elif type(command) is cmd.Subtract:
            change = self.engine.subtract(command.key, command.value)
            self._tell(change, None, command.publisher, actions)
        else:
            raise ProtocolError(f"a master sent {type(command).__name__}, which only clones do")

    def _tell(self, change: Change | None, expiry_ns: int | None, publisher: Entity, actions: list[Action]) -> None:
        if change is not None and self.notify:
            value = None if change.entry is None else change.entry.value
            before = None if change.before is None else change.before.value
            actions.append(Notify(change.kind, change.key, value, before, expiry_ns, publisher, change.version))
