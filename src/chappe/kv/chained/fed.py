"""Events that the machine of a data store tells its server, in the order of the chain's commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from chappe.defaults import MIB
from chappe.kv.backend import WriterRow
from chappe.kv.chained.messages import Row, decode_rows
from chappe.kv.entity import Entity

ROWS_MAX: Final = 1_000  # in one ``WholeRows``
ROWS_BYTES: Final = 1 * MIB  # the same in bytes; one row may pass it


class WholeState(NamedTuple):
    """The state is this one, whatever it was: a life begins, or it came whole from another server.

    A server takes it as ``steps``. ``parts`` are encoded puts by key, and changes in the history of keys; they do not
    change any more. ``event`` is the last that clones were told by ``master``; NOBODY: there was none yet.
    """

    parts: tuple[dict[bytes, bytes], ...]
    writers: tuple[WriterRow, ...]
    master: Entity
    event: int


class WholeBegins(NamedTuple):
    """``WholeRows`` and ``WholeEnds`` follow, before anything else that was committed."""


class WholeRows(NamedTuple):
    rows: tuple[Row, ...]
    size: int


class WholeEnds(NamedTuple):
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


Fed: TypeAlias = WholeBegins | WholeRows | WholeEnds | Led | Did | Stood
FED: Final = (WholeBegins, WholeRows, WholeEnds, Led, Did, Stood)


def steps(whole: WholeState) -> Iterator[Fed]:
    """Split a state into steps that take milliseconds each; decodes the rows of each when it is asked for."""
    yield WholeBegins()
    for part in whole.parts:
        rows: list[bytes] = []
        size = 0
        for raw in part.values():
            rows.append(raw)
            size += len(raw)
            if len(rows) == ROWS_MAX or size >= ROWS_BYTES:
                yield _rows(rows)
                rows, size = [], 0
        if rows:
            yield _rows(rows)
    yield WholeEnds(whole.writers, whole.master, whole.event)


def _rows(rows: list[bytes]) -> WholeRows:
    body = b"".join(rows)
    return WholeRows(tuple([row for row, _ in decode_rows(body)]), len(body))
