"""Seeded worlds of two forwarders; and forwarders broken on purpose, whose faults some seed among few must show."""

from __future__ import annotations

import pytest
from tests.worlds.log.residents import ForwarderLife
from tests.worlds.log.scenario import Forward

from chappe.core import Effect, Publish
from chappe.log.batch import rebase
from chappe.log.forwarder import LogForwarder
from chappe.log.messages import BatchMessage, RecordMessage
from chappe.runtime import store_ports
from chappe.sim.world import Settings

CHUNK = 10
SEEDS = 20  # the command plays more of them


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    failed = {
        seed: found for seed in range(first, first + CHUNK) if (found := Forward(seed).play().failure) is not None
    }

    assert failed == {}  # replay with: python -m tests.worlds --scenario forward --seed N -v


def test_a_seed_plays_the_same_world_every_time() -> None:
    assert Forward(7).play() == Forward(7).play()


def test_what_is_published_is_passed_on_and_not_read_where_nothing_goes_wrong() -> None:
    world = Forward(1, Settings(disturb=False))
    roles: list[LogForwarder] = []
    world.clock.at(1.0, lambda: roles.extend(each.ports.core.role for each in world.alive(ForwarderLife)))
    assert world.play().failure is None
    assert len(roles) == 2
    assert all(each.passed > 10 for each in roles)


class PassesOnElsewhere(LogForwarder):
    """What it passes on has other offsets."""

    def _pass_on(self, message: BatchMessage | RecordMessage) -> list[Effect]:
        return [Publish(replace_body(message))] if isinstance(message, BatchMessage) else super()._pass_on(message)


class PassesOnUnderItsOwnName(LogForwarder):
    """What it passes on seems to be its own."""

    def _pass_on(self, message: BatchMessage | RecordMessage) -> list[Effect]:
        if not isinstance(message, BatchMessage):
            return super()._pass_on(message)
        return [Publish(BatchMessage(message.topic, self.address, message.subject, message.body))]


def replace_body(message: BatchMessage) -> BatchMessage:
    return BatchMessage(message.topic, message.address, message.subject, rebase(bytes(message.body), 0))


@pytest.mark.parametrize("broken", [PassesOnElsewhere, PassesOnUnderItsOwnName])
def test_a_forwarder_that_does_not_pass_on_what_it_got_is_caught(
    broken: type[LogForwarder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_ports, "LogForwarder", broken)
    monkeypatch.setattr(Forward, "settle_max_s", 60.0)
    failures = [failure for seed in range(5) if (failure := Forward(seed).play().failure) is not None]
    assert [each for each in failures if each.startswith("order")]
