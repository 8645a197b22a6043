"""The witness of pairs on its socket and its disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import zmq

from chappe.core import Effect, Reply
from chappe.data.binary import encode
from chappe.errors import ProtocolError, StorageError, StorageFormat
from chappe.kv.backend import Backend, Commit, Loaded, PutRow
from chappe.permissions.rules import ATTACH_MASTER
from chappe.replication.binary_star.messages import decode_claim
from chappe.replication.binary_star.witness import Grant, PairRecord, WitnessCore
from chappe.runtime.commits import commit
from chappe.runtime.driver import Driver, Frames, Inlet, Ports
from chappe.transports.addresses import bind
from chappe.transports.gate import Gate, sender_of
from chappe.transports.maps import MapAddress
from chappe.transports.zeromq import open_socket

_ROW: Final = msgspec.json.Decoder(tuple[int, int, bool, int, int, int])
_FOREIGN: Final = "the file does not hold a witness's records but other data: give the path of the witness's own file"
_NOBLOCK: Final = int(zmq.NOBLOCK)


class WitnessPorts(Ports):
    """The socket and the file of a witness.

    Args:
        address: Where to listen; port 0: any.
        backend: Its disk; closed at the end.
        gate: Of a witness with keys.
    """

    def __init__(
        self, address: MapAddress, backend: Backend, on_report: Callable[[object], None], gate: Gate | None = None
    ) -> None:
        self._backend = backend
        self._on_report = on_report
        self.gate = gate
        self._number = 0
        self._router: zmq.Socket[bytes] | None = None
        try:
            self.core = WitnessCore(_records(backend.load()))
            driver = Driver(self.core, self, "witness")
            self._router = open_socket(zmq.ROUTER, gate)
            self._claims = driver.watch(Inlet(self._router, None, copied=gate is None))
            port = bind(self._router, address.host, address.port, gate)
            self.address = MapAddress(address.host, port, "" if gate is None else gate.name)
        except BaseException:
            if self._router is None:
                backend.close()
            else:
                self.driver.release()
            raise

    def hear(self, link: None, frames: Frames) -> Sequence[Effect]:
        """Pass a claim to the core. A claimant with keys is judged first."""
        raw: list[bytes] = frames if self.gate is None else [each.bytes for each in frames]
        if len(raw) != 2:
            raise ProtocolError(f"a claim of {len(raw)} frames")
        if self.gate is not None and not self._may_claim(self.gate, sender_of(frames), raw[1]):
            return ()
        return self.core.handle_request(raw[0], raw[1], 0.0)

    def _may_claim(self, gate: Gate, who: str, claim: bytes) -> bool:
        """Return True if an identity may serve the pair that it claims for; if not, that is counted."""
        _, pair = decode_claim(claim)
        refusal = gate.forbids(who, ATTACH_MASTER, pair.decode("utf-8", "replace"), subtree=not pair)
        if refusal is not None:
            gate.refuse(refusal)
        return refusal is None

    def reply(self, effect: Reply) -> None:
        assert self._router is not None
        self._router.send_multipart([effect.to, effect.message], _NOBLOCK)
        self.driver.suspect(self._claims)

    def carry_out(self, job: PairRecord) -> StorageError | None:
        self._number += 1
        return commit(self._backend, Commit(self._number, (PutRow(encode(job.pair), encode(_text(job.held)), None),)))

    def done(self, job: Any, outcome: StorageError | None, now: float) -> Sequence[Effect]:
        return self.core.handle_done(job, outcome, now)

    def report(self, event: object) -> None:
        self._on_report(event)

    def close_files(self) -> None:
        self._backend.close()


def _text(held: Grant) -> str:
    row = (held.term, held.role, held.alone, held.base, held.life, held.count)
    return msgspec.json.encode(row).decode()


def _records(loaded: Loaded) -> dict[bytes, Grant]:
    found: dict[bytes, Grant] = {}
    for pair, text, _ in loaded.entries:
        if isinstance(pair, str):  # bytes that are text come back as text
            pair = pair.encode()
        if not isinstance(pair, bytes) or not isinstance(text, str):
            raise StorageFormat(_FOREIGN)
        try:
            found[pair] = Grant(*_ROW.decode(text))
        except msgspec.DecodeError:
            raise StorageFormat(_FOREIGN) from None
    return found
