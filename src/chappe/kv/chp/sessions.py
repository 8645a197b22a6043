"""What a server of a map remembers of the writers of chappe, and how much of that for all of them together.

Of each: its last step, and of those whose outcomes it may not have heard yet which ones failed, and when they may be
told. A writer that lives says within a second what it knows; one that is gone may never do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final

from chappe.errors import WriteUnknown

UNKNOWN: Final = WriteUnknown.code  # the code of an outcome that stands for those of all steps up to there
FORGOTTEN: Final = "the server has forgotten what became of it: too many writes failed of which nobody said he knew"

Outcome = tuple[int, int, str]  # number of the step, code and text


class Session:
    """What is known of one writer of chappe."""

    __slots__ = ("applied", "failed", "heard_ns", "taken", "waiting")

    def __init__(self, applied: int, heard_ns: int) -> None:
        self.taken = applied  # its last step that was done in memory
        self.applied = applied  # its last step that may be told
        self.waiting: deque[tuple[int, int]] = deque()  # steps behind that which are released, and at which sequence
        self.failed: dict[int, tuple[int, str]] = {}  # by number; with ``UNKNOWN`` for all up to that one
        self.heard_ns = heard_ns

    @property
    def size(self) -> int:
        """How much is remembered."""
        return len(self.failed) + len(self.waiting)

    @property
    def released(self) -> int:
        """The last step that is contained in what is told."""
        return self.waiting[-1][0] if self.waiting else self.applied

    def confirm(self, sequence: int) -> int:
        """Everything up to there may be told; the last step."""
        while self.waiting and self.waiting[0][1] <= sequence:
            self.applied = self.waiting.popleft()[0]
        return self.applied

    def forget(self, done: int) -> None:
        """The writer knows the outcomes up to there."""
        for number in [each for each in self.failed if each <= done]:
            del self.failed[number]

    def fail(self, number: int, code: int, text: str) -> None:
        """A step has failed."""
        self.do(number)
        self.failed[number] = code, text

    def do(self, number: int) -> None:
        """A step is done, whatever was said of it before: it may have failed at a server that was replaced."""
        former = self.failed.pop(number, None)
        if former is not None and former[0] == UNKNOWN and number > 1:
            self.failed[number - 1] = former  # of those before it nothing is known still

    def failures(self, told: int, applied: int) -> Iterator[Outcome]:
        """The steps between these two that failed, or of which that is not known any more, in order."""
        unknown = max([number for number, (code, _) in self.failed.items() if code == UNKNOWN], default=0)
        known = sorted([number for number in self.failed if max(told, unknown) < number <= applied])
        forgotten = ((number, UNKNOWN, FORGOTTEN) for number in range(told + 1, min(unknown, applied) + 1))
        return chain(forgotten, ((number, *self.failed[number]) for number in known))

    def copied(self) -> Iterator[tuple[int, int]]:
        """Numbers and codes of those that failed among what is told, for another server."""
        released = self.released
        for number, (code, _) in self.failed.items():
            if number <= released:
                yield number, code
            elif code == UNKNOWN and released:
                yield released, code

    def shorten(self) -> int:
        """Remember less: that the outcomes so far are forgotten; and confirm later. By how much it is less."""
        before = self.size
        if self.failed:
            self.failed = {max(self.failed): (UNKNOWN, FORGOTTEN)}
        if self.waiting:
            self.waiting = deque([self.waiting[-1]])
        return before - self.size


def shorten_some(sessions: Collection[Session], outcomes_max: int) -> None:
    """Shorten what is remembered of those of whom it is most, if it is too much of all together.

    Of those of whom it is as much the first, so have the one first that was not heard of for longest.
    """
    left = sum([each.size for each in sessions])
    if left <= outcomes_max:
        return
    for session in sorted(sessions, key=lambda each: each.size, reverse=True):
        left -= session.shorten()
        if 4 * left <= 3 * outcomes_max:
            return
