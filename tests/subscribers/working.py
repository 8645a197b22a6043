"""What the workers of these tests do; they import it. Files beside each other tell what happened, and what may."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import msgspec

from chappe.log.batch import Record

PLACE: Final = "CHAPPE_TESTS_PLACE"
LOOK_S: Final = 0.005


def place() -> Path:
    return Path(os.environ[PLACE])


def note(record: Record) -> None:
    """Write down that it is done, and by whom."""
    line = b"%s %s %d\n" % (record.key or b"-", record.value or b"-", os.getpid())
    descriptor = os.open(place() / "done", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)


def note_cpus(record: Record) -> None:
    """The same, with the processors that this process may use for its key."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    note(msgspec.structs.replace(record, key=cpus.encode()))


def note_header_a(record: Record) -> None:
    """The same, with a header for its key."""
    note(msgspec.structs.replace(record, key=dict(record.headers).get("a")))


def note_when_let(record: Record) -> None:
    """The same, once the file ``go`` is there; meanwhile ``at-KEY`` says at what it is."""
    (place() / f"at-{(record.key or b'-').decode()}").write_bytes(record.value or b"-")
    while not (place() / "go").exists():
        time.sleep(LOOK_S)
    note(record)


def note_or_die(record: Record) -> None:
    """The same, but records that say so kill who takes them."""
    if record.value == b"poison":
        with (place() / "attempts").open("ab") as attempts:
            attempts.write(b"%d\n" % os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    note(record)


def note_or_raise(record: Record) -> None:
    if record.value == b"poison":
        raise ValueError("cannot do that")
    note(record)


def note_or_hang_once(record: Record) -> None:
    """The same, but the first that takes a record which says so does nothing more."""
    if record.value == b"hang":
        try:
            (place() / "hung").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            while True:
                time.sleep(1000)
    note(record)


_done: list[Record] = []


def leave_after_five(record: Record) -> None:
    """The same for five records; the next one ends the process."""
    if len(_done) == 5:
        raise SystemExit(7)
    _done.append(record)
    note(record)


not_a_function: Final = 5
