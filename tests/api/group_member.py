"""A member of a group in a process of its own, to be killed: a line of its output is a record that it has done."""

from __future__ import annotations

import os
import sys

from chappe import Consumer


def main() -> None:
    """Read until a signal ends it."""
    tower, out = sys.argv[1:]
    with (
        open(out, "ab", buffering=0) as done,
        Consumer("numbers", group="soak", tower=tower, session_s=3.0) as consumer,
    ):
        for record in consumer:
            done.write(f"{record.partition} {record.offset}\n".encode())


if __name__ == "__main__":
    os.environ.pop("CHAPPE_TOWER", None)
    main()
