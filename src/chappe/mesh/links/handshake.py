"""One connection, from its first byte to established.

::

    who dialled        who accepted           the smaller id is the originator
    hello         -->
                  <--  probe                  both at once
                       id smaller?            no: hello -->, and the dialler originates
    originator: version select, syn -->       responder: syn-ack -->       originator: ack -->

Only the originator decides which of several connections between two endpoints stays (``mesh.peers``). What is wrong is
answered as the original answers it, and ends the connection.

Departures from the original: a time limit and a size limit; a filter that does not fit is announced in part and the
owner sends the rest as a routing update; ids are checked to be the same throughout, and not ours or nil; drop_conn is
understood in every state.

The originator selects the highest version that both offer: 1, or 2 between endpoints of chappe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final, TypeAlias

from chappe.data.binary import pack_varbyte
from chappe.defaults import HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S
from chappe.mesh.filters import Filter, announced
from chappe.mesh.links.greetings import (
    VERSIONS,
    Code,
    DropConn,
    Fault,
    Greeting,
    Hello,
    OriginatorAck,
    OriginatorSyn,
    Probe,
    ResponderSynAck,
    VersionSelect,
    pack_greeting,
    parse_greeting,
)
from chappe.mesh.links.peers import HandshakeRole, PeerClaim, PeerTable
from chappe.mesh.messages import ID_BYTES, NOBODY

_FILTER_BYTES_MAX: Final = HANDSHAKE_FRAME_BYTES_MAX - 64  # room for type and count


class HandshakeState(Enum):
    AWAIT_HELLO_OR_VERSION_SELECT = "await_hello_or_version_select"  # dialled
    AWAIT_HELLO = "await_hello"  # accepted
    AWAIT_VERSION_SELECT = "await_version_select"
    AWAIT_ORIGINATOR_SYN = "await_orig_syn"
    AWAIT_RESPONDER_SYN_ACK = "await_resp_syn_ack"
    AWAIT_ORIGINATOR_ACK = "await_orig_ack"
    PAUSED = "paused"
    ESTABLISHED = "fin"
    ENDED = "err"


@dataclass(frozen=True, slots=True)
class SendFrame:
    frame: bytes


@dataclass(frozen=True, slots=True)
class Established:
    """The connection stands; messages follow. ``peer_filter`` is minimal."""

    peer_id: bytes
    peer_filter: Filter
    role: HandshakeRole
    version: int  # 1, as with originals, or 2


@dataclass(frozen=True, slots=True)
class Failed:
    """Close after what was to be sent. ``code`` is one of Broker's error codes, ``reason`` a sentence for people.

    ``refused``: the peer stated an id that it may not have, or may not take part. ``told``: we may not, it says.
    """

    code: int
    reason: str
    refused: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Redundant:
    """Close after sending what is due: another connection has the peer, so the side that dialled has what it wanted."""

    peer_id: bytes


@dataclass(frozen=True, slots=True)
class Wake:
    """Call ``wake`` of the handshakes of these connections, in this order, after what stands before."""

    conns: tuple[int, ...]


Step: TypeAlias = SendFrame | Established | Failed | Redundant | Wake

_FINAL: Final = frozenset({HandshakeState.ESTABLISHED, HandshakeState.ENDED})
_GREETING: Final = frozenset(
    {HandshakeState.AWAIT_HELLO_OR_VERSION_SELECT, HandshakeState.AWAIT_HELLO, HandshakeState.AWAIT_VERSION_SELECT}
)


class PeerHandshake:
    """The handshake of the connection ``conn``. Every method returns what to do, in order. ``refusal``: why no endpoint
    with this id is taken over this connection, and the code for that; None if one is.
    """

    def __init__(
        self,
        conn: int,
        own: bytes,
        dialled: bool,
        filter: Sequence[bytes],
        peers: PeerTable,
        now: float,
        version_max: int = VERSIONS[-1],
        refusal: Callable[[bytes], tuple[Code, str] | None] = lambda peer_id: None,
    ) -> None:
        assert len(own) == ID_BYTES
        assert own != NOBODY
        self.conn = conn
        self.dialled = dialled
        self.state = HandshakeState.AWAIT_HELLO_OR_VERSION_SELECT if dialled else HandshakeState.AWAIT_HELLO
        self.peer_id: bytes | None = None  # known from the first frame that names it
        self.role: HandshakeRole | None = None  # known with the claim
        self.filter_sent: Filter | None = None  # differs from ``filter`` if it did not fit
        self._own = own
        self._filter = announced(filter)
        self._peers = peers
        self._deadline = now + HANDSHAKE_TIMEOUT_S
        self._peer_filter: Filter = ()
        self._version_max = version_max
        self._refusal = refusal
        self._version = VERSIONS[0]  # that was selected

    def start(self) -> list[Step]:
        return [_send(self._hello() if self.dialled else Probe())]

    def take(self, body: bytes) -> list[Step]:
        """Take a frame. After the end nothing happens: frames behind ESTABLISHED are not for the handshake."""
        if self.state in _FINAL:
            return []
        if not 0 < len(body) <= HANDSHAKE_FRAME_BYTES_MAX:
            return self._end(Failed(Code.INVALID_MESSAGE, f"the peer sent a frame of {len(body)} bytes to begin with"))
        try:
            greeting = parse_greeting(body)
        except Fault as fault:
            return self._refuse(fault.code, str(fault))
        if isinstance(greeting, DropConn):
            return self._handle_drop_conn(greeting)
        if isinstance(greeting, Probe) and self.state in _GREETING:
            return []
        handle = _TRANSITIONS.get((self.state, type(greeting)))
        if handle is None:
            what = f"the peer sent {type(greeting).__name__} in state {self.state.value}"
            return self._end(Failed(Code.UNEXPECTED_MESSAGE, what))
        return handle(self, greeting)

    def wake(self) -> list[Step]:
        """Go on, as the connection that this one waited for was settled, or failed."""
        if self.state is not HandshakeState.PAUSED:
            return []
        return self._originate()

    def end(self, reason: str) -> list[Step]:
        """End, as the connection is gone, or the driver refused its input, for instance a frame that is too large."""
        if self.state in _FINAL:
            return []
        return self._end(Failed(Code.DISCONNECTED, reason))

    def tick(self, now: float) -> list[Step]:
        """Give up if the time limit has passed."""
        if now < self.due():
            return []
        return self._end(Failed(Code.TIMED_OUT, f"the handshake was not done within {HANDSHAKE_TIMEOUT_S:g} s"))

    def due(self) -> float:
        return inf if self.state in _FINAL else self._deadline

    # -- greeting ---------------------------------------------------------------------------------

    def _handle_hello(self, hello: Hello) -> list[Step]:
        refused = self._check_sender(hello.sender)
        if refused:
            return refused
        self._version = min(self._version_max, hello.version_max)
        if self._version < max(VERSIONS[0], hello.version_min):
            offered = f"it offers versions {hello.version_min} to {hello.version_max} of the protocol"
            return self._refuse(
                Code.PEER_INCOMPATIBLE, "unsupported versions offered", f"{offered}, and we speak {self._spoken()}"
            )
        if self._own < hello.sender:
            return self._originate()
        if self.dialled:  # the smaller id would have selected a version
            return self._end(Failed(Code.UNEXPECTED_MESSAGE, "the peer should lead the handshake and did not"))
        self.state = HandshakeState.AWAIT_VERSION_SELECT
        return [_send(self._hello())]

    def _hello(self) -> Hello:
        return Hello(self._own, VERSIONS[0], self._version_max)

    def _spoken(self) -> str:
        return " and ".join(map(str, VERSIONS[: self._version_max]))

    def _handle_version_select(self, select: VersionSelect) -> list[Step]:
        refused = self._check_sender(select.sender)
        if refused:
            return refused
        self._version = select.version
        if not VERSIONS[0] <= select.version <= self._version_max:
            chosen = f"it chose version {select.version} of the protocol, and we offered {self._spoken()}"
            return self._refuse(Code.PEER_INCOMPATIBLE, "unsupported version selected", chosen)
        if self._own < select.sender:
            return self._end(Failed(Code.UNEXPECTED_MESSAGE, "the peer led the handshake and should not"))
        self.role = HandshakeRole.RESPONDER
        if self._peers.claim(self.conn, select.sender, HandshakeRole.RESPONDER) is not PeerClaim.PROCEED:
            return self._refuse(Code.LOGIC_ERROR, "detected redundant connection at the responder")
        self.state = HandshakeState.AWAIT_ORIGINATOR_SYN
        return []

    def _handle_drop_conn(self, drop: DropConn) -> list[Step]:
        if drop.code == Code.REDUNDANT and self._peers.has_other(self.conn, drop.sender):
            return self._end(Redundant(drop.sender))
        told = drop.code == Code.PEER_UNAVAILABLE
        return self._end(Failed(drop.code, f"the peer refused the connection: {drop.reason}", told=told))

    def _check_sender(self, sender: bytes) -> list[Step]:
        if sender == self._own:
            return self._refuse(Code.PEER_INVALID, "an endpoint cannot peer with itself")
        if sender == NOBODY or (self.peer_id is not None and sender != self.peer_id):
            return self._refuse(Code.PEER_INVALID, "the id of an endpoint is nil or changed during the handshake")
        self.peer_id = sender
        return self._check_key()

    def _check_key(self) -> list[Step]:
        assert self.peer_id is not None
        refusal = self._refusal(self.peer_id)
        if refusal is None:
            return []
        return [_send(DropConn(self._own, *refusal)), *self._end(Failed(*refusal, refused=True))]

    # -- filters ----------------------------------------------------------------------------------

    def _originate(self) -> list[Step]:
        assert self.peer_id is not None
        self.role = HandshakeRole.ORIGINATOR
        match self._peers.claim(self.conn, self.peer_id, HandshakeRole.ORIGINATOR):
            case PeerClaim.PROCEED:
                self.state = HandshakeState.AWAIT_RESPONDER_SYN_ACK
                return [_send(VersionSelect(self._own, self._version)), _send(OriginatorSyn(self._filter_to_send()))]
            case PeerClaim.PAUSE:
                self.state = HandshakeState.PAUSED
                return []
            case PeerClaim.REDUNDANT:
                drop = DropConn(self._own, Code.REDUNDANT, "redundant connection")
                return [_send(drop), *self._end(Redundant(self.peer_id))]

    def _handle_filter(self, syn: OriginatorSyn | ResponderSynAck) -> list[Step]:
        self._peer_filter = announced(syn.filter)
        if isinstance(syn, ResponderSynAck):
            return self._check_key() or [_send(OriginatorAck()), *self._establish()]
        self.state = HandshakeState.AWAIT_ORIGINATOR_ACK
        return [_send(ResponderSynAck(self._filter_to_send()))]

    def _filter_to_send(self) -> Filter:
        self.filter_sent = _fitting(self._filter)
        return self.filter_sent

    # -- ends -------------------------------------------------------------------------------------

    def _handle_ack(self, _ack: OriginatorAck) -> list[Step]:
        return self._check_key() or self._establish()

    def _establish(self) -> list[Step]:
        assert self.peer_id is not None
        assert self.role is not None
        self.state = HandshakeState.ESTABLISHED
        paused = self._peers.settle(self.conn, self.peer_id)
        established = Established(self.peer_id, self._peer_filter, self.role, self._version)
        return [established, Wake(paused)] if paused else [established]

    def _refuse(self, code: Code, reason: str, here: str | None = None) -> list[Step]:
        """Tell the peer ``reason``, in the original's words where it has some; ``here`` says more."""
        return [_send(DropConn(self._own, code, reason)), *self._end(Failed(code, here or reason))]

    def _end(self, outcome: Failed | Redundant) -> list[Step]:
        self.state = HandshakeState.ENDED
        paused = self._peers.release(self.conn, self.peer_id) if self.peer_id is not None else ()
        return [outcome, Wake(paused)] if paused else [outcome]


