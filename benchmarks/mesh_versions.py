"""The mesh by version, in one run: version 2 beside version 1 among endpoints of chappe, and beside the original.

Version 1 knows no ways: an original passes on what its neighbours want, and in a loop passes it on for ever. So in the
full mesh nobody passes anything on where version 1 is spoken, and what is compared is what one frame costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.children import Child, Children, has_original
from benchmarks.mesh import EVENTS, FAN, MEMBERS, ORIGINAL_EVENTS
from benchmarks.outcome import Line, Rate, per_second, times
from benchmarks.rounds import Pair, Together
from benchmarks.settings import Settings

FULLY_MESHED = 12
ONE_TO_ONE, FORWARDED = 0.97, 1.3  # of version 1; the first is "no slower", within what two rounds differ
ORIGINAL = "original"


@dataclass(frozen=True, slots=True)
class Side:
    """Who speaks: endpoints of chappe, or originals."""

    children: Children
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def start(self, role: str, **options: object) -> Child:
        """A process that is ready, or whose first fact is its port."""
        if self.name == ORIGINAL:
            return self.children.original(role, **options)
        return self.children.start(MEMBERS, role, **self.options, **options)


def _one_to_one(side: Side) -> Pair:
    receiver = side.start("receiver", how="payloads")
    return _sent(side, [receiver], [receiver.hear()["port"]])


def _singly(side: Side) -> Pair:
    receiver = side.start("receiver", how="single")
    return _sent(side, [receiver], [receiver.hear()["port"]], how="single")


def _forwarded(side: Side) -> Pair:
    middle = side.start("forwarder", forward=True)
    port = middle.hear()["port"]
    receiver = side.start("receiver", how="payloads", ports=[port])
    receiver.hear()
    return _sent(side, [receiver], [port], {"forwarder": middle})


def _fanned_out(side: Side) -> Pair:
    receivers = [side.start("receiver", how="payloads") for _ in range(FAN)]
    return _sent(side, receivers, [each.hear()["port"] for each in receivers])


def _fully_meshed(side: Side) -> Pair:
    common: dict[str, Any] = {} if side.options.get("version", 2) == 2 else {"forwarding": False}
    receiver = side.start("receiver", how="payloads", **common)
    ports = [receiver.hear()["port"]]
    while len(ports) < FULLY_MESHED - 1:
        ports = [*ports, side.start("forwarder", ports=ports, **common).hear()["port"]]
    return _sent(side, [receiver], ports, **common)


def _sent(
    side: Side, receivers: list[Child], ports: list[int], servers: dict[str, Child] | None = None, **options: object
) -> Pair:
    sender = side.start("sender", **{"how": "batch", **options}, ports=ports, receivers=len(receivers))
    sender.hear()
    return Pair(sender, Together(receivers), servers or {})


def _rates(settings: Settings, name: str, make: Callable[[Side], Pair], share: int = 1) -> dict[str, Rate]:
    """Events a second with each; the rounds of all take turns."""
    with Children(settings.work / name) as children:
        sides = [Side(children, f"version {each}", {"version": each}) for each in (2, 1)]
        if has_original():
            sides.append(Side(children, ORIGINAL))
        pairs = {each.name: make(each) for each in sides}
        for who, pair in pairs.items():
            pair.warm_up(2_000 if who == ORIGINAL or share > 1 else 20_000)
        for _ in range(settings.repeats):
            for who, pair in pairs.items():
                pair.round(settings.count((ORIGINAL_EVENTS if who == ORIGINAL else EVENTS) // share))
    return {who: pair.rate() for who, pair in pairs.items()}


def _line(what: str, rates: dict[str, Rate], target: str, met: Callable[[float, float], bool]) -> Line:
    """``met`` is asked with the rate of version 2, and how many times that of version 1 this is."""
    rate = rates["version 2"]
    others = {who: each.median for who, each in rates.items() if each is not rate}
    return Line(
        f"mesh by version: {what}",
        str(rate),
        target,
        "; ".join(f"{who}: {per_second(each)}" for who, each in others.items()),
        " / ".join(times(rate.median / each) for each in others.values()),
        met(rate.median, rate.median / others["version 1"]),
        rate.note(),
        {key: value for who, each in rates.items() for key, value in each.numbers(who.replace(" ", "_")).items()},
    )


def mesh_versions(settings: Settings) -> list[Line]:
    """One to one, in batches and singly, through a forwarder, to ten processes, and among twelve all linked."""
    single = _rates(settings, "versions-one", _one_to_one)
    singly = _rates(settings, "versions-singly", _singly)
    chain = _rates(settings, "versions-chain", _forwarded)
    fan = _rates(settings, "versions-fan", _fanned_out, FAN)
    full = _rates(settings, "versions-full", _fully_meshed)
    one = single["version 2"].median
    return [
        _line("one to one", single, f">= {ONE_TO_ONE:.2f}x of version 1", lambda _, ratio: ratio >= ONE_TO_ONE),
        _line(
            "publish one at a time, get one at a time",
            singly,
            f">= {ONE_TO_ONE:.2f}x of version 1",
            lambda _, ratio: ratio >= ONE_TO_ONE,
        ),
        _line("through a forwarder", chain, f">= {FORWARDED:.1f}x of version 1", lambda _, ratio: ratio >= FORWARDED),
        _line(
            f"fan-out to {FAN} processes, events",
            fan,
            f"deliveries >= one to one, so events >= {per_second(one / FAN)}",
            lambda rate, _: rate * FAN >= one,
        ),
        _line(
            f"{FULLY_MESHED} fully meshed, one subscriber",
            full,
            f">= {ONE_TO_ONE:.2f}x of version 1",
            lambda _, ratio: ratio >= ONE_TO_ONE,
        ),
    ]
