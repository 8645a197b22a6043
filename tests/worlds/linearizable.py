"""Whether what clients saw of something is what one copy of it could have shown, each operation done at one instant.

The search is that of Wing and Gong (1993) with Lowe's (2017) memory of what was tried, key by key: a history is
linearizable if that of each key is (P-compositionality, Horn and Kroening 2015). An operation whose outcome nobody
knows ends at infinity, and may have any outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

TRIED_MAX: Final = 50_000  # states of one key; beyond it the search gives up
UNKNOWN: Final = object()


@dataclass(slots=True)
class Operation:
    """What a client asked for, and what it was told.

    Args:
        key: Keys have nothing to do with each other.
        what: For the model.
        began: When it was asked for.
        ended: When it was answered; infinity: never.
        outcome: What was answered, or ``UNKNOWN``.
    """

    key: str
    what: Any
    began: float
    ended: float = inf
    outcome: Any = UNKNOWN


Model = Callable[[Hashable, Any], tuple[Hashable, Any]]  # state, what -> next state, outcome


def not_linearizable(history: Iterable[Operation], model: Model, begin: Callable[[str], Hashable]) -> str | None:
    """The first key whose operations no single copy could have answered so; None if there is none."""
    keys: dict[str, list[Operation]] = {}
    for each in history:
        keys.setdefault(each.key, []).append(each)
    return next((key for key in sorted(keys) if not _explains(keys[key], model, begin(key))), None)


class _Node:
    """The beginning or the end of an operation, in a list by time."""

    __slots__ = ("after", "before", "end", "number", "operation")

    def __init__(self, operation: Operation, number: int, end: _Node | None) -> None:
        self.operation = operation
        self.number = number
        self.end = end  # of a beginning
        self.before: _Node | None = None
        self.after: _Node | None = None

    def lift(self) -> None:
        """Take the operation out of the list."""
        for each in (self, self.end):
            assert each is not None
            assert each.before is not None
            each.before.after = each.after
            if each.after is not None:
                each.after.before = each.before

    def put_back(self) -> None:
        """Undo ``lift``."""
        for each in (self.end, self):
            assert each is not None
            assert each.before is not None
            each.before.after = each
            if each.after is not None:
                each.after.before = each


def _explains(operations: list[Operation], model: Model, state: Hashable) -> bool:
    root = _listed(operations)
    tried: set[tuple[int, Hashable]] = set()
    done = 0  # a bit for each operation that has its instant
    known = sum(1 << number for number, each in enumerate(operations) if each.ended < inf)
    stack: list[tuple[_Node, Hashable]] = []
    node = root.after
    while done & known != known:
        assert node is not None
        if node.end is not None:
            then, outcome = model(state, node.operation.what)
            fits = node.operation.outcome is UNKNOWN or node.operation.outcome == outcome
            key = (done | 1 << node.number, then)
            if fits and key not in tried:
                if len(tried) >= TRIED_MAX:
                    return True  # too much to know: no fault is claimed that was not found
                tried.add(key)
                stack.append((node, state))
                state, done = then, key[0]
                node.lift()
                node = root.after
                continue
            node = node.after
            continue
        # An operation has ended, and there was no instant for it: the last choice was wrong.
        if not stack:
            return False
        node, state = stack.pop()
        done &= ~(1 << node.number)
        node.put_back()
        node = node.after
    return True


def _listed(operations: list[Operation]) -> _Node:
    moments: list[tuple[float, int, int, _Node]] = []
    for number, each in enumerate(operations):
        end = _Node(each, number, None)
        moments += [(each.began, 0, number, _Node(each, number, end)), (each.ended, 1, number, end)]
    moments.sort(key=lambda moment: moment[:3])
    root = _Node(operations[0], -1, None)
    last = root
    for *_, node in moments:
        last.after, node.before = node, last
        last = node
    return root
