"""A data store on a chain: how long its endpoint is busy at once while it takes a whole state, as when it joins."""

from __future__ import annotations

import argparse
import time

from chappe.data import binary
from chappe.kv.backend import PutRow
from chappe.kv.chained.core import ChainedMaster
from chappe.kv.chained.fed import steps
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.chained.messages import PART_BYTES, Lead, encode, encode_operation, parts_of
from chappe.kv.entity import chappe_entity
from chappe.kv.role import CHAIN
from chappe.runtime.driver import SYSTEM_CLOCK

MIB = 1 << 20
COMMIT_ROWS = 1_000
MASTER = chappe_entity(b"m" * 16, 1)
JOINER = chappe_entity(b"j" * 16, 2)


def filled(rows: int, size: int) -> StoreMachine:
    """A machine with so many rows, each with a value of so many bytes."""
    machine = StoreMachine()
    machine.apply_own(encode(Lead(MASTER, 1)))
    value = binary.encode("x" * size)
    for commit, first in enumerate(range(0, rows, COMMIT_ROWS), 1):
        keys = [binary.encode(f"key{each}") for each in range(first, min(first + COMMIT_ROWS, rows))]
        operations = [encode_operation(PutRow(key, value, None)) for key in keys]
        for each in parts_of(MASTER, commit, commit + 1, operations, PART_BYTES):
            machine.apply_own(each)
    return machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_steps", description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="of values (%(default)s)")
    parser.add_argument("--bytes", type=int, default=4_096, help="of one value (%(default)s)")
    arguments = parser.parse_args()
    rows = arguments.mib * MIB // arguments.bytes
    machine = filled(rows, arguments.bytes)
    begun = time.thread_time()
    whole = machine.whole()
    handed = time.thread_time() - begun
    role = ChainedMaster("store", JOINER, 1, now=0.0, clock=SYSTEM_CLOCK)
    took: list[float] = []
    for step in steps(whole):
        begun = time.thread_time()
        role.handle_message(CHAIN, (step,), 0.0)
        took.append(time.thread_time() - begun)
    last = took.pop()
    print(
        f"{rows:,} rows of {arguments.bytes:,} bytes, {len(took):,} steps; CPU time: the server {1e3 * handed:.1f} ms, "
        f"a step {1e3 * max(took):.1f} ms at most, the last one {1e3 * last:.0f} ms, all {sum(took) + last:.2f} s"
    )


if __name__ == "__main__":
    main()
