"""What the same source is asked pure and compiled, and how it answers: bytes, or which error with which text.

``python -m tests.sides`` answers what comes in on its standard input, in the process of the other side: a line for each
question, the name of what is asked and bytes in hexadecimal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from chappe.channel import messages as _channel  # noqa: F401  (its classes are those of commands)
from chappe.data import binary, json, shapes, text, topic
from chappe.kv import commands
from chappe.kv.chained import messages as chained_messages
from chappe.log import batch
from chappe.log import messages as log_messages
from chappe.mesh import link_reports
from chappe.mesh import messages as mesh_messages


def _value(raw: bytes) -> object:
    value = binary.decode(raw)
    return repr(value), binary.encode(value), json.dumps(value), text.to_text(value), binary.skip(raw, 0)


def _json(raw: bytes) -> object:
    return binary.encode(json.loads(raw)), binary.encode(json.loads_plain(raw))


def _shape(raw: bytes) -> object:
    shape, value = bytearray(), bytearray()
    ends = binary.skip(raw, 0), shapes.add_shape(raw, 0, shape)
    return ends, bytes(shape), shapes.add_value(bytes(shape), 0, value), bytes(value)


def _batch(raw: bytes) -> object:
    found = batch.Batch.parse(raw)
    header = found.base, found.count, found.flags, found.timestamp_min, found.timestamp_max
    records = list(found.records("t", "p"))
    parts = [found.slice(each, each + 1) for each in range(found.base, found.next)]
    merged = batch.merge([batch.Batch.parse(each) for each in parts])
    return header, repr(records), parts, merged, batch.rebase(raw, 7)


def _log(raw: bytes) -> object:
    size = raw[0] if raw else 0
    message = log_messages.decode([raw[1 : 1 + size], raw[1 + size :]])
    return repr(message), log_messages.encode(message)


def _mesh(raw: bytes) -> object:
    message = mesh_messages.parse_message(raw)
    return repr(message), _each(raw[16:], mesh_messages.parse_filter, mesh_messages.parse_link_state)


def _kv(raw: bytes) -> object:
    return repr(commands.decode_message(raw))


def _chained(raw: bytes) -> object:
    return _each(raw, chained_messages.decode, chained_messages.decode_commit, chained_messages.decode_rows)


def _links(raw: bytes) -> object:
    return repr(link_reports.parse_report(raw))


def _text(raw: bytes) -> object:
    return binary.encode(text.from_text(raw.decode(errors="surrogateescape")))


def _each(raw: bytes, *functions: Callable[[bytes], object]) -> list[str]:
    return [_answer(each, raw) for each in functions]


def _topic(raw: bytes) -> object:
    name = topic.decode_topic(raw)
    return name, topic.encode_topic(name), topic.check_topic(name)


TASKS: Final[dict[str, Callable[[bytes], Any]]] = {
    "value": _value,
    "json": _json,
    "shape": _shape,
    "batch": _batch,
    "log": _log,
    "mesh": _mesh,
    "kv": _kv,
    "chained": _chained,
    "links": _links,
    "text": _text,
    "topic": _topic,
    "varbyte": lambda raw: binary.parse_varbyte(raw, 0),
}


def answer(task: str, raw: bytes) -> str:
    """What one side makes of it."""
    return _answer(TASKS[task], raw)


def _answer(function: Callable[[bytes], object], raw: bytes) -> str:
    try:
        return repr(function(raw))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _lines() -> Iterator[str]:
    yield binary.__file__
    for line in sys.stdin:
        task, _, raw = line.strip().partition(" ")
        yield answer(task, bytes.fromhex(raw)).encode("unicode_escape").decode()


if __name__ == "__main__":
    for each in _lines():
        print(each, flush=True)
