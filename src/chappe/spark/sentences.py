"""What Spark says, as one sentence: its messages come with classes, codes, plans and the stack of two languages."""

from __future__ import annotations

import re
from typing import Final

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


def sentence(error: BaseException | str) -> str:
    """The one line that tells what is wrong."""
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


def line_in_sql(error: BaseException | str) -> int:
    """The line of the SQL that Spark complains about, from 1; 1 if it names none."""
    match = _LINE.search(str(error))
    return int(match[1]) if match else 1


def failure(error: BaseException | str, query: str, checkpoint: str) -> str:
    """Why a streaming query ended, and what mends it where that can be told."""
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
