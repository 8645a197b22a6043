"""What the machine of a data store tells its server, in the order in which the chain has committed it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from chappe.kv.backend import WriterRow
from chappe.kv.entity import Entity
from chappe.kv.rows import Row


class Whole(NamedTuple):
    """The state is this one, whatever it was: a life begins, or it came whole from another server.

    ``rows`` are operations of a backend that begins empty, encoded one behind the other. ``event`` is the last that
    clones were told by ``master``; NOBODY: there was none yet.
    """

    rows: bytes
    writers: tuple[WriterRow, ...]
    master: Entity
    event: int


class Led(NamedTuple):
    """``master`` is the master from here on, and goes on behind its own event ``event``."""

    master: Entity
    event: int


class Did(NamedTuple):
    """The commit ``number`` of ``master`` counts; clones are told of it up to ``event``."""

    master: Entity
    number: int
    event: int
    rows: tuple[Row, ...]
    size: int = 0  # in bytes


class Stood(NamedTuple):
    """``master`` was still the master when it asked ``question``."""

    master: Entity
    question: int


Fed: TypeAlias = Whole | Led | Did | Stood
