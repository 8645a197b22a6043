"""Seeded worlds of gateways, and gateways broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.worlds.gateways import Gateways

from chappe.core import Effect, Send
from chappe.gateway import core as gateways
from chappe.gateway.announcement import TreePlace
from chappe.gateway.core import GatewayCore, PublishToSide
from chappe.gateway.marks import Marked, parse
from chappe.mesh.filters import Filter
from chappe.mesh.messages import Message

SEEDS = 24
CHUNK = 8


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_between_domains(first: int) -> None:
    played = {seed: Gateways(seed).play().failure for seed in range(first, first + CHUNK)}

    assert {seed: failure for seed, failure in played.items() if failure is not None} == {}


def test_a_seed_plays_the_same_world_of_gateways_every_time() -> None:
    assert Gateways(3).play() == Gateways(3).play()


def test_hardly_anything_comes_twice() -> None:
    worlds = [Gateways(seed) for seed in range(10)]
    for world in worlds:
        world.play()
    copies = sum(got.total() for world in worlds for got in world.copies.got.values())

    assert sum(world.copies.twice for world in worlds) < copies / 1_000


def failures(core: type[GatewayCore] = GatewayCore) -> Iterator[str]:
    """The checkers that see something in some worlds, each as it does: who looks for one does not play all."""
    played = (Gateways(seed, core=core).play().failure for seed in range(8))
    return (failure.partition(":")[0] for failure in played if failure is not None)


class PassesAnything(GatewayCore):
    def handle_message(self, side: int, messages: Sequence[Message], now: float) -> list[Effect]:
        found = super().handle_message(side, messages, now)
        topics = [(each.topic, each.payload) for each in messages if not self._sides[side].is_gateway(each.origin)]
        return found if found or not self.passing else [Send(1 - side, PublishToSide(topics, []))]


class BelievesAnybody(GatewayCore):
    def _take_marked(self, source: Any, message: Message, now: float) -> Marked | None:
        return parse(message.payload) if message.payload else None


class TakesPlainFromGateways(GatewayCore):
    def handle_message(self, side: int, messages: Sequence[Message], now: float) -> list[Effect]:
        for each in self._sides:
            each.is_gateway = lambda endpoint: False  # type: ignore[method-assign]
        return super().handle_message(side, messages, now)


class NeverAsks(GatewayCore):
    def _wanted(self, side: int) -> Filter:
        return ()


class AsksForAll(GatewayCore):
    def _wanted(self, side: int) -> Filter:
        return self._sides[side].options.chosen if self.passing else ()


class WantsWhatGatewaysThatWaitWant(GatewayCore):
    def _wanted(self, side: int) -> Filter:
        passing, self.state = self.state, "passing"
        try:
            return super()._wanted(side)
        finally:
            self.state = passing


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (PassesAnything, "chosen prefixes"),
        (BelievesAnybody, "at most once"),
        (TakesPlainFromGateways, "at most once"),
        (NeverAsks, "everything arrives"),
        (AsksForAll, "what is wanted"),
        (WantsWhatGatewaysThatWaitWant, "what is wanted"),
    ],
)
def test_a_broken_gateway_is_caught(broken: type[GatewayCore], seen: str) -> None:
    assert seen in failures(broken)


def test_gateways_that_all_pass_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "elect", lambda name, others, first, depth_max: TreePlace(None, (name,), None))

    assert "at most once" in failures()
