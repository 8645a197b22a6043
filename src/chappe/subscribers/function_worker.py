"""A worker's process: ``python -m chappe.subscribers.function_worker DESCRIPTOR`` calls a function with each record.

It ends when nobody sends it anything any more, and when nobody hears it.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

import msgspec

from chappe.errors import UsageError
from chappe.log.batch import Record
from chappe.subscribers import work
from chappe.subscribers.work import COUNT, DONE, FAILED, LENGTH, READY, TEXT_MAX, TOLD, UNFIT, WorkRows

TELL_S: Final = 0.01  # between two times that it tells how many are done: so much is done again if it is killed
ORPHAN_S: Final = 10.0  # when the reader has died: so long the record that it is at may take
TEXT_SHOWN: Final = 1000


def main() -> int:
    out, source = work.take_pipes()
    work.inside = True
    threading.Thread(target=_end_with_reader, args=(out,), name="chappe-orphan", daemon=True).start()
    read = os.fdopen(source, "rb").read
    first = _frame(read)
    if first is None:
        return 0
    hello = json.loads(first)
    sys.path[:] = hello["path"]
    try:
        function = work.find(hello["module"], hello["name"], hello["main"])
    except Exception as error:
        if not isinstance(error, UsageError):
            traceback.print_exc()
        _tell(out, UNFIT, _text(error))
        return 1
    _tell(out, READY, b"")
    try:
        _work(read, out, function)
    except Exception as error:
        traceback.print_exc()
        _tell(out, FAILED, _text(error))
        return 1
    return 0


def _work(read: Callable[[int], bytes], out: int, function: Callable[[Record], object]) -> None:
    decode = msgspec.msgpack.Decoder(WorkRows).decode
    tell_at = time.monotonic() + TELL_S
    while (frame := _frame(read)) is not None:
        found = decode(frame)
        topic = found.topic.decode("utf-8", "surrogateescape")
        partition = found.partition.decode("utf-8", "surrogateescape")
        done = 0
        try:
            for row in found.rows:
                function(Record(topic, partition, row.offset, row.timestamp, row.key, row.value, row.headers))
                done += 1
                if found.careful or time.monotonic() >= tell_at:
                    told, done = done, 0
                    _tell(out, DONE, COUNT.pack(told))
                    tell_at = time.monotonic() + TELL_S
        finally:
            if done:
                _tell(out, DONE, COUNT.pack(done))


def _text(error: Exception) -> bytes:
    line = " ".join(f"{type(error).__name__}: {error}".split())[:TEXT_SHOWN]
    return line.encode("utf-8", "backslashreplace")[:TEXT_MAX]


def _end_with_reader(out: int) -> None:
    """Nobody hears what is told: a function that hangs then would keep this process for ever."""
    poll = select.poll()
    poll.register(out, 0)
    while not any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll()):
        pass
    time.sleep(ORPHAN_S)
    os._exit(1)


def _tell(out: int, kind: bytes, body: bytes) -> None:
    view = memoryview(TOLD.pack(kind, len(body)) + body)
    try:
        while view:
            view = view[os.write(out, view) :]
    except BrokenPipeError:
        raise SystemExit(0) from None  # the reader is gone, and its successor has this done again


def _frame(read: Callable[[int], bytes]) -> bytes | None:
    """Return the next one; None: there is none, or not all of it."""
    head = read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = read(size)
    return body if len(body) == size else None


if __name__ == "__main__":
    sys.exit(main())
