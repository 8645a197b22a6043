"""A question to an endpoint's core that is answered later, by ``Resolve``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from chappe.errors import ChappeError, Closed, TimedOut
from chappe.mesh.actions import Action
from chappe.runtime.mesh_node import MeshNode

_PENDING: Final = object()


class Questions:
    """The questions that somebody waits for; ``resolve`` takes the answers."""

    def __init__(self) -> None:
        self._asked: dict[int, Asked] = {}

    def ask(self, node: MeshNode, ticket: int, method: Callable[..., Sequence[Action]], *args: object) -> Asked:
        """Make a call into the core that takes ``ticket`` as its last argument."""
        made = self.begin(node, ticket)
        node.call(method, *args, ticket)
        return made

    def begin(self, node: MeshNode, ticket: int) -> Asked:
        """A question with ``ticket`` is being asked."""
        made = self._asked[ticket] = Asked(node, self, ticket)
        return made

    def resolve(self, ticket: int, outcome: object) -> bool:
        """An answer came; the lock is held. False if nobody waits for it."""
        asked = self._asked.pop(ticket, None)
        if asked is None:
            return False
        asked.answer(outcome)
        return True

    def end(self, error: ChappeError) -> None:
        """Nothing will be answered any more; the lock is held."""
        ended, self._asked = list(self._asked.values()), {}
        for asked in ended:
            asked.answer(error)

    def __bool__(self) -> bool:
        return bool(self._asked)

    def forget(self, ticket: int) -> None:
        """Nobody waits any more."""
        self._asked.pop(ticket, None)


class Asked:
    """One question."""

    def __init__(self, node: MeshNode, questions: Questions, ticket: int) -> None:
        self.outcome: Any = _PENDING
        self._turns = node.turns
        self._questions = questions
        self._ticket = ticket
        self._then: Callable[[], None] | None = None

    def done(self) -> bool:
        """Whether the answer is there."""
        return self.outcome is not _PENDING

    def answer(self, outcome: object) -> None:
        """The answer is there; the lock is held."""
        self.outcome = outcome
        if self._then is not None:
            self._then()

    def then(self, function: Callable[[], None]) -> None:
        """Have ``function`` called, with the lock held, when the answer comes, or now; the lock is held."""
        if self.done():
            function()
        else:
            self._then = function

    def wait(self, timeout: float | None) -> None:
        """Wait for the answer at most so long; for a thread."""
        try:
            self._turns.wait(self.done, timeout)
        except BaseException:  # Ctrl-C
            self._questions.forget(self._ticket)
            raise

    def forget(self) -> None:
        """Nobody will wait for the answer."""
        self._questions.forget(self._ticket)

    def take(self, too_late: str) -> Any:
        """The answer, after a wait.

        Raises:
            ChappeError: The answer is an error.
            MemberStopped: A defect has stopped the endpoint.
            Closed: The endpoint was closed before there was an answer.
            TimedOut: There is none yet; ``too_late`` is the text.
        """
        self._questions.forget(self._ticket)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        if self.outcome is not _PENDING:
            return self.outcome
        if self._turns.closed:
            raise Closed("the endpoint was closed")
        self._turns.check()
        raise TimedOut(too_late)
