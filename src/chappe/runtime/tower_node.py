"""A tower on its sockets: an XSUB that nodes publish beacons to, an XPUB that they hear others from."""

from __future__ import annotations

import logging
import threading
import time

import zmq

from chappe.defaults import BEACONS_MAX, HEARTBEAT_S
from chappe.errors import MemberStopped, ProtocolError
from chappe.log.actions import Action, Forward, Relay
from chappe.log.beacon import WELCOME
from chappe.log.tower import TowerCore
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.addresses import TowerAddress, bind, reachable_host
from chappe.transports.zeromq import new_socket

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 4096  # beacons are small; larger messages close the connection
DRAIN_MAX = 256


class TowerNode:
    """Runs one tower on ``address`` (ports 0: any free ones)."""

    def __init__(self, address: TowerAddress) -> None:
        own(self)
        need_descriptors()
        self.malformed = 0
        self.halted: str | None = None
        self.halt_event = threading.Event()
        self._sub = new_socket(zmq.XSUB)
        self._pub = new_socket(zmq.XPUB)
        for each in (self._sub, self._pub):
            each.setsockopt(zmq.LINGER, 100)
            each.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            each.setsockopt(zmq.SNDHWM, BEACONS_MAX)
            each.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._pub.setsockopt(zmq.XPUB_WELCOME_MSG, WELCOME)
        try:
            sub_port = bind(self._sub, address.host, address.sub_port)
            pub_port = bind(self._pub, address.host, address.pub_port)
        except BaseException:
            self._sub.close(0)
            self._pub.close(0)
            raise
        host = reachable_host(address.host)
        self.address = TowerAddress(host, sub_port, pub_port)
        self.core = TowerCore(host)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chappe-tower", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop and release the ports."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._sub.close()
        self._pub.close()

    def check(self) -> None:
        """Raise MemberStopped if the tower met a defect."""
        if self.halted is not None:
            raise MemberStopped(self.halted)

    def nodes(self) -> int:
        """Members heard lately."""
        return self.core.nodes(time.monotonic())

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._sub, zmq.POLLIN)
        poller.register(self._pub, zmq.POLLIN)
        while not self._stop.is_set():
            try:
                self._serve(poller)
            except Exception as error:  # a defect of ours: whoever runs the tower is told
                logger.exception("the tower stopped")
                self.halted = f"the tower stopped because of a defect: {error!r}; the log says more"
                self.halt_event.set()
                return

    def _serve(self, poller: zmq.Poller) -> None:
        wait_s = min(0.2, max(0.0, self.core.next_timeout() - time.monotonic()))
        ready = dict(poller.poll(int(wait_s * 1000)))
        if self._sub in ready:
            self._beacons()
        if self._pub in ready:
            self._subscriptions()
        self._perform(self.core.handle_timeout(time.monotonic()))

    def _beacons(self) -> None:
        for _ in range(DRAIN_MAX):
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                peer = str(frames[0].get("Peer-Address"))
            except zmq.ZMQError:
                peer = ""
            try:
                self._perform(self.core.handle_beacon([f.bytes for f in frames], peer, time.monotonic()))
            except ProtocolError as error:
                self.malformed += 1
                logger.debug("dropped a malformed beacon: %s", error)

    def _subscriptions(self) -> None:
        for _ in range(DRAIN_MAX):
            try:
                frames = self._pub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._perform(self.core.handle_subscription(frames[0], time.monotonic()))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Forward):
                self._pub.send_multipart(action.frames)
            elif isinstance(action, Relay):
                self._sub.send(action.raw)
