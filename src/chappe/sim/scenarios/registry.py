"""All scenarios by name."""

from __future__ import annotations

from typing import Any, Final

from chappe.sim.replicas.run import play_store
from chappe.sim.scenarios.channel import Channel
from chappe.sim.scenarios.log.scenario import Log, Sink
from chappe.sim.scenarios.mesh.scenario import Mesh
from chappe.sim.world import Outcome, Settings


def _old(play: Any) -> Any:
    class Old:
        def __init__(self, seed: int, settings: Settings | None = None, tell: Any = None) -> None:
            self._arguments = seed, settings or Settings(), tell

        def play(self) -> Outcome:
            seed, settings, tell = self._arguments
            outcome: Outcome = play(seed, minutes=settings.minutes, disturb=settings.disturb, tell=tell)
            return outcome

    return Old


SCENARIOS: Final[dict[str, Any]] = {
    "log": Log,
    "sink": Sink,
    "mesh": Mesh,
    "kv": _old(play_store),
    "channel": Channel,
}
