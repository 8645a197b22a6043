"""What a master does for each command: the changes in its engine, and what is told to the clones.

As the original: what add and subtract result in is told as a put of the resulting value, a put_unique that inserted as
a put and the answer to who asked. An original waits for that answer; a clone of chappe is told otherwise.

What is done to a string or a container is told as it is where no original listens: n insertions into one set would cost
n*n/2 members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from chappe.errors import InvalidOperation
from chappe.kv import commands as cmd
from chappe.kv.engine import Change, Engine
from chappe.kv.entity import NOBODY, Entity
from chappe.kv.sizes import CONTAINERS

# Changes, what is told to the clones, and the result: None, or whether a put_unique inserted.
Executed: TypeAlias = tuple[tuple[Change, ...], tuple[cmd.Told, ...], object]
_GROWING: Final = CONTAINERS | {str, bytes}
_NS_MAX: Final = 2**63 - 1


def execute(engine: Engine, master: Entity, command: cmd.Action, wall_ns: int) -> Executed:
    """Do a command in memory; raises StoreError if it cannot be done, and then nothing was."""
    return _EXECUTE[type(command)](engine, master, command, wall_ns)


def _absolute(expiry_ns: int | None, wall_ns: int) -> int | None:
    return None if expiry_ns is None else min(wall_ns + expiry_ns, _NS_MAX)


def _put(engine: Engine, master: Entity, command: cmd.Put, wall_ns: int) -> Executed:
    return (engine.put(command.key, command.value, _absolute(command.expiry_ns, wall_ns)),), (command,), None


def _put_unique(engine: Engine, master: Entity, command: cmd.PutUnique, wall_ns: int) -> Executed:
    change = engine.put_unique(command.key, command.value, _absolute(command.expiry_ns, wall_ns))
    inserted = change is not None
    told: list[cmd.Told] = []
    if inserted:
        told.append(cmd.Put(command.key, command.value, command.expiry_ns, command.publisher))
    if command.who != NOBODY:
        told.append(cmd.PutUniqueResult(inserted, command.who, command.request, master))
    return () if change is None else (change,), tuple(told), inserted


def _erase(engine: Engine, master: Entity, command: cmd.Erase, wall_ns: int) -> Executed:
    change = engine.erase(command.key)
    return ((), (), None) if change is None else ((change,), (command,), None)


def _expired(engine: Engine, master: Entity, command: cmd.Expire, wall_ns: int) -> Executed:
    raise InvalidOperation("only a master says that a key has expired")


def _result(engine: Engine, master: Entity, command: cmd.PutUniqueResult, wall_ns: int) -> Executed:
    raise InvalidOperation("only a master says what became of a put_unique")


def _add(engine: Engine, master: Entity, command: cmd.Add, wall_ns: int) -> Executed:
    expires_ns = _absolute(command.expiry_ns, wall_ns)
    change = engine.add(command.key, command.value, command.init, expires_ns)
    return _resulting(change, cmd.Add(command.key, command.value, command.init, None, command.publisher))


def _subtract(engine: Engine, master: Entity, command: cmd.Subtract, wall_ns: int) -> Executed:
    change = engine.subtract(command.key, command.value, _absolute(command.expiry_ns, wall_ns))
    return _resulting(change, cmd.Subtract(command.key, command.value, None, command.publisher))


def _resulting(change: Change, command: cmd.Add | cmd.Subtract) -> Executed:
    """Originals get the value that came out, as the original sends it."""
    assert change.entry is not None
    value = change.entry.value
    whole = cmd.Put(change.entry.key, value, None, command.publisher)
    return (change,), (cmd.Changed(command, whole) if type(value) in _GROWING else whole,), None


def _clear(engine: Engine, master: Entity, command: cmd.Clear, wall_ns: int) -> Executed:
    return tuple(engine.clear()), (command,), None


_EXECUTE: Final[dict[type, Callable[[Engine, Entity, Any, int], Executed]]] = {
    cmd.Put: _put,
    cmd.PutUnique: _put_unique,
    cmd.PutUniqueResult: _result,
    cmd.Erase: _erase,
    cmd.Expire: _expired,
    cmd.Add: _add,
    cmd.Subtract: _subtract,
    cmd.Clear: _clear,
}
