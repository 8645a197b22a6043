"""Checks that a machine for a chain is deterministic: replicas are compared byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chappe.errors import UsageError
from chappe.replication.chain.replica import ReplicatedMachine, TimedMachine

SEEDS: Final = ("1", "2")  # of the hashes of text, which order sets
CHILD_S: Final = 300.0  # another process gets so long
_CHILD: Final = """
import importlib.util, sys
from chappe.testing.machines import answer
name, path, attributes = sys.argv[1:]
spec = importlib.util.spec_from_file_location(name, path)
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
make = module
for each in attributes.split("."):
    make = getattr(make, each)
answer(make)
"""

Did = tuple[list[bytes], bytes]  # what was answered, in order, and the state in the end


def check_machine(
    make: Callable[[], ReplicatedMachine], commands: Iterable[bytes], queries: Iterable[bytes] = ()
) -> None:
    """Raise AssertionError unless all replicas of a machine are the same, whatever a chain does with them.

    The commands are done by a machine, by a second one, and by one that is restored in between from a snapshot, at
    several places; and by machines in other processes, in which sets of text have another order. Answers and states are
    compared byte for byte. Then the queries are put, which must not change anything.

    Args:
        make: Makes a new machine: a class or function at the top of its module, so that other processes find it.
        commands: At least one; include some that make the machine raise.
        queries: For ``read``.

    Raises:
        AssertionError: The machine is not deterministic, or differs from its snapshot; the text says where.
        UsageError: There is no command, or other processes do not find ``make``.
    """
    done = list(commands)
    if not done:
        raise UsageError("give at least one command to compare replicas by")
    first = make()
    expected = _do(first, done)
    _compare(expected, _do(make(), done), "a second machine")
    for place in sorted({0, 1, len(done) // 2, len(done)}):
        _compare(expected, _restored(make, done, place), f"a machine restored from a snapshot behind command {place}")
    for seed in SEEDS:
        _compare(expected, _elsewhere(make, done, seed), "a machine in another process")
    for query in queries:
        _asked(first.read, query)
    if first.snapshot() != expected[1]:
        raise AssertionError("read has changed the state, which only apply may do")


def answer(make: Callable[[], ReplicatedMachine]) -> None:
    """Carry out requests, in another process, and send the outcomes."""
    commands = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[bytes])
    sys.stdout.buffer.write(msgspec.msgpack.encode(_do(make(), commands)))


def _do(machine: ReplicatedMachine, commands: Sequence[bytes], begun: int = 0) -> Did:
    answers = []
    for place, command in enumerate(commands, begun):
        if isinstance(machine, TimedMachine):
            machine.now_us = 1_000_000 * place
        answers.append(_asked(machine.apply, command))
    return answers, bytes(machine.snapshot())


def _restored(make: Callable[[], ReplicatedMachine], commands: Sequence[bytes], place: int) -> Did:
    before, state = _do(make(), commands[:place])
    machine = make()
    machine.restore(state)
    if machine.snapshot() != state:
        raise AssertionError(f"a machine that is restored from a snapshot behind command {place} makes another one")
    after, state = _do(machine, commands[place:], place)
    return before + after, state


def _asked(ask: Callable[[bytes], bytes], what: bytes) -> bytes:
    try:
        found = ask(what)
    except Exception as error:  # an answer like any other
        return f"{type(error).__name__}: {error}".encode()
    if not isinstance(found, bytes):
        raise AssertionError(f"the machine answers {what!r} with {found!r}, which is not bytes")
    return found


def _elsewhere(make: Callable[[], ReplicatedMachine], commands: Sequence[bytes], seed: str) -> Did:
    module = sys.modules.get(make.__module__)
    path, attributes = getattr(module, "__file__", None), make.__qualname__
    if path is None or "<" in attributes:
        raise UsageError(f"{attributes} is not found by other processes: define it at the top of a module")
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, f"_machine_of_{Path(path).stem}", path, attributes],
        input=msgspec.msgpack.encode(commands),
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=CHILD_S,
        check=False,
    )
    if child.returncode:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"another process cannot make {attributes}: {last}")
    return msgspec.msgpack.decode(child.stdout, type=tuple[list[bytes], bytes])


def _compare(expected: Did, found: Did, what: str) -> None:
    for place, (one, other) in enumerate(zip(expected[0], found[0], strict=True), 1):
        if one != other:
            raise AssertionError(f"{what} answers command {place} with {other!r}, and not with {one!r}")
    if expected[1] != found[1]:
        raise AssertionError(f"{what} has another state in the end: {found[1][:200]!r}, and not {expected[1][:200]!r}")
