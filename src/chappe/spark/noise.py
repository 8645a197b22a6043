"""What Java and Python's workers say on standard error, without what nobody needs to read."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

_NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"WARNING: package sun.security.action not in java.base",
    b"NOTE: Picked up JDK_JAVA_OPTIONS",
    b"Picked up _JAVA_OPTIONS",
)
_STACK: Final = re.compile(rb"\s+at |\s*\.\.\. \d+ more")  # of no use to whoever reads one sentence
# A worker whose task Spark has ended early, because of a LIMIT, says so with the traceback of its last write.
_STOPPED: Final = b"PySpark daemon failed to flush the output to the worker process:"  # before it, with a setting
_TRACEBACK: Final = b"Traceback (most recent call last):"
_FRAME: Final = b"  File "
_LAST_WRITE: Final = re.compile(rb'  File ".*daemon\.py", line \d+, in (?:manager|worker)\s*$')
_GONE: Final = (b"BrokenPipeError: ", b"ConnectionResetError: ")


def forward(source: Iterable[bytes], said: deque[bytes]) -> None:
    """Copy what Java says to standard error, without what it always says."""
    for line in worth_saying(source):
        if not _STACK.match(line):
            said.append(line.strip())
        try:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
        except (AttributeError, ValueError, OSError):  # no such stream here, or closed
            continue


def worth_saying(lines: Iterable[bytes]) -> Iterator[bytes]:
    """All lines, except what Java always says and the tracebacks of workers whose task was ended early."""
    held: list[bytes] = []  # tracebacks that have not ended; those of several workers may be mixed
    after = False  # such a traceback, which an empty line may follow
    for line in lines:
        if held or line.startswith((_TRACEBACK, _STOPPED)):
            held.append(line)
            if not _ended(held):
                continue
            after = _only_told_to_stop(held)
            if not after:
                yield from held
            held = []
        elif after and not line.strip():
            after = False
        elif not line.startswith(_NOISE):
            after = False
            yield line
    yield from held


def _ended(held: list[bytes]) -> bool:
    """Whether each traceback has had its last line, the first that is not indented."""
    begun = sum(line.startswith(_TRACEBACK) for line in held)
    return 0 < begun <= len(_last_lines(held))


def _last_lines(held: list[bytes]) -> list[bytes]:
    return [line for line in held if not line[:1].isspace() and not line.startswith((_TRACEBACK, _STOPPED))]


def _only_told_to_stop(held: list[bytes]) -> bool:
    frames = [line for line in held if line.startswith(_FRAME)]
    return all(map(_LAST_WRITE.match, frames)) and all(line.startswith(_GONE) for line in _last_lines(held))
