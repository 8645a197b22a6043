"""Hints for the compiler, and repairs of compiled classes.

The pure parts are one source that runs compiled or not (``tools/compile.py``). Both behave alike, except for code that
reaches into a core from outside: a compiled class has no attributes that it does not declare, and a compiled module
keeps its own constants whatever is assigned to their names.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

C = TypeVar("C", bound=type)


def interpreted(kind: C) -> C:
    """Leave a class as Python makes it, in a module that is compiled.

    For kinds of ``int``, ``str``, ``bytes`` and ``tuple``, which mypyc cannot make: it takes a class with a decorator
    that it does not know as one whose making is Python's affair. Does nothing else.
    """
    return kind


# mypyc makes a Struct without the keywords of its class, so that those of its base count: what is compiled has one of
# these for a base, and names the keywords besides, which types are checked by.


class Frozen(msgspec.Struct, frozen=True):
    """A Struct that is never changed."""


class FrozenLeaf(msgspec.Struct, frozen=True, gc=False):
    """A Struct that is never changed, and holds nothing that could lead back to it."""


class Leaf(msgspec.Struct, eq=False, gc=False):
    """A Struct that is equal to itself alone, and holds nothing that could lead back to it."""


def repair_pickling(module: str) -> None:
    """Let the dataclasses of a compiled module be copied and pickled.

    mypyc gives each class a ``__setstate__`` that assigns attributes, which a frozen dataclass refuses. These two do
    what ``dataclass(slots=True)`` does, so that a pickle made by pure code is read by compiled code, and the reverse.
    ``tools/compile.py`` calls this at the end of each module that it compiles.
    """
    for kind in vars(sys.modules[module]).values():
        if isinstance(kind, type) and kind.__module__ == module and is_dataclass(kind):
            for name, method in (("__getstate__", _state), ("__setstate__", _restore)):
                setattr(kind, name, method)


def _state(value: Any) -> list[Any]:
    return [getattr(value, each.name) for each in fields(value)]


def _restore(value: Any, state: list[Any]) -> None:
    for each, one in zip(fields(value), state, strict=True):
        object.__setattr__(value, each.name, one)
