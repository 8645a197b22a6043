"""Finding stores without being a member that consumes: who is there, and when that is known.

A forwarder that was dialled says what it is, so all are known once each has. A tower tells a newcomer of everybody it
knows at once, or a moment later if it just did so for another one, and everybody answers the newcomer's beacon. Neither
says that this was all. So all are known when that moment has passed since the tower heard us, and each node that may be
a store has said that it is one. Some never do: programs of the original, and stores that are stopped. Those are waited
for a little, and so is everybody where there are several towers, of which it is not known who has heard us.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from chappe.core import Effect, Subscribe
from chappe.data.topic import encode_topic
from chappe.log.beacon import REPLAY_S, kind_of
from chappe.log.consuming import ConsumingMember
from chappe.log.messages import Message, StoreInfo

TOLD_S: Final = REPLAY_S + 0.05  # so long after a tower heard us it has told us of everybody


class Scout(ConsumingMember):
    """Consumes nothing, and only listens for stores.

    Args:
        settle_s: So long after the first store others are waited for, at most.
        towers: How many there are to ask.
        forwarders: How many are dialled instead.
    """

    def __init__(self, name: str, settle_s: float, *, towers: int = 0, forwarders: int = 0) -> None:
        super().__init__(name)
        self.stores: dict[str, StoreInfo] = {}
        self._settle_s = settle_s
        self._towers = towers
        self._forwarders = forwarders
        self._found_at = math.inf  # the first store
        self._heard_at = math.inf  # by a tower

    def until(self, tower: bool, met: Iterable[str], now: float) -> float:
        """Until when to wait for more, if nothing changes.

        Args:
            tower: Whether a tower hears us.
            met: The addresses of all nodes known.
        """
        if not tower:
            self._heard_at = math.inf
        elif self._heard_at == math.inf:
            self._heard_at = now
        if not self.stores:
            return math.inf
        self._found_at = min(self._found_at, now)
        settled = self._found_at + self._settle_s
        if self._forwarders:
            return now if len(self.stores) >= self._forwarders else settled
        if self._towers > 1 or any(not kind_of(each) and each not in self.stores for each in met):
            return settled
        return min(settled, self._heard_at + TOLD_S)

    def start(self, now: float) -> list[Effect]:
        """See ``Part``."""
        return [Subscribe(b"I"), Subscribe(b"L" + encode_topic(self.address))]

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """See ``Role``."""
        if isinstance(message, StoreInfo):
            self.stores[message.address] = message
        return []

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        """See ``Role``."""
        self.stores.pop(address, None)
        return []
