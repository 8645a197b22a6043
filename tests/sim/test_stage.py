"""Programs on the hosts of a world that are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.stage import Stage

from chappe import Endpoint
from chappe.errors import Closed
from chappe.sim.world import SimWorld

SOMEBODY = "232fd6cb-865e-4ddc-b930-ea5d72e3f2e3"


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(SimWorld(0))
    made.begin()
    yield made
    made.end()


def test_a_program_that_is_killed_while_it_waits_ends(stage: Stage) -> None:
    with stage.on("a"):
        endpoint = Endpoint()
        stage._scheduler.clock.after(1.0, stage.kill, "a")
        endpoint.await_peer(SOMEBODY, timeout=5.0)
        pytest.fail("it goes on")
    assert stage.now == pytest.approx(1.0, abs=0.1)


def publish_when_closed(stage: Stage) -> None:
    with stage.on("a"):
        endpoint = Endpoint()
        endpoint.close()
        endpoint.publish("/t", 1)


def test_a_program_that_lives_is_told_of_its_mistakes(stage: Stage) -> None:
    with pytest.raises(Closed):
        publish_when_closed(stage)
