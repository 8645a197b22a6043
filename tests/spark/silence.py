"""A client for stores that are fakes: it knows who is silent, so that no test bets on how soon the others answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.waiting import PATIENCE_S

from chappe.log.queries import Answer
from chappe.transports.queries import StoreClient

NOWHERE: Final = "tcp://127.0.0.1:9"
SILENT: Final = {NOWHERE}  # endpoints at which nobody answers
GIVE_UP_S: Final = 0.05


class ImpatientClient(StoreClient):
    """Gives up at once at who is silent, and takes its time with everybody else."""

    def receive(self, raw_id: bytes) -> tuple[Answer, Sequence[bytes | memoryview]]:
        self._timeout_s = GIVE_UP_S if self.endpoint in SILENT else PATIENCE_S
        return super().receive(raw_id)
