"""When original stores are asked again how far their partitions go: some time after a member has gone.

A store of ours is asked for news by the second. An original store lists all that it has and remembers no question, so
it is asked when there is a reason. The member that has gone may be a producer that left once a store had acknowledged
its last records; if we lost some of them on the way, nobody announces them any more. Answers may be lost as well, so
the question is repeated.

Source: chappe's own; a consumer of the original asks when it subscribes, and never again.
"""

from __future__ import annotations

import math
from typing import Final

FIRST_S: Final = 0.5  # after the member has gone: what is still to be read comes first
TIMES: Final = 3  # that a question is put


class Inquiries:
    """The question of one member, put at most once in ``pause_s``."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._left = 0
        self._asked_at = -math.inf
        self._ask_at = math.inf

    def want(self, now: float) -> None:
        """There is a reason to ask."""
        self._left = TIMES
        self._ask_at = min(self._ask_at, max(now + FIRST_S, self._asked_at + self._pause_s))

    def due(self, now: float) -> bool:
        """Whether to ask now; if so, that counts as done."""
        if now < self._ask_at:
            return False
        self._left -= 1
        self._asked_at = now
        self._ask_at = now + self._pause_s if self._left else math.inf
        return True

    def next_timeout(self) -> float:
        """When to ask."""
        return self._ask_at
