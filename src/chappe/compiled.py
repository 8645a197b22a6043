"""What the compiler is told: the classes that it is to leave alone, and what it does not hand on of others.

The pure parts are one source that runs compiled or not (``tools/compile.py``). All behaves alike, but for who reaches
into a core from outside: what is compiled has no attributes that it does not declare, and keeps to its own constants
whatever is assigned to their names.
"""

from __future__ import annotations

from typing import TypeVar

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
