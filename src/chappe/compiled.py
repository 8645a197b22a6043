"""What the compiler is told: the classes that it is to leave alone.

The pure parts are one source that runs compiled or not (``tools/compile.py``). All behaves alike, but for who reaches
into a core from outside: what is compiled has no attributes that it does not declare, and keeps to its own constants
whatever is assigned to their names.
"""

from __future__ import annotations

from typing import TypeVar

C = TypeVar("C", bound=type)


def interpreted(kind: C) -> C:
    """Leave a class as Python makes it, in a module that is compiled.

    For kinds of ``int``, ``str``, ``bytes`` and ``tuple``, which mypyc cannot make: it takes a class with a decorator
    that it does not know as one whose making is Python's affair. Does nothing else.
    """
    return kind
