"""A server of a pair on its sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from chappe.errors import ProtocolError
from chappe.kv.backend import Backend
from chappe.kv.chp.pair import PairedMapServer
from chappe.replication.binary_star.actions import Ask, Tell
from chappe.replication.binary_star.messages import BEAT
from chappe.runtime.map_node import MapServerNode
from chappe.runtime.socket_node import Frames
from chappe.system import time
from chappe.transports.gate import Gate
from chappe.transports.maps import MapAddress, PairSockets

_NOBLOCK: Final = int(zmq.NOBLOCK)


class PairedServerNode(MapServerNode):
    """Runs one server of a pair; see ``MapServerNode`` and ``PairSockets`` for the arguments."""

    core: PairedMapServer

    def __init__(
        self,
        address: MapAddress,
        core: PairedMapServer,
        *,
        backend: Backend | None,
        peer: MapAddress,
        link: tuple[MapAddress, MapAddress],
        witness: MapAddress | None,
        published: bool,
        name: str = "",
        gate: Gate | None = None,
        on_report: Callable[[Any], None],
    ) -> None:
        super().__init__(
            address, core, backend=backend, peer=peer, published=published, name=name, gate=gate, on_report=on_report
        )
        self._beats = False  # somebody has subscribed to heartbeats: they are told ever after
        self._originals = 0  # so many have subscribed to everything
        self.table |= {Tell: self._tell, Ask: self._ask}
        try:
            own, partner = link
            self._link = PairSockets(own, witness=witness is not None, gate=gate)
            self.watch(self._link.telling, self._on_listener, judge=self._judge_listener)
            self.watch(self._link.hearing, lambda frames: core.handle_state(frames, time.monotonic()))
            self.dial(self._link.hearing, partner.endpoint(0))
            if self._link.asking is not None and witness is not None:
                self.watch(self._link.asking, lambda frames: core.handle_witness(frames, time.monotonic()))
                self.dial(self._link.asking, witness.endpoint(0))
        except BaseException:
            self.close()
            raise

    def _judge_listener(self, who: str, frames: Frames) -> Sequence[object]:
        """With keys the partner alone hears what this server says of itself."""
        assert self.rules is not None
        if frames[0][:1] == b"\1":
            if not self.rules.is_partner(who):
                return []
            self._link.telling.setsockopt(zmq.SUBSCRIBE, frames[0][1:])
        return self._on_listener(frames)

    def _on_listener(self, frames: Frames) -> Sequence[object]:
        if len(frames) != 1 or frames[0][:1] not in (b"\0", b"\1"):
            raise ProtocolError("a message to a publishing socket")
        on, prefix = frames[0][:1] == b"\1", frames[0][1:]
        if prefix == BEAT:  # anybody may unsubscribe, also from what he never subscribed to
            self._beats |= on
        elif not prefix:
            self._originals = max(0, self._originals + (1 if on else -1))
        return ()

    def _tell(self, action: Tell) -> None:
        """An original subscribes to everything, an end of chappe to heartbeats by their name."""
        telling = self._link.telling
        if self._beats:
            telling.send(action.beat, _NOBLOCK)
        if self._originals and action.state:
            telling.send(action.state, _NOBLOCK)
        self.used(telling)

    def _ask(self, action: Ask) -> None:
        asking = self._link.asking
        assert asking is not None
        try:
            asking.send(action.payload, _NOBLOCK)
        except zmq.Again:
            pass  # it is asked again
        self.used(asking)
