"""A server of a pair on its sockets, and the witness of pairs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import zmq

from chappe.core import Report
from chappe.data.binary import encode
from chappe.errors import ProtocolError, StorageError, StorageFormat
from chappe.kv.actions import Commit
from chappe.kv.backend import Backend, Loaded, PutRow
from chappe.kv.chp.pair import PairedMapServer
from chappe.permissions.rules import ATTACH_MASTER
from chappe.replication.binary_star.actions import Ask, Tell
from chappe.replication.binary_star.messages import BEAT, decode_claim
from chappe.replication.binary_star.witness import Held, Keep, Reply, WitnessCore
from chappe.runtime.kv_node import CLOSE_S
from chappe.runtime.kv_node import commit as commit_to
from chappe.runtime.map_node import MapServerNode
from chappe.runtime.socket_node import Frames, SocketNode
from chappe.runtime.worker import DISKS, Lane
from chappe.system import time
from chappe.transports.addresses import bind
from chappe.transports.gate import Gate
from chappe.transports.maps import MapAddress, PairSockets
from chappe.transports.zeromq import open_socket

CLAIMS_MAX: Final = 1_000  # that wait for the witness's disk; further ones are dropped, and come again
_ROW: Final = msgspec.json.Decoder(tuple[int, int, bool, int, int, int])
_FOREIGN: Final = "the file does not hold a witness's records but other data: give the path of the witness's own file"
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


class _Idle:
    """What a node asks of a core; a witness has no time of its own."""

    def next_timeout(self) -> float:
        return math.inf

    def handle_timeout(self, now: float) -> Sequence[object]:
        return []

    def flush(self, now: float) -> Sequence[object]:
        return []


class WitnessNode(SocketNode):
    """Runs a witness, which answers when what it has granted is on disk.

    Args:
        address: Where to listen; port 0: any.
        backend: Its disk.
        gate: Of a witness with keys.
    """

    def __init__(
        self, address: MapAddress, backend: Backend, on_report: Callable[[Any], None], gate: Gate | None = None
    ) -> None:
        super().__init__(_Idle(), "witness", on_report, gate)
        self._backend = backend
        self._commits = Lane(DISKS, self.turns.run)
        self._claims: deque[Frames] = deque()
        self._number = 0
        self._keeping = False
        try:
            self.core = WitnessCore(_records(backend.load()))
            self._router = open_socket(zmq.ROUTER, gate)
            self.watch(self._router, self._on_claim, judge=self._judge_claim)
            port = bind(self._router, address.host, address.port, gate)
            self.address = MapAddress(address.host, port, "" if gate is None else gate.name)
        except BaseException:
            self.release()
            self._commits.close(CLOSE_S, backend.close)
            raise

    def close(self) -> None:
        """Finish the commit under way, and release everything."""
        if not self.turns.closed:
            self._commits.close(CLOSE_S, self._backend.close)
        super().close()

    def _judge_claim(self, who: str, frames: Frames) -> Sequence[object]:
        """A claim to a witness with keys: of who may serve what the pair's name says."""
        assert self.gate is not None
        _, pair = decode_claim(frames[-1])
        refusal = self.gate.forbids(who, ATTACH_MASTER, pair.decode("utf-8", "replace"), subtree=not pair)
        if refusal is not None:
            self.gate.refuse(refusal)
            return []
        return self._on_claim(frames)

    def _on_claim(self, frames: Frames) -> Sequence[object]:
        if len(frames) != 2:
            raise ProtocolError(f"a claim of {len(frames)} frames")
        if len(self._claims) < CLAIMS_MAX:
            self._claims.append(frames)
        self._go_on()
        return ()

    def _go_on(self) -> None:
        while self._claims and not self._keeping:
            client, frame = self._claims.popleft()
            try:
                self._carry_out(client, self.core.handle_claim(frame))
            except ProtocolError as error:
                self.complain(error)

    def _carry_out(self, client: bytes, actions: Sequence[Keep | Reply | Report]) -> None:
        for place, action in enumerate(actions):
            if isinstance(action, Keep):
                rest = actions[place + 1 :]
                self._keep(action, partial(self._carry_out, client, rest))
                return
            if isinstance(action, Reply):
                self._router.send_multipart([client, action.payload], _NOBLOCK)
                self.used(self._router)
            else:
                self.table[Report](action)

    def _keep(self, action: Keep, then: Callable[[], None]) -> None:
        self._keeping = True
        self._number += 1
        commit = Commit(self._number, (PutRow(encode(action.pair), encode(_text(action.held)), None),))

        def kept(error: StorageError | None) -> None:
            self._keeping = False
            if error is None:
                then()
            else:
                self.core.handle_not_kept(action.pair)
                self.table[Report](Report(error))
            self._go_on()

        self._commits.do(lambda: commit_to(self._backend, commit), kept)


def _text(held: Held) -> str:
    row = (held.term, held.role, held.alone, held.base, held.life, held.count)
    return msgspec.json.encode(row).decode()


def _records(loaded: Loaded) -> dict[bytes, Held]:
    """Raises StorageFormat."""
    found: dict[bytes, Held] = {}
    for pair, text, _ in loaded.entries:
        if isinstance(pair, str):  # bytes that are text come back as text
            pair = pair.encode()
        if not isinstance(pair, bytes) or not isinstance(text, str):
            raise StorageFormat(_FOREIGN)
        try:
            found[pair] = Held(*_ROW.decode(text))
        except msgspec.DecodeError:
            raise StorageFormat(_FOREIGN) from None
    return found
