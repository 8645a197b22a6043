"""The process of one of several readers: ``python -m chappe.subscribers.reader_process DESCRIPTOR``."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from types import FrameType
from typing import Any, Final

from chappe.subscribers.readers import LINE_MAX, TELL_S, facts_of, line_of
from chappe.subscribers.sharded import Progress, ShardedConsumer
from chappe.subscribers.work import FunctionWork, take_pipes

TERMINATED: Final = 128 + signal.SIGTERM


def main() -> int:
    out, source = take_pipes()
    order = _order(source)
    sys.path[:] = order["path"]
    counts = Progress()
    facts: dict[str, Any] = {"end": None}
    hurried = False

    def hurry(number: int, frame: FrameType | None) -> None:
        nonlocal hurried
        hurried = made._hurried = True  # as after a second Ctrl-C
        made.stop()

    try:
        with _made(order) as made:
            signal.signal(signal.SIGTERM, hurry)
            telling = threading.Thread(
                target=_tell_until_end, args=(source, out, made), name="chappe-tell", daemon=True
            )
            telling.start()
            try:
                made.run()
            finally:
                counts = made.progress()
    except Exception as error:
        facts = facts_of(error)
    if hurried:
        facts = {}  # killed by a signal: a parent that did not send it starts a replacement
    with suppress(BrokenPipeError):
        os.write(out, line_of(facts | asdict(counts)))
    return TERMINATED if hurried else 0


def _order(source: int) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(source, LINE_MAX)
        if not piece:
            sys.exit(0)
        data += piece
    order: dict[str, Any] = json.loads(data)
    return order


def _made(order: dict[str, Any]) -> ShardedConsumer:
    options, given = order["options"], order["work"]
    reset = datetime.fromisoformat(order["time"]) if "time" in order else order["reset"]
    what: Any = FunctionWork(**given) if order["call"] else given["program"]
    return ShardedConsumer(
        what,
        order["topic"],
        workers=order["workers"],
        identity=order["identity"],
        cpus=order["cpus"],
        reset=reset,
        form=given.get("form", "json"),
        **options,
    )


def _tell_until_end(source: int, out: int, made: ShardedConsumer) -> None:
    """Report how far it is, and end it when the input ends."""
    try:
        while not made.closed and not select.select([source], [], [], TELL_S)[0]:
            os.write(out, line_of(asdict(made.progress())))
    except BrokenPipeError:
        pass
    made.stop()


if __name__ == "__main__":
    sys.exit(main())
