"""``check_machine`` finds machines that are not the same everywhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from chappe.errors import UsageError
from chappe.testing import check_machine

COMMANDS = [b"b", b"a", b"d", b"refuse", b"c", b"e"]


class Sorted:
    """A set of commands that is written down in order."""

    now_us = 0

    def __init__(self) -> None:
        self.known: set[str] = set()

    def apply(self, command: bytes) -> bytes:
        """One more."""
        if command == b"refuse":
            raise ValueError(f"refused at {self.now_us}")
        self.known.add(command.decode())
        return b"%d" % len(self.known)

    def read(self, query: bytes) -> bytes:
        """Look."""
        return b"yes" if query.decode() in self.known else b"no"

    def snapshot(self) -> bytes:
        """All."""
        return ",".join(sorted(self.known)).encode()

    def restore(self, state: bytes) -> None:
        """Be as then."""
        self.known = set(filter(None, state.decode().split(",")))


class InAnyOrder(Sorted):
    """Sets of text have another order in another process."""

    def snapshot(self) -> bytes:
        """All."""
        return ",".join(self.known).encode()


class Clock(Sorted):
    """It looks at a clock."""

    def apply(self, command: bytes) -> bytes:
        """One more."""
        return super().apply(command) + b" %d" % time.perf_counter_ns()


class Forgets(Sorted):
    """Its snapshot lacks something."""

    def restore(self, state: bytes) -> None:
        """Be as then, nearly."""
        super().restore(state)
        self.known.discard("a")


class ReadsChange(Sorted):
    """Looking changes it."""

    def read(self, query: bytes) -> bytes:
        """Look."""
        return self.apply(query)


class Process(Sorted):
    """It tells of its process."""

    def apply(self, command: bytes) -> bytes:
        """One more."""
        return super().apply(command) + b" %d" % os.getpid()


class Texts(Sorted):
    """It answers with text."""

    def read(self, query: bytes) -> bytes:
        """Look."""
        return "yes"  # type: ignore[return-value]


def test_a_machine_that_is_the_same_everywhere_passes() -> None:
    check_machine(Sorted, COMMANDS, [b"a", b"\xff"])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (InAnyOrder, "another state in the end|makes another one"),
        (Clock, "a second machine answers command 1"),
        (Forgets, "makes another one"),
        (ReadsChange, "read has changed the state"),
        (Process, "a machine in another process answers command 1"),
        (Texts, "answers b'new' with 'yes', which is not bytes"),
    ],
)
def test_a_machine_that_is_not_is_refused(make: Callable[[], Sorted], says: str) -> None:
    commands = [*COMMANDS, *(b"%d" % each for each in range(50))]  # enough that no two orders are the same by chance
    with pytest.raises(AssertionError, match=says):
        check_machine(make, commands, [b"new"])


def test_what_other_processes_cannot_make_is_said() -> None:
    class Local(Sorted):
        pass

    with pytest.raises(UsageError, match="define it at the top of a module"):
        check_machine(Local, COMMANDS)
    with pytest.raises(UsageError, match="at least one command"):
        check_machine(Sorted, [])
