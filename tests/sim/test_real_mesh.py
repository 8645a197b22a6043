"""Faults below the cores of the mesh, in drivers, sockets and queues of subscribers: each is found in some world."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.below_the_cores import forgets_who_is_due
from tests.worlds.mesh.scenario import Mesh

from chappe.api.mesh.subscriber import Subscriber
from chappe.core import Flush
from chappe.mesh.messages import Message
from chappe.runtime.mesh_ports import MeshPorts
from chappe.transports.gathering import WriteGatherer
from chappe.transports.tcp import LinkLost, TcpLink

Patch = pytest.MonkeyPatch


def test_a_seed_plays_the_same_world_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Mesh(1, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 20


def writes_once(patch: Patch) -> None:
    """What a full socket has refused is never written."""
    watch = MeshPorts._watch

    def forgetful(ports: MeshPorts, link: Any) -> None:
        was, link.writing = link.writing, False
        watch(ports, link)
        link.writing = was

    patch.setattr(MeshPorts, "_watch", forgetful)


def tells_at_once(patch: Patch) -> None:
    """A link is lost in the midst of what else is to be done."""

    def flush(ports: MeshPorts, effect: Flush) -> None:
        link = ports._links.get(effect.link)
        if link is not None and not link.writing:
            try:
                ports._write(link)
            except LinkLost as error:
                ports._lose(link, str(error))

    patch.setattr(MeshPorts, "flush", flush)


def reads_any_size(patch: Patch) -> None:
    """Messages that came together are handed in together, however large they are."""
    frames = TcpLink.frames
    patch.setattr(TcpLink, "frames", lambda link, count_max, size_max: frames(link, count_max, 1 << 30))


def forgets_frames(patch: Patch) -> None:
    """Frames that are too many at once are left until something else comes."""
    frames = TcpLink.frames

    def forgetful(link: TcpLink, count_max: int, size_max: int) -> list[bytes]:
        found = frames(link, count_max, size_max)
        link.more = False
        return found

    patch.setattr(TcpLink, "frames", forgetful)


def gathers_for_good(patch: Patch) -> None:
    """What was gathered leaves only with more."""
    soon = WriteGatherer.soon

    def forgetful(gatherer: WriteGatherer, now: float) -> None:
        soon(gatherer, now)
        gatherer.due = math.inf

    patch.setattr(WriteGatherer, "soon", forgetful)


def stays_full(patch: Patch) -> None:
    """A subscriber that has room again tells nobody."""
    fill = Subscriber._fill

    def silent(subscriber: Subscriber, level: int) -> None:
        if level:
            fill(subscriber, level)

    patch.setattr(Subscriber, "_fill", silent)


def loses_the_last(patch: Patch) -> None:
    """Of messages that come together one is lost before the subscriber's queue."""
    deliver = Subscriber.deliver

    def forgetful(subscriber: Subscriber, messages: list[Message]) -> None:
        deliver(subscriber, messages[:9])

    patch.setattr(Subscriber, "deliver", forgetful)


FAULTS = (  # and a world that shows each
    (forgets_who_is_due, 1),
    (writes_once, 2),
    (tells_at_once, 94),
    (reads_any_size, 57),
    (forgets_frames, 0),
    (gathers_for_good, 114),
    (stays_full, 84),
    (loses_the_last, 0),
)


@pytest.mark.parametrize(("fault", "seed"), FAULTS)
def test_a_fault_below_the_cores_is_found(fault: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    fault(monkeypatch)
    assert Mesh(seed).play().failure is not None
