"""A tower on its sockets: an XSUB that nodes publish beacons to, an XPUB that they hear others from."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Final

import zmq

from chappe.core import Effect, Publish, Subscribe
from chappe.defaults import BEACONS_MAX, HEARTBEAT_S
from chappe.log.beacon import WELCOME, TowerCore
from chappe.log.guard import Guard
from chappe.log.handing_on import FRAME_BYTES_MAX, GROUPS, PERMISSIONS, Middle, is_handed_on
from chappe.runtime.driver import Driver, Frames, Inlet, Ports
from chappe.system import time
from chappe.system.machine import LOOK_S
from chappe.transports.addresses import TowerAddress, bind, reachable_host
from chappe.transports.gate import Gate, user_of
from chappe.transports.zeromq import LINGER_MS, new_socket

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 4096  # beacons are small; larger messages close the connection
QUEUED_MAX = 10 * BEACONS_MAX  # of a node that is slow: some seconds' beacons of everybody
BEACONS: Final = "beacons"  # the link over which nodes announce themselves ...
LISTENERS: Final = "listeners"  # ... and the one over which they ask for what is announced


class TowerPorts(Ports):
    """The sockets of a tower at ``address`` (port 0: any); ``gate`` decides who comes in; ``name`` is for people."""

    def __init__(self, address: TowerAddress, gate: Gate | None = None, *, name: str) -> None:
        host = reachable_host(address.host)
        self.gate = gate
        guard = None if gate is None else Guard(gate.decisions, gate.refusals.add_refusal)
        self.core = TowerCore(host, guard, name=name)
        self._permissions = None if gate is None else Middle(gate, self._hand_on)
        self._look_at = math.inf if gate is None else -math.inf  # whether permissions are to be handed on
        driver = Driver(self.core, self, "tower")
        try:
            self._sub, self._pub = new_socket(zmq.XSUB, gate), new_socket(zmq.XPUB, gate)
            self._beacons = driver.watch(Inlet(self._sub, BEACONS, copied=False))
            self._listeners = driver.watch(Inlet(self._pub, LISTENERS))
            for each in (self._sub, self._pub):
                each.setsockopt(zmq.LINGER, LINGER_MS)
                each.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
                each.setsockopt(zmq.SNDHWM, QUEUED_MAX)
                each.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
            if gate is not None:
                self._sub.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
                self._sub.send(b"\1" + GROUPS)
            self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
            self._pub.setsockopt(zmq.XPUB_WELCOME_MSG, WELCOME)
            sub_port = bind(self._sub, address.host, address.sub_port, gate)
            pub_port = bind(self._pub, address.host, address.pub_port, gate)
        except BaseException:
            driver.release()
            raise
        self.address = TowerAddress(host, sub_port, pub_port)

    def nodes(self) -> int:
        with self.driver.lock:
            return self.core.nodes(time.monotonic())

    def publish(self, effect: Publish) -> None:
        """Send a beacon to the nodes that subscribed to its kind."""
        self._hand_on(effect.message)

    def subscribe(self, effect: Subscribe) -> None:
        self._sub.send((b"\1" if effect.on else b"\0") + effect.prefix)
        self.driver.suspect(self._beacons)

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        if link is BEACONS:
            return self._hear_beacon(frames)
        assert link is LISTENERS
        prefix, on = frames[0][1:], frames[0][:1] == b"\1"
        if prefix[:1] == GROUPS or not (on or frames[0][:1] == b"\0"):
            return ()  # what they ask us for, they need not hear of each other
        effects = self.core.handle_subscription(prefix, on, time.monotonic())
        if self._permissions is not None and on and prefix == PERMISSIONS:
            self._permissions.joined(time.monotonic())
        return effects

    def _hear_beacon(self, frames: list[zmq.Frame]) -> Sequence[Effect]:
        if self._permissions is not None and is_handed_on(frames[0].bytes):
            self._permissions.hear([each.bytes for each in frames], time.monotonic())
            return ()
        try:
            peer = str(frames[0].get("Peer-Address"))
        except zmq.ZMQError:
            peer = ""
        who = "" if self.gate is None else user_of(frames[0])
        return self.core.handle_frames([each.bytes for each in frames], peer, who, time.monotonic())

    def _hand_on(self, frames: Sequence[bytes]) -> None:
        self._pub.send_multipart(frames)
        self.driver.suspect(self._listeners)

    def next_timeout(self) -> float:
        return self._look_at

    def handle_timeout(self, now: float) -> None:
        if self._permissions is not None and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._permissions.look(now)

    def report(self, event: object) -> None:
        """Log a refusal of the machine: a tower has no events."""
        logger.warning("%s", event)
