"""Turns Spark's errors into one sentence, and filters what Java prints on standard error.

Spark's messages come with classes, codes, plans and the stack of two languages.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from chappe.errors import ChappeError

LONGEST: Final = 600  # characters of one sentence; plans and schemas can make it far longer

_OURS: Final = re.compile(r"\bchappe\.(?:[\w.]+\.)?[A-Z]\w+: (?P<text>.+)")
_RAISED: Final = re.compile(r"(?m)^(?P<text>(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*)$")
_STREAM: Final = re.compile(r"^Query .*?terminated with (?:exception|error): *", re.DOTALL)
_CLASS: Final = re.compile(
    r"^(?:\s*(?:Exception in thread \S+|An error occurred while calling \S+\s*:|[\w.$]+(?:Exception|Error):"
    r"|\[[A-Z0-9_.]+\]))+\s*"
)
_CAUSE: Final = re.compile(r"(?m)^Caused by: (?:\w+\.)*(.+)$")
_CODE: Final = re.compile(r"\s*SQLSTATE: \w+")
_LINE: Final = re.compile(r"\(?\bline (\d+),? pos \d+\)?")
_CHECKPOINT: Final = re.compile(
    r"STATE_STORE_\w*SCHEMA|STREAMING_STATEFUL_OPERATOR|STATE_STORE_STATE_SCHEMA|SCHEMA_NOT_COMPATIBLE"
    r"|STATE_STORE_\w*(?:MISMATCH|NOT_MATCH)|PROVIDED_.*SCHEMA|sources in the checkpoint"
    r"|STREAM_QUERY_CHECKPOINT|INCOMPATIBLE.*(?:STATE|CHECKPOINT)"
)
_NO_OFFSETS: Final = re.compile(r"streaming_source_runner\.py.*json\.decoder\.JSONDecodeError", re.DOTALL)
_IN_USE: Final = re.compile(r"CONCURRENT_(?:QUERY|STREAM)\w*|[Cc]oncurrently using|CONCURRENT_STREAM_LOG_UPDATE")
_NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"WARNING: package sun.security.action not in java.base",
    b"NOTE: Picked up JDK_JAVA_OPTIONS",
    b"Picked up _JAVA_OPTIONS",
)
_STACK: Final = re.compile(rb"\s+at |\s*\.\.\. \d+ more")  # useless in a one-sentence message
# A worker whose task Spark has ended early, because of a LIMIT, says so with the traceback of its last write.
_STOPPED: Final = b"PySpark daemon failed to flush the output to the worker process:"  # before it, with a setting
_TRACEBACK: Final = b"Traceback (most recent call last):"
_FRAME: Final = b"  File "
_LAST_WRITE: Final = re.compile(rb'  File ".*daemon\.py", line \d+, in (?:manager|worker)\s*$')
_GONE: Final = (b"BrokenPipeError: ", b"ConnectionResetError: ")


def sentence(error: BaseException | str) -> str:
    text = str(error).strip()
    ours = _OURS.findall(text)
    if ours:
        return _short(ours[-1])
    if "Traceback (most recent call last)" in text:
        raised = [each for each in _RAISED.findall(text) if not each.startswith("Traceback")]
        if raised:
            return _short(raised[-1])
    above, at, stack = text.partition("\n\tat ")
    if at:  # Java's stack: the innermost cause says most
        causes = _CAUSE.findall(stack)
        return _short(f"{sentence(above)} ({causes[-1]})" if causes else sentence(above))
    head = text.split("\n== ")[0].split("\n\n")[0] or text
    head = _CLASS.sub("", head)
    head = _CLASS.sub("", _STREAM.sub("", head))
    return _short(_LINE.sub("", _CODE.split(head)[0]) or text or type(error).__name__)


def is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


@contextmanager
def untraced() -> Iterator[None]:
    """Report errors of chappe to Spark's driver as one sentence, without the worker's traceback.

    Spark reads the setting from the environment of the worker, which exits with the error.
    """
    try:
        yield
    except ChappeError:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):  # the daemon, or a worker without one
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def line_in_sql(error: BaseException | str) -> int:
    """Return the line of the SQL that Spark complains about, from 1; 1 if it names none."""
    match = _LINE.search(str(error))
    return int(match[1]) if match else 1


def failure(error: BaseException | str, query: str, checkpoint: str) -> str:
    """Return the reason why a streaming query ended, and a remedy where one can be told."""
    text = str(error)
    if _IN_USE.search(text):
        return f"query {query}: another query uses its checkpoint {checkpoint}; stop that one, or give this one its own"
    if _NO_OFFSETS.search(text):  # Spark reads them before we are asked
        return (
            f"query {query}: the offsets in its checkpoint {checkpoint} are damaged, and no JSON: restore it from a "
            "copy, or give the query a new `checkpoint`"
        )
    if _CHECKPOINT.search(text):
        return (
            f"query {query} does not fit its checkpoint {checkpoint}, which an older form of it made: "
            f"give it a new `checkpoint`, or undo the change ({sentence(text)})"
        )
    return f"query {query} failed: {sentence(text)}"


def _short(text: str) -> str:
    words = " ".join(text.split()).rstrip(" ;.")
    return words if len(words) <= LONGEST else words[: LONGEST - 4] + " ..."


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
    """Yield all lines, except what Java always says and the tracebacks of workers whose task was ended early."""
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
    """True if each traceback has had its last line, the first that is not indented."""
    begun = sum(line.startswith(_TRACEBACK) for line in held)
    return 0 < begun <= len(_last_lines(held))


def _last_lines(held: list[bytes]) -> list[bytes]:
    return [line for line in held if not line[:1].isspace() and not line.startswith((_TRACEBACK, _STOPPED))]


def _only_told_to_stop(held: list[bytes]) -> bool:
    frames = [line for line in held if line.startswith(_FRAME)]
    return all(map(_LAST_WRITE.match, frames)) and all(line.startswith(_GONE) for line in _last_lines(held))
