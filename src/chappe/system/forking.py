"""Members in a forked child belong to the parent: every use of them in the child raises ``Forked``.

A fork copies a member's memory, but none of its threads, and the copy shares the parent's sockets, files and locks. So
in the child nothing of it may run: it would wait for threads that are not there, and write into what the parent uses.
Right after the fork every member of the child gets another class, whose every attribute raises ``Forked``. That costs
nothing in the parent, works on what is kept of a member in variables and running loops, and no lock is touched, which a
thread of the parent may have held in the moment of the fork.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from chappe.errors import Forked
from chappe.system import machine

_LEAVES: Final = frozenset({"close", "stop", "_abandon", "__exit__", "__aexit__", "__del__"})  # these do nothing
_PLAIN: Final = frozenset(
    {
        *("__class__", "__dict__", "__weakref__", "__slots__", "__module__", "__doc__", "__qualname__", "__init__"),
        *("__new__", "__init_subclass__", "__class_getitem__", "__subclasshook__", "__annotations__", "__orig_bases__"),
        *("__parameters__", "__eq__", "__hash__", "__match_args__", "__static_attributes__", "__firstlineno__"),
    }
)
_PARENTS: Final = "of the process before the fork"
_owned: Final[dict[int, tuple[weakref.ref[Any], tuple[str, ...]]]] = {}
_classes: Final[dict[tuple[type, str], type]] = {}


def own(member: object, *, keep: tuple[str, ...] = ()) -> None:
    """From now on ``member`` belongs to this process.

    Args:
        member: An object without ``__slots__``. If it has a method ``forked`` that is called in the child, to let go of
            what the system would keep for as long as any process has it.
        keep: Names of attributes whose values are never finalized in the child: databases that would write.
    """
    machine.current().owns(member)
    key = id(member)
    _owned[key] = (weakref.ref(member, lambda _: _owned.pop(key, None)), keep)


def left_behind(name: str) -> Forked:
    """Return the error that every use in the child raises."""
    return Forked(
        f"this {name} was made before the process forked, and belongs to the parent: make another one in the child"
    )


def abandon(members: Iterable[object], whose: str, error: Callable[[str], Exception]) -> None:
    """Leave members as a process does that is killed: nothing is finished, and every use of them raises ``error``."""
    for member in members:
        _, keep = _owned.pop(id(member), (None, ()))
        for name in keep:
            if (database := getattr(member, name, None)) is not None:
                database.close()  # in the midst of nothing, so this writes no more than a kill does
        _leave_behind(member, whose, error)


def _leave_behind(member: Any, whose: str, error: Callable[[str], Exception]) -> None:
    forked: Callable[[], None] | None = getattr(member, "forked", None)
    if forked is not None:
        forked()
    kind = type(member)
    member.__class__ = _classes.get((kind, whose)) or _unusable(kind, whose, error)


def _forked() -> None:
    owned = [(ref(), keep) for ref, keep in list(_owned.values())]
    _owned.clear()
    for member, keep in owned:
        for name in keep:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(member, name, None)))
    for member, _ in owned:
        if member is not None:
            _leave_behind(member, _PARENTS, left_behind)


def _unusable(kind: type, whose: str, error: Callable[[str], Exception]) -> type:
    """The class that a member of ``kind`` gets when it is left behind."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__.lstrip("_")).lower()

    def refuse(*_: object, **__: object) -> Any:
        raise error(name)

    def get(self: object, attribute: str) -> Any:
        if attribute in _LEAVES or attribute == "__class__":
            return object.__getattribute__(self, attribute)
        raise error(name)

    def leave(*_: object, **__: object) -> None:
        """Nothing is to be done, and nothing is raised: what a ``with`` met goes on."""

    async def leave_soon(*_: object, **__: object) -> None:
        leave()

    def shown(_: object) -> str:
        return f"<{kind.__name__} {whose}>"

    namespace: dict[str, Any] = {"__slots__": ()}
    for each in {name: None for base in kind.__mro__[:-1] for name in vars(base)}:
        if each in _LEAVES:
            namespace[each] = leave_soon if inspect.iscoroutinefunction(getattr(kind, each)) else leave
        elif each.startswith("__") and each not in _PLAIN:
            namespace[each] = refuse
    namespace |= {"__getattribute__": get, "__setattr__": refuse, "__repr__": shown, "__str__": shown}
    made = _classes[kind, whose] = type(kind.__name__, (kind,), namespace)
    return made


os.register_at_fork(after_in_child=_forked)
