"""A tower on its sockets: an XSUB that nodes publish beacons to, an XPUB that they hear others from."""

from __future__ import annotations

import logging
import math
import selectors

import zmq

from chappe.defaults import BEACONS_MAX, HEARTBEAT_S
from chappe.errors import ProtocolError
from chappe.log.actions import Action, Forward, Relay
from chappe.log.beacon import WELCOME, TowerCore
from chappe.log.guard import Guard
from chappe.log.handing_on import FRAME_BYTES_MAX, GROUPS, PERMISSIONS, Middle, is_handed_on
from chappe.runtime.turns import Ready, Turns
from chappe.system import time
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.addresses import TowerAddress, bind, reachable_host
from chappe.transports.gate import LOOK_S, Gate, user_of
from chappe.transports.zeromq import LINGER_MS, new_socket

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 4096  # beacons are small; larger messages close the connection
QUEUED_MAX = 10 * BEACONS_MAX  # of a node that is slow: some seconds' beacons of everybody
DRAIN_MAX = 256


class TowerNode:
    """Runs one tower on ``address`` (ports 0: any free ones), which lets in whom a ``gate`` lets in.

    ``name`` is for people.
    """

    def __init__(self, address: TowerAddress, gate: Gate | None = None, *, name: str) -> None:
        own(self)
        need_descriptors()
        self.malformed = 0
        self.turns = Turns(self._handle, self._due, lambda reason: self.halt_event.set(), what="tower")
        self.halt_event = self.turns.machine.event()
        self.gate = gate
        self._sub = new_socket(zmq.XSUB, gate)
        self._pub = new_socket(zmq.XPUB, gate)
        for each in (self._sub, self._pub):
            each.setsockopt(zmq.LINGER, LINGER_MS)
            each.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            each.setsockopt(zmq.SNDHWM, QUEUED_MAX)
            each.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
        self._permissions = None if gate is None else Middle(gate, self._hand_on)
        self._look_at = math.inf if gate is None else -math.inf  # whether permissions are to be handed on
        if gate is not None:
            self._sub.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
            self._sub.send(b"\1" + GROUPS)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._pub.setsockopt(zmq.XPUB_WELCOME_MSG, WELCOME)
        try:
            sub_port = bind(self._sub, address.host, address.sub_port, gate)
            pub_port = bind(self._pub, address.host, address.pub_port, gate)
            for each in (self._sub, self._pub):
                self.turns.register(int(each.getsockopt(zmq.FD)), selectors.EVENT_READ, None)
        except BaseException:
            self._sub.close()
            self._pub.close()
            self.turns.release()
            raise
        host = reachable_host(address.host)
        self.address = TowerAddress(host, sub_port, pub_port)
        guard = None if gate is None else Guard(gate.decisions, gate.refusals.add_refusal)
        self.core = TowerCore(host, guard, name=name)

    def close(self) -> None:
        """Stop and release the ports."""
        self.turns.stop()
        with self.turns.lock:
            self._sub.close()
            self._pub.close()
            self.turns.release()

    def nodes(self) -> int:
        """Members heard lately."""
        with self.turns.lock:
            return self.core.nodes(time.monotonic())

    def _handle(self, ready: Ready) -> bool:
        # What is sent on one socket may swallow what the descriptor of it tells: both are looked at each time.
        more = self._beacons()
        more = self._subscriptions() or more
        now = time.monotonic()
        self._perform(self.core.handle_timeout(now))
        if self._permissions is not None and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._permissions.look(now)
        return more or any(int(each.getsockopt(zmq.EVENTS)) & zmq.POLLIN for each in (self._sub, self._pub))

    def _beacons(self) -> bool:
        """Pass on what came; returns whether there may be more."""
        for _ in range(DRAIN_MAX):
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            if self._permissions is not None and is_handed_on(frames[0].bytes):
                self._permissions.hear([each.bytes for each in frames], time.monotonic())
                continue
            try:
                peer = str(frames[0].get("Peer-Address"))
            except zmq.ZMQError:
                peer = ""
            who = "" if self.gate is None else user_of(frames[0])
            try:
                self._perform(self.core.handle_beacon([f.bytes for f in frames], peer, time.monotonic(), who))
            except ProtocolError as error:
                self.malformed += 1
                logger.debug("dropped a malformed beacon: %s", error)
        return True

    def _subscriptions(self) -> bool:
        for _ in range(DRAIN_MAX):
            try:
                frames = self._pub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            if frames[0][1:2] == GROUPS:
                continue  # what they ask us for, they need not hear of each other
            self._perform(self.core.handle_subscription(frames[0], time.monotonic()))
            if self._permissions is not None and frames[0] == b"\1" + PERMISSIONS:
                self._permissions.joined(time.monotonic())
        return True

    def _hand_on(self, frames: list[bytes]) -> None:
        self._pub.send_multipart(frames)

    def _due(self) -> float:
        return min(self.core.next_timeout(), self._look_at)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Forward):
                self._pub.send_multipart(action.frames)
            elif isinstance(action, Relay):
                self._sub.send(action.raw)