def _send(greeting: Greeting) -> SendFrame:
    return SendFrame(pack_greeting(greeting))


def _fitting(wanted: Filter) -> Filter:
    """Return as many prefixes from the front as fit in a frame of the handshake."""
    room = _FILTER_BYTES_MAX
    for at, topic in enumerate(wanted):
        room -= len(topic) + len(pack_varbyte(len(topic)))
        if room < 0:
            return wanted[:at]
    return wanted


# What each state waits for. Probes (ignored before a version is selected) and drop_conn are looked at before.
_TRANSITIONS: Final[dict[tuple[HandshakeState, type], Callable[[PeerHandshake, Any], list[Step]]]] = {
    (HandshakeState.AWAIT_HELLO, Hello): PeerHandshake._handle_hello,
    (HandshakeState.AWAIT_HELLO_OR_VERSION_SELECT, Hello): PeerHandshake._handle_hello,
    (HandshakeState.AWAIT_HELLO_OR_VERSION_SELECT, VersionSelect): PeerHandshake._handle_version_select,
    (HandshakeState.AWAIT_VERSION_SELECT, VersionSelect): PeerHandshake._handle_version_select,
    (HandshakeState.AWAIT_ORIGINATOR_SYN, OriginatorSyn): PeerHandshake._handle_filter,
    (HandshakeState.AWAIT_RESPONDER_SYN_ACK, ResponderSynAck): PeerHandshake._handle_filter,
    (HandshakeState.AWAIT_ORIGINATOR_ACK, OriginatorAck): PeerHandshake._handle_ack,
}
